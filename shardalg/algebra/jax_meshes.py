"""Conversion of meshes from and to JAX's meshes: names, sizes and device ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from shardalg.errors import DeviceError, MeshError

if TYPE_CHECKING:
    from shardalg.algebra.mesh import Mesh


def axes_of(jax_mesh: Any) -> tuple[list[tuple[str, int]], list[int] | None]:
    """Return the (name, size) pairs of a JAX mesh's axes, and the device id at each position.

    An `AbstractMesh` has no devices: the second value is None.

    Raises:
      MeshError: `jax_mesh` is no JAX mesh.

    >>> axes_of(AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2))
    ([('x', 2), ('y', 4)], None)
    """
    if not isinstance(jax_mesh, jax.sharding.Mesh | AbstractMesh):
        raise MeshError(
            f"expected a JAX mesh, got {type(jax_mesh).__name__}: {jax_mesh!r}. Pass a "
            "jax.sharding.Mesh, or shardalg.Mesh({'X': 2, 'Y': 4})."
        )
    pairs = [(str(name), int(n)) for name, n in jax_mesh.shape.items()]
    if isinstance(jax_mesh, AbstractMesh):
        return pairs, None
    return pairs, [device.id for device in jax_mesh.devices.flat]


def mesh_to_jax(mesh: Mesh, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """Return a `jax.sharding.Mesh` whose axes are all Auto.

    Args:
      devices: default `jax.devices()`. With `mesh.device_ids` they are found by their ids,
        otherwise the first ones are taken in the order given.

    Raises:
      DeviceError: `devices` is no list; it is shorter than the mesh; it has no device with one of
        the ids.
    """
    if devices is not None and not isinstance(devices, Iterable):
        raise DeviceError(f"devices are a list, as jax.devices()[:2]; got {devices!r:.80}.")
    available = list(jax.devices() if devices is None else devices)
    if len(available) < mesh.size:
        remedy = (
            f"Call shardalg.host_devices({mesh.size}) before JAX starts for that many CPU devices"
            if devices is None
            else f"Give {mesh.size} of them"
        )
        raise DeviceError(
            f"{mesh!r} needs {mesh.size} devices, and there are {len(available)}. {remedy}, "
            "or take a smaller mesh."
        )
    chosen = available[: mesh.size] if mesh.device_ids is None else _by_id(available, mesh)
    # An object array first: numpy would try to look inside the devices.
    grid = np.empty(mesh.size, dtype=object)
    grid[:] = chosen
    names = mesh.axis_names
    shape = tuple(mesh.shape[name] for name in names)
    return jax.sharding.Mesh(grid.reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))


def mesh_to_abstract(mesh: Mesh) -> AbstractMesh:
    """Return a `jax.sharding.AbstractMesh` with the same axes, all Auto.

    >>> from shardalg.algebra.mesh import Mesh
    >>> dict(mesh_to_abstract(Mesh({"x": 2, "y": 4})).shape)
    {'x': 2, 'y': 4}
    """
    names = mesh.axis_names
    sizes = tuple(mesh.shape[name] for name in names)
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def _by_id(devices: list[Any], mesh: Mesh) -> list[Any]:
    """Return the devices with the mesh's device ids, in the order of the mesh.

    Raises:
      DeviceError: there is no device with one of the ids.
    """
    # One message names all missing ids, so that the user can correct them at once.
    device_of_id = {device.id: device for device in devices}
    missing = [i for i in mesh.order if i not in device_of_id]
    if missing:
        raise DeviceError(
            f"{mesh!r} names the devices {missing}, and there are only {sorted(device_of_id)}."
        )
    return [device_of_id[i] for i in mesh.order]
