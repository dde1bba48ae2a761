"""Layouts of one completion, each a number, so that a step is looked up by a tuple of integers.

From a row's index expressions to the loops that carry the digits of a tensor dimension.
"""

from __future__ import annotations

import itertools
import math
from functools import cache, cached_property

from shardalg.algebra.affine import Index
from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.digits import Digit, Digits, overlap, parts, starts_with
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Signature
from shardalg.graph.ops.rule import Rule
from shardalg.merge.compatible import merge

Dims = tuple[Digits, ...]


class Layouts:
    """Numbers for (shape, dims, fixed, open dimensions), and how one replaces another.

    `fixed` layouts were annotated: only their open dimensions change, and only where merging is on.
    `annotated` remembers the number of an annotation in the first round, and whether it is fixed.
    """

    def __init__(self, mesh: Mesh, policy: str) -> None:
        self.mesh, self.policy = mesh, policy
        self._axes = frozenset(mesh.digit(name) for name in mesh.axis_names)
        self.dims: list[Dims] = []
        self.tiles: list[int] = []
        self.fixed: list[bool] = []
        self.open: list[tuple[int, ...]] = []
        self.held: list[Digits] = []
        self.shapes: list[tuple[int, ...]] = []
        self.annotated: dict[tuple[Sharding, bool], int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._shardings: list[Sharding] = []
        self.improve = cache(self._improve)
        self.even = cache(self._even)
        self.merged = cache(self._merged)

    def number(
        self,
        shape: tuple[int, ...],
        dims: Dims,
        *,
        fixed: bool = False,
        open_dims: tuple[int, ...] = (),
        held: Digits = (),
    ) -> int:
        """The number of a layout; `held` are digits that it must not take yet."""
        key = (shape, dims, fixed, open_dims, held)
        if key not in self._numbers:
            self._numbers[key] = len(self.dims)
            self.dims.append(dims)
            self.tiles.append(math.prod(parts(digits) for digits in dims))
            self.fixed.append(fixed)
            self.open.append(open_dims)
            self.held.append(held)
            self.shapes.append(shape)
        return self._numbers[key]

    def whole(self, shape: tuple[int, ...], *, fixed: bool = False) -> int:
        """The number of the replicated layout."""
        return self.number(shape, ((),) * len(shape), fixed=fixed)

    def extended(self, number: int, dims: Dims) -> int:
        """The same tensor on other digits, as fixed and as open as it is."""
        fixed, open_dims, held = self.fixed[number], self.open[number], self.held[number]
        return self.number(self.shapes[number], dims, fixed=fixed, open_dims=open_dims, held=held)

    def fused(self, digits: Digits) -> Digits:
        """Neighbouring parts of one axis as one digit, so that a layout is written in one way."""
        if all(digit in self._axes for digit in digits):
            return digits
        out: list[Digit] = []
        for digit in digits:
            if out and out[-1].stride == digit.stride * digit.size:
                both = Digit(digit.stride, out[-1].size * digit.size)
                if any(_inside(both, axis) for axis in self._axes):
                    out.pop()
                    digit = both
            out.append(digit)
        return tuple(out)

    def sharding(self, number: int) -> Sharding:
        """The layout as a value; one object per number."""
        known = self._shardings
        while len(known) <= number:
            new = len(known)
            shape, dims, free = self.shapes[new], self.dims[new], self.open[new]
            known.append(
                Sharding(self.mesh, shape, dims, free)
                if free
                else interned(self.mesh, shape, dims, ())
            )
        return known[number]

    def shardings(self) -> list[Sharding]:
        """All layouts, by number."""
        if self.dims:
            self.sharding(len(self.dims) - 1)
        return self._shardings

    def _merged(self, shape: tuple[int, ...], first: Dims, second: Dims) -> Dims | None:
        """The common refinement of two layouts of one tensor; None where there is none."""
        both = (interned(self.mesh, shape, dims, ()) for dims in (first, second))
        verdict = merge(*both, policy=self.policy)
        return verdict.sharding.dims if verdict.sharding is not None else None

    def _even(self, number: int) -> int:
        """The layout as the border of a program may have it, where all sizes divide.

        GSPMD replicates what does not; Shardy keeps the longest prefix of whole axes that does: no
        part of an axis crosses the border (`remove_sub_axes_in_input_output_shardings.cc`).
        """
        dims, shape = self.dims[number], self.shapes[number]
        whole = dims if self.policy == "gspmd" else tuple(map(self._whole_axes, dims))
        cut = tuple(_prefix(size, digits) for size, digits in zip(shape, whole, strict=True))
        if cut == dims:
            return number
        return self.number(shape, ((),) * len(dims) if self.policy == "gspmd" else cut)

    def _whole_axes(self, digits: Digits) -> Digits:
        """The digits before the first that is only a part of an axis, and that nobody named."""
        return tuple(itertools.takewhile(self._named.__contains__, digits))

    @cached_property
    def _named(self) -> frozenset[Digit]:
        """The mesh's axes, and those of other meshes that annotations are on."""
        given = [digit for s, _ in self.annotated for digits in s.dims for digit in digits]
        return self._axes.union(given)

    def _improve(self, number: int, dims: Dims, merging: bool, replace: bool) -> int:
        """The layout that a value on `number` takes when `dims` is offered to it.

        Nothing is offered over a closed annotation. With `merging` a common refinement is taken;
        else more tiles win where they refine every dimension, or, with `replace`, at all.
        """
        if self.fixed[number]:
            return self._fill(number, dims) if merging else number
        old, shape = self.dims[number], self.shapes[number]
        dims = tuple(map(self.fused, dims))
        offered = math.prod(parts(digits) for digits in dims)
        if self.tiles[number] == 1:
            return self.number(shape, dims) if offered > 1 else number
        finer = extends(dims, old)
        if merging and not finer and not extends(old, dims):
            both = self.merged(shape, old, dims)
            if both is not None:
                new = self.number(shape, both)
                if self.tiles[new] > max(self.tiles[number], offered):
                    return new
        # Sizes are compared last, so that no plan rests on an answer that decides nothing.
        if (replace or finer) and offered > self.tiles[number]:
            return self.number(shape, dims)
        return number

    def _fill(self, number: int, dims: Dims) -> int:
        """An annotated layout whose open dimensions take what merges with the closed ones."""
        open_dims, shape = self.open[number], self.shapes[number]
        if not open_dims:
            return number
        held = self.held[number]
        offered = tuple(
            d if i in open_dims and not any(overlap(a, b) for a in d for b in held) else ()
            for i, d in enumerate(dims)
        )
        own, offered = self.dims[number], tuple(map(self.fused, offered))
        finer = tuple(d if i in open_dims else own[i] for i, d in enumerate(offered))
        if _is_once(finer) and extends(finer, own):
            both: Dims | None = finer  # an open dimension may have digits: others go behind them
        else:
            both = self.merged(shape, own, offered)
        if both is None:
            return number
        new = self.extended(number, both)
        return new if self.tiles[new] > self.tiles[number] else number


def _is_once(dims: Dims) -> bool:
    """Whether no two digits of a layout lie over each other."""
    pairs = itertools.combinations([d for digits in dims for d in digits], 2)
    return not any(overlap(*pair) for pair in pairs)


def _prefix(size: int, digits: Digits) -> Digits:
    count = 0
    while count < len(digits) and size % parts(digits[: count + 1]) == 0:
        count += 1
    return digits[:count]


def _inside(digit: Digit, axis: Digit) -> bool:
    top = digit.stride * digit.size
    return digit.stride >= axis.stride and top <= axis.stride * axis.size


def extends(fine: Dims, coarse: Dims) -> bool:
    """Whether every dimension's digits start with the coarse ones, or a part of an axis with it.

    >>> from shardalg.algebra.digits import Digit
    >>> x, y = Digit(2, 2), Digit(1, 2)
    >>> extends(((x, y), ()), ((x,), ())), extends(((y, x), ()), ((x,), ()))
    (True, False)
    """
    return all(map(starts_with, fine, coarse))


Loops = tuple[tuple[str, int], ...]
"""Loops of a dimension, major first, each with the extent that its digits must divide (0: any)."""
Map = tuple[Loops, ...]


def row_maps(
    signature: Signature, rules: tuple[Rule, ...], blocks: frozenset[str] = frozenset()
) -> tuple[Map, ...]:
    """Per tensor (operands first) and dimension, its loops. Several rows make one result each.

    Args:
      blocks: loops that are taken whole and carry digits all the same.
    """
    operands: list[Map] = [((),) * len(t.shape) for t in signature.operands]
    for rule in reversed(rules):
        for position, dims in rule.operands.items():
            if len(dims) == len(operands[position]):
                operands[position] = tuple(dim_loops(rule, index, blocks) for index in dims)
            else:
                # A run-time number is one element of its operand: the index names all but the last
                # dimension.
                rest = len(operands[position]) - len(dims)
                operands[position] = (
                    tuple(dim_loops(rule, index, blocks) for index in dims) + ((),) * rest
                )
    results = [
        tuple(dim_loops(rule, index, blocks) for index in dims)
        for rule in rules
        for dims in rule.results
    ]
    return (*operands, *results)


def dim_loops(rule: Rule, index: Index, blocks: frozenset[str] = frozenset()) -> Loops:
    """The loops whose digits partition a dimension with this index.

    A plain or shifted loop takes any digits. `n*i + j` over full extents is (i, j), each within its
    extent. In a window map `s*o + r` the loop of larger extent places the blocks; the other one
    only widens the read.

    >>> i, j = Index.of("i"), Index.of("j")
    >>> rule = Rule("reshape", (("i", 4), ("j", 8)), (), ((i, j),))
    >>> dim_loops(rule, i * 8 + j), dim_loops(rule, i + 3)
    ((('i', 4), ('j', 8)), (('i', 0),))
    """
    terms = [
        (name, coefficient) for name, coefficient in index.terms if rule.extents.get(name, 0) != 1
    ]
    if (
        index.mod
        or not terms
        or any(name in rule.whole - blocks or name not in rule.extents for name, _ in terms)
    ):
        return ()
    if index.div > 1 and not index.exact:
        size = -(-rule.extents[terms[0][0]] // index.div)
        return ((terms[0][0], size),) if len(terms) == 1 and not index.constant else ()
    nest = _nest(rule, index, terms)
    if nest:
        return nest
    free = [name for name, _ in terms if name not in rule.local]
    owner = max(
        free, key=lambda name: (rule.extents[name], name in rule.result_loops), default=None
    )
    return () if owner is None else ((owner, 0),)


def _nest(rule: Rule, index: Index, terms: list[tuple[str, int]]) -> Loops:
    """The loops of an index that counts through them like digits; () of others and of windows."""
    slides = any(name in rule.local or name not in rule.result_loops for name, _ in terms)
    if len(terms) == 1 or index.div > 1 or index.constant or slides:
        return ()
    by_stride = sorted(terms, key=lambda term: -term[1])
    stride = 1
    for name, coefficient in reversed(by_stride):
        if coefficient != stride:
            return ()
        stride *= rule.extents[name]
    return tuple((name, rule.extents[name]) for name, _ in by_stride)
