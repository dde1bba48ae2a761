"""Which operators of the backward pass compute values of the forward pass again (remat)."""

from __future__ import annotations

from collections import defaultdict

from shardalg.graph.ir import Graph, Node

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
