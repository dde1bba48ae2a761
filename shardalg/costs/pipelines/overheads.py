"""Bubbles and recomputation of a planned program, as shares of the whole step.

`schedules.py` has closed forms; here everything is read from a program. A loop is a pipeline if its
body annotates the buffer that shifts by one stage per trip with the name "pipeline_state".
`models.pipeline` does so. A user writes `sa.annotate(state, "pipeline_state")` in any other loop
with a known trip count (not in a `while`). On L stages, a device works on padding in L - 1 of
T trips. This holds for both schedules with M microbatches: GPipe with T = M + L - 1, and the
circular one of R rounds with T = R M + L - 1. Trips on padding take as long as all others.

`recomputed_nodes` finds the operators of the backward pass that repeat the forward pass (remat).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from shardalg.costs.hardware import Hardware
from shardalg.costs.pipelines.loops import pipeline_loops
from shardalg.costs.step_time import timed
from shardalg.costs.topology import Topology
from shardalg.graph.ir import Graph
from shardalg.spmd.program import SpmdProgram

BARRIER = "optimization_barrier"


def recomputed_nodes(graph: Graph) -> frozenset[int]:
    """Return the numbers of the nodes in the backward pass that repeat the forward pass (remat).

    They are the backward nodes inside a `jax.checkpoint` body that depend on no cotangent.
    Cotangents are the results of backward nodes outside of such bodies, and all values that depend
    on these results, also through the carries of loops.

    >>> import jax, jax.numpy as jnp
    >>> from shardalg.graph.tracing.trace import trace
    >>> def loss(x):
    ...     return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()
    >>> graph = trace(jax.grad(loss), jax.ShapeDtypeStruct((4,), "float32"))
    >>> [graph.nodes[n].primitive for n in sorted(recomputed_nodes(graph))]
    ['sin', 'cos', 'cos']
    """
    remat_regions = _spans(graph)
    backward = [n for n in graph.nodes if n.phase == "backward" and not n.bodies]
    cotangents = {
        value
        for node in backward
        if node.region not in remat_regions and node.primitive != BARRIER
        for value in node.results
    }
    # A backward node of a checkpoint that needs no cotangent only repeats the forward pass.
    dependent_values = _dependents(graph, cotangents)
    return frozenset(
        node.index
        for node in backward
        if node.region in remat_regions and dependent_values.isdisjoint(node.results)
    )


def _spans(graph: Graph) -> set[int]:
    """Return the numbers of the regions that are a body of `jax.checkpoint`, or inside one."""
    # A parent region has a smaller number than its children, so one pass is enough.
    remat_regions: set[int] = set()
    for region in graph.regions:
        parent = region.parent
        # The body of a loop or branch is inside of the region that has this loop or branch.
        if region.node is not None:
            parent = graph.nodes[region.node].region
        if region.kind == "remat" or parent in remat_regions:
            remat_regions.add(region.index)
    return remat_regions


def _dependents(graph: Graph, seeds: set[int]) -> set[int]:
    """Return the given values and all values that depend on them."""
    dependents: dict[int, list[int]] = defaultdict(list)
    # Loops and branches pass values through the arguments and results of their bodies.
    for argument in graph.region_arguments:
        dependents[argument.source].append(argument.target)
    for node in graph.nodes:
        if node.bodies:
            continue
        # Each result of a barrier is one operand; any other result depends on all operands.
        is_barrier = node.primitive == BARRIER
        for place, operand in enumerate(node.operands):
            dependents[operand].extend(
                node.results[place : place + 1] if is_barrier else node.results
            )
    found_values, waiting = set(seeds), list(seeds)
    while waiting:
        new_values = [value for value in dependents[waiting.pop()] if value not in found_values]
        found_values.update(new_values)
        waiting.extend(new_values)
    return found_values


@dataclass(frozen=True)
class Overheads:
    """Seconds of one step on one device.

    Attributes:
      step_s: seconds of the whole step, one instruction after the other.
      pipelined_s: seconds inside pipelines, bubbles included.
      bubble_s: seconds of trips whose results no microbatch reads.
      recompute_s: seconds of operators that the backward pass repeats, with their collectives;
        bubbles are included.
    """

    step_s: float
    pipelined_s: float
    bubble_s: float
    recompute_s: float

    @property
    def bubbles(self) -> float:
        """Seconds in bubbles as a share of the whole step, from 0 to 1."""
        return self.bubble_s / self.step_s if self.step_s else 0.0

    @property
    def recompute(self) -> float:
        """Seconds of recomputation as a share of the whole step, from 0 to 1."""
        return self.recompute_s / self.step_s if self.step_s else 0.0


def overheads(program: SpmdProgram, graph: Graph, hardware: Hardware | Topology) -> Overheads:
    """Return the seconds that a program spends in bubbles and in recomputation.

    `Overheads.step_s` is the whole step, with the optimizer and everything outside of pipelines.
    Section 5.2 of GSPMD (arXiv:2105.04663) reports shares of the same whole.
    """
    loops, again = pipeline_loops(graph), recomputed_nodes(graph)
    step_s = pipelined_s = bubble_s = recompute_s = 0.0
    for each in timed(program, graph, hardware):
        seconds = each.exposed_s * each.step.count
        step_s += seconds
        recompute_s += seconds * (each.step.instruction.node in again)
        around = next((i for i in each.step.loops if i.node in loops), None)
        if around is not None:
            pipelined_s += seconds
            # Each stage has no microbatch in `stages - 1` trips, so all devices have this share of
            # bubbles (GSPMD section 3.3; `Schedule.bubble_ratio`).
            assert around.node is not None, "a pipeline is a loop of the function"
            trips = around.attributes.executions
            bubble_s += seconds * min(1.0, (loops[around.node].stages - 1) / trips)
    return Overheads(step_s, pipelined_s, bubble_s, recompute_s)
