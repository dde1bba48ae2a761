"""Reductions over a part of the indices: which part a device has, and its padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.hlo_attributes import INTEGERS, combination
from shardalg.xla.audit.operators.loop_places import LoopPlaces
from shardalg.xla.audit.operators.operator_table import Entry
from shardalg.xla.audit.values.element_views import Known, Pending, Value, View, find_places
from shardalg.xla.audit.values.per_device import (
    ArrayPool,
    ClassError,
    PerDevice,
    RefutedError,
    Shown,
    UnknownError,
)

_LARGEST = {"bf16": 3.3895e38, "f16": 65504.0, "f32": 3.4028e38, "f64": 1.7976e308}


def covered(
    pool: ArrayPool,
    module: HloModule,
    instruction: HloInstruction,
    entry: Entry,
    operands: Sequence[Value],
    found: LoopPlaces,
) -> Pending | None:
    """Return the reduction that is pending after the reduced loops, or None if it is complete.

    Raises:
      RefutedError: padding that is not the identity enters the reduction, or an element enters
        it twice.
    """
    loops, places = entry.loops, found.at
    is_product = entry.instruction.opcode == "convolution"
    kernels = [kernel for _, kernel, _ in loops.windows if is_product]
    if not loops.reduced and not kernels:
        return None
    opcode = entry.instruction.opcode
    combine = combination(module, instruction) if opcode in ("reduce", "scatter") else "add"
    covers = []
    for loop in loops.reduced:
        place, (size, varies) = places[loop], entry.extents[loop]
        if loop in found.faults:
            fault = found.faults[loop]
            raise RefutedError(fault.why, fault.device, fault.place, shown=fault.shown)
        if isinstance(place, int) or not varies:
            lengths = place if isinstance(place, int) else (place.rows >= 0).sum(1)
            if np.any(lengths != size):
                raise UnknownError("a partial sum of equal elements")
            covers.append(pool.same(np.ones(size, bool)))
            continue
        if (place.rows < 0).any():
            check_fills(pool, combine, instruction.leaves[0][0], entry, operands, loop)
        covers.append(pool.applied(("count", size, combine), _counted(size, combine), place))
    for loop in kernels:
        place = places[loop]
        assert isinstance(place, PerDevice)
        covers.append(place)
    if all(cover.rows.all() for cover in covers):
        return None
    if opcode == "reduce":
        start = operands[1]
        number = start.number if isinstance(start, Known) else None
        if combine not in ("add", "maximum", "minimum", "and", "or"):
            raise UnknownError(f"a partial reduction by {combine or 'a program'}")
        if not is_identity(combine, instruction.leaves[0][0], number):
            shown = Shown(expected=f"the identity of {combine}", found=f"{number}")
            why = "a partial reduction begins with a number that is added again"
            raise RefutedError(why, shown=shown)
    if opcode == "scatter":
        start = operands[0]
        if combine != "add":
            raise UnknownError(f"a partial scatter by {combine or 'a program'}")
        if not isinstance(start, Known) or start.number != 0:
            raise UnknownError("a partial scatter into values that may be added again")
    return Pending(combine, tuple(covers))


def check_fills(
    pool: ArrayPool, combine: str, dtype: str, entry: Entry, operands: Sequence[Value], loop: int
) -> None:
    """Raise an error unless padding that enters a reduction is its identity.

    Raises:
      RefutedError: it is another number. UnknownError: its content is not known.
    """
    pairs = zip(operands, entry.operands, entry.loops.operands, strict=True)
    fills, places = [], []
    for mine, theirs, dims in pairs:
        if isinstance(mine, View) and isinstance(theirs, View) and loop in dims:
            place = find_places(pool, theirs, mine)[0][dims.index(loop)]
            if place is not None and (place.rows < 0).any():
                fills.append(mine)
                places.append(place)
    good = [is_identity(combine, dtype, x.fill) for x in fills]

    def wrong(*rows: np.ndarray) -> np.ndarray:
        """Return, per class of devices, whether wrong padding enters the reduction."""
        # In a product, one factor that is 0 is enough if the other one is a number.
        hidden = np.zeros(np.broadcast_shapes(*(r.shape for r in rows)), bool)
        for row, is_good in zip(rows, good, strict=True):
            hidden = hidden | ((row < 0) if is_good else False)
        bad = np.zeros(hidden.shape, bool)
        for row, is_good, x in zip(rows, good, fills, strict=True):
            if not is_good:
                number = isinstance(x.fill, float)
                bad = bad | ((row < 0) & ~(hidden if number else False))
        return np.asarray(bad.any(1))

    if all(good):
        return
    found = pool.applied(("wrong fill", *good, *(x.fill for x in fills)), wrong, *places)
    if found.rows.any():
        device = found.device(int(np.argmax(found.rows)))
        worst = next(x for x, is_good in zip(fills, good, strict=True) if not is_good)
        if worst.origin or isinstance(worst.fill, float):
            why = f"padding that is not the identity of {combine} enters a reduction"
            shown = Shown(expected=f"the identity of {combine}", found=f"padding {worst.fill}")
            raise RefutedError(why, device, origin=worst.origin, shown=shown)
        raise UnknownError("padding that may not be 0 enters a reduction", device)


def is_identity(combine: str, dtype: str, number: object) -> bool:
    """Return whether a number is the identity of a reduction of an item type.

    The lowest number of the type is one of a maximum, and minus infinity is one, too.

    >>> is_identity("add", "f32", 0.0), is_identity("maximum", "s8", -128.0)
    (True, True)
    """
    if not isinstance(number, int | float):
        return False
    if combine in ("add", "or", "and"):
        return number == (1 if combine == "and" else 0)
    if combine not in ("maximum", "minimum"):
        return False
    low = number if combine == "maximum" else -number
    if dtype in INTEGERS:
        bits = INTEGERS[dtype]
        if bits < 0:
            return number == (0 if combine == "maximum" else (1 << -bits) - 1)
        half = 1 << (bits - 1)
        return number == (-half if combine == "maximum" else half - 1)
    return low == -np.inf or low <= -_LARGEST.get(dtype, np.inf)


def _counted(size: int, combine: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that gives the indices of a reduced loop that each device has, as flags.

    It raises ClassError if an index enters a sum twice; a maximum may have it twice.
    """

    def count(place: np.ndarray) -> np.ndarray:
        """Return the flags, [classes, size], of indices before partitioning, [classes, length]."""
        found = np.zeros((len(place), size), np.int64)
        for row, line in enumerate(place):
            found[row] = np.bincount(line[line >= 0], minlength=size)
        if combine == "add" and (found > 1).any():
            row, at = map(int, np.argwhere(found > 1)[0])
            shown = Shown(expected=f"index {at} of the sum once", found=f"{found[row, at]} times")
            raise ClassError(RefutedError("an element enters the sum twice", shown=shown), row)
        return found > 0

    return count
