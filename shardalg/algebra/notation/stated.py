"""What a text states, as the data of a sharding."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.layout import Layout
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation.reader import Reader
from shardalg.algebra.restate import restate


@dataclass(frozen=True)
class Dim:
    """One dimension as it stands."""

    digits: Digits
    is_open: bool
    priority: int


def layout_of(
    mesh: Mesh, shape: tuple[int, ...], dims: tuple[Dim, ...], held: dict[str, Digits]
) -> Layout:
    """The sharding that was read."""
    opened = tuple(i for i, dim in enumerate(dims) if dim.is_open)
    priorities = tuple(dim.priority for dim in dims)
    digits = tuple(dim.digits for dim in dims)
    return Layout(mesh, shape, digits, opened, priorities=priorities).holding(held)


def whole(mesh: Mesh, shape: tuple[int, ...], **held: Digits) -> Layout:
    """No dimension is partitioned; `held` has the digits of the other classes."""
    return Layout(mesh, shape, ((),) * len(shape)).holding(held)


def on_device(reader: Reader, device: int, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """The maximal sharding that was read, after a look whether `mesh` has the device."""
    if mesh is not None and device not in mesh.order:
        raise reader.error(f"device {device} is not on {mesh!r}")
    return whole(Mesh({}, [device]), shape)


def stated(reader: Reader, read: Layout, mesh: Mesh | None) -> Layout:
    """What was read with a mesh of its own, on `mesh` where one is given.

    A mesh of no axes that names no device stands for all of them: the tensor is replicated.
    """
    if mesh is not None and not read.mesh.axes and read.mesh.device_ids is None:
        return Layout(mesh, read.shape, read.dims)
    found = read if mesh is None else restate(read, mesh)
    if found is None:
        raise reader.error(f"{read!r} is no digits of {mesh!r}; read it without a mesh")
    return found
