"""The two ends of one value side by side are one move: a rotation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from shardalg.graph.ir import Graph, Node, Signature
from shardalg.ops.canonicalize.rewrite import rewritten


def ends_joined(graph: Graph) -> Graph:
    """The graph in which `concatenate(x[a:], x[:a])` reads x itself.

    A device then fetches what it lacks of x once, where both slices would be brought into blocks of
    their own first. Of other ends the size of the result would lose its name.
    """
    return rewritten(graph, {"concatenate": partial(_joined, graph)})


def _rotated(graph: Graph, node: Node) -> int | None:
    """The value that a concatenation of two slices rotates; None if it does not."""
    dim, type_ = node.signature.param("dimension"), node.signature.results[0]
    if len(node.operands) != 2 or 0 in type_.shape:
        return None
    first, second = (_cut(graph, (value, node.region), dim) for value in node.operands)
    if first is None or second is None:
        return None
    (end, start, whole), (beginning, zero, stop) = first, second
    fits = end == beginning and (zero, start) == (0, stop) and whole == type_.shape[dim]
    return end if fits and graph.values[end].type == type_ else None


def _cut(graph: Graph, place: tuple[int, int], dim: int) -> tuple[int, int, int] | None:
    """(value, start, limit) of which `place` is a slice along a dimension, and whole else.

    Args:
      place: a value, and the region where it is read.
    """
    value, region = place
    producer = graph.producer[value]
    node = None if producer is None else graph.nodes[producer]
    if node is None or node.primitive != "slice" or node.region != region:
        return None
    shape, param = node.signature.operands[0].shape, node.signature.param
    starts, limits = param("start_indices"), param("limit_indices")
    others = [
        a == 0 and b == n
        for d, (a, b, n) in enumerate(zip(starts, limits, shape, strict=True))
        if d != dim
    ]
    plain = set(param("strides") or (1,)) == {1} and all(others)
    return (node.operands[0], starts[dim], limits[dim]) if plain else None


def _joined(graph: Graph, node: Node) -> Node | None:
    source = _rotated(graph, node)
    if source is None:
        return None
    type_ = graph.values[source].type
    params = (
        ("dimension", node.signature.param("dimension")),
        (
            "sizes",
            tuple(v.shape[node.signature.param("dimension")] for v in node.signature.operands),
        ),
    )
    signature = Signature("join_ends", params, (type_, type_), node.signature.results)
    return replace(node, signature=signature, operands=(source, source))
