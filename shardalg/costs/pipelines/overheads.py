"""What a planned program spends in bubbles and in recomputation, as shares of the whole step.

The closed forms of schedules are in `schedules.py`; here all is read off a program.
A loop is a pipeline if its body has a site named "pipeline_state" on the buffer that shifts by one
stage per trip: `models.pipeline` leaves it there, and `sa.annotate(state, "pipeline_state")` in a
loop of one's own does the same, if it says how often it runs (a `while` does not). Of T trips on L
stages every device works on padding in L - 1, whatever the schedule (GPipe: T = M + L - 1,
circular: T = R M + L - 1); these trips take as long as all others.

Which operators of the backward pass compute values of the forward pass again (remat).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from shardalg.costs.hardware import Hardware
from shardalg.costs.step_time import timed
from shardalg.costs.topology import Topology
from shardalg.graph.ir import Graph, Node, Site
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.program import SpmdProgram

BARRIER = "optimization_barrier"


def recomputed(graph: Graph) -> frozenset[int]:
    """Nodes of the backward pass, inside a remat span, that no cotangent reaches.

    Backward operators outside such spans make cotangents; what follows from them, through the
    carries of loops too, is gradient. The rest of a span repeats the forward pass.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> def loss(x):
    ...     return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()
    >>> graph = trace(jax.grad(loss), jax.ShapeDtypeStruct((4,), "float32"))
    >>> [graph.nodes[n].primitive for n in sorted(recomputed(graph))]
    ['sin', 'cos', 'cos']
    """
    inside = _spans(graph)
    backward = [n for n in graph.nodes if n.phase == "backward" and not n.bodies]
    seeds = {
        value
        for node in backward
        if node.region not in inside and node.primitive != BARRIER
        for value in node.results
    }
    reached = _reached(graph, seeds)
    return frozenset(
        node.index
        for node in backward
        if node.region in inside and reached.isdisjoint(node.results)
    )


def _spans(graph: Graph) -> set[int]:
    """Regions that are a remat span, or a body inside one."""
    found: set[int] = set()
    for region in graph.regions:
        parent = region.parent
        if region.node is not None:
            parent = graph.nodes[region.node].region
        if region.kind == "remat" or parent in found:
            found.add(region.index)
    return found


def _reached(graph: Graph, seeds: set[int]) -> set[int]:
    """Values that depend on the seeds."""
    follows: dict[int, list[int]] = defaultdict(list)
    for argument in graph.region_arguments:
        follows[argument.source].append(argument.target)
    for node in graph.nodes:
        if not node.bodies:
            for source, targets in _flows(node):
                follows[source].extend(targets)
    reached, ahead = set(seeds), list(seeds)
    while ahead:
        new = [value for value in follows[ahead.pop()] if value not in reached]
        reached.update(new)
        ahead.extend(new)
    return reached


def _flows(node: Node) -> list[tuple[int, tuple[int, ...]]]:
    """What each operand goes into; a barrier hands its operands on one by one."""
    if node.primitive == BARRIER:
        return [(a, (b,)) for a, b in zip(node.operands, node.results, strict=True)]
    return [(operand, node.results) for operand in node.operands]


SHIFTED = "pipeline_state"
"""The name of the site on the buffer that shifts."""


@dataclass(frozen=True)
class PipelineLoop:
    """A loop that is a pipeline.

    Attributes:
      node: the graph node of the loop.
      stages: of the leading dimension of what shifts, but for those that `vmap` added.
    """

    node: int
    stages: int


@dataclass(frozen=True)
class Overheads:
    """Seconds of one step on one device.

    Attributes:
      step_s: of the whole step, one instruction after the other.
      pipelined_s: inside pipelines, bubbles included.
      bubble_s: of trips whose results no microbatch reads.
      recompute_s: of what the backward pass computes again, its collectives and those of bubbles
        included.
    """

    step_s: float
    pipelined_s: float
    bubble_s: float
    recompute_s: float

    @property
    def bubbles(self) -> float:
        """Bubbles as a share of the whole step."""
        return self.bubble_s / self.step_s if self.step_s else 0.0

    @property
    def recompute(self) -> float:
        """Recomputation as a share of the whole step."""
        return self.recompute_s / self.step_s if self.step_s else 0.0


def pipeline_loops(graph: Graph) -> dict[int, PipelineLoop]:
    """The pipelines of a function, by the node of their loop."""
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
    """The node of the loop in whose trips the site stands; None where these are not counted."""
    region = graph.regions[graph.nodes[site.node].region]
    while region.kind in ("remat", "cond"):
        parent = region.parent if region.node is None else graph.nodes[region.node].region
        assert parent is not None, "only the whole program stands in nothing"
        region = graph.regions[parent]
    return region.node if region.kind == "scan" and region.trip_count else None


def overheads(program: SpmdProgram, graph: Graph, hardware: Hardware | Topology) -> Overheads:
    """What a program spends in the bubbles of its pipelines, and on what it computes again.

    The shares are of the whole step, with everything before and after the pipelines and the
    optimizer: the basis on which section 5.2 of GSPMD (arXiv:2105.04663) reports them.
    """
    loops, again = pipeline_loops(graph), recomputed(graph)
    step_s = pipelined_s = bubble_s = recompute_s = 0.0
    for each in timed(program, graph, hardware):
        seconds = each.seconds * each.step.count
        step_s += seconds
        recompute_s += seconds * (each.step.instruction.node in again)
        around = next((i for i in each.step.loops if i.node in loops), None)
        if around is not None:
            pipelined_s += seconds
            bubble_s += seconds * _bubble_ratio(around, loops)
    return Overheads(step_s, pipelined_s, bubble_s, recompute_s)


def _bubble_ratio(loop: Instruction, loops: dict[int, PipelineLoop]) -> float:
    """As `Schedule.bubble_ratio`: idle trips of all, in the trips that the program makes."""
    assert loop.node is not None, "a pipeline is a loop of the function"
    return min(1.0, (loops[loop.node].stages - 1) / loop.attributes.executions)
