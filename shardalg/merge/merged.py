"""The merged sharding, made from its digits or from its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardalg.algebra.digits import Digit, Digits, Table, overlap
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.merge.places import DimOrClass
from shardalg.merge.position_tables import Rows


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
    found = Table(tuple(rows.parts.values()), ids).recognize()
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
