"""Refusals, and the device or the tile that shows one, found by evaluating both shardings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.merge.places import DimOrClass, digits_at, escape, offset_at
from shardalg.merge.position_tables import rows_of

Pair = tuple[Sharding, Sharding]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why shardings are refused.

    Attributes:
      kind: "offset" (a dimension lies differently), "overlap" (two dimensions would share a
        digit), "joint" (several are unbalanced together), "closed" (a dimension that may not be
        refined), "class" (unreduced or manual digits differ), "contained" (a block is not inside
        the other one).
      dims: the dimensions at fault; a class stands as its name.
    """

    kind: str
    dims: tuple[DimOrClass, ...]


@dataclass(frozen=True, slots=True)
class Witness:
    """A concrete case that shows a refusal.

    Attributes:
      device, dim: where the two shardings differ, with the offsets that they give.
      dims, tile: the tile that `count` devices would hold in place of `expected`.
    """

    device: int | None = None
    dim: DimOrClass | None = None
    offsets: tuple[int, int] | None = None
    dims: tuple[DimOrClass, ...] = ()
    tile: tuple[int, ...] = ()
    count: int | None = None
    expected: int | None = None


def find(pair: Pair, failure: Failure) -> Witness:
    """The device or the tile that shows a refusal of two shardings."""
    return _FIND[failure.kind](pair, failure)


def _offset_witness(pair: Pair, failure: Failure) -> Witness:
    """A device that the pair gives different offsets."""
    place = failure.dims[0]
    for device in _likely_first(pair, place):
        a, b = (offset_at(s, place, device) for s in pair)
        if a != b:
            return Witness(device, place, (a, b))
    raise AssertionError("a refused dimension lies alike on every device")


def _likely_first(pair: Pair, place: DimOrClass) -> Iterator[int]:
    """All devices, those at the strides of the digits first."""
    for s in pair:
        for digit in digits_at(s, place):
            if digit.stride < s.mesh.size:
                yield s.mesh.order[digit.stride]
    yield from pair[0].mesh.order


def _tile_witness(pair: Pair, failure: Failure) -> Witness:
    """The tile that too few devices hold: one that none holds, if there is one."""
    places = failure.dims
    tables = [rows_of(s) for s in owners(pair, failure)]
    shape = tuple(rows.parts[place] for rows, place in zip(tables, places, strict=True))
    held = np.stack([rows.ids[place] for rows, place in zip(tables, places, strict=True)], axis=1)
    size, total = len(held), math.prod(shape)
    tiles, counts = np.unique(held, axis=0, return_counts=True)
    if len(tiles) == total:
        least = int(counts.argmin())
        tile, count = tuple(tiles[least].tolist()), int(counts[least])
    else:
        tile, count = _missing(tiles, shape), 0
    return Witness(dims=places, tile=tile, count=count, expected=-(-size // total))


def _missing(tiles: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The first tile, in row-major order, that is not in a sorted list."""
    numbers = np.zeros(len(tiles), object)
    for column, n in zip(tiles.T, shape, strict=True):
        numbers = numbers * n + column.astype(object)
    gaps = np.flatnonzero(numbers != np.arange(len(numbers)))
    number = int(gaps[0]) if len(gaps) else len(numbers)
    found: list[int] = []
    for n in reversed(shape):
        number, digit = divmod(number, n)
        found.append(digit)
    return tuple(reversed(found))


def owners(pair: Pair, failure: Failure) -> tuple[Sharding, ...]:
    """Whose digits clash on each place: the first one's with the second one's, or the longest."""
    if failure.kind == "overlap":
        return pair
    return tuple(max(pair, key=lambda s: parts(digits_at(s, place))) for place in failure.dims)


def _contained_witness(pair: Pair, failure: Failure) -> Witness:
    """A device whose block of the first sharding leaves its block of the second one."""
    fine, coarse = pair
    for device in fine.mesh.order:
        dim = escape(fine, coarse, device)
        if dim is not None:
            offsets = (fine.shard_offset(device, dim), coarse.shard_offset(device, dim))
            return Witness(device, dim, offsets)
    raise AssertionError("a refused refinement holds on every device")


_FIND = {
    "offset": _offset_witness,
    "class": _offset_witness,
    "closed": _offset_witness,
    "overlap": _tile_witness,
    "joint": _tile_witness,
    "contained": _contained_witness,
}
