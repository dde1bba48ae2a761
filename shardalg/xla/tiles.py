"""Memory that an array takes on a TPU, whose rows and columns are stored in tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

LANES, SUBLANES = 128, 8
OF_VECTORS = 256, 1024
"""The smallest tile of a vector, which a scalar takes, and the largest."""


def tiled_bytes(shape: Sequence[int], itemsize: int) -> int:
    """Bytes of an array of 32-bit items, padded to tiles as the TPU's compiler lays it out.

    Tiles are 8 x 128 items of the two minor dimensions, with 1, 2 or 4 rows where the array has no
    more, in the order of the two that takes less; of a vector 256 to 1024 items, of a scalar 256.
    Narrower items are padded so at least.

    >>> tiled_bytes((512, 4, 128), 4), tiled_bytes((12, 1024), 4), tiled_bytes((2000,), 4)
    (1048576, 65536, 8192)
    >>> tiled_bytes((1024, 12), 4)
    65536

    Layouts that libtpu prints, such as `f32[4,128]{1,0:T(4,128)}` and `f32[2000]{0:T(1024)}`.
    """
    if len(shape) < 2:
        (size,) = shape or (1,)
        least, most = OF_VECTORS
        return _up(size, min(most, max(least, _power_of_two(size)))) * itemsize
    *outer, rows, columns = shape
    held = min(_tiled(rows, columns), _tiled(columns, rows))
    return math.prod(outer) * held * itemsize


def _tiled(rows: int, columns: int) -> int:
    return _up(rows, min(SUBLANES, _power_of_two(rows))) * _up(columns, LANES)


def _power_of_two(size: int) -> int:
    """The first one that is no smaller."""
    return 1 << max(0, size - 1).bit_length()


def _up(size: int, tile: int) -> int:
    return -(-size // tile) * tile
