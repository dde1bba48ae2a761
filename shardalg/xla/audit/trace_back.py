"""The move of data that first took a wrong element, for a value that is found wrong later.

A move copies each place of its result from one place of an operand. So a wrong element has a path
of places back to the operator that computed it. The faulty move is the first one on this path, from
the reader back, that could have read the right element: a slice at another start, a transfer from
another device, a select by another mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.hlo_attributes import (
    groups_of,
    integers,
    padding_of,
    pairs_of,
    slices_of,
)
from shardalg.xla.audit.values.element_views import LOW, Known, View, content

MOST_SUMS = 1 << 20
_SAME_PLACE = (
    "copy",
    "bitcast",
    "opt-barrier",
    "optimization-barrier",
    "custom-call",
    "all-reduce",
)
_REARRANGED = ("slice", "dynamic-slice", "reverse", "pad", "concatenate")
_ALONE = ("constant", "iota", "partition-id", "parameter")
_FORMS = ("reshape", "bitcast", "copy", "convert", "broadcast")


@dataclass(frozen=True)
class WrongPlace:
    """A place of a value that should hold another element.

    Attributes:
      name: the instruction with the value. base, element: the element that should be there.
    """

    name: str
    device: int
    place: tuple[int, ...]
    base: int
    element: int


@dataclass(frozen=True)
class TracedBody:
    """The instructions of a computation and their values on all devices.

    Attributes:
      value_of: returns the value of an instruction.
    """

    instructions: Mapping[str, HloInstruction]
    value_of: Callable[[str], object]
    devices: int

    def operand(self, one: HloInstruction, number: int) -> object:
        """Return the value of an operand, or None if there is none."""
        return self.value_of(one.operands[number]) if number < len(one.operands) else None

    def exchange_of(self, one: HloInstruction) -> HloInstruction | None:
        """Return the exchange of a tuple of which an instruction is one result, or None."""
        if one.opcode != "get-tuple-element":
            return None
        source = self.instructions.get(one.operands[0])
        return source if source is not None and source.opcode == "all-to-all" else None


@dataclass(frozen=True)
class TracedPath:
    """The path of a wrong element back to the operator that computed it.

    Attributes:
      move: the place at which a move could have read the right element, or None.
      stale: the place of which another device has the right element, or None.
      end: the place at the operator.
    """

    move: WrongPlace | None
    stale: WrongPlace | None
    end: WrongPlace


def traced_path(body: TracedBody, wrong: WrongPlace) -> TracedPath:
    """Return the path of a wrong element, back to the first move that could have been right."""
    at, stale = wrong, None
    for _ in range(len(body.instructions)):
        one = body.instructions.get(at.name)
        if one is None or not isinstance(body.value_of(at.name), View):
            break
        if _could_read(body, one, at):
            return TracedPath(at, stale, at)
        source = _source(body, one, at)
        if source is None:
            break
        # If no move is faulty, a transfer is missing before the first reader of the place.
        others = (replace(source, device=d) for d in range(body.devices))
        if stale is None and source.name != one.name and any(holds(body, s) for s in others):
            stale = at
        at = source
    return TracedPath(None, stale, at)


def holds(body: TracedBody, at: WrongPlace) -> bool:
    """Return whether a place holds the element that is wanted there."""
    x = body.value_of(at.name)
    if not isinstance(x, View) or x.base != at.base or len(at.place) != len(x.shape):
        return False
    inside = all(0 <= i < n for i, n in zip(at.place, x.shape, strict=True))
    return inside and content(x, at.device, at.place) == (at.base, at.element)


def _could_read(body: TracedBody, one: HloInstruction, at: WrongPlace) -> bool:
    """Return whether a move with other attributes reads the wanted element for the same place."""
    everywhere = range(body.devices)

    def reads(operand: int, device: int, place: tuple[int, ...]) -> bool:
        return holds(body, replace(at, name=one.operands[operand], device=device, place=place))

    def has(name: str, devices: Collection[int]) -> bool:
        x = body.value_of(name)
        return isinstance(x, View) and x.base == at.base and has_element(x, at.element, devices)

    if one.opcode == "collective-permute" or (one.opcode == "copy" and not one.op_name):
        # A transfer keeps the place and changes the device. A copy that is none of the user's may
        # stand for a transfer.
        return any(reads(0, device, at.place) for device in everywhere)
    if one.opcode == "all-gather":
        source = _source(body, one, at)
        return source is not None and any(reads(0, d, source.place) for d in everywhere)
    if one.opcode in ("all-to-all", "get-tuple-element"):
        exchange = one if one.opcode == "all-to-all" else body.exchange_of(one)
        return exchange is not None and any(has(name, everywhere) for name in exchange.operands)
    if one.opcode in _REARRANGED:
        return any(_reaches(body, one, k, at) for k in range(len(one.operands)))
    if one.opcode in ("transpose", "broadcast"):
        x = body.operand(one, 0)
        rank = len(x.shape) if isinstance(x, View) else 0
        orders = itertools.permutations(at.place, rank)
        return any(reads(0, at.device, place) for place in orders)
    return one.opcode == "select" and any(reads(k, at.device, at.place) for k in (1, 2))


def _reaches(body: TracedBody, one: HloInstruction, operand: int, at: WrongPlace) -> bool:
    """Return whether a move on one device with another start reads the wanted element.

    The whole result is shifted, so that the places that one place may have are a range.
    """
    x = body.operand(one, operand)
    if not isinstance(x, View) or x.base != at.base or len(x.shape) != len(at.place):
        return False
    result = one.leaves[0][1]
    ranges = []
    for dim, (i, n, m) in enumerate(zip(at.place, x.shape, result, strict=True)):
        first, last = i, i + n - m
        if one.opcode == "slice" and (step := slices_of(one)[dim].step or 1) > 1:
            first, last = i * step, i * step + n - ((m - 1) * step + 1)
        elif one.opcode == "reverse":
            first, last = min(i, n - 1 - i), max(i, n - 1 - i)
        elif one.opcode in ("pad", "concatenate"):
            first, last = (0, n - 1) if m != n else (i, i)
        ranges.append(range(max(first, 0), min(last, n - 1) + 1))
    cut = tuple(
        replace(line, rows=line.rows[:, r.start : r.stop])
        for line, r in zip(x.lines, ranges, strict=True)
    )
    return has_element(replace(x, lines=cut), at.element, (at.device,))


def _source(body: TracedBody, one: HloInstruction, at: WrongPlace) -> WrongPlace | None:
    """Return the place of an operand from which a move copies a place; None if it is no move."""
    opcode, place, x = one.opcode, list(at.place), body.operand(one, 0)
    device, number = at.device, 0
    if opcode == "get-tuple-element":
        exchange = body.exchange_of(one)
        if exchange is None:
            return None
        member, group = _member(exchange, body.devices, device)
        sender = int(group[int(one.attributes["index"])])
        return replace(at, name=exchange.operands[member], device=sender)
    shape = x.shape if isinstance(x, View | Known) else ()
    if opcode in _SAME_PLACE:
        pass
    elif opcode == "collective-permute":
        senders = [s for s, target in pairs_of(one) if target == device]
        if not senders:
            return None
        device = senders[0]
    elif opcode in ("all-gather", "all-to-all"):
        (dim,) = integers(one.attributes["dimensions"])
        member, group = _member(one, body.devices, device)
        width = shape[dim] if opcode == "all-gather" else shape[dim] // len(group)
        device = int(group[place[dim] // width])
        first = 0 if opcode == "all-gather" else member * width
        place[dim] = first + place[dim] % width
    elif opcode in _LOCAL:
        inside = _LOCAL[opcode](one, shape, place)
        if inside is None:
            return None
        place = inside
    elif opcode == "dynamic-slice":
        for dim, size in enumerate(one.leaves[0][1]):
            start = body.operand(one, 1 + dim)
            if not isinstance(start, Known):
                return None
            first = int(start.cells.of(device).reshape(-1)[0])
            place[dim] += min(max(first, 0), shape[dim] - size)
    elif opcode == "concatenate":
        (dim,) = integers(one.attributes["dimensions"])
        for number in range(len(one.operands)):
            part = body.operand(one, number)
            size = part.shape[dim] if isinstance(part, View | Known) else 0
            if place[dim] < size:
                break
            place[dim] -= size
    elif opcode == "select":
        mask = body.operand(one, 0)
        if not isinstance(mask, Known):
            return None
        number = 1 if number_at(mask, device, place) else 2
    else:
        return None
    return replace(at, name=one.operands[number], device=device, place=tuple(place))


def _padded(one: HloInstruction, shape: Sequence[int], place: Sequence[int]) -> list[int] | None:
    found = []
    for i, n, (low, _, inner) in zip(place, shape, padding_of(one), strict=True):
        at, rest = divmod(i - low, inner + 1)
        if rest or not 0 <= at < n:
            return None
        found.append(at)
    return found


_LOCAL: Mapping[str, Callable[..., list[int] | None]] = {
    "slice": lambda one, shape, place: [
        cut.start + i * (cut.step or 1) for i, cut in zip(place, slices_of(one), strict=True)
    ],
    "reverse": lambda one, shape, place: [
        shape[d] - 1 - i if d in integers(one.attributes["dimensions"]) else i
        for d, i in enumerate(place)
    ],
    "transpose": lambda one, shape, place: [
        place[integers(one.attributes["dimensions"]).index(d)] for d in range(len(place))
    ],
    "broadcast": lambda one, shape, place: [
        place[d] for d in integers(one.attributes.get("dimensions"))
    ],
    # Both shapes number their elements alike; a scalar has the number 0.
    "reshape": lambda one, shape, place: [
        int(i)
        for i in np.unravel_index(
            int(np.ravel_multi_index(place, one.leaves[0][1])) if place else 0, shape
        )
    ],
    "pad": _padded,
}
"""The place of the operand that a move on one device copies; None for padding."""


def _member(one: HloInstruction, devices: int, device: int) -> tuple[int, np.ndarray]:
    """Return the place of a device in its group, and the group."""
    groups = groups_of(one, devices)
    row, member = map(int, np.argwhere(groups == device)[0])
    return member, groups[row]


def number_at(x: Known, device: int, place: Collection[int]) -> float | bool:
    """Return the number at a place of a known value."""
    cells = x.cells.of(device)
    spot = tuple(i if n > 1 else 0 for i, n in zip(place, cells.shape, strict=True))
    return cells[spot].item() if len(spot) == cells.ndim else cells.reshape(-1)[0].item()


def cause_of(body: TracedBody, at: WrongPlace) -> str:
    """Return the instruction that gave a faulty move its wrong start or mask, or its own name.

    A start is one of a table of starts, read at the device's number. A mask is a comparison.
    """
    one = body.instructions[at.name]
    if one.opcode == "dynamic-slice":
        tables = {_table(body, name) for name in one.operands[1:]} - {None}
        return str(tables.pop()) if len(tables) == 1 else at.name
    if one.opcode == "select":
        return _comparison(body, replace(at, name=one.operands[0])) or at.name
    return at.name


def _comparison(body: TracedBody, at: WrongPlace) -> str | None:
    """Return the comparison that gave a mask the wrong flag at a place, or None."""
    for _ in range(len(body.instructions)):
        one = body.instructions[at.name]
        values = [body.value_of(name) for name in one.operands]
        if one.opcode == "compare":
            return at.name
        if one.opcode in ("and", "or"):
            # One operand that is false makes an `and` false; then this one is the wrong flag.
            decisive = one.opcode == "or"
            flags = [isinstance(x, Known) and number_at(x, at.device, at.place) for x in values]
            if flags.count(decisive) != 1:
                return at.name
            at = replace(at, name=one.operands[flags.index(decisive)])
            continue
        source = at if one.opcode in ("not", "convert") else _source(body, one, at)
        if source is None or not one.operands:
            return None
        at = replace(source, name=one.operands[0])
    return None


def wrong_number(
    body: TracedBody, before: TracedBody, mine: WrongPlace, theirs: WrongPlace
) -> str | None:
    """Return the first instruction that computed a wrong known number, or None.

    Both programs are followed back from two places that should hold the same number, as long as
    their instructions are alike. An operand with another number is followed; if all operands have
    the same numbers, the instruction itself is wrong.
    """
    for _ in range(len(body.instructions)):
        one, other = body.instructions.get(mine.name), before.instructions.get(theirs.name)
        if one is None or other is None:
            return None
        if one.opcode in _ALONE or other.opcode in _ALONE:
            return mine.name
        # Moves of one program alone, such as the block of a mask, are passed.
        for side in (body, before):
            here, at = (one, mine) if side is body else (other, theirs)
            if one.opcode != other.opcode and here.opcode in (*_LOCAL, "copy", "dynamic-slice"):
                source = _source(side, here, at)
                if source is None:
                    return mine.name
                mine, theirs = (source, theirs) if side is body else (mine, source)
                break
        else:
            alike = one.opcode == other.opcode and len(one.operands) == len(other.operands)
            given = (x.attributes.get("dimensions", "") for x in (one, other))
            if not alike or len(set(given)) > 1:
                return mine.name
            pairs = [
                (_operand_place(body, one, k, mine), _operand_place(before, other, k, theirs))
                for k in range(len(one.operands))
            ]
            wrong = [pair for pair in pairs if differ(body, before, *pair)]
            if not wrong or wrong[0][0] is None or wrong[0][1] is None:
                return mine.name
            mine, theirs = wrong[0][0], wrong[0][1]
    return None


def _operand_place(
    body: TracedBody, one: HloInstruction, number: int, at: WrongPlace
) -> WrongPlace | None:
    """Return the place of an operand that an instruction reads for a place."""
    if one.opcode in _LOCAL or one.opcode == "dynamic-slice":
        return _source(body, one, at) if number == 0 else None
    x = body.operand(one, number)
    scalar = isinstance(x, Known) and not x.shape
    return replace(at, name=one.operands[number], place=() if scalar else at.place)


def differ(
    body: TracedBody, before: TracedBody, mine: WrongPlace | None, theirs: WrongPlace | None
) -> bool:
    """Return whether two places hold different known numbers."""
    if mine is None or theirs is None:
        return False
    first, second = body.value_of(mine.name), before.value_of(theirs.name)
    if not isinstance(first, Known) or not isinstance(second, Known):
        return False
    got = number_at(first, mine.device, mine.place)
    return got != number_at(second, theirs.device, theirs.place)


def _table(body: TracedBody, name: str) -> str | None:
    """Return the constant with a number per device that a start is read from, or None."""
    one = body.instructions[name]
    while one.opcode in _FORMS:
        one = body.instructions[one.operands[0]]
    if one.opcode != "dynamic-slice" or len(one.operands) != 2:
        return None
    table, index = (body.instructions[o] for o in one.operands)
    is_table = table.opcode == "constant" and index.opcode == "partition-id"
    return table.name if is_table else None


def table_behind(body: TracedBody, one: HloInstruction) -> str | None:
    """Return the table of starts that shifts the indices of a gather or a scatter, or None."""
    todo, seen = [one.operands[1]], set()
    while todo:
        name = todo.pop()
        other = body.instructions[name]
        if other.opcode not in (*_FORMS, "subtract", "clamp", "dynamic-slice") or name in seen:
            continue
        seen.add(name)
        table = _table(body, name)
        if table is not None:
            return table
        todo += other.operands
    return None


def first_reader(body: TracedBody, start: str) -> str | None:
    """Return the instruction that first reads a pending reduction, on the way to a reader.

    Args:
      start: an operand of the reader, with a pending reduction.

    Returns:
      The first instruction after the one that left the reduction pending; None if it is the reader.
    """
    x, name, after = body.value_of(start), start, None
    if not isinstance(x, View) or x.pending is None:
        return None
    while True:
        # Moves keep the reduction pending as it is; the operator before them made it.
        same = [
            o for o in body.instructions[name].operands
            if isinstance(v := body.value_of(o), View) and v.pending == x.pending
        ]  # fmt: skip
        if not same:
            return after
        after, name = name, same[0]


def has_element(x: View, element: int, devices: Collection[int]) -> bool:
    """Return whether a device has an element of the base; False if there are too many to look."""
    rows = {
        (int(x.shift.classes[d]), *(int(line.classes[d]) for line in x.lines)): d for d in devices
    }
    for device in rows.values():
        shift = int(x.shift.of(device))
        lines = sorted((line.of(device) for line in x.lines), key=len)
        longest = lines.pop() if lines else np.zeros(1, np.int64)
        sums = np.zeros(1, np.int64)
        for line in lines:
            sums = np.unique(sums[:, None] + np.unique(line[line > LOW]))
            if len(sums) > MOST_SUMS:
                return False
        if shift > LOW and np.isin(element - shift - sums, longest).any():
            return True
    return False
