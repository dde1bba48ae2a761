"""The check that a device's value is the block of a value before partitioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardalg.xla.audit.hlo_attributes import block_indices
from shardalg.xla.audit.values.element_views import (
    ANYTHING,
    LOW,
    MIXED,
    Known,
    Value,
    View,
    content,
    numbers_differ,
    parts_of,
    picked,
)
from shardalg.xla.audit.values.per_device import (
    NOT_COMPLETED,
    ArrayPool,
    PerDevice,
    RefutedError,
    Shown,
    UnknownError,
    WantedElement,
)

Tree = Value | tuple["Tree", ...] | None
"""A value, the elements of a tuple, or None for a value that is not understood."""


def blocks_of(pool: ArrayPool, text: str, shape: Sequence[int]) -> list[PerDevice]:
    """Return the indices of each device's block per dimension; -1 marks padding."""
    found = pool.kept(
        ("blocks", text, tuple(shape)),
        lambda: [pool.made(*at) for at in block_indices(text, shape, pool.devices)],
    )
    assert isinstance(found, list)
    return found


def check_block(
    pool: ArrayPool, mine: Tree, theirs: Tree, blocks: Sequence[PerDevice], what: str
) -> None:
    """Raise an error unless a local value is the block of a value before partitioning.

    A local value that is not understood passes: its own instruction has the reason.

    Raises:
      RefutedError: an element differs. UnknownError: the two cannot be compared.
    """
    if theirs is None:
        raise UnknownError(f"{what} is not understood before partitioning")
    if mine is None:
        return
    if isinstance(mine, tuple) or isinstance(theirs, tuple):
        raise UnknownError(f"{what}: a tuple")
    wanted = block_of(pool, theirs, blocks)
    if mine.shape != wanted.shape:
        why = f"{what} has the shape {list(mine.shape)} in place of {list(wanted.shape)}"
        shown = Shown((), str(list(wanted.shape)), str(list(mine.shape)))
        raise RefutedError(why, shown=shown)
    if isinstance(mine, Known) and isinstance(wanted, Known):
        wrong = pool.applied("differ", numbers_differ, mine.cells, wanted.cells)
        if wrong.rows.any():
            row, *place = map(int, np.argwhere(wrong.rows)[0])
            device = wrong.device(row)
            shape = wrong.rows.shape[1:]
            cells = (np.broadcast_to(x.cells.of(device), shape) for x in (wanted, mine))
            there = tuple(int(b.of(device)[i]) for b, i in zip(blocks, place, strict=False))
            expected, found = (str(x[tuple(place)].item()) for x in cells)
            shown = Shown((), expected, found, there if blocks else tuple(place))
            raise RefutedError(f"{what} differs", device, tuple(place), shown=shown)
        return
    if isinstance(mine, Known) or isinstance(wanted, Known):
        raise UnknownError(f"{what} is known on one side only")
    if mine.change is not None:
        raise UnknownError(f"{what} has shifted indices, or a gather without its mask")
    if mine.pending is not None:
        why = f"{what} is {NOT_COMPLETED}"
        raise RefutedError(why, 0, (0,) * len(mine.lines), shown=parts_of(mine.pending))
    if mine.base != wanted.base:
        assert isinstance(wanted, View)
        spot = (0,) * len(mine.lines)
        shown = _both(mine, wanted, 0, spot)
        raise RefutedError(f"{what} has elements of another tensor", 0, spot, shown=shown)
    has_fill = isinstance(theirs, View) and theirs.is_partly_void
    if mine.same_places(replace(wanted, fill=mine.fill)) and not has_fill:
        return
    # Shifts and lines are counted from the first element, so that equal elements have equal ones.
    # A device whose block is padding alone needs nothing.
    dead = pool.same(np.array(False))
    if blocks:
        dead = pool.applied("padding", lambda *b: np.any([(p < 0).all(1) for p in b], 0), *blocks)
    refuted = UnknownError if mine.fill == MIXED else RefutedError
    wrong = pool.applied("unequal", unequal, mine.shift, wanted.shift, dead)
    if wrong.rows.any():
        device = wrong.device(int(np.argmax(wrong.rows)))
        spot = (0,) * len(mine.lines)
        shown = _both(mine, wanted, device, spot)
        raise refuted(f"{what} differs", device, spot, origin=mine.origin, shown=shown)
    dead = pool.applied("no element", lambda d, s: d | (s < LOW), dead, wanted.shift)
    for dim, (got, want) in enumerate(zip(mine.lines, wanted.lines, strict=True)):
        steps = blocks[dim] if blocks else pool.same(np.zeros(got.rows.shape[1], np.int64))
        wrong = pool.applied("unequal line", unequal, got, want, dead, steps)
        if wrong.rows.any():
            row, index = map(int, np.argwhere(wrong.rows)[0])
            spot = tuple(index if d == dim else 0 for d in range(len(mine.lines)))
            device = wrong.device(row)
            shown = _both(mine, wanted, device, spot)
            raise refuted(f"{what} differs", device, spot, origin=mine.origin, shown=shown)
    if isinstance(theirs, View) and has_fill and mine.fill != theirs.fill:
        if mine.fill in (ANYTHING, MIXED, None):
            raise UnknownError(f"{what} has padding that is not known")
        shown = Shown(expected=f"padding {theirs.fill}", found=f"padding {mine.fill}")
        why = f"{what} has {mine.fill} in place of the padding {theirs.fill}"
        raise RefutedError(why, shown=shown)


def _both(mine: View, wanted: View, device: int, place: tuple[int, ...]) -> Shown:
    """Return the expected and the found content of a place."""
    right = content(wanted, device, place)
    missing = (WantedElement(*right, device, place),) if isinstance(right, tuple) else ()
    return Shown(missing, right, content(mine, device, place))


def unequal(
    got: np.ndarray, want: np.ndarray, dead: np.ndarray, place: np.ndarray | None = None
) -> np.ndarray:
    """Return where a line differs from the wanted one, except in padding.

    Args:
      dead: whether the device needs nothing. place: -1 marks padding of a block.
    """
    alive = ~dead.reshape(-1, *[1] * (got.ndim - 1))
    wrong = (np.maximum(got, LOW) != np.maximum(want, LOW)) & alive
    return wrong if place is None else wrong & (place >= 0)


def block_of(pool: ArrayPool, value: Tree, blocks: Sequence[PerDevice]) -> Value:
    """Return the block of a value on each device; without blocks, the value itself."""
    assert isinstance(value, View | Known)
    return picked(pool, value, blocks) if blocks else value
