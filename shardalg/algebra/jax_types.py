"""Meshes and shardings as JAX has them, both ways. The one place here that knows jax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import DeviceError, MeshError, NotationError, ShardingError


def from_spec(spec: Any, mesh: Mesh, shape: Sequence[int]) -> Sharding:
    """The sharding that a `PartitionSpec` gives a tensor of `shape` on `mesh`.

    None and missing dimensions are not partitioned, `P.UNCONSTRAINED` leaves a dimension open,
    `unreduced` axes hold partial sums, `reduced` axes are kept replicated.

    Raises:
      MeshError: an axis that the mesh does not have.
      ShardingError: a spec longer than the shape, or an axis used twice.
      NotationError: an entry that is no axis, tuple of axes, None or UNCONSTRAINED.

    >>> P = PartitionSpec
    >>> from_spec(P(("x", "y"), None, P.UNCONSTRAINED), Mesh({"x": 2, "y": 4}), (16, 3, 5))
    Sharding([(x, y), None, ?], shape=(16, 3, 5), Mesh(x=2, y=4))
    """
    entries = tuple(_entry(entry, spec) for entry in _entries(spec))
    held = [tuple(sorted(getattr(spec, name, None) or ())) for name in ("unreduced", "reduced")]
    kind = getattr(getattr(spec, "unreduced_kind", None), "name", "sum")
    if kind != "sum":
        raise NotationError(
            f"{spec} holds partial values that are joined by {kind}: a sharding here holds sums "
            "only. Leave unreduced_kind out, or join them before."
        )
    return Sharding.from_axes(entries, mesh, shape, unreduced=held[0], replicated=held[1])


def to_spec(sharding: Sharding) -> PartitionSpec:
    """The `PartitionSpec` of a sharding, one entry per dimension.

    A spec has no word for manual digits and priorities, nor for a dimension that is both split
    and open: such a dimension shows its axes.

    Raises:
      ShardingError: sub-axes, digits of another mesh, a mesh without axis names, or one device.

    >>> mesh = Mesh({"x": 2, "y": 2, "z": 2})
    >>> spec = to_spec(Sharding.from_axes(["x", None, ("y", "z")], mesh, (4, 4, 4)))
    >>> spec == PartitionSpec("x", None, ("y", "z"))
    True
    """
    if sharding.mesh.is_unnamed and sharding.mesh.size > 1:
        raise ShardingError(
            f"{sharding!r} was read without a mesh, so its axes have no names for a "
            "PartitionSpec. Give the mesh: Sharding.from_hlo(text, shape, mesh)."
        )
    if sharding.is_maximal:
        raise ShardingError(
            f"{sharding!r} is on one device, for which a PartitionSpec has no word: use "
            "jax.sharding.SingleDeviceSharding."
        )
    opened = set(sharding.unspecified_dims)
    entries = [
        _spec_entry(_names(digits, sharding), i in opened) for i, digits in enumerate(sharding.dims)
    ]
    classes = {"unreduced": sharding.unreduced, "reduced": sharding.replicated}
    held = {kind: frozenset(_names(d, sharding)) for kind, d in classes.items() if d}
    return PartitionSpec(*entries, **held)


def mesh_from_jax(jax_mesh: Any) -> Mesh:
    """The mesh of a `jax.sharding.Mesh` or `AbstractMesh`; device ids are kept if not 0, 1, 2, ...

    Raises:
      MeshError: something else than a JAX mesh.

    >>> mesh_from_jax(AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2))
    Mesh(x=2, y=4)
    """
    if not isinstance(jax_mesh, jax.sharding.Mesh | AbstractMesh):
        raise MeshError(f"expected a JAX mesh, got {type(jax_mesh).__name__}: {jax_mesh!r}.")
    pairs = [(str(name), int(n)) for name, n in jax_mesh.shape.items()]
    if isinstance(jax_mesh, AbstractMesh):
        return Mesh(pairs)
    return Mesh(pairs, [device.id for device in jax_mesh.devices.flat])


def mesh_to_jax(mesh: Mesh, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """A `jax.sharding.Mesh` whose axes are all Auto.

    Args:
      devices: default `jax.devices()`. With `mesh.device_ids` they are found by their ids,
        otherwise the first ones are taken in the order given.

    Raises:
      DeviceError: fewer devices than positions, or none with one of the ids.
    """
    given = list(jax.devices() if devices is None else devices)
    if len(given) < mesh.size:
        raise DeviceError(
            f"{mesh!r} needs {mesh.size} devices, and there are {len(given)}. Call "
            f"shardalg.host_devices({mesh.size}) before JAX starts for that many CPU devices, or "
            "take a smaller mesh."
        )
    chosen = given[: mesh.size] if mesh.device_ids is None else _by_id(given, mesh)
    grid = np.empty(mesh.size, dtype=object)
    grid[:] = chosen
    names = mesh.axis_names
    shape = tuple(mesh.shape[name] for name in names)
    return jax.sharding.Mesh(grid.reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))


def mesh_to_abstract(mesh: Mesh) -> AbstractMesh:
    """A `jax.sharding.AbstractMesh` of the same axes, all Auto.

    >>> dict(mesh_to_abstract(Mesh({"x": 2, "y": 4})).shape)
    {'x': 2, 'y': 4}
    """
    names = mesh.axis_names
    sizes = tuple(mesh.shape[name] for name in names)
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def from_named_sharding(named: Any, shape: Sequence[int], mesh: Mesh | None = None) -> Sharding:
    """The sharding of a `NamedSharding` on a tensor of `shape`.

    Args:
      mesh: the mesh to state it on; default the NamedSharding's own.

    Raises:
      ShardingError: another kind of JAX sharding.
    """
    if not isinstance(named, NamedSharding):
        raise ShardingError(
            f"expected a NamedSharding, got {type(named).__name__}: {named!r}. Put the value on a "
            "mesh with jax.device_put(value, NamedSharding(mesh, spec))."
        )
    return from_spec(named.spec, mesh or mesh_from_jax(named.mesh), shape)


def to_named_sharding(sharding: Sharding, devices: Any = None) -> NamedSharding:
    """The `NamedSharding` of a sharding.

    Args:
      devices: JAX devices, or a JAX mesh with the axes of the sharding's mesh.
    """
    ready = isinstance(devices, jax.sharding.Mesh | AbstractMesh)
    mesh = devices if ready else mesh_to_jax(sharding.mesh, devices)
    return NamedSharding(mesh, to_spec(sharding))


def _entries(spec: Any) -> tuple[Any, ...]:
    """Entries of a spec; iterating over one with unreduced axes is an error in JAX."""
    if spec is None:
        return ()
    held = getattr(spec, "partitions", None)
    if held is not None:
        return tuple(held)
    if not isinstance(spec, tuple | list):
        raise NotationError(
            f"expected a PartitionSpec, got {type(spec).__name__}: {spec!r}. Write it as "
            "jax.sharding.PartitionSpec('x', None, ('y', 'z'))."
        )
    return tuple(spec)


def _entry(entry: Any, spec: Any) -> str | tuple[str, ...] | None:
    """One dimension in the words of `Sharding.from_axes`."""
    if entry is None or isinstance(entry, str):
        return entry
    if entry is PartitionSpec.UNCONSTRAINED:
        return "?"
    if isinstance(entry, tuple | list) and all(isinstance(axis, str) for axis in entry):
        return tuple(entry)
    raise NotationError(
        f"entry {entry!r} of {spec!r} is no axis name, tuple of axis names, None or UNCONSTRAINED."
    )


def _names(digits: Digits, sharding: Sharding) -> tuple[str, ...]:
    """Whole axes that the digits are."""
    mesh = sharding.mesh
    try:
        refs = mesh.refs(digits)
    except MeshError as error:
        raise ShardingError(
            f"{sharding.text()} on {mesh!r} has no PartitionSpec: {error}"
        ) from None
    partial = [ref for ref in refs if ref.size is not None]
    if partial:
        raise ShardingError(
            f"{sharding.text()} on {mesh!r} has no PartitionSpec: it splits by the sub-axes "
            f"{partial}. State it on a mesh whose axes are these."
        )
    return tuple(ref.name for ref in refs)


def _spec_entry(names: tuple[str, ...], is_open: bool) -> Any:
    if not names:
        return PartitionSpec.UNCONSTRAINED if is_open else None
    return names[0] if len(names) == 1 else names


def _by_id(devices: list[Any], mesh: Mesh) -> list[Any]:
    """The devices of the mesh in its order."""
    found = {device.id: device for device in devices}
    missing = [i for i in mesh.order if i not in found]
    if missing:
        raise DeviceError(
            f"{mesh!r} names the devices {missing}, and there are only {sorted(found)}."
        )
    return [found[i] for i in mesh.order]
