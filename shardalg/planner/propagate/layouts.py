"""The shardings of one completion, each as a number, and the loops of tensor dimensions.

A step is then looked up by a tuple of integers. `row_maps` and `dim_loops` find the loops whose
digits partition a tensor dimension, from a row's index expressions.
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
    """Table of one completion's layouts: a number per (shape, dims, fixed, open dimensions).

    A `fixed` layout was annotated. Only its open dimensions change, and only when merging is on.
    `annotated` remembers the number of an annotation in the first round, and whether it is fixed.
    """

    def __init__(self, mesh: Mesh, policy: str) -> None:
        """Make an empty table; `policy` is the partitioner, "gspmd" or "shardy"."""
        self.mesh, self.policy = mesh, policy
        self._axes = frozenset(mesh.digit(name) for name in mesh.axis_names)
        # Lists indexed by layout number, because a sweep reads one attribute of many layouts.
        self.dims: list[Dims] = []
        self.tiles: list[int] = []
        self.fixed: list[bool] = []
        self.open: list[tuple[int, ...]] = []
        self.reserved: list[Digits] = []
        self.shapes: list[tuple[int, ...]] = []
        self.annotated: dict[tuple[Sharding, bool], int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._shardings: list[Sharding] = []
        # Pure functions of layout numbers; many steps call them with equal arguments.
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
        reserved: Digits = (),
    ) -> int:
        """Return the number of a layout; equal arguments give the same number.

        Args:
          dims: the digits of each dimension. fixed: whether the layout was annotated.
          open_dims: the dimensions of an annotation that completion may shard.
          reserved: digits of the annotation's dimensions with a later priority, which the open
            dimensions must not take.
        """
        key = (shape, dims, fixed, open_dims, reserved)
        # A new layout gets the next number, and one entry in each list.
        if key not in self._numbers:
            self._numbers[key] = len(self.dims)
            self.dims.append(dims)
            self.tiles.append(math.prod(parts(digits) for digits in dims))
            self.fixed.append(fixed)
            self.open.append(open_dims)
            self.reserved.append(reserved)
            self.shapes.append(shape)
        return self._numbers[key]

    def whole(self, shape: tuple[int, ...], *, fixed: bool = False) -> int:
        """Return the number of the replicated layout of a shape."""
        return self.number(shape, ((),) * len(shape), fixed=fixed)

    def extended(self, number: int, dims: Dims) -> int:
        """Return the number of a layout with other digits, and otherwise the same attributes."""
        fixed, open_dims, reserved = self.fixed[number], self.open[number], self.reserved[number]
        return self.number(
            self.shapes[number], dims, fixed=fixed, open_dims=open_dims, reserved=reserved
        )

    def fused(self, digits: Digits) -> Digits:
        """Return the digits in their normal form: neighbouring parts of one axis are one digit.

        A digit is (stride, size) in the device position. For example, with an axis of 8, the digits
        (4, 2), (2, 2) -> (2, 4).

        Args:
          digits: the digits of one dimension, major first.
        """
        # Most digits are whole axes, which cannot join.
        if all(digit in self._axes for digit in digits):
            return digits
        fused: list[Digit] = []
        for digit in digits:
            # The digit continues the one before it if that one's step is the whole of this digit.
            if fused and fused[-1].stride == digit.stride * digit.size:
                both = Digit(digit.stride, fused[-1].size * digit.size)
                # Two digits join only inside one axis, because a digit never spans two axes.
                if any(_inside(both, axis) for axis in self._axes):
                    fused.pop()
                    digit = both
            fused.append(digit)
        return tuple(fused)

    def sharding(self, number: int) -> Sharding:
        """Return a layout as a `Sharding`; one object per number."""
        # The sweeps need numbers only, so `Sharding` objects are made on demand: those of all
        # numbers up to this one, because a list has no gaps.
        shardings = self._shardings
        while len(shardings) <= number:
            new = len(shardings)
            shape, dims, open_dims = self.shapes[new], self.dims[new], self.open[new]
            shardings.append(
                Sharding(self.mesh, shape, dims, open_dims)
                if open_dims
                else interned(self.mesh, shape, dims, ())
            )
        return shardings[number]

    def shardings(self) -> list[Sharding]:
        """Return the shardings of all layouts, by number."""
        if self.dims:
            self.sharding(len(self.dims) - 1)
        return self._shardings

    def _merged(self, shape: tuple[int, ...], first: Dims, second: Dims) -> Dims | None:
        """Return the common refinement of two shardings of one tensor, or None if there is none."""
        both = (interned(self.mesh, shape, dims, ()) for dims in (first, second))
        verdict = merge(*both, policy=self.policy)
        return verdict.sharding.dims if verdict.sharding is not None else None

    def _even(self, number: int) -> int:
        """Return the number of the layout at the border of a program, where all sizes divide.

        GSPMD replicates an uneven tensor. Shardy keeps the longest prefix of whole axes that
        divides: no part of an axis crosses the border
        (`remove_sub_axes_in_input_output_shardings.cc`).
        """
        dims, shape = self.dims[number], self.shapes[number]
        whole = dims
        if self.policy != "gspmd":
            # Shardy gives arguments and results whole axes only, so that the dimension keeps the
            # axes before the first one that is split.
            is_axis = self._known_axes.__contains__
            whole = tuple([tuple(itertools.takewhile(is_axis, digits)) for digits in dims])
        cut: list[Digits] = []
        for size, digits in zip(shape, whole, strict=True):
            # The first prefix that does not divide ends the search: every longer prefix has a
            # multiple of its blocks, and divides neither.
            count = 0
            while count < len(digits) and size % parts(digits[: count + 1]) == 0:
                count += 1
            cut.append(digits[:count])
        if tuple(cut) == dims:
            return number
        return self.number(shape, ((),) * len(dims) if self.policy == "gspmd" else tuple(cut))

    @cached_property
    def _known_axes(self) -> frozenset[Digit]:
        """The axes of the mesh, and the axes of other meshes that annotations are on."""
        given = [digit for s, _ in self.annotated for digits in s.dims for digit in digits]
        return self._axes.union(given)

    def _improve(self, number: int, dims: Dims, merging: bool, replace: bool) -> int:
        """Return the number of a value's layout after another tensor has offered it a sharding.

        The number stays the same if the offer is not taken. A replicated value takes all shardings.
        An annotation takes no offer, except in its open dimensions, with `merging`.

        Args:
          number: the value's layout.
          dims: the digits that are offered, per dimension.
          merging: whether the common refinement of both shardings is taken if there is one. For
            example, `[X, -]` and `[-, Y]` give `[X, Y]`.
          replace: whether an offer with more tiles is taken although it does not refine the value's
            sharding. Otherwise it must refine every dimension.
        """
        # XLA fills open dimensions (`unspecified_dims`) by merging, so only from the merging level.
        if self.fixed[number]:
            return self._fill(number, dims) if merging else number
        old, shape = self.dims[number], self.shapes[number]
        dims = tuple(map(self.fused, dims))
        offered = math.prod(parts(digits) for digits in dims)
        # Any partitioned offer refines a replicated value, so no dimensions are compared.
        if self.tiles[number] == 1:
            return self.number(shape, dims) if offered > 1 else number
        finer = extends(dims, old)
        if merging and not finer and not extends(old, dims):
            both = self.merged(shape, old, dims)
            # Every change must add tiles (`Fixpoint._write`), or the sweeps would not end.
            if both is not None:
                new = self.number(shape, both)
                if self.tiles[new] > max(self.tiles[number], offered):
                    return new
        # The numbers of tiles are compared last. With named axis sizes, every comparison becomes a
        # condition of the plan, so only comparisons that decide are made.
        if (replace or finer) and offered > self.tiles[number]:
            return self.number(shape, dims)
        return number

    def _fill(self, number: int, dims: Dims) -> int:
        """Return an annotation after its open dimensions have taken the digits offered to them.

        Closed dimensions keep their digits. An offer that contains a digit reserved for a later
        priority is ignored. The annotation is returned unchanged if the offer conflicts with its
        digits.

        Args:
          number: the layout number of the annotation.
          dims: the digits that a neighbour offers for each dimension.
        """
        open_dims, shape = self.open[number], self.shapes[number]
        if not open_dims:
            return number
        # A digit of a later priority would no longer be free for its own dimension.
        reserved = self.reserved[number]
        offered = tuple(
            d if i in open_dims and not any(overlap(a, b) for a in d for b in reserved) else ()
            for i, d in enumerate(dims)
        )
        own_dims, offered = self.dims[number], tuple(map(self.fused, offered))
        filled = tuple(d if i in open_dims else own_dims[i] for i, d in enumerate(offered))
        # One digit cannot partition two dimensions: an offered digit may be in a closed dimension.
        pairs = itertools.combinations([d for digits in filled for d in digits], 2)
        if not any(overlap(*pair) for pair in pairs) and extends(filled, own_dims):
            # An open dimension may have digits already; further ones are appended.
            new_dims: Dims | None = filled
        else:
            new_dims = self.merged(shape, own_dims, offered)
        if new_dims is None:
            return number
        new = self.extended(number, new_dims)
        # An annotation only ever gets more tiles.
        return new if self.tiles[new] > self.tiles[number] else number


def _inside(digit: Digit, axis: Digit) -> bool:
    """Return whether a digit is a part of an axis."""
    top = digit.stride * digit.size
    return digit.stride >= axis.stride and top <= axis.stride * axis.size


def extends(fine: Dims, coarse: Dims) -> bool:
    """Return whether `fine` refines `coarse`: its digits start with those of `coarse`.

    This holds for each dimension. The last digit of `coarse` may be the major part of a digit.

    >>> from shardalg.algebra.digits import Digit
    >>> x, y = Digit(2, 2), Digit(1, 2)
    >>> extends(((x, y), ()), ((x,), ())), extends(((y, x), ()), ((x,), ()))
    (True, False)
    """
    return all(map(starts_with, fine, coarse))


Loops = tuple[tuple[str, int], ...]
"""The loops of a dimension, major first: (loop, extent that its digits must divide; 0: any)."""
Map = tuple[Loops, ...]
"""The loops of each dimension of one tensor."""


def row_maps(
    signature: Signature, rules: tuple[Rule, ...], blocks: frozenset[str] = frozenset()
) -> tuple[Map, ...]:
    """Return, for each dimension of each tensor, the loops that index it; operands come first.

    Each row (`Rule`) computes one result. For example, a product [i, k] x [k, j] -> [i, j] has the
    maps (i, k), (k, j), (i, j). A loop has its position in the dimension with it.

    Args:
      blocks: loops that are never split, but along which sharding is passed on all the same.
    """
    # Several rows may read one operand. The first row decides, so it is written last.
    # An operand that no row reads has no loops.
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
    """Return the loops whose digits partition a dimension, as pairs (loop, extent), major first.

    A dimension with the index `n*i + j` nests the loops i and j: both are returned with their
    extents, which the digits must divide. A plain or shifted loop may be sharded along any digits:
    its extent is given as 0. Of the two loops in a window's index `s*o + r`, only the one
    of larger extent partitions the dimension.

    Args:
      index: the index of the dimension in the row `rule`.
      blocks: loops that count although the operator needs them whole (`rule.whole`).

    >>> i, j = Index.of("i"), Index.of("j")
    >>> rule = Rule("reshape", (("i", 4), ("j", 8)), (), ((i, j),))
    >>> dim_loops(rule, i * 8 + j), dim_loops(rule, i + 3)
    ((('i', 4), ('j', 8)), (('i', 0),))
    """
    # A loop of one iteration carries no digits.
    terms = [
        (name, coefficient) for name, coefficient in index.terms if rule.extents.get(name, 0) != 1
    ]
    # No loop partitions the dimension if its elements repeat (mod), if it has one iteration, or if
    # the operator needs one of its loops whole.
    if (
        index.mod
        or not terms
        or any(name in rule.whole - blocks or name not in rule.extents for name, _ in terms)
    ):
        return ()
    # With a floor division, `div` iterations read one element. The dimension has ceil(extent / div)
    # elements, which the loop's digits have to divide.
    if index.div > 1 and not index.exact:
        size = -(-rule.extents[terms[0][0]] // index.div)
        return ((terms[0][0], size),) if len(terms) == 1 and not index.constant else ()
    nest = _nest(rule, index, terms)
    if nest:
        return nest
    # In a window, the smaller loop only widens the read of a block, so it partitions nothing.
    free = [name for name, _ in terms if name not in rule.local]
    owner = max(
        free, key=lambda name: (rule.extents[name], name in rule.result_loops), default=None
    )
    return () if owner is None else ((owner, 0),)


def _nest(rule: Rule, index: Index, terms: list[tuple[str, int]]) -> Loops:
    """Return the loops of an index `n*i + j`, major first, or () for any other index."""
    # A loop that is not in the result, such as the taps of a kernel, makes the index a window, and
    # windows overlap. A local loop runs whole on each device, so it takes no digits.
    slides = any(name in rule.local or name not in rule.result_loops for name, _ in terms)
    if len(terms) == 1 or index.div > 1 or index.constant or slides:
        return ()
    # n*i + j is a mixed-radix number if each coefficient is the product of all smaller extents.
    by_stride = sorted(terms, key=lambda term: -term[1])
    stride = 1
    for name, coefficient in reversed(by_stride):
        if coefficient != stride:
            return ()
        stride *= rule.extents[name]
    return tuple((name, rule.extents[name]) for name, _ in by_stride)
