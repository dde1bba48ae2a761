"""What a row says of sizes: equally long dimensions, products, sums and shifts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import Rule

TensorDim = tuple[int, int]
"""(position, dimension); operands count first, then results. (-1, k) is the k-th inner loop."""
PRODUCT, SUM = "product", "sum"


@dataclass(frozen=True)
class Equation:
    """The product, or the sum, of the sizes on both sides is one number."""

    kind: str
    left: tuple[TensorDim, ...]
    right: tuple[TensorDim, ...]


@dataclass(frozen=True)
class Shift:
    """`target` walks over `source` with an affine index: its size follows, but for a constant.

    `target = floor((base * source + c) / stride)`; the row does not say what is cut off or padded
    behind, so c is unknown: `slack` lists its likely values.
    `repeats`: the target walks over the source several times (tile).
    `free`: the row does not tie the two (the place of a window is a run-time number, the target
    counts taps): a reading needs evidence.
    `start`: where the target begins in the source, if it walks over it element by element.
    """

    source: TensorDim
    target: TensorDim
    stride: int = 1
    base: int = 1
    slack: tuple[int, ...] = ()
    repeats: bool = False
    free: bool = False
    start: int | None = None


@dataclass(frozen=True)
class Extents:
    """Relations between the sizes of one operator's dimensions.

    Attributes:
      equal: pairs of dimensions on one loop.
      inner: extents of loops that are no dimension of their own; (-1, k) names the k-th.
    """

    equal: tuple[tuple[TensorDim, TensorDim], ...]
    equations: tuple[Equation, ...]
    shifts: tuple[Shift, ...]
    inner: tuple[int, ...]


@lru_cache(maxsize=65536)
def extents(signature: Signature) -> Extents:
    """The relations that the rows of one primitive hold; none if it has no row.

    >>> from shardalg.graph.ir import ValueType
    >>> x, y = ValueType((6, 5), "float32"), ValueType((2, 3, 5), "float32")
    >>> found = extents(Signature("reshape", (("dimensions", None),), (x,), (y,)))
    >>> found.equal, found.equations
    ((((0, 1), (1, 2)),), (Equation(kind='product', left=((0, 0),), right=((1, 0), (1, 1))),))
    """
    return _IndexSorter(signature).extents()


class _IndexSorter:
    """Sorts every index of the rows: one loop, nested loops, folded, or shifted."""

    def __init__(self, signature: Signature) -> None:
        self.count = len(signature.operands)
        self.padding = signature.param("padding", ())
        self.loop_at: dict[str, TensorDim] = {}
        self.equal: list[tuple[TensorDim, TensorDim]] = []
        self.nested: list[tuple[TensorDim, tuple[tuple[str, int], ...]]] = []
        self.folded: dict[str, dict[int, list[TensorDim]]] = {}
        self.moved: list[tuple[TensorDim, Index, Rule]] = []
        self.inner: list[int] = []
        self.rules = rules(signature) or ()
        for number, rule in enumerate(self.rules):
            for tensor in rule.tensors:
                position = tensor if tensor >= 0 else self.count + number + ~tensor
                for dim in range(len(rule.indices(tensor))):
                    self._index(rule, tensor, dim, (position, dim))

    def _index(self, rule: Rule, tensor: int, dim: int, place: TensorDim) -> None:
        index = rule.indices(tensor)[dim]
        loops = dim_loops(rule, tensor, dim)
        if len(loops) == 1 or _is_reversed(rule, index, (tensor, dim)):
            first = self.loop_at.setdefault(index.variables[0], place)
            if first != place:
                self.equal.append((first, place))
        elif loops:
            self.nested.append((place, loops))
        elif len(index.terms) == 1 and not index.exact and (index.mod or index.div > 1):
            self.folded.setdefault(index.variables[0], {}).setdefault(place[0], []).append(place)
        elif index.terms:
            self.moved.append((place, index, rule))

    def extents(self) -> Extents:
        """What was found."""
        repeats = list(self._repeats())
        repeated = {shift.target for shift in repeats}
        self.nested = [found for found in self.nested if found[0] not in repeated]
        products = [*self._products(), *self._folds()]
        shifts = list(self._shifts())
        sums = list(_tilings(shifts, self._sizes()))
        summed = {e.left[0] for e in sums}
        kept = [shift for shift in shifts if shift.target not in summed]
        kept += [*repeats, *self._selected(), *self._taps(), *self._blocks()]
        equations = (*products, *sums)
        return Extents(tuple(self.equal), equations, tuple(kept), tuple(self.inner))

    def _products(self) -> Iterator[Equation]:
        for place, loops in self.nested:
            yield Equation(PRODUCT, (place,), tuple(self._loop(*loop) for loop in loops))

    def _loop(self, name: str, extent: int) -> TensorDim:
        if name not in self.loop_at:
            self.loop_at[name] = (-1, len(self.inner))
            self.inner.append(extent)
        return self.loop_at[name]

    def _folds(self) -> Iterator[Equation]:
        """`[i//4, i%4] -> [i//6, i%6]`: the same elements in dimensions that do not nest."""
        for sides in self.folded.values():
            if len(sides) == 2:
                left, right = sides.values()
                yield Equation(PRODUCT, tuple(left), tuple(right))

    def _repeats(self) -> Iterator[Shift]:
        """A dimension, as often as a loop says that is in no other index."""
        found = [name for _, loops in self.nested for name, _ in loops]
        for place, loops in self.nested:
            sources = [self.loop_at[name] for name, _ in loops if name in self.loop_at]
            times = [name for name, _ in loops if name not in self.loop_at]
            if len(sources) == 1 and len(times) == 1 and found.count(times[0]) == 1:
                yield Shift(sources[0], place, repeats=True)

    def _shifts(self) -> Iterator[Shift]:
        for place, index, rule in self.moved:
            names = [v for v in index.variables if v in rule.result_loops]
            if place[0] < self.count and len(names) == 1 and names[0] in self.loop_at:
                stride = abs(dict(index.terms)[names[0]])
                base = index.div if index.exact else 1
                # "SAME" pads by the size, so that of a plain image its constant is the first guess.
                # A dilated image says by its padding which constant it has.
                guesses = self._padded(names[0], index, rule), _slack(index, rule, stride)
                slack = tuple(chain(*guesses if base > 1 else reversed(guesses)))
                plain = stride == base == len(index.terms) == 1
                start = index.constant if plain else None
                yield Shift(place, self.loop_at[names[0]], stride, base, slack, start=start)

    def _padded(self, loop: str, index: Index, rule: Rule) -> Iterator[int]:
        """The constant of a shift, of an operator that says what is padded on both sides.

        `floor((base*(n - 1) + 1 + low + high - span) / stride) + 1` windows fit. It is the likely
        value only: padding that follows from the size, as "SAME" does, is another one elsewhere.
        """
        padding = self.padding
        if loop[0] == "o" and loop[1:].isdigit() and padding and int(loop[1:]) < len(padding):
            low, high = padding[int(loop[1:])]
            base = index.div if index.exact else 1
            stride = abs(dict(index.terms)[loop])
            yield 1 - base + low + high - _span(index, rule) + stride

    def _selected(self) -> Iterator[Shift]:
        """`k == o + $t`: a window at a run-time place in k."""
        for rule in self.rules:
            for guard in rule.guards:
                whole, part = guard.loop.loop, [v for v in guard.index.variables if v[0] != "$"]
                if whole in self.loop_at and len(part) == 1 and part[0] in self.loop_at:
                    yield Shift(self.loop_at[whole], self.loop_at[part[0]], free=True)

    def _taps(self) -> Iterator[Shift]:
        """A kernel's taps (in a kernel's gradient: the size of the result's cotangent)."""
        for place, index, rule in self.moved:
            for name, stride in index.terms:
                if name in self.loop_at and name not in rule.result_loops:
                    yield Shift(place, self.loop_at[name], abs(stride), free=True)

    def _blocks(self) -> Iterator[Shift]:
        """A block read and a block written: a real transform makes n//2 + 1 of n, or 2n - 2."""
        for rule in self.rules:
            for read in sorted(rule.whole & rule.operand_loops - rule.result_loops):
                for made in sorted(rule.whole & rule.result_loops - rule.operand_loops):
                    if read in self.loop_at and made in self.loop_at:
                        ends = self.loop_at[read], self.loop_at[made]
                        yield from (Shift(*ends, *by, free=True) for by in ((2, 1), (1, 2)))

    def _sizes(self) -> dict[TensorDim, int]:
        found = {}
        for number, rule in enumerate(self.rules):
            for tensor in rule.tensors:
                position = tensor if tensor >= 0 else self.count + number + ~tensor
                for dim, size in enumerate(rule.shape(tensor) or ()):
                    found[position, dim] = size
        return found


def _slack(index: Index, rule: Rule, stride: int) -> tuple[int, ...]:
    """Nothing padded behind, as much as in front, or a result of `ceil(size / stride)`.

    A window of `span` elements fits `floor((size + low + high - span) / stride) + 1` times.
    """
    span, low = _span(index, rule), -index.constant
    return low - span + stride, 2 * low - span + stride, stride - 1


def _span(index: Index, rule: Rule) -> int:
    """Elements from the first to the last one that a window reads."""
    taps = ((abs(c), rule.extents.get(v, 1)) for v, c in index.terms if v not in rule.result_loops)
    return 1 + sum(c * (n - 1) for c, n in taps)


def _is_reversed(rule: Rule, index: Index, at: TensorDim) -> bool:
    """`n-1-d` over all of a dimension."""
    shape = rule.shape(at[0])
    if len(index.terms) != 1 or index.mod or index.div > 1 or shape is None:
        return False
    name, coefficient = index.terms[0]
    size = shape[at[1]]
    return coefficient == -1 and rule.extents.get(name) == size == index.constant + 1


def _tilings(shifts: list[Shift], sizes: dict[TensorDim, int]) -> Iterator[Equation]:
    """Pieces that fill one dimension without a gap: concatenate, by their starts."""
    groups: dict[TensorDim, list[tuple[int, TensorDim]]] = {}
    for shift in shifts:
        if shift.start is not None:
            groups.setdefault(shift.target, []).append((-shift.start, shift.source))
    for place, pieces in groups.items():
        starts, places = zip(*sorted(pieces), strict=True)
        ends = [start + sizes[p] for start, p in zip(starts, places, strict=True)]
        if len(pieces) > 1 and (*starts, sizes[place]) == (0, *ends):
            yield Equation(SUM, (place,), places)
