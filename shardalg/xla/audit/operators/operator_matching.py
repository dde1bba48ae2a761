"""Operators on devices, matched with the operators of the program before partitioning.

An operator is proved if one before partitioning has indices per loop at which all its operands hold
the elements of the device's operands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.hlo_attributes import (
    WindowDim,
    combination,
    combination_of,
    integers,
    window_of,
)
from shardalg.xla.audit.operators.loop_places import LoopPlaces, check_known, loop_places
from shardalg.xla.audit.operators.operator_loops import OperatorLoops, loops_of
from shardalg.xla.audit.operators.operator_table import Entry, Indices, OperatorTable, ordered
from shardalg.xla.audit.operators.reductions import check_fills, covered
from shardalg.xla.audit.operators.window_matching import (
    WindowSizes,
    scattered_places,
    window_places,
)
from shardalg.xla.audit.values.element_views import (
    ANYTHING,
    LOW,
    MIXED,
    VOID,
    Fault,
    Origin,
    Pending,
    Value,
    View,
    parts_of,
    shares,
)
from shardalg.xla.audit.values.per_device import (
    NOT_COMPLETED,
    ArrayPool,
    AuditFinding,
    RefutedError,
    Shown,
    UnknownError,
)

_LINEAR = ("add", "subtract", "negate", "copy")


def match_operator(
    table: OperatorTable, module: HloModule, instruction: HloInstruction, operands: Sequence[Value]
) -> tuple[View, ...]:
    """Return the results of an operator on devices, as elements of an operator's results.

    Raises:
      RefutedError: an operator before partitioning has these operands, but reads other elements.
      UnknownError: no operator before partitioning has these operands.
    """
    operands = ordered(instruction, operands)
    if any(isinstance(x, View) and x.change is not None for x in operands):
        raise UnknownError("shifted indices, or a mask of them, in another operator")
    pending = _pending_of(instruction, operands)
    failures: list[AuditFinding] = []
    best: tuple[int, tuple[View, ...]] | None = None
    for entry, given in table.similar(module, instruction, operands):
        try:
            lost, views = _matched(table, module, entry, instruction, given, pending)
        except AuditFinding as finding:
            finding.reader = (entry, given)
            failures.append(finding)
            continue
        if not lost:
            return views
        best = best if best is not None and best[0] <= lost else (lost, views)
    # One entry that is not understood may be the right one, so it is no refutation.
    unknown = [f for f in failures if isinstance(f, UnknownError)]
    if best is not None and not unknown:
        return best[1]
    if not failures:
        _check_direction(table, module, instruction, operands)
        raise UnknownError(
            f"no {instruction.opcode} before partitioning has these operands and attributes"
        )
    raise (unknown or failures)[0]


def _matched(
    table: OperatorTable,
    module: HloModule,
    entry: Entry,
    instruction: HloInstruction,
    operands: Sequence[Value],
    pending: Pending | None,
) -> tuple[int, tuple[View, ...]]:
    """Return the number of wrong elements, and the results, as results of one entry."""
    pool = table.pool
    loops = loops_of(instruction, [x.shape for x in operands])
    if replace(loops, whole=()) != replace(entry.loops, whole=()):
        raise UnknownError(f"{instruction.opcode} of blocks with other loops")
    places = loop_places(pool, entry, loops, instruction, operands)
    if places.is_hopeless():
        raise refuted_by(next(iter(places.faults.values())))
    check_known(pool, entry, loops, operands, places.at)
    fault = _windowed(pool, module, entry, instruction, operands, places)
    check_whole(entry, loops, instruction, places.at)
    fresh = covered(pool, module, instruction, entry, operands, places)
    if fresh is not None and pending is not None:
        if fresh.combine != pending.combine:
            shown = Shown(expected=pending.combine, found=fresh.combine)
            raise RefutedError(f"{fresh.combine} of a pending {pending.combine}", shown=shown)
        fresh = Pending(fresh.combine, (*pending.covers, *fresh.covers))
    results = table.results(entry, places.at, fresh or pending)
    alone = [
        (x, theirs)
        for x, theirs in zip(operands, entry.operands, strict=True)
        if not (isinstance(x, View) and isinstance(theirs, View) and shares(theirs, x))
    ]
    fault = next(iter(places.faults.values()), fault)
    origin = None
    if fault is not None:
        reader = (entry, operands)
        origin = Origin(instruction.computation, instruction.name, fault, reader)
    return places.lost(), tuple(_with_fills(pool, view, alone, origin) for view in results)


def _check_direction(
    table: OperatorTable, module: HloModule, instruction: HloInstruction, operands: list[Value]
) -> None:
    """Raise an error if the same comparison before partitioning has another direction.

    Raises:
      RefutedError: it has.
    """
    own = instruction.attributes.get("direction")
    for direction in ("LT", "LE", "GT", "GE", "EQ", "NE") if own else ():
        other = replace(instruction, attributes={**instruction.attributes, "direction": direction})
        for entry, _ in table.similar(module, other, operands):
            if entry.instruction.op_name == instruction.op_name != "":
                why = f"compares by {own} in place of {direction}"
                raise RefutedError(why, shown=Shown(expected=direction, found=own or ""))


def refuted_by(fault: Fault) -> RefutedError:
    """Return the error of a wrong element."""
    return RefutedError(fault.why, fault.device, fault.place, shown=fault.shown)


def candidates(
    table: OperatorTable, module: HloModule, instruction: HloInstruction, operands: list[Value]
) -> Iterator[tuple[Entry, LoopPlaces]]:
    """Yield the operators with the same operands, and the indices of their loops on devices.

    Only loops that need no offset are checked to be whole.

    Raises:
      AuditFinding: no operator fits; the reason is the first one's.
    """
    failure: AuditFinding | None = None
    found = False
    for entry, given in table.similar(module, instruction, operands):
        try:
            loops = loops_of(instruction, [x.shape for x in given])
            if loops.operands != entry.loops.operands:
                raise UnknownError(f"{instruction.opcode} of blocks with other loops")
            places = loop_places(table.pool, entry, loops, instruction, given)
            if places.faults:
                raise refuted_by(next(iter(places.faults.values())))
            check_known(table.pool, entry, loops, given, places.at)
            indexed = {entry.loops.operands[0][dim] for dim in indexed_dims(instruction)}
            check_whole(entry, loops, instruction, places.at, without=indexed)
        except AuditFinding as finding:
            failure = failure or finding
            continue
        found = True
        yield entry, places
    if not found and failure is not None:
        raise failure


def check_whole(
    entry: Entry,
    loops: OperatorLoops,
    instruction: HloInstruction,
    places: Indices,
    *,
    without: Collection[int] = (),
) -> None:
    """Raise an error unless the loops that need all indices have them, in order.

    Args:
      without: loops that are not checked.
    """
    for loop in set(loops.whole) - set(without):
        size, _ = entry.extents[loop]
        place = places[loop]
        ordered = (
            place == size
            if isinstance(place, int)
            else place.is_equal and np.array_equal(place.rows[0], np.arange(size))
        )
        if not ordered:
            raise UnknownError(f"{instruction.opcode} along a dimension that is not whole")


def _windowed(
    pool: ArrayPool,
    module: HloModule,
    entry: Entry,
    instruction: HloInstruction,
    operands: Sequence[Value],
    found: LoopPlaces,
) -> Fault | None:
    """Add the indices of the outputs of windows, and the taps that each device has.

    Returns:
      The first output that is no output of the operator; None if all are.

    Raises:
      RefutedError: padding that is not the identity is in a window.
    """
    loops = entry.loops
    if not loops.windows:
        return None
    places, fault = found.at, None
    windows = _windows_by_loop(instruction, loops), _windows_by_loop(entry.instruction, loops)
    sizes = entry.extents
    dtype = instruction.leaves[0][0]
    for image, kernel, output in loops.windows:
        given = []
        for loop in (image, kernel):
            if loop in found.faults:
                raise refuted_by(found.faults[loop])
            place = places.get(loop, windows[0][image].size)
            if isinstance(place, int):
                if loop >= 0 and place != sizes[loop][0]:
                    raise UnknownError("a block of equal elements in a window")
                place = pool.same(np.arange(place))
            elif (place.rows < 0).any():
                if instruction.opcode != "select-and-scatter":
                    is_sum = instruction.opcode == "convolution"
                    combine = "add" if is_sum else combination(module, instruction)
                    check_fills(pool, combine, dtype, entry, operands, loop)
                elif loop == kernel:
                    check_fills(pool, "add", dtype, entry, operands, loop)
            given.append(place)
        length = next(
            leaf[1][dims.index(output)]
            for leaf, dims in zip(instruction.leaves, loops.results, strict=True)
            if output in dims
        )
        if instruction.opcode == "select-and-scatter":
            # The roles are exchanged: windows are of the operand, their values are scattered.
            if combination_of(module, instruction, "scatter") != "add":
                raise UnknownError("select-and-scatter by another combination than a sum")
            count = given[1].rows.shape[1]
            places[output] = scattered_places(
                pool,
                given[0],
                given[1],
                WindowSizes(length, count, windows[0][image]),
                WindowSizes(sizes[image][0], sizes[kernel][0], windows[1][image]),
            )
            continue
        made = window_places(
            pool,
            given[0],
            given[1],
            WindowSizes(given[0].rows.shape[1], length, windows[0][image]),
            WindowSizes(sizes[image][0], sizes[output][0], windows[1][image]),
        )
        places[output] = made.outputs
        if kernel >= 0:
            places[kernel] = made.cover
        elif not made.cover.rows.all():
            raise UnknownError("a part of a window")
        if fault is None and made.faults.rows.any():
            row, at = map(int, np.argwhere(made.faults.rows)[0])
            kinds = ("", "joins elements of other windows", "lacks elements (halo or mask)")
            words = kinds[made.faults.rows[row, at]]
            why = f"a window {words}"
            shown = Shown(
                expected="each element of the window once", found=f"a window that {words}"
            )
            fault = Fault(why, made.faults.device(row), (at,), shown)
    return fault


def _with_fills(
    pool: ArrayPool,
    made: View,
    pairs: Sequence[tuple[Value, Value]],
    origin: Origin | None,
) -> View:
    """Return a result that marks devices on which an operand has no element.

    Args:
      pairs: operands of the device and of the operator, without those whose fill both have.
    """
    shift, fill = made.shift, ANYTHING
    origins = [origin]
    for mine, theirs in pairs:
        if not isinstance(mine, View) or not isinstance(theirs, View):
            continue
        origins.append(mine.origin)
        if (mine.shift.rows < LOW).any():
            hide = lambda s, t: np.where(t < LOW, VOID, s)  # noqa: E731
            shift = pool.applied("hide dead", hide, shift, mine.shift)
        if mine.fill == MIXED or (mine.is_partly_void and theirs.is_partly_void):
            fill = MIXED
    made = replace(made, shift=shift)
    if not made.is_partly_void:
        return made
    return replace(made, fill=fill, origin=next(filter(None, origins), None))


def _windows_by_loop(instruction: HloInstruction, loops: OperatorLoops) -> dict[int, WindowDim]:
    """Return the window of each image loop."""
    found = window_of(instruction)
    if instruction.opcode == "convolution":
        return {loop: w for (loop, _, _), w in zip(loops.windows, found, strict=True)}
    return {loop: found[loop] for loop, _, _ in loops.windows}


def indexed_dims(instruction: HloInstruction) -> list[int]:
    """Return the dimensions of the first operand that run-time indices choose from."""
    name = "start_index_map" if instruction.opcode == "gather" else "scatter_dims_to_operand_dims"
    return integers(instruction.attributes.get(name))


def _pending_of(instruction: HloInstruction, operands: Sequence[Value]) -> Pending | None:
    """Return the pending reduction that an operator keeps, or None if no operand is pending.

    Raises:
      RefutedError: the operator needs values that are complete.
    """
    waiting = [x for x in operands if isinstance(x, View) and x.pending is not None]
    if not waiting:
        return None
    pending, opcode = waiting[0].pending, instruction.opcode
    assert pending is not None
    if opcode == "convert":
        raise RefutedError(
            "a pending sum is converted before it is complete", shown=parts_of(pending)
        )
    if opcode == "reduce" and len(waiting) == 1:
        return pending
    if opcode not in _LINEAR:
        why = f"reads {NOT_COMPLETED}"
        raise RefutedError(why, shown=parts_of(pending))
    if len(waiting) < len(operands):
        why = "joins a pending reduction with a complete value"
        raise RefutedError(why, shown=parts_of(pending))
    if any(x.pending != pending for x in waiting) or pending.combine != "add":
        raise UnknownError("a sum of reductions that are pending differently")
    return pending
