"""Contents of local values: the elements of a graph value that each device holds.

Each claim that is proved adds to what is known of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardalg.algebra.digits import Digit, Digits, canonical, overlap
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ops.rule import COMBINES, PICK, SUM, USER
from shardalg.merge.proofs.integers import All, Formula, Number, PartitionId, number, within
from shardalg.spmd.identity import identity_if_any
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import FirstMember, MaskIndexed
from shardalg.spmd.local import Start

_NUMBERS = frozenset(COMBINES) - {PICK, USER}
Fill = str | int | float | bool | None


def fill_number(fill: Fill, dtype: str) -> int | float | bool | None:
    """Return a fill as a number of the item type, or None if the number is unknown.

    A fill is a number, a way to combine (it means the identity of this combination), or a name such
    as "operand 1", whose number only the program's input determines.

    >>> fill_number("max", "float32"), fill_number(1.0, "float32"), fill_number("operand 1", "int8")
    (-inf, 1.0, None)
    """
    if fill in _NUMBERS:
        return identity_if_any(fill, dtype)
    return None if isinstance(fill, str) else fill


@dataclass(frozen=True)
class DimensionContents:
    """One dimension of a block: place `x` in `[0, length)` holds element `start + x` if it exists.

    Attributes:
      start: element at place 0, as a formula in the device's partition ids.
      size: number of elements of the global dimension; only `[0, size)` exist.
      fill: content of the other places: a number, the identity of a way to combine,
        `"operand k"` for the number that is operand k of the next operator, or None for anything.
      base: base dilation. Place `x` holds element `(start + x) / base` if that is a whole number,
        and `gap` otherwise.
      wanted: ranges (start, length). Only elements inside every range are held.
    """

    start: Number
    length: int
    size: int
    fill: Fill = None
    base: int = 1
    gap: Fill = None
    wanted: tuple[tuple[Number, int], ...] = ()

    def exists(self, element: Number) -> Formula:
        """Return the formula that an element is one that the dimension has and that devices hold.

        It must be in `[0, size)` and in each of the ranges of `wanted`.

        Args:
          element: the number of the element.
        """
        inside = within(element, 0, self.size)
        if not self.wanted:
            return inside
        return All((inside, *(within(element, start, start + n) for start, n in self.wanted)))

    def part(self, first: Number, length: int) -> DimensionContents:
        """Return the contents of the `length` places from place `first` on.

        An entry of `wanted` whose range contains all these places is dropped: it restricts nothing.
        """
        start = self.start + first
        # With base dilation, places and elements have different units and cannot be compared.
        if self.base > 1:
            return replace(self, start=start, length=length)

        def contains_part(outer: Number, size: int) -> bool:
            # It is known on all devices if both starts differ by a constant.
            distance = start - outer
            return not distance.terms and 0 <= distance.constant <= size - length

        wanted = tuple(
            (outer, size) for outer, size in self.wanted if not contains_part(outer, size)
        )
        return replace(self, start=start, length=length, wanted=wanted)


@dataclass(frozen=True)
class PendingSelection:
    """A mask that a gathered value still needs, because other partitions have some elements.

    Attributes:
      mask: the mask, which compares the gather's indices with the device's block.
      changes: changes that were made to these indices. The mask has to use the changed ones.
    """

    mask: MaskIndexed
    changes: tuple[Attributes | PendingSelection, ...]

    @property
    def digits(self) -> Digits:
        """The digits of the partition id with which the mask is computed."""
        return self.mask.digits


@dataclass(frozen=True)
class Contents:
    """The elements of a graph value that each device holds in a local value.

    Attributes:
      value: the graph value, or None if no graph value has this name.
      dims: the elements along each dimension.
      unreduced: digits along which the members' values still have to be combined, by `combine`.
        "pick" means that at most one member has anything except zero bits.
      changes: changes made to the numbers (shifted indices, first member only), in order.
      awaits: changes that are still required before the elements are the graph value's.
      number: the number that all elements equal, if known: for literals and results of literals.
      viewed: whether the dimensions are a reshaped view of the value's own, with the same elements
        in row-major order.
      order: device ids of the mesh whose positions the starts refer to.
    """

    value: int | None
    dims: tuple[DimensionContents, ...]
    unreduced: Digits = ()
    combine: str = "sum"
    changes: tuple[Attributes | PendingSelection, ...] = ()
    awaits: tuple[Attributes | PendingSelection, ...] = ()
    viewed: bool = False
    number: int | float | bool | None = None
    order: tuple[int, ...] | None = None

    @property
    def tasks(self) -> tuple[Attributes | PendingSelection, ...]:
        """Changes, made or still required, that make the elements differ from the graph value."""
        return (*self.awaits, *self.changes)


def border_contents(contents: Contents) -> Contents:
    """Return the contents in the form in which they are compared at a border.

    A border is the start or the end of the program, or of the body of a loop or a branch. Elements
    and pending sums must agree there. Fills and a known number need not, so they are removed. A
    value that only the first member of a group has is written as a partial sum.
    """
    contents = _first_member_as_partial_sum(contents)
    dims = tuple(replace(dim, fill=None) for dim in contents.dims)
    # "pick" is a sum in which all other members have 0. Without a pending combination, the way to
    # combine means nothing, so it gets the one value "sum" and does not disturb the comparison.
    added = contents.combine == PICK or not contents.unreduced
    return replace(contents, dims=dims, number=None, combine=SUM if added else contents.combine)


def _first_member_as_partial_sum(contents: Contents) -> Contents:
    """Return contents that the first member of a group alone has, written as a partial sum.

    The contents are those of a `FirstMember`: the first member has the value, the others have 0, so
    that the members add up to the value. Contents with any other change are returned unchanged.
    """
    (task,) = contents.tasks if len(contents.tasks) == 1 else (None,)
    if not isinstance(task, FirstMember) or contents.awaits or task.combine != SUM:
        return contents
    own = [a.digits for d in contents.dims for a in d.start.atoms() if isinstance(a, PartitionId)]
    # The members must hold the same elements. Otherwise the first member's block plus the zeros of
    # other blocks would not add up to this value.
    if any(_overlap_any(digits, task.digits) for digits in (*own, contents.unreduced)):
        return contents
    return replace(
        contents, unreduced=unordered_digits((*contents.unreduced, *task.digits)), changes=()
    )


@dataclass(frozen=True)
class DeclaredLocal:
    """The type and the sharding that the program declares for a local value.

    `named` tells whether the local is a value of the graph, and not only an intermediate result.
    """

    dtype: str
    shape: tuple[int, ...]
    sharding: Sharding
    named: bool


def without_value(contents: Contents, operands: tuple[int, ...]) -> Contents:
    """Return the contents of a local value in terms of operands of a node, not of graph values.

    Equal instructions on other values then have equal contents, and one proof serves all of them. A
    fill "value 7" becomes "operand 1" if operand 1 of the node is value 7.

    Args:
      operands: graph values that the instruction's node reads.
    """
    names = operand_names(operands) if _names_fill(contents) else {}
    return _replace_names(contents, None, names)


def with_value(contents: Contents, value: int | None, operands: tuple[int, ...]) -> Contents:
    """Return the contents as parts of the graph value `value`: the inverse of `without_value`.

    `without_value` replaces value numbers by operand numbers. For example, padding that equals
    "operand 1" becomes padding that equals "value 7" if `operands[1]` is 7.

    Args:
      contents: contents with operand numbers.
      value: the value that the contents are parts of, or None.
      operands: the value of each operand.
    """
    pairs = operand_names(operands).items() if _names_fill(contents) else ()
    return _replace_names(contents, value, {operand: filled for filled, operand in pairs})


def _names_fill(contents: Contents) -> bool:
    """Return whether a dimension has a fill or a gap that is a name (a string), and no number."""
    return any(type(d.fill) is str or type(d.gap) is str for d in contents.dims)


def operand_names(operands: tuple[int, ...]) -> dict[Fill, Fill]:
    """Return a dict from the fill name of a value to the name of the operand that it is.

    For operands (7, 9, 7) it is `{"value 7": "operand 0", "value 9": "operand 1"}`.
    """
    # Two operands may be one value. Both then have the name of the first, so that equal contents of
    # two layers compare equal.
    return {f"value {value}": f"operand {operands.index(value)}" for value in operands}


def _replace_names(contents: Contents, value: int | None, names: Mapping[Fill, Fill]) -> Contents:
    """Return the contents as parts of the graph value `value`, with some fills and gaps replaced.

    A fill is the number in the padding of a dimension, a gap the number between dilated elements.

    Args:
      names: from the old fill or gap to the new one.
    """
    # Few dimensions have a fill that names a value. To copy all of them took a tenth of the time of
    # a proof of 64 layers (100,000 copies), so dimensions are copied only if a name changes.
    dims = contents.dims
    if any(d.fill in names or d.gap in names for d in dims):
        dims = tuple(
            replace(d, fill=names.get(d.fill, d.fill), gap=names.get(d.gap, d.gap)) for d in dims
        )
    if dims is contents.dims and value == contents.value:
        return contents
    return replace(contents, value=value, dims=dims)


def unordered_digits(digits: Digits) -> Digits:
    """Return the canonical form of digits whose order does not matter.

    >>> unordered_digits((Digit(1, 4), Digit(4, 2)))
    (Digit(stride=1, size=8),)
    """
    return canonical(tuple(sorted(digits, reverse=True)))


def remove_digits(contents: Digits, gone: Digits) -> Digits | None:
    """Return the set of digits without the digits `gone`, or None if `gone` is not a subset.

    >>> remove_digits((Digit(1, 8),), (Digit(2, 2),))
    (Digit(stride=4, size=2), Digit(stride=1, size=2))
    >>> remove_digits((Digit(1, 4),), (Digit(1, 8),)) is None
    True
    """
    left_over = list(contents)
    for digit in gone:
        # A digit covers the strides from `low` to `top`. Another one contains it if it starts at a
        # divisor of `low` and ends at a multiple of `top`.
        low, top = digit.stride, digit.stride * digit.size
        containing = [d for d in left_over if low % d.stride == 0 and d.stride * d.size % top == 0]
        if not containing:
            return None
        (whole,) = containing
        # A digit is a factor of the device number: (stride 1, size 8) is the strides 1, 2 and 4.
        # Without the middle one, the factor below it and the factor above it remain.
        left_over.remove(whole)
        above = whole.stride * whole.size // top
        left_over += [Digit(whole.stride, low // whole.stride), Digit(top, above)]
    return unordered_digits(tuple(left_over))


def partition_number(digits: Digits) -> Number:
    """Return the partition id along the digits as a number, or 0 if there are no digits."""
    shortest = canonical(digits)
    return Number.of(PartitionId(shortest)) if shortest else Number()


def layout_contents(sharding: Sharding, shape: tuple[int, ...], value: int | None) -> Contents:
    """Return the elements that each device holds of a value with a sharding.

    Block `p` begins at element `p * ceil(size / num_shards)`.

    Args:
      shape: local shape. It may be longer than a block (padded) or shorter.
    """
    rows = zip(sharding.dims, sharding.shard_shape, sharding.shape, shape, strict=True)
    dims = tuple(
        DimensionContents(partition_number(digits) * block, length, size)
        for digits, block, size, length in rows
    )
    order = sharding.mesh.device_ids
    return Contents(value, dims, unordered_digits(sharding.unreduced), order=order)


def start_number(start: Start) -> Number:
    """Return an instruction's start as a formula in partition ids, as claims have it."""
    ids = {name: partition_number(digits) for name, digits in start.digits}
    return number(start.index, ids) + start.more


def on_member(start: Number, digits: Digits, member: str) -> Number:
    """Return the start of the block of another member of the group along `digits`.

    It is the formula `start` in the partition ids of that member, which has the name `member`.
    """

    # The members of a group differ in the partition ids of `digits` alone, so other ids are kept.
    def on_that_member(atom: object) -> Number | None:
        if isinstance(atom, PartitionId) and _overlap_any(atom.digits, digits):
            return Number.of(PartitionId(atom.digits, member))
        return None

    return start.replaced(on_that_member)


def _overlap_any(first: Digits, second: Digits) -> bool:
    """Return whether some digit of the first sequence overlaps one of the second."""
    return any(overlap(a, b) for a in first for b in second)
