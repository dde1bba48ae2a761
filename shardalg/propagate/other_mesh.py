"""Layouts that name another mesh over the devices of the plan's: when they do, and what they are.

The axes of another mesh become axes and sub-axes of the plan's. Annotations and arguments bring the
mesh that they were written for. Where this is the mesh on which the function was planned first,
they follow the plan to every mesh on which it is planned again; else they are layouts on their own
mesh, whatever the names of its axes (GSPMD, arXiv:2105.04663, section 3.1: "the same tensor program
may use different meshes").
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.restate import in_order, spelled
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.errors import MeshError, StrategyError


def is_another(other: Mesh, mesh: Mesh, *, axes: Collection[str], first_mesh: Mesh) -> bool:
    """Whether a layout by `axes` of `other` means that mesh, not the plan's axes of these names.

    What brings the mesh on which the function was planned first follows the plan wherever it is
    planned again; every other mesh is itself. A mesh without device ids names the devices 0, 1,
    2, ...; where the first plan has others, it stands for them in their order.

    Args:
      mesh: the plan's.
      first_mesh: the mesh on which the function was planned first.

    >>> here, there = Mesh({"x": 2, "y": 4}), Mesh({"x": 4, "y": 2})
    >>> is_another(here, there, axes=("x",), first_mesh=here)
    False
    >>> is_another(there, here, axes=("x",), first_mesh=here)
    True
    """
    if not set(axes) <= set(mesh.axis_names):
        return True
    nameless = other.device_ids is None and _elsewhere(first_mesh)
    follows = other.axes == first_mesh.axes and (
        nameless or other.device_ids == first_mesh.device_ids
    )
    return bool(axes) and not follows


def check_sizes(other: Mesh, mesh: Mesh) -> None:
    """Raise where both meshes have an axis of one name in two sizes: which is meant is not told.

    Raises:
      StrategyError: they have.

    >>> check_sizes(Mesh({"x": 4, "y": 2}), Mesh({"x": 2, "y": 4}))
    Traceback (most recent call last):
      ...
    shardalg.errors.StrategyError: the layout is on Mesh(x=4, y=2), planned is on ...
    """
    here, there = mesh.shape, other.shape
    apart = [name for name in here if there.get(name, here[name]) != here[name]]
    if apart:
        raise StrategyError(
            f"the layout is on {other!r}, planned is on {mesh!r}: {', '.join(apart)} has another "
            "size. Give a PartitionSpec, which names axes of the plan's mesh, or plan on the mesh "
            "of the layout."
        )


def _elsewhere(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are others than the first ones."""
    return mesh.device_ids is not None and max(mesh.device_ids) >= mesh.size


def placed(spec: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """The same layout stated on the plan's mesh, over whose devices it must lie.

    On its axes in the layout's own order of the devices where no digits write that one.

    Raises:
      StrategyError: another shape, other devices, or digits that no axes of the mesh describe.
    """
    theirs = spec.mesh
    if spec.shape != shape or theirs.size != mesh.size:
        raise StrategyError(
            f"{spec!r} is a layout of shape {spec.shape} on {theirs!r}, needed is one of shape "
            f"{shape} on {mesh!r}. State it for this shape, on a mesh over these devices; what is "
            "written for the first mesh of a plan follows `plan.replan` to others."
        )
    elsewhere = theirs.device_ids is None and _elsewhere(mesh)
    here = replace(spec, mesh=mesh) if elsewhere else in_order(spec, mesh)
    if here is None or (mesh.symbolic and here.mesh != mesh):
        raise StrategyError(
            f"{spec!r} lies on other devices than {mesh!r}, or orders them in a way that axes of "
            "named sizes do not describe. State it on a mesh over these devices, in their order."
        )
    held = {name: _on_axes(getattr(here, name), here, mesh) for name in CLASSES}
    dims = tuple(_on_axes(digits, here, mesh) for digits in here.dims)
    return replace(
        here,
        dims=dims,
        unreduced=held["unreduced"],
        manual=held["manual"],
        replicated=held["replicated"],
    )


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
