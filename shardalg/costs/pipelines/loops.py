"""Search for the loops of a function that run a pipeline.

Such a loop keeps the inputs of all stages in one buffer, which shifts by one stage per trip.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.graph.ir import Graph, Site

# The annotation of the shifting buffer has this name, because nothing else in a graph tells
# a pipeline from another loop that shifts an array.
SHIFTED = "pipeline_state"


@dataclass(frozen=True)
class PipelineLoop:
    """A loop that runs a pipeline.

    Attributes:
      node: number of the loop's graph node.
      stages: number of stages: the size of the first dimension of the buffer that shifts, except
        for dimensions that vmap added.
    """

    node: int
    stages: int


def pipeline_loops(graph: Graph) -> dict[int, PipelineLoop]:
    """Return the pipeline loops of a function; each key is the number of the loop's node.

    `models.pipeline` marks the state of its loop as a site with the name `SHIFTED`. The leading
    dimension of the state numbers the stages.
    """
    loops: dict[int, PipelineLoop] = {}
    for site in graph.sites:
        if site.name == SHIFTED:
            shape = graph.values[graph.nodes[site.node].results[0]].type.shape
            # A `vmap` of the pipeline adds dimensions, which do not count as the leading one.
            vmap_dims, loop = graph.added_dims(site), _loop_around(graph, site)
            stages = next((n for dim, n in enumerate(shape) if dim not in vmap_dims), None)
            if loop is not None and stages is not None:
                loops[loop] = PipelineLoop(loop, stages)
    return loops


def _loop_around(graph: Graph, site: Site) -> int | None:
    """Return the number of the innermost loop's node around an annotation; None if there is none.

    Spans of `jax.checkpoint` and branches in between are skipped. A loop with an unknown trip count
    (`while`) gives None.
    """
    region = graph.regions[graph.nodes[site.node].region]
    while region.kind in ("remat", "cond"):
        parent = region.parent if region.node is None else graph.nodes[region.node].region
        assert parent is not None, "only the whole program has no parent"
        region = graph.regions[parent]
    return region.node if region.kind == "scan" and region.trip_count else None
