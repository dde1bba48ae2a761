"""Borders of manual regions (`shard_map`): a value as a block per device, and back.

Inside of a region the program before partitioning computes with blocks, too. A value is then one
tensor per class of devices. Its base has one part for each class, in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from shardalg.xla.audit.hlo_attributes import in_tiles, integers, tiles_of
from shardalg.xla.audit.values.element_views import LOW, VOID, View, picked, strides, view
from shardalg.xla.audit.values.per_device import ArrayPool, PerDevice, UnknownError

TO_SHARD, TO_FULL = "SPMDFullToShardShape", "SPMDShardToFullShape"


def manual_blocks(
    text: str, full: Sequence[int], shard: Sequence[int], devices: int
) -> list[np.ndarray]:
    """Return the number of each device's manual block along each dimension.

    Args:
      text: the sharding of the full value.

    Raises:
      UnknownError: the sharding does not give the blocks.
    """
    blocks, counts = tiles_of(text, len(full), devices)
    found = []
    for dim, (whole, part) in enumerate(zip(full, shard, strict=True)):
        number = whole // part
        if whole % part or counts[dim] % number:
            raise UnknownError(f"a manual region with blocks of {part} of {whole} elements")
        # Axes that are not manual split a block further, so they are the minor ones.
        found.append(blocks[:, dim] // (counts[dim] // number))
    return found


def shard_of(pool: ArrayPool, x: View, text: str, shard: Sequence[int]) -> View:
    """Return each device's block of a full value."""
    places = []
    for number, size in zip(manual_blocks(text, x.shape, shard, pool.devices), shard, strict=True):
        rows, classes = np.unique(number, return_inverse=True)
        at = rows[:, None] * size + np.arange(size)
        places.append(pool.made(at, classes.reshape(-1)))
    made = picked(pool, x, places)
    assert isinstance(made, View)
    return made


def full_of(pool: ArrayPool, x: View, text: str, full: Sequence[int]) -> View:
    """Return the full value of blocks per device.

    Raises:
      UnknownError: devices with the same block have different values, or the blocks are in no
        order that lines express.
    """
    if x.pending is not None or x.change is not None:
        raise UnknownError("the end of a manual region with pending values")
    blocks = manual_blocks(text, full, x.shape, pool.devices)
    shift = x.shift.each()
    # Devices that received nothing hold a fill; their blocks have no elements.
    alive = int(np.argmax(shift > LOW))
    first = shift[alive]
    lines = []
    expected = np.full(pool.devices, first)
    for dim, (number, size) in enumerate(zip(blocks, x.shape, strict=True)):
        # The distance of block j along this dimension, on devices with the same block along others.
        others = np.ones(pool.devices, bool)
        for k, other in enumerate(blocks):
            others &= (other == other[alive]) | (k == dim)
        count = int(number.max(initial=0)) + 1
        steps = np.zeros(count, np.int64)
        for j in range(count):
            at = np.nonzero(others & (number == j))[0]
            if not len(at):
                raise UnknownError("the end of a manual region without all blocks")
            steps[j] = shift[at[0]] - first if shift[at[0]] > LOW else VOID
        expected = expected + steps[number]
        line = x.lines[dim]
        if not line.is_equal:
            raise UnknownError("the end of a manual region with blocks of different forms")
        joined = (steps[:, None] + line.rows[0][None, :size]).reshape(-1)
        lines.append(pool.same(np.where(joined < LOW, VOID, joined)))
    if (np.where(expected < LOW, VOID, expected) != shift).any():
        raise UnknownError("the end of a manual region whose replicas may differ")
    return view(pool, x, pool.same(first), lines)


def manual_classes(text: str, devices: int) -> np.ndarray | None:
    """Return the manual coordinates of each device as one number; None outside of regions.

    >>> manual_classes("{devices=[1,2,2]<=[4] last_tile_dims={manual}}", 4).tolist()
    [0, 1, 0, 1]
    """
    if "manual" not in text:
        return None
    text = in_tiles(text, devices)
    kinds = re.search(r"last_tile_dims=\{([^}]*)\}", text)
    if kinds is None:
        return np.arange(devices)
    names = [name.strip() for name in kinds[1].split(",")]
    counts = integers(re.search(r"devices=\[([\d,]+)\]", text)[1])  # type: ignore[index]
    rank = len(counts)
    blocks, _ = tiles_of(text, rank, devices)
    made = np.zeros(devices, np.int64)
    for dim, name in zip(range(rank - len(names), rank), names, strict=True):
        if name == "manual":
            made = made * counts[dim] + blocks[:, dim]
    return made


def stacked(pool: ArrayPool, classes: PerDevice | None, shape: Sequence[int]) -> PerDevice:
    """Return the shift of each device's part of a base with one part per class."""
    if classes is None:
        return pool.same(0)
    size = int(np.prod(shape, dtype=np.int64)) if len(strides(shape)) else 1
    return pool.applied(("part", size), lambda c: c * size, classes)
