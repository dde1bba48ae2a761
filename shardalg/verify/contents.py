"""What a local value holds of a graph value, as far as the claims so far have shown."""

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
    """The number that fills, if it is known by itself.

    >>> fill_number("max", "float32"), fill_number(1.0, "float32"), fill_number("operand 1", "int8")
    (-inf, 1.0, None)
    """
    if fill in _NUMBERS:
        return identity_if_any(fill, dtype)
    return None if isinstance(fill, str) else fill


@dataclass(frozen=True)
class DimensionContents:
    """One dimension: local place `x` in `[0, length)` holds element `start + x`, if that exists.

    Attributes:
      start: element at place 0, in partition ids.
      size: elements of the global dimension; only `[0, size)` exist.
      fill: what stands at the other places: a number, the identity of a way to combine,
        `"operand k"` for the number that is operand k of the next operator, or None for anything.
      base: place `x` holds element `(start + x) / base`, and `gap` where that does not come out.
      wanted: (start, length): only elements that are in each of these are held.
    """

    start: Number
    length: int
    size: int
    fill: Fill = None
    base: int = 1
    gap: Fill = None
    wanted: tuple[tuple[Number, int], ...] = ()

    def exists(self, element: Number) -> Formula:
        """The element is one of the dimension, and one of those that are held."""
        inside = within(element, 0, self.size)
        if not self.wanted:
            return inside
        return All((inside, *(within(element, start, start + n) for start, n in self.wanted)))

    def part(self, first: Number, length: int) -> DimensionContents:
        """`length` places from `first` on; what they all are in need not be said of them."""
        start = self.start + first
        inside = self.base == 1  # else places are not counted as elements are
        wanted = tuple(w for w in self.wanted if not (inside and _inside(start, length, *w)))
        return replace(self, start=start, length=length, wanted=wanted)


def _inside(start: Number, length: int, outer: Number, outer_length: int) -> bool:
    before = start - outer
    return not before.terms and 0 <= before.constant <= outer_length - length


@dataclass(frozen=True)
class PendingSelection:
    """What is left to be done to a gathered value: `mask` by the indices by which it was gathered.

    Attributes:
      changes: what was done to these indices.
    """

    mask: MaskIndexed
    changes: tuple[Attributes | PendingSelection, ...]

    @property
    def digits(self) -> Digits:
        """What the mask depends on."""
        return self.mask.digits


@dataclass(frozen=True)
class Contents:
    """What a local value holds on every device.

    Attributes:
      value: the graph value; None for what no graph value names.
      dims: per dimension, which elements.
      unreduced: digits along which the members' values are still to be combined, by `combine`;
        "pick" if one member at most has what is not made of zero bits.
      changes: what was done to the numbers (shifted indices, first member only), in order.
      awaits: what has still to be done before the elements are the graph value's.
      number: what all its elements are, if that is known: of literals, and of what is made of them.
      viewed: whether the dimensions are not the value's own, but others with the same elements in
        row-major order.
      order: device ids of the mesh in whose positions the elements are said.
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
        """Whatever keeps the elements from being the graph value's own."""
        return (*self.awaits, *self.changes)


def at_border(held: Contents) -> Contents:
    """What counts where a value is handed on: its elements, and that what is pending is a sum.

    What one member alone has is one; of what is not pending, nothing is joined.
    """
    held = _of_first_member(held)
    dims = tuple(replace(dim, fill=None) for dim in held.dims)
    added = held.combine == PICK or not held.unreduced
    return replace(held, dims=dims, number=None, combine=SUM if added else held.combine)


def _of_first_member(held: Contents) -> Contents:
    """What one member has, and the others zeros for, as partial sums."""
    (task,) = held.tasks if len(held.tasks) == 1 else (None,)
    if not isinstance(task, FirstMember) or held.awaits or task.combine != SUM:
        return held
    own = [a.digits for d in held.dims for a in d.start.atoms() if isinstance(a, PartitionId)]
    if any(_meets(digits, task.digits) for digits in (*own, held.unreduced)):
        return held
    return replace(held, unreduced=as_set((*held.unreduced, *task.digits)), changes=())


@dataclass(frozen=True)
class DeclaredLocal:
    """A local as the program declares it; `named` if it stands for a graph value."""

    dtype: str
    shape: tuple[int, ...]
    sharding: Sharding
    named: bool


def anonymous(held: Contents, operands: tuple[int, ...]) -> Contents:
    """The same without its value; places filled with a value name the operand that it is.

    What is claimed of an instruction does not depend on which values it runs on.

    Args:
      operands: graph values that the instruction's node reads.
    """
    names = operand_names(operands) if _names_fill(held) else {}
    return _renamed(held, None, names)


def of_value(held: Contents, value: int | None, operands: tuple[int, ...]) -> Contents:
    """What an instruction makes of `operands`: a value, its places filled with values again."""
    pairs = operand_names(operands).items() if _names_fill(held) else ()
    return _renamed(held, value, {operand: filled for filled, operand in pairs})


def _names_fill(held: Contents) -> bool:
    """Return whether places of some dimension are filled with what a name says."""
    return any(type(d.fill) is str or type(d.gap) is str for d in held.dims)


def operand_names(operands: tuple[int, ...]) -> dict[Fill, Fill]:
    """What fills places, by the name of a value, as the first operand of the node that it is."""
    return {f"value {value}": f"operand {operands.index(value)}" for value in operands}


def _renamed(held: Contents, value: int | None, names: Mapping[Fill, Fill]) -> Contents:
    # Most dimensions name no value: 64 layers copied them 100,000 times, a tenth of the proof.
    dims = held.dims
    if any(d.fill in names or d.gap in names for d in dims):
        dims = tuple(
            replace(d, fill=names.get(d.fill, d.fill), gap=names.get(d.gap, d.gap)) for d in dims
        )
    if dims is held.dims and value == held.value:
        return held
    return replace(held, value=value, dims=dims)


def as_set(digits: Digits) -> Digits:
    """Digits whose order does not matter, in the one way to write them.

    >>> as_set((Digit(1, 4), Digit(4, 2)))
    (Digit(stride=1, size=8),)
    """
    return canonical(tuple(sorted(digits, reverse=True)))


def without(held: Digits, gone: Digits) -> Digits | None:
    """The set `held` without the digits `gone`; None where these are not all in it.

    >>> without((Digit(1, 8),), (Digit(2, 2),))
    (Digit(stride=4, size=2), Digit(stride=1, size=2))
    >>> without((Digit(1, 4),), (Digit(1, 8),)) is None
    True
    """
    rest = list(held)
    for digit in gone:
        low, top = digit.stride, digit.stride * digit.size
        around = [d for d in rest if low % d.stride == 0 and d.stride * d.size % top == 0]
        if not around:
            return None
        (whole,) = around
        rest.remove(whole)
        above = whole.stride * whole.size // top
        rest += [Digit(whole.stride, low // whole.stride), Digit(top, above)]
    return as_set(tuple(rest))


def partition_number(digits: Digits) -> Number:
    """The partition id along digits; 0 where there are none."""
    found = canonical(digits)
    return Number.of(PartitionId(found)) if found else Number()


def laid_out(sharding: Sharding, shape: tuple[int, ...], value: int | None) -> Contents:
    """What a layout says that a device holds: blocks of `ceil(size / parts)` from `p * block` on.

    Args:
      shape: local shape, which may be longer than a block (padded) or shorter.
    """
    rows = zip(sharding.dims, sharding.shard_shape, sharding.shape, shape, strict=True)
    dims = tuple(
        DimensionContents(partition_number(digits) * block, length, size)
        for digits, block, size, length in rows
    )
    order = sharding.mesh.device_ids
    return Contents(value, dims, as_set(sharding.unreduced), order=order)


def start_number(start: Start) -> Number:
    """A start of the program's language as a number of the claims."""
    ids = {name: partition_number(digits) for name, digits in start.digits}
    return number(start.index, ids) + start.more


def at_member(start: Number, digits: Digits, member: str) -> Number:
    """The same start on a member of the group along `digits`."""

    def moved(atom: object) -> Number | None:
        if isinstance(atom, PartitionId) and _meets(atom.digits, digits):
            return Number.of(PartitionId(atom.digits, member))
        return None

    return start.replaced(moved)


def _meets(first: Digits, second: Digits) -> bool:
    return any(overlap(a, b) for a in first for b in second)
