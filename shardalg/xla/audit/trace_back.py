"""The move of data that first lost an element, for a value that is found wrong later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.hlo_attributes import groups_of
from shardalg.xla.audit.values.element_views import LOW, View
from shardalg.xla.audit.values.per_device import UnknownError

MOST_SUMS = 1 << 20
_MOVES = frozenset({
    "broadcast", "transpose", "slice", "reverse", "pad", "concatenate", "reshape", "dynamic-slice",
    "select", "copy", "bitcast", "all-gather", "all-to-all", "collective-permute", "all-reduce",
    "reduce-scatter",
})  # fmt: skip
_BETWEEN_DEVICES = ("all-gather", "all-to-all", "all-reduce", "reduce-scatter")


def losing_move(
    body: Mapping[str, HloInstruction],
    value_of: Callable[[str], object],
    start: str,
    wanted: tuple[int, int, int],
    devices: int,
) -> HloInstruction | None:
    """Return the move whose operand has an element that its result lacks, or None.

    Args:
      value_of: returns the value of an instruction. start: the instruction with the wrong value.
      wanted: the base, the element, and the device that should have it.
    """
    base, element, device = wanted
    todo: list[tuple[str, frozenset[int]]] = [(start, frozenset((device,)))]
    seen = set()
    while todo:
        name, places = todo.pop(0)
        one = body.get(name)
        if one is None or one.opcode not in _MOVES or (name, places) in seen:
            continue
        seen.add((name, places))
        sources = _sources(one, places, devices)
        for operand in one.operands:
            x = value_of(operand)
            if not isinstance(x, View) or x.base != base:
                continue
            if has_element(x, element, sources):
                return one
            todo.append((operand, sources))
    return None


def _sources(one: HloInstruction, places: frozenset[int], devices: int) -> frozenset[int]:
    """Return the devices whose operands a move may read for its result on some devices."""
    if one.opcode == "collective-permute":
        return frozenset(range(devices))
    if one.opcode in _BETWEEN_DEVICES:
        try:
            groups = groups_of(one, devices)
        except UnknownError:
            return places
        return frozenset(d for group in groups.tolist() if places & set(group) for d in group)
    return places


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
