"""What was asked for on one mesh, asked for on another one, by the names of its axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError, StrategyError
from shardalg.graph.ir import Graph
from shardalg.propagate.strategy import Annotations, Strategy, resolve


def restated(graph: Graph, given: Annotations, mesh: Any, first_mesh: Mesh | None) -> Annotations:
    """The annotations on another mesh: each keeps its axes, whatever their sizes are there.

    Args:
      mesh: ours, or one of JAX. first_mesh: as of `resolve`.

    Raises:
      StrategyError: an axis that the mesh does not have, or a layout in another order of devices.
    """
    from shardalg.symbolic.symbols import annotations_at

    there = mesh if isinstance(mesh, Mesh) else Mesh.from_jax(mesh)
    if given.orders:
        raise StrategyError(
            f"{len(given.orders)} layouts of the plan lie in another order of the devices of "
            f"{given.mesh!r}, which {there!r} does not have. Give a Strategy for that mesh."
        )
    was, here = (resolve(graph, Strategy(m), first_mesh).sites for m in (given.mesh, there))
    own = [old == said for old, said in zip(was, given.sites, strict=True)]
    said = tuple(None if kept else s for kept, s in zip(own, given.sites, strict=True))
    try:
        made = annotations_at(replace(given, sites=said), graph, there)
    except MeshError as error:
        raise StrategyError(
            f"what is annotated on {given.mesh!r} cannot be said on {there!r}: {error} Give a "
            "Strategy with layouts for that mesh."
        ) from None
    sites = tuple(
        new if kept else moved for kept, new, moved in zip(own, here, made.sites, strict=True)
    )
    return replace(made, sites=sites)
