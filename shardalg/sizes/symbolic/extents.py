"""Relations between the sizes of an operator's dimensions: equal sizes, products, sums and shifts.

They follow from the operator's rows: the index of each dimension in the operator's loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import Rule

TensorDim = tuple[int, int]
"""Pair (number of a tensor, number of its dimension); operands are numbered first, then results.

A loop that no dimension runs over alone needs an entry too: (-1, k) is the k-th of these loops.
"""
PRODUCT, SUM = "product", "sum"


@dataclass(frozen=True)
class Equation:
    """Statement that the sizes of two groups of dimensions have equal products, or equal sums.

    Attributes:
      kind: `PRODUCT` or `SUM`.
      left, right: the two groups.
    """

    kind: str
    left: tuple[TensorDim, ...]
    right: tuple[TensorDim, ...]


@dataclass(frozen=True)
class Shift:
    """Relation between two dimensions that a slice, padding or a window connects.

    The sizes satisfy `target = floor((base * source + c) / stride)`. The operator's row does not
    state how much is cut off or padded at the end, so c is unknown.

    Attributes:
      source, target: the dimension that is read, and the dimension that iterates over it.
      stride, base: distance of reads, and distance of elements in a dilated source.
      slack: the likely values of c, likeliest first.
      repeats: whether the target iterates over the source several times, as in `tile`.
      free: whether the row does not relate the two sizes, because a window has a run-time place or
        the target counts taps. Only a second trace can give a formula then.
      start: the first element of the source that the target reads, if it reads every element from
        there on; else None.
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
      equal: pairs of dimensions of equal size, because they run over the same loop.
      equations: equal products or sums of sizes.
      shifts: dimensions that a slice, padding or a window connects.
      inner: extents of loops without a dimension of their own. In the other fields, (-1, k) means
        the loop `inner[k]`; any other pair means (tensor, dimension).
    """

    equal: tuple[tuple[TensorDim, TensorDim], ...]
    equations: tuple[Equation, ...]
    shifts: tuple[Shift, ...]
    inner: tuple[int, ...]


@lru_cache(maxsize=65536)
def extents(signature: Signature) -> Extents:
    """Return the relations between the sizes of an operator's dimensions; none without a row.

    >>> from shardalg.graph.ir import ValueType
    >>> x, y = ValueType((6, 5), "float32"), ValueType((2, 3, 5), "float32")
    >>> found = extents(Signature("reshape", (("dimensions", None),), (x,), (y,)))
    >>> found.equal, found.equations
    ((((0, 1), (1, 2)),), (Equation(kind='product', left=((0, 0),), right=((1, 0), (1, 1))),))
    """
    return _IndexSorter(signature).extents()


class _IndexSorter:
    """Collection of the relations of one operator, from the index of each of its dimensions.

    Attributes:
      loop_at: the first dimension that runs over each loop alone.
      equal: pairs of dimensions that run over the same loop.
      nested: dimensions that run over several loops, such as `4*i + j`, with these loops.
      folded: per loop and tensor, the dimensions with a quotient or remainder of it, such as `i//4`
        and `i%4`.
      shifted: dimensions with any other index, such as `2*o + r - 1`.
      inner: extents of loops that no dimension runs over alone.
    """

    def __init__(self, signature: Signature) -> None:
        """Sort the dimensions of all operands and results by the form of their index."""
        self.count = len(signature.operands)
        self.padding = signature.param("padding", ())
        # A table per form of index: one loop (`loop_at`, `equal`), several nested loops (`nested`),
        # quotients and remainders (`folded`), a stride or an offset (`shifted`). `inner` has the
        # extents of loops that no dimension has alone.
        self.loop_at: dict[str, TensorDim] = {}
        self.equal: list[tuple[TensorDim, TensorDim]] = []
        self.nested: list[tuple[TensorDim, tuple[tuple[str, int], ...]]] = []
        self.folded: dict[str, dict[int, list[TensorDim]]] = {}
        self.shifted: list[tuple[TensorDim, Index, Rule]] = []
        self.inner: list[int] = []
        self.rules = rules(signature) or ()
        for number, rule in enumerate(self.rules):
            for tensor in rule.tensors:
                # A row numbers its results -1, -2, .... Of several rows, row k has only result k.
                position = tensor if tensor >= 0 else self.count + number + ~tensor
                for dim in range(len(rule.indices(tensor))):
                    self._index(rule, tensor, dim, (position, dim))

    def _index(self, rule: Rule, tensor: int, dim: int, place: TensorDim) -> None:
        """Store the relation between sizes that follows from the index of one dimension.

        Args:
          tensor, dim: the dimension; the row numbers operands from 0 and results from -1 downwards.
          place: the same dimension as (tensor, dimension), with results numbered after operands.
        """
        index = rule.indices(tensor)[dim]
        loops = dim_loops(rule, tensor, dim)
        # A reversed index runs over the whole loop too, so the sizes are equal.
        if len(loops) == 1 or _is_reversed(rule, index, (tensor, dim)):
            first = self.loop_at.setdefault(index.variables[0], place)
            if first != place:
                self.equal.append((first, place))
        # Several loops in one dimension: its size is the product of their extents.
        elif loops:
            self.nested.append((place, loops))
        # A quotient or a remainder of one loop, such as i//4 and i%4 of a reshape: the product of
        # such sizes is equal for the operand and the result (`_products`).
        elif len(index.terms) == 1 and not index.exact and (index.mod or index.div > 1):
            self.folded.setdefault(index.variables[0], {}).setdefault(place[0], []).append(place)
        elif index.terms:
            self.shifted.append((place, index, rule))

    def extents(self) -> Extents:
        """Return all relations between the sizes of the operator's dimensions."""
        # A repeated dimension is no product of independent loops, and tiles of a concatenation are
        # no shifts: the more specific relation replaces the general one.
        repeats = list(self._repeat_shifts())
        repeated = {shift.target for shift in repeats}
        self.nested = [found for found in self.nested if found[0] not in repeated]
        products = list(self._products())
        shifts = list(self._affine_shifts())
        sums = list(_tilings(shifts, self._sizes()))
        sum_targets = {e.left[0] for e in sums}
        all_shifts = [shift for shift in shifts if shift.target not in sum_targets]
        all_shifts += [*repeats, *self._free_shifts()]
        equations = (*products, *sums)
        return Extents(tuple(self.equal), equations, tuple(all_shifts), tuple(self.inner))

    def _products(self) -> Iterator[Equation]:
        """Yield the equations between products of sizes.

        For example, a dimension that nests two loops has as many elements as both extents
        multiplied.
        """
        for place, loops in self.nested:
            yield Equation(PRODUCT, (place,), tuple(self._loop(*loop) for loop in loops))
        # Dimensions that do not nest, `[i//4, i%4] -> [i//6, i%6]`, share one flat loop. Its extent
        # is the product of the sizes on either side.
        for sides in self.folded.values():
            if len(sides) == 2:
                left, right = sides.values()
                yield Equation(PRODUCT, tuple(left), tuple(right))

    def _loop(self, name: str, extent: int) -> TensorDim:
        """Return the dimension that runs over a loop alone, as (tensor, dimension).

        If there is none, return (-1, k), where `inner[k]` is the extent of the loop.
        """
        if name not in self.loop_at:
            self.loop_at[name] = (-1, len(self.inner))
            self.inner.append(extent)
        return self.loop_at[name]

    def _repeat_shifts(self) -> Iterator[Shift]:
        """Yield a shift for each dimension that repeats another one, as in `tile`.

        Such a dimension (in `nested`) runs over two loops, one of which occurs in no other index.
        The other loop is that of a dimension of its own (`loop_at`), which is the one repeated.
        """
        # A loop that occurs in no other index only counts repetitions: no other size contains its
        # extent.
        nested_names = [name for _, loops in self.nested for name, _ in loops]
        for place, loops in self.nested:
            sources = [self.loop_at[name] for name, _ in loops if name in self.loop_at]
            times = [name for name, _ in loops if name not in self.loop_at]
            if len(sources) == 1 and len(times) == 1 and nested_names.count(times[0]) == 1:
                yield Shift(sources[0], place, repeats=True)

    def _affine_shifts(self) -> Iterator[Shift]:
        """Yield a shift for each operand dimension that is read at `stride * loop + constant`."""
        for place, index, rule in self.shifted:
            names = [v for v in index.variables if v in rule.result_loops]
            # Only an operand (tensors before `count`) that one loop of the result walks over gives
            # a shift. The loop must have a dimension of its own, whose size is then the shift's
            # target.
            if place[0] < self.count and len(names) == 1 and names[0] in self.loop_at:
                stride = abs(dict(index.terms)[names[0]])
                base = index.div if index.exact else 1
                # Windows of `span` elements fit `floor((n + low + high - span) / stride) + 1` times
                # into n elements, so the constant in the size is `low + high - span + stride`. The
                # row has only `low`, so the usual values of `high` are tried, in this order: 0,
                # `low`, and the one for which the size is `ceil(n / stride)`.
                span, low = _span(index, rule), -index.constant
                usual = (low - span + stride, 2 * low - span + stride, stride - 1)
                stated = self._stated_constant(names[0], index, rule)
                # "SAME" padding depends on n, so a usual case comes first for a plain image. For a
                # dilated image (a transposed convolution) the stated padding comes first.
                slack = (*stated, *usual) if base > 1 else (*usual, *stated)
                # An index `loop + constant` alone reads every element from the constant on.
                plain = stride == base == len(index.terms) == 1
                start = index.constant if plain else None
                yield Shift(place, self.loop_at[names[0]], stride, base, slack, start=start)

    def _stated_constant(self, loop: str, index: Index, rule: Rule) -> tuple[int, ...]:
        """Return the constant c that the operator's parameter `padding` gives, or () without one.

        With `padding = (low, high)` and n image elements at a distance of `base` from each other,
            floor((base*(n - 1) + 1 + low + high - span) / stride) + 1
            = floor((base*n + c) / stride)
        windows fit. The constant is exact at the hints and only likely at other sizes, because
        "SAME" padding changes with n.

        Args:
          loop: the loop over window positions, "o0" for the first spatial dimension.
          index: the index of the image's dimension, such as `2*o0 + r0 - 1`.
        """
        number = loop[1:]
        if loop[0] != "o" or not number.isdigit() or int(number) >= len(self.padding or ()):
            return ()
        low, high = self.padding[int(number)]
        base = index.div if index.exact else 1
        stride = abs(dict(index.terms)[loop])
        return (1 - base + low + high - _span(index, rule) + stride,)

    def _free_shifts(self) -> Iterator[Shift]:
        """Yield the shifts for pairs of sizes whose relation the row does not tell.

        Only a second trace can give a formula for such a pair (`free`). There are three kinds: a
        dimension and a window of it at a run-time place, an image and the taps of its kernel, and
        the two lengths of a real Fourier transform.
        """
        # A guard `k == o + $t`: a window with loop o at the run-time place $t in dimension k.
        for rule in self.rules:
            for guard in rule.guards:
                whole, part = guard.loop.loop, [v for v in guard.index.variables if v[0] != "$"]
                if whole in self.loop_at and len(part) == 1 and part[0] in self.loop_at:
                    yield Shift(self.loop_at[whole], self.loop_at[part[0]], free=True)
        # A reduced loop in the index of a window counts kernel taps. In the gradient of a kernel it
        # runs over the result's cotangent, whose size follows from the image's.
        for place, index, rule in self.shifted:
            for name, stride in index.terms:
                if name in self.loop_at and name not in rule.result_loops:
                    yield Shift(place, self.loop_at[name], abs(stride), free=True)
        # A block that is read and another that is written: a real Fourier transform returns
        # n//2 + 1 of n elements, and its inverse 2n - 2. Both relations are yielded, as (stride,
        # base): the second trace tells which one is true.
        for rule in self.rules:
            for read in sorted(rule.whole & rule.operand_loops - rule.result_loops):
                for made in sorted(rule.whole & rule.result_loops - rule.operand_loops):
                    if read in self.loop_at and made in self.loop_at:
                        ends = self.loop_at[read], self.loop_at[made]
                        yield from (Shift(*ends, *by, free=True) for by in ((2, 1), (1, 2)))

    def _sizes(self) -> dict[TensorDim, int]:
        """Return the size of each dimension of the operator's tensors at the hints.

        A dimension is (number of the tensor, number of the dimension). Results are counted behind
        the operands.
        """
        size_of = {}
        for number, rule in enumerate(self.rules):
            for tensor in rule.tensors:
                # A row numbers its results -1, -2, .... Of several rows, row k has only result k.
                position = tensor if tensor >= 0 else self.count + number + ~tensor
                for dim, size in enumerate(rule.shape(tensor) or ()):
                    size_of[position, dim] = size
        return size_of


def _span(index: Index, rule: Rule) -> int:
    """Return the number of elements from the first to the last that one window position reads."""
    # Loops that are not in the result are the taps of a window.
    taps = ((abs(c), rule.extents.get(v, 1)) for v, c in index.terms if v not in rule.result_loops)
    return 1 + sum(c * (n - 1) for c, n in taps)


def _is_reversed(rule: Rule, index: Index, tensor_dim: TensorDim) -> bool:
    """Return whether an index is `n - 1 - d` and runs over a whole dimension of n elements.

    Args:
      tensor_dim: number of the tensor and of its dimension.
    """
    shape = rule.shape(tensor_dim[0])
    if len(index.terms) != 1 or index.mod or index.div > 1 or shape is None:
        return False
    name, coefficient = index.terms[0]
    size = shape[tensor_dim[1]]
    return coefficient == -1 and rule.extents.get(name) == size == index.constant + 1


def _tilings(shifts: list[Shift], sizes: dict[TensorDim, int]) -> Iterator[Equation]:
    """Yield an equation `size of a dimension = sum of sizes` for each concatenation among shifts.

    A shift says that a source dimension is copied to a target dimension from some start on. Several
    shifts into one target are a concatenation if the sources fill it without a gap.
    """
    groups: dict[TensorDim, list[tuple[int, TensorDim]]] = {}
    for shift in shifts:
        if shift.start is not None:
            groups.setdefault(shift.target, []).append((-shift.start, shift.source))
    for place, pieces in groups.items():
        starts, places = zip(*sorted(pieces), strict=True)
        # A single shift, or pieces with a gap, would give an equation that holds only by accident.
        ends = [start + sizes[p] for start, p in zip(starts, places, strict=True)]
        if len(pieces) > 1 and (*starts, sizes[place]) == (0, *ends):
            yield Equation(SUM, (place,), places)
