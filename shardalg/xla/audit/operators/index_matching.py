"""Run-time indices on blocks: a gather or a scatter along a dimension that devices share out.

XLA shifts the indices by the offset of the device's block. A gather then reads wrong elements for
indices of other devices; a mask replaces them by 0, and an all-reduce adds the parts. So it is a
sum over the indexed dimension, pending with the indices of the block. A scatter drops the updates
whose shifted index is outside of the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.hlo_attributes import combination, integers
from shardalg.xla.audit.operators.operator_matching import candidates
from shardalg.xla.audit.operators.operator_table import Entry, OperatorTable
from shardalg.xla.audit.operators.reductions import covered
from shardalg.xla.audit.values.element_views import Known, Pending, Value, View, content
from shardalg.xla.audit.values.per_device import (
    NOT_SHIFTED,
    ArrayPool,
    PerDevice,
    RefutedError,
    Shown,
    UnknownError,
)

_NEITHER = (-np.inf, np.inf)


@dataclass(frozen=True)
class ShiftedIndex:
    """The change of indices: clamped to bounds, and less the offset of the device's block."""

    bounds: tuple[float, float]
    offset: PerDevice | None = None


@dataclass(frozen=True)
class RangeMask:
    """The change of indices to a mask: below `start`, above `stop`, or either if both are given."""

    bounds: tuple[float, float]
    start: PerDevice | None = None
    stop: PerDevice | None = None


@dataclass(frozen=True)
class MaskedGather:
    """The change of a gather whose elements are right for the indices of the device's block only.

    Attributes:
      index: the index of each element of the result. cover: the indices of the block.
      mask: the mask that replaces the other elements by 0.
    """

    index: View
    mask: RangeMask
    cover: PerDevice


def index_rule(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: Sequence[Value]
) -> Value | None:
    """Return the value of an instruction that shifts, compares or uses indices of a block.

    None is returned for an instruction that no rule is about.
    """
    rule = _RULES.get(one.opcode)
    return rule(table, module, one, list(values)) if rule else None


def _scalar(value: Value) -> PerDevice | None:
    """Return the number that each device has in all places, or None."""
    if isinstance(value, Known) and value.cells.rows[0].size == 1:
        rows = value.cells.rows.reshape(len(value.cells.rows))
        return PerDevice(rows, value.cells.classes, -1) if rows.dtype != bool else None
    return None


def _index(value: Value) -> tuple[View, tuple[float, float]] | None:
    """Return indices without their change, and the bounds to which they are clamped."""
    if not isinstance(value, View) or value.pending is not None:
        return None
    if value.change is None:
        return value, _NEITHER
    if isinstance(value.change, ShiftedIndex) and value.change.offset is None:
        return replace(value, change=None), value.change.bounds
    return None


def _clamp(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: list[Value]
) -> Value | None:
    """Return indices that are clamped to two numbers, as a change of them; else None.

    None is also returned for indices that are changed already, which XLA does not clamp again.
    """
    low, x, high = values
    numbers = [v.number if isinstance(v, Known) else None for v in (low, high)]
    found = _index(x)
    if None in numbers or found is None or found[1] != _NEITHER:
        return None
    return replace(found[0], change=ShiftedIndex((float(numbers[0] or 0), float(numbers[1] or 0))))


def _subtract(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: list[Value]
) -> Value | None:
    """Return indices less a number per device, which should be its block's offset; else None."""
    found, offset = _index(values[0]), _scalar(values[1])
    if found is None or offset is None:
        return None
    kept = table.pool.made(offset.rows, offset.classes)
    return replace(found[0], change=ShiftedIndex(found[1], kept))


def _compare(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: list[Value]
) -> Value | None:
    """Return the mask of indices below a range's start (LT) or above its stop (GT); else None."""
    found, bound = _index(values[0]), _scalar(values[1])
    direction = one.attributes.get("direction")
    if found is None or bound is None or direction not in ("LT", "GT"):
        return None
    kept = table.pool.made(bound.rows, bound.classes)
    sides = {"LT": "start", "GT": "stop"}
    return replace(found[0], change=RangeMask(found[1], **{sides[direction]: kept}))


def _or(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: list[Value]
) -> Value | None:
    """Return the mask of indices outside of a range, of one mask below and one above it.

    Return None unless both are masks of the same indices, and each gives another end of the range.
    """
    a, b = values
    if not isinstance(a, View) or not isinstance(b, View):
        return None
    if not isinstance(a.change, RangeMask) or not isinstance(b.change, RangeMask):
        return None
    # Without their changes, both must be the same indices at the same places.
    same = replace(a, change=None).same_places(replace(b, change=None))
    if not same or a.change.bounds != b.change.bounds:
        return None
    # Each end must come from exactly one of the masks.
    start, stop = (
        one_of[0] if len(one_of) == 1 else None
        for one_of in (
            [x for x in pair if x is not None]
            for pair in ((a.change.start, b.change.start), (a.change.stop, b.change.stop))
        )
    )
    if start is None or stop is None:
        return None
    return replace(a, change=RangeMask(a.change.bounds, start, stop))


def _reduce(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: list[Value]
) -> Value | None:
    """Return a mask that a reduction over dimensions of size 1 leaves as it is; else None."""
    x, dims = values[0], integers(one.attributes["dimensions"])
    if not isinstance(x, View) or not isinstance(x.change, RangeMask) or len(values) != 2:
        return None
    # A reduction over dimensions of size 1 is a reshape if it begins with its identity.
    identity = {"or": 0.0, "and": 1.0}.get(combination(module, one))
    start = values[1]
    if not isinstance(start, Known) or start.number != identity:
        return None
    if any(x.shape[d] != 1 for d in dims):
        return None
    return replace(x, lines=tuple(line for d, line in enumerate(x.lines) if d not in dims))


def _gather(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: list[Value]
) -> Value | None:
    """Return a gather by indices of the device's block, marked as right for these indices only.

    The result has the change `MaskedGather`: a select that replaces the other elements by 0 must
    follow. Return None if the indices are not shifted, or no gather before partitioning is this
    one.
    """
    index = values[1]
    if not isinstance(index, View) or not isinstance(index.change, ShiftedIndex):
        return None
    change, plain = index.change, replace(index, change=None)
    for entry, places in candidates(table, module, one, [values[0], plain]):
        dim, loop = _indexed_dim(one, entry, values[0].shape)
        # The block of the indexed dimension begins at the offset that the indices are shifted by.
        cover = _block(table.pool, entry, places.at, loop, change, values[0].shape[dim])
        size = entry.operands[0].shape[dim]
        # Before partitioning, indices outside of the tensor are moved to its first or last element.
        if change.bounds != (0.0, float(size - 1)):
            raise UnknownError("a gather whose shifted indices are not clamped to the tensor")
        # The result is what the gather from the whole dimension gives. XLA's mask must hide the
        # indices below the offset and above the last index of the block.
        (made,) = table.results(entry, {**places.at, loop: size}, None)
        length = values[0].shape[dim]
        assert change.offset is not None
        stop = table.pool.applied(("stop", length), lambda s, n=length: s + n - 1, change.offset)
        mask = RangeMask(change.bounds, change.offset, stop)
        lines = _index_lines(table.pool, one, entry, plain, made.shape)
        in_result = replace(plain, lines=lines)
        return replace(made, change=MaskedGather(in_result, mask, cover))
    return None


def _indexed_dim(one: HloInstruction, entry: Entry, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the only dimension of the operand that indices choose from, and its loop."""
    name = "start_index_map" if one.opcode == "gather" else "scatter_dims_to_operand_dims"
    dims = integers(one.attributes.get(name))
    if len(dims) != 1:
        raise UnknownError(f"{one.opcode} of blocks by indices of several dimensions")
    loop = entry.loops.operands[0][dims[0]]
    if loop not in entry.loops.whole:
        raise UnknownError(f"{one.opcode} of whole slices by an index")
    return dims[0], loop


def _block(
    pool: ArrayPool,
    entry: Entry,
    places: dict[int, PerDevice | int],
    loop: int,
    change: ShiftedIndex,
    length: int,
) -> PerDevice:
    """Return the indices of the device's block, which must begin at the offset.

    Raises:
      RefutedError: the indices are shifted by another number than the block's offset.
    """
    place = places[loop]
    size = entry.operands[0].shape[entry.loops.operands[0].index(loop)]
    if change.offset is None:
        raise UnknownError("indices of a block that are not shifted")
    if isinstance(place, int):
        # All elements are equal, for example 0, so that the offset alone gives the block.
        steps = np.arange(length)
        place = pool.applied(("from", length), lambda s: s[:, None] + steps, change.offset)
    shifted = pool.applied(
        "shifted",
        lambda p, s: ((p - s[:, None] != np.arange(p.shape[1])) & (p >= 0)).any(1),
        place,
        change.offset,
    )
    if shifted.rows.any():
        row = int(np.argmax(shifted.rows))
        device = shifted.device(row)
        begin = int(place.of(device)[0]) if isinstance(place, PerDevice) else 0
        shown = Shown(
            expected=f"shifted by {begin}", found=f"shifted by {change.offset.of(device)}"
        )
        raise RefutedError(NOT_SHIFTED, device, shown=shown)

    def cover(at: np.ndarray) -> np.ndarray:
        made = np.zeros((len(at), size), bool)
        for row, line in enumerate(at):
            made[row, line[(line >= 0) & (line < size)]] = True
        return made

    return pool.applied(("cover", size), cover, place)


def _index_lines(
    pool: ArrayPool,
    one: HloInstruction,
    entry: Entry,
    index: View,
    shape: tuple[int, ...],
) -> tuple[PerDevice, ...]:
    """Return the lines of the indices in the dimensions of the gather's result."""
    lines = []
    for dim, loop in enumerate(entry.loops.results[0]):
        dims = entry.loops.operands[1]
        if loop in dims:
            lines.append(index.lines[dims.index(loop)])
        else:
            lines.append(pool.same(np.zeros(shape[dim], np.int64)))
    return tuple(lines)


def _select(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: list[Value]
) -> Value | None:
    """Return a masked gather as a pending sum over the indexed dimension, or None.

    Each device has the elements for the indices of its block, and 0 elsewhere, so that the sum over
    the devices is the gather. None is returned for a select of another kind.

    Raises:
      RefutedError: the mask is not that of the block, or does not replace elements by 0.
    """
    mask, hidden, x = values
    if not isinstance(x, View) or not isinstance(x.change, MaskedGather):
        return None
    if not isinstance(mask, View) or not isinstance(mask.change, RangeMask):
        return None
    if not isinstance(hidden, Known) or hidden.number != 0:
        number = hidden.number if isinstance(hidden, Known) else None
        shown = Shown(expected="0", found="a computed value" if number is None else f"{number}")
        why = "elements of other devices are replaced by another number than 0"
        raise RefutedError(why, shown=shown)
    if mask.change != x.change.mask:
        shown = Shown(expected=f"mask {x.change.mask}", found=f"mask {mask.change}")
        why = "the mask of a gather is for another range than the device's block"
        raise RefutedError(why, shown=shown)
    if not replace(mask, change=None).same_places(x.change.index):
        shown = Shown((), content(x.change.index, 0), content(mask, 0))
        raise RefutedError("the mask of a gather is of other indices", shown=shown)
    return replace(x, change=None, pending=Pending("add", (x.change.cover,)))


def _scatter(
    table: OperatorTable, module: HloModule, one: HloInstruction, values: list[Value]
) -> Value | None:
    """Return the value of a scatter whose indices are shifted by the offset of the device's block.

    Updates outside of the block are dropped, so that the result is a block of the indexed
    dimension. Return None if the instruction is no such scatter.

    Raises:
      UnknownError: the indices are clamped, so that updates are not dropped but written elsewhere.
    """
    if len(values) != 3:
        return None
    operand, index, update = values
    change = index.change if isinstance(index, View) else None
    if not isinstance(change, ShiftedIndex) or not isinstance(index, View):
        return None
    if change.bounds != _NEITHER:
        raise UnknownError("a scatter with clamped indices")
    # The operator of the program before partitioning has the indices without the shift.
    plain = replace(index, change=None)
    for entry, places in candidates(table, module, one, [operand, plain, update]):
        dim, loop = _indexed_dim(one, entry, operand.shape)
        cover = _block(table.pool, entry, places.at, loop, change, operand.shape[dim])
        block = table.pool.applied(("indices", operand.shape[dim]), _indices, cover)
        pending = covered(table.pool, module, one, entry, [operand, plain, update], places)
        (made,) = table.results(entry, {**places.at, loop: block}, pending)
        return made
    return None


def _indices(cover: np.ndarray) -> np.ndarray:
    """Return the indices of a block, in order; -1 fills up short blocks."""
    length = int(cover.sum(1).max(initial=0))
    made = np.full((len(cover), length), -1)
    for row, flags in enumerate(cover):
        at = np.nonzero(flags)[0]
        made[row, : len(at)] = at
    return made


_RULES = {
    "clamp": _clamp, "subtract": _subtract, "compare": _compare, "or": _or, "reduce": _reduce,
    "gather": _gather, "select": _select, "scatter": _scatter,
}  # fmt: skip
