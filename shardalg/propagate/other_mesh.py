"""Layouts that name another mesh over the devices of the plan's: when they do, and what they are.

The axes of another mesh become axes and sub-axes of the plan's. A constraint in the function brings
the mesh that it was written for, and the function is planned on many; so a mesh of the same axis
names stands for the plan's, whatever its sizes, unless the user told two such meshes apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.restate import restate, spelled
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.errors import MeshError, StrategyError
from shardalg.graph.ir import Graph


def site_meshes(graph: Graph) -> tuple[Mesh, ...]:
    """The meshes that constraints in a function bring, each once."""
    return tuple(dict.fromkeys(Mesh(*site.mesh) for site in graph.sites if site.mesh))


def named_meshes(specs: Iterable[object]) -> tuple[Mesh, ...]:
    """The meshes of the NamedShardings and Shardings among specs, each once."""
    found = (_MESHES[type(s).__name__](s) for s in specs if type(s).__name__ in _MESHES)
    return tuple(dict.fromkeys(found))


def _of_named(spec: object) -> Mesh:
    from shardalg.algebra.jax_types import mesh_from_jax

    return mesh_from_jax(spec.mesh)


_MESHES: Mapping[str, object] = {"NamedSharding": _of_named, "Sharding": lambda spec: spec.mesh}


def is_another(
    other: Mesh, mesh: Mesh, *, axes: Collection[str], told: Collection[Mesh] = ()
) -> bool:
    """Whether a layout by `axes` of `other` means that mesh, and not the plan's of these names.

    Args:
      mesh: the plan's.
      told: all meshes that the user names: where two have the same axis names, each is itself.

    >>> here, there = Mesh({"x": 2, "y": 4}), Mesh({"x": 4, "y": 2})
    >>> is_another(Mesh({"a": 8}), here, axes=("a",)), is_another(there, here, axes=("x",))
    (True, False)
    >>> is_another(there, here, axes=("x",), told=(here, there))
    True
    """
    if not set(axes) <= set(mesh.axis_names):
        return True
    if mesh.symbolic or other.size != mesh.size:
        return False
    names = set(other.axis_names)
    apart = any(set(m.axis_names) == names and m != other for m in told)
    return apart or not names <= set(mesh.axis_names)


def placed(spec: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """The same layout stated on the plan's mesh, over whose devices it must lie.

    Raises:
      StrategyError: another shape, other devices, or digits that no axes of the mesh describe.
    """
    theirs = spec.mesh
    if spec.shape != shape or theirs.size != mesh.size:
        raise StrategyError(
            f"{spec!r} is a layout of shape {spec.shape} on {theirs!r}, needed is one of shape "
            f"{shape} on {mesh!r}. State it for this shape, on a mesh over these devices."
        )
    in_order = theirs.device_ids in (None, mesh.device_ids)
    here = replace(spec, mesh=mesh) if in_order else restate(spec, mesh)
    if here is None:
        raise StrategyError(
            f"{spec!r} orders the devices in a way that no axes of {mesh!r} describe. State it on "
            "a mesh whose axes join or divide those of the plan's, or plan on that mesh."
        )
    held = {name: _on_axes(getattr(here, name), here, mesh) for name in CLASSES}
    return replace(here, dims=tuple(_on_axes(d, here, mesh) for d in here.dims), **held)


def _on_axes(digits: Digits, sharding: Sharding, mesh: Mesh) -> Digits:
    """Digits as axes and sub-axes of a mesh."""
    whole = {mesh.digit(name) for name in mesh.axis_names}
    found = digits if whole.issuperset(digits) else spelled(digits, mesh)
    try:
        mesh.refs(found)
    except MeshError:
        raise StrategyError(
            f"{sharding!r} uses {mesh.texts(digits)}, which is not made of axes and sub-axes of "
            f"{mesh!r}. Use a mesh whose axes join or divide those of the plan's."
        ) from None
    if mesh.symbolic and not whole.issuperset(found):
        raise StrategyError(
            f"{sharding!r} uses {mesh.texts(found)}, parts of axes that have named sizes on "
            f"{mesh!r}: they are parts at the hints alone. Plan on a mesh in numbers."
        )
    return found
