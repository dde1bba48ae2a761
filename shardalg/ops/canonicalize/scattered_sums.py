"""What is added to rows of zeros, and then to a table, is added to the table."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from shardalg.graph.ir import Graph, Node
from shardalg.ops.canonicalize.known import Known
from shardalg.ops.canonicalize.rewrite import rewritten
from shardalg.ops.families.indexing import numbers


def scatters_added(graph: Graph) -> Graph:
    """The graph in which `x + scatter_add(zeros, i, u)` is `scatter_add(x, i, u)`.

    A loop that adds up so what a slice of its constants gives (the weights of a round of a circular
    pipeline) then reads its carry as a sum alone, which may wait until the loop is over, and holds
    no second table. Only where no two updates meet in one element: `x + (u + v)` would be
    `(x + u) + v`, which rounds otherwise.
    """
    added = partial(_added, Known(graph))
    return rewritten(graph, {"add": added, "add_any": added})


def _added(known: Known, node: Node) -> Node | None:
    """The scatter into the one operand that the other, a scatter into zeros, is."""
    for x, other in (node.operands, node.operands[::-1]):
        scatter = _into_zeros(known, node, other)
        if scatter is not None and known.graph.values[x].type == scatter.signature.results[0]:
            operands = (x, *scatter.operands[1:])
            return replace(node, signature=scatter.signature, operands=operands)
    return None


def _into_zeros(known: Known, node: Node, value: int) -> Node | None:
    """The scatter into zeros that a value is, read by this node alone; None if it is none.

    It may stand in a remat span of the node's body, which hands its values out directly.
    """
    graph = known.graph
    producer = graph.producer[value]
    scatter = None if producer is None else graph.nodes[producer]
    if scatter is None or scatter.primitive != "scatter-add":
        return None
    if scatter.index not in graph.regions[node.region].nodes:
        return None
    fill = known.fill(scatter.operands[0], scatter.region)
    zero = None if fill is None else known.number(fill)
    leaves = value in (*graph.regions[node.region].results, *graph.results)
    is_alone = list(graph.users[value]) == [node.index] and not leaves
    return scatter if zero is not None and not zero and is_alone and _apart(scatter) else None


def _apart(scatter: Node) -> bool:
    """Whether no two updates meet in one element: each has its own, or its own of a batch."""
    signature = scatter.signature
    positions, paired = signature.operands[1].shape[:-1], numbers(signature).index_batching
    rows = prod(n for dim, n in enumerate(positions) if dim not in paired)
    return bool(signature.param("unique_indices")) or rows <= 1
