"""Shardings that name another mesh over the plan's devices, and shardings in another device order.

Annotations and arguments bring the mesh that they were written for. If this is the mesh on which
the function was planned first, they follow the plan to every mesh on which it is planned again.
Otherwise they are shardings on their own mesh, whatever the names of its axes (GSPMD,
arXiv:2105.04663, section 3.1: "the same tensor program may use different meshes"). The axes of
another mesh become axes and sub-axes of the plan's mesh.

Some orders of the devices are no digits of the plan's mesh. Operators compute in the plan's order,
and completion sees only the axes. An argument or a result in another order is permuted where it
enters or leaves the function (GSPMD, section 4.5). As in XLA's propagation, an order passes from a
value to the values computed from it, until an annotation names another order.
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
"""(side, number) of each annotation in another device order, with the plan's axes in that order."""


def split_orders(
    side: str, shardings: Iterable[Sharding | None], mesh: Mesh
) -> tuple[tuple[Sharding | None, ...], Orders]:
    """Return annotations with the plan's device order, and the orders of those that had another.

    An annotation may be on a mesh with the plan's axes in another device order. It is replaced by
    the same axes on `mesh`, and its own mesh is returned as (side, position, mesh).

    Args:
      side: "arguments", "results" or "sites".
      shardings: the annotation of each value of this side, or None.
      mesh: the mesh of the plan.

    >>> turned = Sharding.from_axes(("x",), Mesh({"x": 4}, [3, 2, 1, 0]), (8,))
    >>> plain, orders = split_orders("results", (None, turned), Mesh({"x": 4}))
    >>> plain[1], orders
    (Sharding([x], shape=(8,), Mesh(x=4)), (('results', 1, Mesh(x=4, device_ids=[3, 2, 1, 0])),))
    """
    given = tuple(shardings)
    orders = tuple(
        (side, number, s.mesh) for number, s in enumerate(given) if s is not None and s.mesh != mesh
    )
    plain = tuple(s if s is None or s.mesh is mesh else replace(s, mesh=mesh) for s in given)
    return plain, orders


def order_faults(
    sides: Iterable[Sequence[Sharding | None]], orders: Orders, mesh: Mesh
) -> Iterator[str]:
    """Yield an error text for each device order that does not fit the annotations.

    Args:
      sides: the shardings of arguments, of results and of sites.
      orders: (side, number, mesh) of each annotation that names another device order.
      mesh: the plan's mesh.
    """
    given = dict(zip(SIDES, sides, strict=True))
    for side, number, order in orders:
        layouts = given.get(side, ())
        if not 0 <= number < len(layouts) or layouts[number] is None or not order.is_turned(mesh):
            yield f"{side} {number} has no sharding in the device order of {order!r}"


def border_orders(
    graph: Graph,
    sites: Sequence[Sharding | None],
    results: Sequence[Sharding | None],
    orders: Orders,
) -> tuple[dict[int, Mesh], dict[int, Mesh]]:
    """Return the arguments and the results that are in another device order than the plan's mesh.

    The two dictionaries give the mesh with this order by the number of the argument, and by the
    number of the result.

    Args:
      sites, results: the annotated sharding of each site and of each result, or None.
      orders: (side, number, mesh) of each annotation that names another device order.
    """
    if not orders:
        return {}, {}
    order_of = {(side, number): mesh for side, number, mesh in orders}
    entering = {number: mesh for (side, number), mesh in order_of.items() if side == "arguments"}
    known: dict[int, Mesh | None] = {graph.arguments[k]: mesh for k, mesh in entering.items()}
    # An annotated site without an order of its own brings the value back to the plan's order.
    at_site = {
        site.node: order_of.get(("sites", number))
        for number, site in enumerate(graph.sites)
        if sites[number] is not None
    }
    # As in XLA's propagation, an order passes to the values computed from it.
    for node in graph.nodes:
        # The order of the first operand that has one; None is the plan's order.
        order = next((known[v] for v in node.operands if known.get(v)), None)
        known.update(dict.fromkeys(node.results, at_site.get(node.index, order)))
    # An annotated result has the order of its annotation, any other one that of its value.
    leaving = {
        number: order_of.get(("results", number))
        if results[number] is not None
        else known.get(value)
        for number, value in enumerate(graph.results)
    }
    return entering, {number: mesh for number, mesh in leaving.items() if mesh is not None}


def is_another(other: Mesh, mesh: Mesh, *, axes: Collection[str], first_mesh: Mesh) -> bool:
    """Return whether axis names in a sharding on `other` are names of other axes than the plan's.

    The result is False if `other` is the mesh on which the function was planned first. Such a
    sharding follows the plan to every mesh, and its names are axes of the plan's mesh. It is also
    False without axes. The result is True for every other mesh, and if the plan's mesh does not
    have the axes. Meshes with other device ids are other meshes, with one exception: a mesh without
    device ids means the first mesh if this has the same axes over later devices than 0, 1, 2, ....

    Args:
      axes: the names of the axes in the sharding.
      mesh: the plan's mesh.
      first_mesh: the mesh on which the function was planned first.

    >>> here, there = Mesh({"x": 2, "y": 4}), Mesh({"x": 4, "y": 2})
    >>> is_another(here, there, axes=("x",), first_mesh=here)
    False
    >>> is_another(there, here, axes=("x",), first_mesh=here)
    True
    """
    # Names that the plan's mesh does not have can only be names of another mesh.
    if not set(axes) <= set(mesh.axis_names):
        return True
    means_first_devices = other.device_ids is None and _has_later_devices(first_mesh)
    is_first_mesh = other.axes == first_mesh.axes and (
        means_first_devices or other.device_ids == first_mesh.device_ids
    )
    return bool(axes) and not is_first_mesh


def check_sizes(other: Mesh, mesh: Mesh) -> None:
    """Raise if both meshes have an axis of the same name in different sizes.

    Raises:
      StrategyError: an axis has two sizes, so that the meaning of its name is not known.

    >>> check_sizes(Mesh({"x": 4, "y": 2}), Mesh({"x": 2, "y": 4}))
    Traceback (most recent call last):
      ...
    shardalg.errors.StrategyError: the sharding is on Mesh(x=4, y=2), the plan on ...
    """
    here, there = mesh.shape, other.shape
    differing = [name for name in here if there.get(name, here[name]) != here[name]]
    if differing:
        raise StrategyError(
            f"the sharding is on {other!r}, the plan on {mesh!r}: {', '.join(differing)} has "
            "another size there. Give a PartitionSpec, which names axes of the plan's mesh, or "
            "plan on the mesh of the sharding."
        )


def _has_later_devices(mesh: Mesh) -> bool:
    """Return whether a mesh has other devices than 0, 1, 2, ..., `mesh.size - 1`."""
    return mesh.device_ids is not None and max(mesh.device_ids) >= mesh.size


def sharding_on_mesh(spec: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """Return the same sharding on the plan's mesh, which must have the same devices.

    If no digits describe the sharding's own device order, the result is on the plan's axes in that
    order. An axis of the sharding's mesh may become parts of axes of the plan's mesh.

    Args:
      spec: the sharding, on a mesh of its own.
      shape: the shape of the value.

    Raises:
      StrategyError: another shape, other devices, or digits that no axes of the mesh describe.
    """
    theirs = spec.mesh
    if spec.shape != shape or theirs.size != mesh.size:
        raise StrategyError(
            f"{spec!r} has shape {spec.shape} on the {theirs.size} devices of {theirs!r}, but the "
            f"plan needs shape {shape} on the {mesh.size} devices of {mesh!r}. Write it for this "
            "shape, on a mesh over these devices. Only shardings on a plan's first mesh follow "
            "`plan.replan` to other meshes."
        )
    # A mesh without device ids means the plan's devices in their order, whichever they are.
    elsewhere = theirs.device_ids is None and _has_later_devices(mesh)
    here = replace(spec, mesh=mesh) if elsewhere else in_order(spec, mesh)
    if here is None or (mesh.symbolic and here.mesh != mesh):
        raise StrategyError(
            f"{spec!r} lies on other devices than {mesh!r}, or orders them in a way that axes of "
            "named sizes do not describe. Write it on a mesh over these devices, in their order."
        )
    # All digits must be axes or parts of axes of the plan's mesh: those of the dimensions, and
    # those of the classes unreduced, manual and replicated.
    classes = {name: _on_axes(getattr(here, name), here, mesh) for name in CLASSES}
    dims = tuple(_on_axes(digits, here, mesh) for digits in here.dims)
    return replace(
        here,
        dims=dims,
        unreduced=classes["unreduced"],
        manual=classes["manual"],
        replicated=classes["replicated"],
    )


def _on_axes(digits: Digits, sharding: Sharding, mesh: Mesh) -> Digits:
    """Return digits as axes and sub-axes of a mesh.

    Raises:
      StrategyError: the digits are not made of axes and sub-axes, or are parts of axes with named
        sizes.
    """
    # A digit of another mesh may span several axes of this mesh; `spelled` divides it among them.
    whole = {mesh.digit(name) for name in mesh.axis_names}
    found = digits if whole.issuperset(digits) else spelled(digits, mesh)
    try:
        mesh.refs(found)
    except MeshError:
        raise StrategyError(
            f"{sharding!r} uses {mesh.texts(digits)}, which is not made of axes and sub-axes of "
            f"{mesh!r}. Use a mesh whose axes join or divide the axes of the plan's mesh."
        ) from None
    if mesh.symbolic and not whole.issuperset(found):
        raise StrategyError(
            f"{sharding!r} uses {mesh.texts(found)}, parts of axes that have named sizes on "
            f"{mesh!r}. They are parts only at the hints. Plan on a mesh with sizes in numbers."
        )
    return found
