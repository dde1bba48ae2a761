"""Orders of the devices that no digits of the plan's mesh write: where they are asked for.

Operators compute in the plan's order. Completion sees the axes alone; an argument or a result that
lies in another order is permuted where it enters or leaves the function (GSPMD, arXiv:2105.04663,
section 4.5). An order goes on from a value to what is computed of it, until an annotation says
another one, as XLA's propagation has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
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
