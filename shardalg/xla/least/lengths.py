"""Numbers of elements that devices read along dimensions, and that they hold of these."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, partition_id, partition_ids, parts

Dims = tuple[Digits, ...]
MOST_READ, MOST_APART = 1 << 16, 256
"""The most elements of a dimension, and the most devices, for which reads are counted."""


class Affine(NamedTuple):
    """The elements that an index of several loops, or with a factor, reads.

    Attributes:
      loops: per loop (name, factor, extent, digits that divide the loop).
    """

    at: Index
    loops: tuple[tuple[str, int, int, Digits], ...]

    def of(self, size: int, position: int) -> np.ndarray | None:
        """Return the elements that the device at a position reads; None if they are too many."""
        found = np.array([self.at.constant])
        for _, factor, extent, digits in self.loops:
            block = -(-extent // parts(digits))
            start = partition_id(digits, position) * block
            values = np.arange(start, min(start + block, extent)) * factor
            if found.size * values.size > MOST_READ:
                return None
            found = np.unique(found[:, None] + values[None, :])
        if self.at.exact:
            found = found[found % self.at.div == 0]
        found = found // self.at.div
        found = found % self.at.mod if self.at.mod else found
        return np.unique(found[(found >= 0) & (found < size)])


Goal = Digits | Affine
Lengths = tuple[np.ndarray, np.ndarray]
"""Per device, the number of elements that it reads, and the number that it also holds."""


@lru_cache(maxsize=1 << 14)
def lengths(size: int, held: Digits, wanted: Goal, devices: int) -> Lengths | None:
    """Return the numbers of elements read and held along a dimension; None if not counted."""
    positions = np.arange(devices)
    width = -(-size // parts(held))
    start = np.minimum(partition_ids(held, positions) * width, size)
    end = np.minimum(start + width, size)
    if not isinstance(wanted, Affine):
        goal_block = -(-size // parts(wanted))
        goal = np.minimum(partition_ids(wanted, positions) * goal_block, size)
        goal_end = np.minimum(goal + goal_block, size)
        return goal_end - goal, np.maximum(np.minimum(end, goal_end) - np.maximum(start, goal), 0)
    if devices > MOST_APART and any(digits for *_, digits in wanted.loops):
        return None
    counts = []
    for position in range(devices):
        read = wanted.of(size, position)
        if read is None:
            return None
        inside = (read >= start[position]) & (read < end[position])
        counts.append((read.size, int(inside.sum())))
    whole, common = np.array(counts).T
    return whole, common


def lacking(
    found: Iterable[Lengths], devices: int, *, need: float = 1.0, both: float = 1.0
) -> float:
    """Return the largest number of elements that a device reads and does not hold.

    Args:
      need: the share that a device reads along further dimensions.
      both: the share that a device reads and holds along further dimensions.
    """
    whole, common = np.ones(devices), np.ones(devices)
    for read, inside in found:
        whole, common = whole * read, common * inside
    return max(float((whole * need - common * both).max()), 0.0)


def missing(shape: tuple[int, ...], held: Dims, wanted: Dims, devices: int) -> float:
    """Return the largest number of elements that a device lacks of its wanted block.

    >>> from shardalg.algebra.digits import Digit
    >>> x, y = Digit(4, 2), Digit(1, 4)
    >>> missing((8, 8), ((x,), ()), ((), (x,)), 8), missing((8, 8), ((), ()), ((x,), (y,)), 8)
    (16.0, 0.0)
    """
    rows = zip(shape, held, wanted, strict=True)
    found = [lengths(size, own, goal, devices) for size, own, goal in rows]
    return lacking([one for one in found if one is not None], devices)
