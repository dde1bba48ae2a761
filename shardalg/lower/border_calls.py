"""How a user's call reaches an executable that takes arrays, and how its results come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import Mesh as JaxMesh

Inner = Callable[..., Any]


class UserCall(Protocol):
    """The way between a function as its user calls it and a function of arrays."""

    @property
    def through(self) -> Callable[[Inner, tuple[Any, ...], Mapping[str, Any]], Any]:
        """(inner, args, kwargs) -> what the user's function returns, `inner` called on arrays."""

    def inside(self, work: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What `work` makes of the arrays of a call, which ends there."""


class _OnArrays:
    """A function that takes pytrees of arrays by position."""

    def through(self, inner: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function itself."""
        return inner(*args, **kwargs)

    inside = through


ON_ARRAYS: UserCall = _OnArrays()


def explicit_mesh(arrays: Iterable[Any]) -> JaxMesh | AbstractMesh | None:
    """Return the mesh of arrays whose axes are Explicit, else the one that is set, else None.

    >>> explicit_mesh([jax.numpy.ones(2)]) is None
    True
    """
    layouts = (getattr(array, "sharding", None) for array in arrays)
    carried = [layout.mesh for layout in layouts if isinstance(layout, NamedSharding)]
    for mesh in (*carried, jax.sharding.get_abstract_mesh()):
        if AxisType.Explicit in (mesh.axis_types or ()):
            return mesh
    return None


def on_explicit_axes(
    results: Sequence[jax.Array], mesh: JaxMesh | AbstractMesh | None
) -> list[jax.Array]:
    """Return the same blocks on `mesh`, where the results' own mesh has its axes and devices.

    JAX does not combine an array on Explicit axes with one on Auto axes of the same names.
    """
    return [_typed(result, mesh) for result in results]


def _typed(result: jax.Array, mesh: JaxMesh | AbstractMesh | None) -> jax.Array:
    layout = result.sharding
    if mesh is None or not isinstance(layout, NamedSharding):
        return result
    own = layout.mesh
    if own.axis_names != mesh.axis_names or own.axis_sizes != mesh.axis_sizes:
        return result
    if not isinstance(own, JaxMesh):
        return result
    if isinstance(mesh, JaxMesh) and list(own.devices.flat) != list(mesh.devices.flat):
        return result
    typed = JaxMesh(own.devices, own.axis_names, axis_types=mesh.axis_types)
    wanted = NamedSharding(typed, layout.spec)
    blocks = [shard.data for shard in result.addressable_shards]
    return jax.make_array_from_single_device_arrays(
        result.shape, wanted, blocks, dtype=result.dtype
    )
