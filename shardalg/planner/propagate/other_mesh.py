"""Layouts that name another mesh over the devices of the plan's: when they do, and what they are.

The axes of another mesh become axes and sub-axes of the plan's. Annotations and arguments bring the
mesh that they were written for. Where this is the mesh on which the function was planned first,
they follow the plan to every mesh on which it is planned again; else they are layouts on their own
mesh, whatever the names of its axes (GSPMD, arXiv:2105.04663, section 3.1: "the same tensor program
may use different meshes").

Orders of the devices that no digits of the plan's mesh write: where they are asked for.

Operators compute in the plan's order. Completion sees the axes alone; an argument or a result that
lies in another order is permuted where it enters or leaves the function (GSPMD, arXiv:2105.04663,
section 4.5). An order goes on from a value to what is computed of it, until an annotation says
another one, as XLA's propagation has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from shardalg.algebra.digits import Digits
from shardalg.algebra.layout import in_order, spelled
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.errors import MeshError, StrategyError
from shardalg.graph.ir import Graph

SIDES = ("arguments", "results", "sites")
Orders = tuple[tuple[str, int, Mesh], ...]
"""Of an annotation (side, number) the plan's axes in its own order of the devices."""


def apart(
    side: str, shardings: Iterable[Sharding | None], mesh: Mesh
) -> tuple[tuple[Sharding | None, ...], Orders]:
    """Annotations as layouts on the plan's mesh, and the orders of those that are in others.

    >>> turned = Sharding.from_axes(("x",), Mesh({"x": 4}, [3, 2, 1, 0]), (8,))
    >>> plain, orders = apart("results", (None, turned), Mesh({"x": 4}))
    >>> plain[1], orders
    (Sharding([x], shape=(8,), Mesh(x=4)), (('results', 1, Mesh(x=4, device_ids=[3, 2, 1, 0])),))
    """
    given = tuple(shardings)
    orders = tuple(
        (side, number, s.mesh) for number, s in enumerate(given) if s is not None and s.mesh != mesh
    )
    plain = tuple(s if s is None or s.mesh is mesh else replace(s, mesh=mesh) for s in given)
    return plain, orders


def misplaced(
    sides: Iterable[Sequence[Sharding | None]], orders: Orders, mesh: Mesh
) -> Iterator[str]:
    """What is wrong of orders, of annotations by side."""
    given = dict(zip(SIDES, sides, strict=True))
    for side, number, order in orders:
        layouts = given.get(side, ())
        if not 0 <= number < len(layouts) or layouts[number] is None or not order.is_turned(mesh):
            yield f"{side} {number} is no layout that lies on {order!r}"


def border_orders(
    graph: Graph,
    sites: Sequence[Sharding | None],
    results: Sequence[Sharding | None],
    orders: Orders,
) -> tuple[dict[int, Mesh], dict[int, Mesh]]:
    """By number the arguments and the results that lie in another order of the devices.

    Args:
      sites, results: what is annotated there.
    """
    if not orders:
        return {}, {}
    asked = {(side, number): mesh for side, number, mesh in orders}
    entering = {number: mesh for (side, number), mesh in asked.items() if side == "arguments"}
    known: dict[int, Mesh | None] = {graph.arguments[k]: mesh for k, mesh in entering.items()}
    told = {
        site.node: asked.get(("sites", number))
        for number, site in enumerate(graph.sites)
        if sites[number] is not None
    }
    for node in graph.nodes:
        follows = next((known[v] for v in node.operands if known.get(v)), None)
        known.update(dict.fromkeys(node.results, told.get(node.index, follows)))
    leaving = {
        number: asked.get(("results", number)) if results[number] is not None else known.get(value)
        for number, value in enumerate(graph.results)
    }
    return entering, {number: mesh for number, mesh in leaving.items() if mesh is not None}


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
