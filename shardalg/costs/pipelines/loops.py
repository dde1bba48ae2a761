"""Loops of a function whose trips are the stages of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.graph.ir import Graph, Site

# The name of the site on the buffer that shifts.
SHIFTED = "pipeline_state"


@dataclass(frozen=True)
class PipelineLoop:
    """A loop that is a pipeline.

    Attributes:
      node: the graph node of the loop.
      stages: size of the buffer's leading dimension, not counting dimensions that vmap added.
    """

    node: int
    stages: int


def pipeline_loops(graph: Graph) -> dict[int, PipelineLoop]:
    """Return the pipelines of a function, by the node of their loop."""
    found: dict[int, PipelineLoop] = {}
    for site in graph.sites:
        if site.name == SHIFTED:
            shape = graph.values[graph.nodes[site.node].results[0]].type.shape
            added, loop = graph.added_dims(site), _loop_around(graph, site)
            stages = next((n for dim, n in enumerate(shape) if dim not in added), None)
            if loop is not None and stages is not None:
                found[loop] = PipelineLoop(loop, stages)
    return found


def _loop_around(graph: Graph, site: Site) -> int | None:
    """Return the node of the loop around a site; None if its trip count is unknown."""
    region = graph.regions[graph.nodes[site.node].region]
    while region.kind in ("remat", "cond"):
        parent = region.parent if region.node is None else graph.nodes[region.node].region
        assert parent is not None, "only the whole program has no parent"
        region = graph.regions[parent]
    return region.node if region.kind == "scan" and region.trip_count else None
