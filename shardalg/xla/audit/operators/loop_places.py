"""The indices before partitioning that the loops of an operator run over on each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.operators.operator_loops import OperatorLoops
from shardalg.xla.audit.operators.operator_table import Entry, Indices
from shardalg.xla.audit.values.element_views import (
    LOW,
    Fault,
    Known,
    Value,
    View,
    along,
    find_places,
    numbers_differ,
    unread,
)
from shardalg.xla.audit.values.per_device import (
    ArrayPool,
    ClassError,
    PerDevice,
    RefutedError,
    Shown,
    UnknownError,
    WantedElement,
)


@dataclass(eq=False)
class LoopPlaces:
    """The indices of all loops, and the loops along which an operand has wrong elements.

    A wrong element is no error yet: the padding of a block may have any content. Its index is -1.
    """

    at: Indices
    faults: dict[int, Fault] = field(default_factory=dict)

    def lost(self) -> int:
        """Return the number of indices that are -1 along loops with wrong elements."""
        rows = (self.at[loop] for loop in self.faults)
        return sum(int((row.each() < 0).sum()) for row in rows if isinstance(row, PerDevice))

    def is_hopeless(self) -> bool:
        """Return whether a loop with wrong elements has no right one on any device."""
        rows = (self.at[loop] for loop in self.faults)
        return any(bool((row.rows < 0).all()) for row in rows if isinstance(row, PerDevice))


def loop_places(
    pool: ArrayPool,
    entry: Entry,
    loops: OperatorLoops,
    instruction: HloInstruction,
    operands: Sequence[Value],
) -> LoopPlaces:
    """Return the indices that each loop runs over on each device.

    Raises:
      UnknownError: a block of known numbers has no place that is known.
    """
    found: dict[int, list[tuple[PerDevice, np.ndarray | None]]] = {}
    readers: dict[int, list[tuple[View, View, int, PerDevice]]] = {}
    sizes: Indices = {}
    made = LoopPlaces(sizes)
    for mine, theirs, dims in zip(operands, entry.operands, loops.operands, strict=True):
        for dim, loop in enumerate(dims):
            sizes[loop] = mine.shape[dim]
        if isinstance(mine, View) and isinstance(theirs, View):
            places, faults = find_places(pool, theirs, mine)
            for dim, place in enumerate(places):
                if place is not None:
                    line = theirs.lines[dim].rows[0]
                    void = line < LOW if (place.rows == -2).any() else None
                    found.setdefault(dims[dim], []).append((place, void))
                    readers.setdefault(dims[dim], []).append((mine, theirs, dim, place))
            for dim, fault in faults.items():
                spot = along(mine, dim, *fault.place)
                shown = unread(mine, fault.device, spot)
                made.faults.setdefault(dims[dim], replace(fault, place=spot, shown=shown))
        elif isinstance(mine, View) or isinstance(theirs, View):
            raise UnknownError("a known number against a computed one")
    for mine, theirs, dims in zip(operands, entry.operands, loops.operands, strict=True):
        if isinstance(mine, Known) and isinstance(theirs, Known):
            for dim, loop in enumerate(dims):
                if loop not in found and theirs.varies(dim):
                    found[loop] = [(_known_places(pool, theirs, mine, dim), None)]
    for leaf, dims in zip(instruction.leaves, loops.results, strict=True):
        for dim, loop in enumerate(dims):
            sizes.setdefault(loop, leaf[1][dim])
    for loop, parts in found.items():
        made.at[loop], conflict = _one_place(pool, loop, parts)
        if conflict is not None:
            conflict = replace(conflict, shown=_shown(conflict, readers[loop]))
            made.faults.setdefault(loop, conflict)
    return made


def _shown(fault: Fault, readers: Sequence[tuple[View, View, int, PerDevice]]) -> Shown:
    """Return the elements that one operand should have if the other one is right."""
    (place,) = fault.place
    found: list[WantedElement] = []
    got = None
    indices = {int(at.of(fault.device)[place]) for *_, at in readers}
    for mine, theirs, dim, at in readers:
        own = int(at.of(fault.device)[place])
        element = int(mine.shift.of(fault.device)) + int(mine.lines[dim].of(fault.device)[place])
        line = theirs.lines[dim].rows[0]
        spot = along(mine, dim, place)
        for other in indices - {own}:
            if min(own, other, element) >= 0:
                right = element + int(line[other] - line[own])
                found.append(WantedElement(mine.base, right, fault.device, spot, mine))
                got = got or (mine.base, element)
    expected = (found[0].base, found[0].element) if found else ""
    return Shown(tuple(found), expected, got or "")


def _one_place(
    pool: ArrayPool, loop: int, parts: Sequence[tuple[PerDevice, np.ndarray | None]]
) -> tuple[PerDevice, Fault | None]:
    """Return the indices on which all operands agree, and the first place where they do not."""
    plain = all(void is None and place.rows.min(initial=0) >= -1 for place, void in parts)
    if len({place for place, _ in parts}) == 1 and plain:
        return parts[0][0], None
    voids = [void for _, void in parts]
    key = ("merge", loop, *(None if v is None else v.tobytes() for v in voids))
    places = [place for place, _ in parts]

    def differ(*rows: np.ndarray) -> np.ndarray:
        """Return where operands with an element (index 0 or more) are at different indices."""
        best = np.maximum.reduce(rows)
        wrong = np.zeros(best.shape, bool)
        for row in rows:
            wrong |= (row != best) & (row >= 0)
        return wrong

    def merge(*rows: np.ndarray) -> np.ndarray:
        """Return the common index of all operands at each place; -1 where one lacks the element.

        Index -2 is a fill that the value before partitioning has too, and agrees with any of its
        fills.
        """
        best = np.maximum.reduce(rows)
        missing = differ(*rows)
        for row, void in zip(rows, voids, strict=True):
            missing |= row == -1
            if void is not None:
                # The fill of the device must be one before partitioning at the same index.
                first = int(np.argmax(void))
                best = np.where((row == -2) & (best < 0) & ~missing, first, best)
                missing |= (row == -2) & ~void[np.maximum(best, 0)]
        return np.where(missing | (best < 0), -1, best)

    wrong = pool.applied((*key, "differ"), differ, *places)
    fault = None
    if wrong.rows.any():
        row, place = map(int, np.argwhere(wrong.rows)[0])
        why = "the operands are at different places along a loop"
        fault = Fault(why, wrong.device(row), (place,))
    return pool.applied(key, merge, *places), fault


def _known_places(pool: ArrayPool, theirs: Known, mine: Known, dim: int) -> PerDevice:
    """Return the indices of known numbers along a dimension, found by their values."""
    only = [d for d in range(len(theirs.shape)) if theirs.varies(d)] == [dim]
    line = theirs.cells.rows.reshape(-1)
    if only and len(np.unique(line)) == len(line) and mine.varies(dim):

        def search(line: np.ndarray, cells: np.ndarray) -> np.ndarray:
            """Return the index of each number in the line before partitioning, or 0.

            `check_known` compares all numbers later. It finds the numbers that the line does not
            have.
            """
            flat = cells.reshape(len(cells), -1)
            line = line.reshape(-1)
            order = np.argsort(line, kind="stable")
            at = order[np.minimum(np.searchsorted(line[order], flat), len(line) - 1)]
            return np.where(line[at] == flat, at, 0)

        if mine.cells.rows[0].size == mine.shape[dim]:
            return pool.applied("search", search, theirs.cells, mine.cells)
    if mine.shape[dim] == theirs.shape[dim]:
        return pool.same(np.arange(mine.shape[dim]))
    if len(theirs.cells.rows) > 1 or len(np.unique(line)) < len(line):
        raise UnknownError("a block of known numbers whose place is not known")
    # The first number of the block occurs once before partitioning; the block begins there.
    order = np.argsort(line, kind="stable")

    def first(cells: np.ndarray, size: int = mine.shape[dim]) -> np.ndarray:
        """Return the indices of the block from the place of its first number; -1 beyond the end."""
        wanted = cells.reshape(len(cells), -1)[:, 0]
        at = order[np.minimum(np.searchsorted(line[order], wanted), len(line) - 1)]
        start = np.unravel_index(at, theirs.cells.rows.shape[1:])[dim]
        places = start[:, None] + np.arange(size)
        return np.where(places < theirs.shape[dim], places, -1)

    key = ("first", dim, theirs.cells.number, mine.shape[dim])
    return pool.applied(key, first, mine.cells)


def check_known(
    pool: ArrayPool,
    entry: Entry,
    loops: OperatorLoops,
    operands: Sequence[Value],
    places: Indices,
) -> None:
    """Raise an error unless known operands are the entry's at the same indices.

    Raises:
      RefutedError: a mask or another known number differs.
    """
    for mine, theirs, dims in zip(operands, entry.operands, loops.operands, strict=True):
        if not (isinstance(mine, Known) and isinstance(theirs, Known)):
            continue
        vary = [d for d in range(len(dims)) if theirs.varies(d)]
        at = [places[dims[d]] for d in vary]

        def compare(
            mine_cells: np.ndarray, cells: np.ndarray, *rows: np.ndarray, vary: list[int] = vary
        ) -> np.ndarray:
            """Raise an error for the first number that differs from the one before partitioning.

            Args:
              rows: per dimension that varies, the index before partitioning of each place; -1 is
                none.
            """
            rank = cells.ndim - 1
            exists = np.ones((1,) * (1 + rank), bool)
            given = rows
            # Take the numbers before partitioning at the indices of the device's block, dimension
            # by dimension.
            for d, row in zip(vary, rows, strict=True):
                row = row.reshape(len(row), *(-1 if k == d else 1 for k in range(rank)))
                exists = exists & (row >= 0)
                cells = np.take_along_axis(cells, np.maximum(row, 0), 1 + d)
            wrong = numbers_differ(cells, mine_cells) & exists
            if wrong.any():
                at_class, *place = map(int, np.argwhere(wrong)[0])
                why = "a mask or another known number differs from the operator's"
                both = (np.broadcast_to(x, wrong.shape) for x in (cells, mine_cells))
                expected, got = (str(x[at_class, *place].item()) for x in both)
                there = [0] * rank
                for d, row in zip(vary, given, strict=True):
                    there[d] = int(row[at_class if len(row) > 1 else 0, place[d]])
                shown = Shown(expected=expected, found=got, before=tuple(there))
                raise ClassError(RefutedError(why, 0, tuple(place), shown=shown), at_class)
            # The result has no meaning; the pool needs an array to remember that the check has
            # passed.
            return np.zeros(len(wrong), bool)

        parts = [p for p in at if isinstance(p, PerDevice)]
        if len(parts) < len(at):
            raise UnknownError("known numbers at places that are not known")
        pool.applied(("known", *vary), compare, mine.cells, theirs.cells, *parts)
