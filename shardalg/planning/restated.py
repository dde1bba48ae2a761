"""What was asked for on one mesh, asked for on another one, by the names of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import MeshError, StrategyError
from shardalg.graph.ir import Graph
from shardalg.propagate.strategy import Annotations, Strategy, resolve


def restated(
    graphs: tuple[Graph, Graph], given: Annotations, there: Mesh, first_mesh: Mesh | None
) -> Annotations:
    """The annotations on another mesh: each keeps its axes, whatever their sizes are there.

    Args:
      graphs: here and there, which is another one where an axis is manual. first_mesh: as of
        `resolve`.

    Raises:
      StrategyError: an axis that the mesh does not have, or a layout in another order of devices.
    """
    if given.orders:
        raise StrategyError(
            f"{len(given.orders)} layouts of the plan lie in another order of the devices of "
            f"{given.mesh!r}, which {there!r} does not have. Give a Strategy for that mesh."
        )
    meshes = (given.mesh, there)
    was, here = (
        resolve(graph, Strategy(mesh), first_mesh).sites
        for graph, mesh in zip(graphs, meshes, strict=True)
    )
    pairs = zip(was, given.sites, strict=True)
    said = [None if old == new else (new,) for old, new in pairs]
    places = _partners(graphs, [i for i, new in enumerate(said) if new], there)
    told = [None if i is None else said[i] for i in places]
    try:
        sites = tuple(None if new is None else new[0] for new in told)
        made = annotations_at(replace(given, sites=sites), graphs[1], there)
    except MeshError as error:
        raise StrategyError(
            f"what is annotated on {given.mesh!r} cannot be said on {there!r}: {error} Give a "
            "Strategy with layouts for that mesh."
        ) from None
    rows = zip(told, here, made.sites, strict=True)
    return replace(made, sites=tuple(own if new is None else moved for new, own, moved in rows))


def annotations_at(annotations: Annotations, graph: Graph, mesh: Mesh) -> Annotations:
    """Return the annotations, by axis names, on a graph and a mesh of other sizes."""
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    sides = (
        (annotations.arguments, graph.arguments),
        (annotations.results, graph.results),
        (annotations.sites, sites),
    )
    arguments, results, marked = (
        tuple(
            None if sharding is None else _restated(sharding, mesh, graph.values[value].type.shape)
            for sharding, value in zip(given, values, strict=True)
        )
        for given, values in sides
    )
    return Annotations(mesh, arguments, results, marked)


def _restated(sharding: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    def digits(group: Digits) -> Digits:
        refs = (ref for digit in group for ref in sharding.mesh.axis_refs(digit))
        return tuple(mesh.ref_digit(ref) for ref in refs)

    return Sharding(
        mesh,
        shape,
        tuple(digits(group) for group in sharding.dims),
        sharding.unspecified_dims,
        digits(sharding.unreduced),
        digits(sharding.replicated),
        digits(sharding.manual),
    )


def _partners(graphs: tuple[Graph, Graph], asked: Sequence[int], there: Mesh) -> list[int | None]:
    """Per site of the second graph the one of `asked` that it is, by name and turn.

    Raises:
      StrategyError: sites of such a name are more there, or fewer.
    """
    if graphs[0] is graphs[1]:
        return [i if i in asked else None for i in range(len(graphs[1].sites))]
    found: list[int | None] = [None] * len(graphs[1].sites)
    for name in dict.fromkeys(graphs[0].sites[i].name for i in asked):
        first, second = ([i for i, s in enumerate(g.sites) if s.name == name] for g in graphs)
        if len(first) != len(second):
            raise StrategyError(
                f"site {name or '(no name)'} stands {len(second)} times in the function on "
                f"{there!r}, {len(first)} times here: the blocks of a manual axis are others "
                "there. Give a Strategy for that mesh."
            )
        for old, new in zip(first, second, strict=True):
            found[new] = old if old in asked else None
    return found
