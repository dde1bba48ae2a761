"""The two ends of one value side by side are one move: a rotation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from shardalg.graph.ir import Graph, Node, Signature
from shardalg.ops.canonicalize.known import Known
from shardalg.ops.canonicalize.rewrite import rewritten


def ends_joined(graph: Graph) -> Graph:
    """The graph in which `concatenate(x[a:], x[:a])` reads x itself.

    A device then fetches what it lacks of x once, where both slices would be brought into blocks of
    their own first. Of other ends the size of the result would lose its name. The gradient of a
    rotation is one, too, which JAX writes as a sum: each end of x in its new place, beside zeros.
    """
    turned_back = partial(_turned_back, Known(graph))
    table = {"concatenate": partial(_joined, graph), "add": turned_back, "add_any": turned_back}
    return rewritten(graph, table)


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
    fits &= 0 < start < whole  # an empty part is dropped
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
    source, dim = _rotated(graph, node), node.signature.param("dimension")
    if source is None:
        return None
    return _ends(node, source, dim, tuple([v.shape[dim] for v in node.signature.operands]))


def _turned_back(known: Known, node: Node) -> Node | None:
    """`pad(x[a:]) + pad(x[:a])`, each end in the other's place and zeros around it."""
    found = sorted(
        [p for v in node.operands if (p := _placed(known, (v, node.region))) is not None]
    )
    if len(found) != 2:
        return None
    (low, x, dim, start, limit), (after, other, along, zero, stop) = found
    (made,) = node.signature.results
    size = made.shape[dim]
    fits = (x, dim, limit, stop) == (other, along, size, start) and low == zero == 0
    fits &= after == size - start and known.graph.values[x].type == made
    return _ends(node, x, dim, (size - start, start)) if fits else None


def _placed(known: Known, place: tuple[int, int]) -> tuple[int, int, int, int, int] | None:
    """(before, x, dimension, start, limit) of `x[start:limit]` with so many zeros before it.

    None where zeros stand between its elements, too.
    """
    graph, (value, region) = known.graph, place
    producer = graph.producer[value]
    node = None if producer is None else graph.nodes[producer]
    if node is None or node.primitive != "pad" or node.region != region:
        return None
    around = list(enumerate(node.signature.param("padding_config")))
    padded = [(dim, low) for dim, (low, high, between) in around if low or high or between]
    zero = known.number(node.operands[1])
    is_spread = any(between for _, (_, _, between) in around)
    if len(padded) != 1 or is_spread or zero is None or zero:
        return None
    ((dim, low),) = padded
    cut = _cut(graph, (node.operands[0], region), dim)
    return cut and (low, cut[0], dim, *cut[1:])


def _ends(node: Node, source: int, dim: int, sizes: tuple[int, ...]) -> Node:
    """The node as the two ends of one value side by side, of these sizes."""
    (type_,) = node.signature.results
    params = (("dimension", dim), ("sizes", sizes))
    signature = Signature("join_ends", params, (type_, type_), node.signature.results)
    return replace(node, signature=signature, operands=(source, source))
