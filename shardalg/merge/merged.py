"""The merged sharding, made from its digits or from its table.

Merging by tables: partition ids listed by device, for orders of devices that no digits join.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardalg.algebra.digits import Digit, Digits, PositionTable, overlap, partition_ids, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.merge.places import DimOrClass

Ids = np.ndarray


@dataclass(frozen=True, eq=False)
class Rows:
    """Partition ids of every place that is split, on each device, by ascending device id.

    Attributes:
      size: number of devices.
      parts: number of partitions of each place.
      ids: partition id of each place on each device.
    """

    size: int
    parts: Mapping[DimOrClass, int]
    ids: Mapping[DimOrClass, Ids]

    def only(self, places: Iterable[DimOrClass]) -> Rows:
        """The table of some of the places."""
        held = tuple(places)
        return Rows(self.size, {p: self.parts[p] for p in held}, {p: self.ids[p] for p in held})

    def is_balanced(self, places: tuple[DimOrClass, ...]) -> bool:
        """Whether every tile of these places is held by the same number of devices."""
        counts = self.counts(places)
        return bool((counts == counts[0]).all()) if len(counts) else False

    def counts(self, places: tuple[DimOrClass, ...]) -> Ids:
        """Number of devices of each tile, tiles in row-major order; empty if there are too many."""
        total = math.prod(self.parts[place] for place in places)
        if total > self.size:
            return np.zeros(0, int)
        tile = np.zeros(self.size, int)
        for place in places:
            tile = tile * self.parts[place] + self.ids[place]
        return np.bincount(tile, minlength=total)


def rows_of(sharding: Sharding) -> Rows:
    """The table of a sharding."""
    mesh = sharding.mesh
    places = sharding.split_places
    positions = np.arange(mesh.size)
    if mesh.device_ids is not None:
        positions = np.argsort(np.array(mesh.device_ids))
    return Rows(
        mesh.size,
        {place: parts(digits) for place, digits in places},
        {place: partition_ids(digits, positions) for place, digits in places},
    )


Clash = tuple[str, tuple[DimOrClass, ...]]


def join(first: Rows, second: Rows, *, prefixes: bool = False) -> Rows | Clash:
    """The table that has the ids of both, or what forbids it: kind of failure and places.

    Args:
      prefixes: a dimension that both split may be split further by one of them (policy "shardy").
    """
    chosen = dict.fromkeys(first.parts, first) | {
        place: second for place in second.parts if place not in first.parts
    }
    for kind in CLASSES[:2]:
        if (kind in first.parts) != (kind in second.parts):
            return ("class", (kind,))
    for place in (p for p in first.parts if p in second.parts):
        coarse, fine = (first, second)[:: 1 if first.parts[place] <= second.parts[place] else -1]
        if not _agree(place, coarse, fine, prefixes=prefixes and isinstance(place, int)):
            return ("class" if place in CLASSES else "offset", (place,))
        chosen[place] = fine
    both = Rows(
        first.size,
        {place: rows.parts[place] for place, rows in chosen.items()},
        {place: rows.ids[place] for place, rows in chosen.items()},
    )
    return both if both.is_balanced(tuple(both.parts)) else ("joint", tuple(both.parts))


def _agree(place: DimOrClass, coarse: Rows, fine: Rows, *, prefixes: bool) -> bool:
    """Equal ids; with `prefixes` the coarse ones may be the major part of the fine ones."""
    ratio, rest = divmod(fine.parts[place], coarse.parts[place])
    if rest or (ratio > 1 and not prefixes):
        return False
    ids = fine.ids[place] if ratio == 1 else fine.ids[place] // ratio
    return bool(np.array_equal(coarse.ids[place], ids))


def united(first: Sharding, second: Sharding, dims: tuple[Digits, ...]) -> Sharding:
    """Both shardings with these digits on the dimensions; an operand itself where it is that."""
    kept = _union(first.replicated, second.replicated)
    opened = open_dims(first, second)
    for operand in (first, second):
        if (dims, kept, opened) == (operand.dims, operand.replicated, operand.unspecified_dims):
            return operand
    held = (first.unreduced, kept, first.manual)
    return Sharding(first.mesh, first.shape, dims, opened, *held)


def _union(first: Digits, second: Digits) -> Digits:
    """Explicitly replicated digits of both; what overlaps is held once, whole."""
    if not second or first == second:
        return first
    more = tuple(d for d in second if not any(overlap(d, e) and d.size <= e.size for e in first))
    return (*(d for d in first if not any(overlap(d, e) for e in more)), *more)


def open_dims(first: Sharding, second: Sharding) -> tuple[int, ...]:
    """Open dimensions stay open unless the other operand, open elsewhere, holds them closed."""
    a, b = first.unspecified_dims, second.unspecified_dims
    return tuple(i for i in a if i in b) if a and b else a or b


def from_table(table: Rows, first: Sharding, second: Sharding) -> Sharding:
    """The sharding that a balanced table is: on the mesh of either, or on an order made for it."""
    for like in (first, second):
        found = on_mesh(table, like, like.mesh)
        if found is not None:
            break
    opened = open_dims(first, second)
    return replace(found or on_own_order(table, first), unspecified_dims=opened)


def on_mesh(rows: Rows, like: Sharding, mesh: Mesh) -> Sharding | None:
    """The sharding that a table is on `mesh`; None where digits of its positions cannot say it."""
    devices = np.argsort(np.argsort(np.array(mesh.order)))
    places = tuple(rows.parts)
    ids = tuple(rows.ids[place][devices] for place in places)
    found = PositionTable(tuple(rows.parts.values()), ids).recognize()
    if found is None:
        return None
    return _sharding(like, mesh, dict(zip(places, found, strict=True)))


def on_own_order(rows: Rows, like: Sharding) -> Sharding:
    """The sharding that a balanced table is, on unnamed devices ordered tile by tile."""
    order = np.lexsort(tuple(rows.ids[place] for place in reversed(rows.parts)))
    held, stride = {}, rows.size
    for place, n in rows.parts.items():
        stride //= n
        held[place] = (Digit(stride, n),)
    ids = np.sort(np.array(like.mesh.order))[order]
    return _sharding(like, Mesh.unnamed(rows.size, ids.tolist()), held)


def _sharding(like: Sharding, mesh: Mesh, held: Mapping[DimOrClass, Digits]) -> Sharding:
    dims = tuple(held.get(i, ()) for i in range(len(like.shape)))
    classes = {name: held.get(name, ()) for name in CLASSES}
    return Sharding(mesh, like.shape, dims, like.unspecified_dims).holding(classes)
