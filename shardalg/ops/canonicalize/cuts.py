"""Slices and pads that follow one another are one: a device fetches once what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from shardalg.graph.ir import Graph, Node, Params, Signature
from shardalg.ops.canonicalize.known import Known
from shardalg.ops.canonicalize.passing import Join, joins, slices_passed
from shardalg.ops.canonicalize.rewrite import rewritten, with_nodes


def cuts_joined(graph: Graph) -> Graph:
    """The graph in which a slice or a pad of a slice or a pad reads what that reads.

    What lies between them would be brought into blocks of its own, which neither needs. A shift
    written as `pad(x)[:-1]` moves just what is shifted, as one written `pad(x[:-1])` does, also
    with pointwise operators between the two; `concatenate([x[1:], zeros])` is a pad for it. If a
    slice of a concatenation takes elements of only one operand, it reads this operand.
    """
    known = Known(graph)
    join = partial(_joined, known)
    graph = rewritten(graph, {"concatenate": partial(_padded, known, join)})
    graph = slices_passed(graph, join)
    made: dict[int, Node] = {}
    for node in graph.nodes_of(("slice", "pad")):
        found: Node | None = node
        while found is not None:
            producer = graph.producer[found.operands[0]]
            inner = None if producer is None else made.get(producer, graph.nodes[producer])
            if inner is None or inner.region != node.region:
                break
            found = _part(found, inner) or join(found, inner)
            if found is not None:
                made[node.index] = found
    return with_nodes(graph, made)


def _part(node: Node, inner: Node) -> Node | None:
    """Return the slice of the only operand of a concatenation that it reads, or None."""
    if (node.primitive, inner.primitive) != ("slice", "concatenate"):
        return None
    if not (_has_elements(node) and _has_elements(inner)):
        return None
    dim, end, rows = inner.signature.param("dimension"), 0, _cut(node)
    for value, type_ in zip(inner.operands, inner.signature.operands, strict=True):
        before, end = end, end + type_.shape[dim]
        start, limit, stride = rows[dim]
        if before <= start and limit <= end:
            rows[dim] = (start - before, limit - before, stride)
            params = _slice_params(rows)
            signature = Signature("slice", params, (type_,), node.signature.results)
            return replace(node, signature=signature, operands=(value,))
    return None


def _padded(known: Known, join: Join, node: Node) -> Node | None:
    """A slice beside numbers as padded by them, where that is one node."""
    pad = _beside_numbers(known, node)
    return pad if pad is not None and joins(known.graph, pad, join) else None


def _beside_numbers(known: Known, node: Node) -> Node | None:
    """`concatenate([full(c), x, full(c)])` as a pad of x; None if it is none."""
    fills = [known.fill(value, node.region) for value in node.operands]
    numbers = [fill for fill in fills if fill is not None]
    if len(numbers) != len(fills) - 1 or not numbers:
        return None
    if not all(known.same(numbers[0], number) for number in numbers):
        return None
    dim, place = node.signature.param("dimension"), fills.index(None)
    widths = [type_.shape[dim] for type_ in node.signature.operands]
    around = sum(widths[:place]), sum(widths[place + 1 :]), 0
    rank = len(node.signature.results[0].shape)
    config = tuple(around if d == dim else (0, 0, 0) for d in range(rank))
    types = node.signature.operands[place], known.graph.values[numbers[0]].type
    params = (("padding_config", config),)
    signature = Signature("pad", params, types, node.signature.results)
    return replace(node, signature=signature, operands=(node.operands[place], numbers[0]))


def _joined(known: Known, node: Node, inner: Node) -> Node | None:
    """The one node that a slice or pad is with the one that it reads; None if it is none."""
    join = _JOINS.get((node.primitive, inner.primitive))
    if join is None or not (_has_elements(node) and _has_elements(inner)):
        return None
    pads = node.primitive == inner.primitive == "pad"
    if pads and not known.same(node.operands[1], inner.operands[1]):
        return None
    return join(node, inner)


def _has_elements(node: Node) -> bool:
    types = (*node.signature.operands, *node.signature.results)
    return not any(0 in type_.shape for type_ in types)


def _slice_of_slice(node: Node, inner: Node) -> Node:
    """Starts and strides multiply: `x[a::s][b::t]` is `x[a+s*b::s*t]`."""
    rows = []
    for (a, _, s), (b, stop, t) in zip(_cut(inner), _cut(node), strict=True):
        rows.append((a + s * b, a + s * (stop - 1) + 1, s * t))
    return _node(node, _slice_params(rows), inner, inner)


def _slice_params(rows: Sequence[tuple[int, int, int]]) -> Params:
    starts, limits, strides = (tuple(row[k] for row in rows) for k in range(3))  # none of a scalar
    return (("limit_indices", limits), ("start_indices", starts), ("strides", strides))


def _slice_of_pad(node: Node, inner: Node) -> Node | None:
    """A pad by less: `pad(x, low)[a:]` is `pad(x, low - a)`; negative padding cuts."""
    config = []
    padded = inner.signature.results[0].shape
    pads = inner.signature.param("padding_config")
    for (low, high, interior), (a, b, s), n in zip(pads, _cut(node), padded, strict=True):
        if s > 1:
            return None
        config.append((low - a, high - (n - b), interior))
    return _node(node, (("padding_config", tuple(config)),), inner, inner)


def _pad_of_slice(node: Node, inner: Node) -> Node | None:
    """A pad by less: `pad(x[a:], low)` is `pad(x, low - a)`, if `low` or `a` is 0."""
    config = []
    shape = inner.signature.operands[0].shape
    pads = node.signature.param("padding_config")
    for (low, high, interior), (a, b, s), n in zip(pads, _cut(inner), shape, strict=True):
        if s > 1 or (a and low > 0) or (n - b and high > 0):
            return None
        config.append((low - a * (interior + 1), high - (n - b) * (interior + 1), interior))
    return _node(node, (("padding_config", tuple(config)),), inner, node)


def _pad_of_pad(node: Node, inner: Node) -> Node | None:
    """Widths add, where the outer pad does not fill what the inner one cut off.

    `g` elements between any two, then `h` between any two of those: `(g+1)*(h+1) - 1`.
    """
    config = []
    pads = (pad.signature.param("padding_config") for pad in (inner, node))
    for (low, high, gap), (before, after, between) in zip(*pads, strict=True):
        if (low < 0 < before) or (high < 0 < after):
            return None
        wide = between + 1
        config.append((low * wide + before, high * wide + after, (gap + 1) * wide - 1))
    return _node(node, (("padding_config", tuple(config)),), inner, node)


def _cut(node: Node) -> list[tuple[int, int, int]]:
    """(start, limit, stride) per dimension of a slice."""
    param = node.signature.param
    starts, limits = param("start_indices"), param("limit_indices")
    return list(zip(starts, limits, param("strides") or (1,) * len(starts), strict=True))


def _node(node: Node, params: Params, inner: Node, like: Node) -> Node:
    """`node` on the operand of `inner`; its other operands, and its primitive, are of `like`."""
    types = (inner.signature.operands[0], *like.signature.operands[1:])
    signature = Signature(like.primitive, params, types, node.signature.results)
    operands = (inner.operands[0], *like.operands[1:])
    return replace(node, signature=signature, operands=operands)


_JOINS: dict[tuple[str, str], Callable[[Node, Node], Node | None]] = {
    ("slice", "slice"): _slice_of_slice,
    ("slice", "pad"): _slice_of_pad,
    ("pad", "slice"): _pad_of_slice,
    ("pad", "pad"): _pad_of_pad,
}
