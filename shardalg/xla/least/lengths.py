"""Elements that devices read of a dimension, and those of them that they hold."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, partition_id, partition_ids, parts

Dims = tuple[Digits, ...]
MOST_READ, MOST_APART = 1 << 16, 256
"""Elements of one dimension, and devices, up to which reads by an index are counted."""


class Affine(NamedTuple):
    """Elements at an index that is no single loop.

    Attributes:
      loops: (name, factor, extent, digits that divide it).
    """

    at: Index
    loops: tuple[tuple[str, int, int, Digits], ...]

    def of(self, size: int, position: int) -> np.ndarray | None:
        """Return the elements that the device at a position reads; None for too many."""
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
"""Per device the number of elements of a dimension that it reads, and of those that it holds."""


@lru_cache(maxsize=1 << 14)
def lengths(size: int, held: Digits, wanted: Goal, devices: int) -> Lengths | None:
    """Return the numbers of elements along a dimension; None where they are not counted."""
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
    """Return the elements of a block that the neediest device reads and does not hold.

    Args:
      need, both: the shares that are read, and held of what is read, along other dimensions.
    """
    whole, common = np.ones(devices), np.ones(devices)
    for read, inside in found:
        whole, common = whole * read, common * inside
    return max(float((whole * need - common * both).max()), 0.0)


def missing(shape: tuple[int, ...], held: Dims, wanted: Dims, devices: int) -> float:
    """Return the elements of its wanted block that the neediest device does not hold.

    >>> from shardalg.algebra.digits import Digit
    >>> x, y = Digit(4, 2), Digit(1, 4)
    >>> missing((8, 8), ((x,), ()), ((), (x,)), 8), missing((8, 8), ((), ()), ((x,), (y,)), 8)
    (16.0, 0.0)
    """
    rows = zip(shape, held, wanted, strict=True)
    found = [lengths(size, own, goal, devices) for size, own, goal in rows]
    return lacking([one for one in found if one is not None], devices)
