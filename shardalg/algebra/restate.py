"""One layout stated in positions of another mesh over the same devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from shardalg.algebra.digits import Digits, Table, canonical, partition_ids, parts
from shardalg.algebra.layout import CLASSES, Layout
from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError

L = TypeVar("L", bound=Layout)


def restate(sharding: L, mesh: Mesh) -> L | None:
    """The sharding in positions of `mesh`; None where it is no digits there, or other devices.

    Digits come back as axes and sub-axes of `mesh` where they are made of them.

    >>> from shardalg.algebra.sharding import Sharding
    >>> listed = Sharding.from_hlo("{devices=[2,2]0,1,3,2}", (4, 4))
    >>> restate(listed, Mesh({"x": 2, "y": 2}, [0, 3, 1, 2]))
    Sharding([y, x], shape=(4, 4), Mesh(x=2, y=2, device_ids=[0, 3, 1, 2]))
    >>> restate(listed, Mesh({"x": 2, "y": 2})) is None
    True
    """
    if sharding.mesh == mesh:
        return sharding
    rows = (*sharding.dims, *(getattr(sharding, kind) for kind in CLASSES))
    found = _positions(rows, sharding.mesh, mesh)
    if found is None:
        return None
    rank = len(sharding.dims)
    there = tuple(spelled(digits, mesh) for digits in found)
    unreduced, manual, kept = there[rank:]
    return replace(
        sharding,
        mesh=mesh,
        dims=there[:rank],
        unreduced=unreduced,
        manual=manual,
        replicated=kept,
    )


def in_order(sharding: L, mesh: Mesh) -> L | None:
    """The sharding on `mesh`, or on its axes in the sharding's own order of devices.

    The second where no digits of `mesh` write it; None over other devices.

    >>> from shardalg.algebra.sharding import Sharding
    >>> ring = Sharding.from_spec(("x",), Mesh({"x": 4}, [3, 2, 1, 0]), (8,))
    >>> in_order(ring, Mesh({"y": 4}))
    Sharding([y], shape=(8,), Mesh(y=4, device_ids=[3, 2, 1, 0]))
    """
    if sorted(sharding.mesh.order) != sorted(mesh.order):
        return None
    return restate(sharding, mesh) or restate(sharding, Mesh(mesh.axes, sharding.mesh.order))


def _positions(rows: tuple[Digits, ...], source: Mesh, target: Mesh) -> tuple[Digits, ...] | None:
    """The digits of each row in positions of `target`."""
    if source.size != target.size:
        return None
    if source.device_ids == target.device_ids:
        return rows
    if sorted(source.order) != sorted(target.order):
        return None
    places = target.places(source)
    ids = tuple(partition_ids(row, places) for row in rows)
    return Table(tuple(parts(row) for row in rows), ids).recognize()


def spelled(digits: Digits, mesh: Mesh) -> Digits:
    """The digits as axes and sub-axes of the mesh, where they are made of them.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> spelled((mesh.digit("x"), mesh.digit("y")), mesh) == mesh.digits("xy")
    True
    >>> spelled(Mesh.unnamed(8).digits([""]), mesh) == mesh.digits("xy")
    True
    """
    try:
        return tuple(mesh.ref_digit(ref) for ref in mesh.refs(canonical(digits)))
    except MeshError:
        return canonical(digits)
