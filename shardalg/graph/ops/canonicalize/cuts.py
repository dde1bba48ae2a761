"""Slices and pads that follow one another are one: a device fetches once what it lacks.

Slices move through pointwise operators to the slices and pads that they are one with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from shardalg.graph.ir import Graph, Node, Params, Signature, ValueType
from shardalg.graph.ops.canonicalize.known import KnownValues, rewritten, with_nodes
from shardalg.graph.ops.families import pointwise
from shardalg.graph.ops.rows import BUILDERS

Join = Callable[[Node, Node], Node | None]
"""The one node that a slice or pad is with the one before it; None if it is none."""


def slices_passed(graph: Graph, join: Join) -> Graph:
    """The graph in which a slice stands beside the slice or pad that it joins.

        slice(f(pad(x))) = f(slice(pad(x)))        pad(f(slice(x))) = pad(slice(f(x)))

    for pointwise f, where nobody else reads what lies between. A slice moves down to a pad that
    makes up for it at least: f then runs over no more elements than the result has.
    """
    for node in graph.nodes_of(_MOVES):
        found = _chain(graph, node)
        moved = _MOVES[node.primitive](graph, found, join) if len(found) > 2 else None
        if moved is not None:
            graph = _in_order(graph, found, moved)
    return graph


def joins(graph: Graph, node: Node, join: Join) -> bool:
    """Whether a slice or pad, perhaps put in place of a node, would be one with the one before."""
    producer = graph.producer[node.operands[0]]
    before = None if producer is None else graph.nodes[producer]
    if before is None or before.region != node.region:
        return False
    found = _chain(graph, node)
    passed = len(found) > 2 and _MOVES[node.primitive](graph, found, join) is not None
    return passed or join(node, before) is not None


def _chain(graph: Graph, last: Node) -> list[Node]:
    """A slice or pad, pointwise operators behind it, and another one: alone with one another."""
    found = [last]
    while True:
        value = found[0].operands[_read(found[0])]
        producer = graph.producer[value]
        before = None if producer is None else graph.nodes[producer]
        if before is None or before.region != last.region or not _alone(graph, value):
            return []
        found.insert(0, before)
        if before.primitive in _MOVES:
            return found
        if not _is_pointwise(before.signature):
            return []


def _alone(graph: Graph, value: int) -> bool:
    """Whether one node reads a value, and nothing hands it on."""
    handed = (*graph.results, *(v for region in graph.regions for v in region.results))
    return len(graph.users[value]) == 1 and value not in handed


def _is_pointwise(signature: Signature) -> bool:
    """Whether an operator makes each element of one, and perhaps of numbers."""
    builder = BUILDERS.get(signature.primitive)
    same = builder is pointwise.pointwise or signature.primitive == "convert_element_type"
    shapes = [type_.shape for type_ in signature.operands if type_.shape]
    one = len(shapes) == len(signature.results) == 1 and shapes[0] == signature.results[0].shape
    return same and one


def _read(node: Node) -> int:
    """The operand that is no number."""
    return next((k for k, type_ in enumerate(node.signature.operands) if type_.shape), 0)


def _up(graph: Graph, found: list[Node], join: Join) -> list[Node] | None:
    """The last slice right behind the first of the chain."""
    first, *others, last = found
    here = _typed(last, first.signature.results[0], last.signature.results[0].shape)
    shape = last.signature.results[0].shape
    if join(here, first) is None:
        return None
    return [first, here, *(_sized(node, shape) for node in others)]


def _down(graph: Graph, found: list[Node], join: Join) -> list[Node] | None:
    """The first slice right before the last pad of the chain."""
    first, *others, last = found
    shape, kept = first.signature.operands[0].shape, first.signature.results[0].shape
    early = all(
        (made := graph.producer[v]) is None or made < first.index
        for node in others
        for k, v in enumerate(node.operands)
        if k != _read(node)
    )
    dtype = last.signature.operands[0].dtype
    here = _typed(first, ValueType(shape, dtype), kept)
    grown = prod(last.signature.results[0].shape) >= prod(shape)
    if first.primitive != "slice" or not early or not grown or join(last, here) is None:
        return None
    return [*(_sized(node, shape) for node in others), here, last]


def _in_order(graph: Graph, found: list[Node], moved: list[Node]) -> Graph:
    """The chain's operators in another order, in the places that they have."""
    nodes, values, bindings = list(graph.nodes), list(graph.values), list(graph.bindings)
    read = found[0].operands[_read(found[0])]
    for place, node in zip(found, moved, strict=True):
        operands = list(node.operands)
        operands[_read(node)], (value,) = read, place.results
        nodes[place.index] = replace(
            node, index=place.index, operands=tuple(operands), results=place.results
        )
        name = graph.values[node.results[0]].name
        values[value] = replace(values[value], type=node.signature.results[0], name=name)
        if bindings:
            bindings[place.index] = graph.bindings[node.index]
        read = value
    return replace(graph, nodes=tuple(nodes), values=tuple(values), bindings=tuple(bindings))


def _sized(node: Node, shape: tuple[int, ...]) -> Node:
    """A pointwise operator over other elements."""
    dtype = node.signature.operands[_read(node)].dtype
    return _typed(node, ValueType(shape, dtype), shape)


def _typed(node: Node, read: ValueType, shape: tuple[int, ...]) -> Node:
    """The node on an operand of another type, its result as large as said."""
    types, own = list(node.signature.operands), node.signature
    types[_read(node)] = read
    dtype = read.dtype if node.primitive in ("slice", "pad") else own.results[0].dtype
    signature = Signature(own.primitive, own.params, tuple(types), (ValueType(shape, dtype),))
    return replace(node, signature=signature)


_MOVES: dict[str, Callable[[Graph, list[Node], Join], list[Node] | None]] = {
    "slice": _up,
    "pad": _down,
}


def cuts_joined(graph: Graph) -> Graph:
    """The graph in which a slice or a pad of a slice or a pad reads what that reads.

    What lies between them would be brought into blocks of its own, which neither needs. A shift
    written as `pad(x)[:-1]` moves just what is shifted, as one written `pad(x[:-1])` does, also
    with pointwise operators between the two; `concatenate([x[1:], zeros])` is a pad for it. If a
    slice of a concatenation takes elements of only one operand, it reads this operand.
    """
    known = KnownValues(graph)
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


def _padded(known: KnownValues, join: Join, node: Node) -> Node | None:
    """A slice beside numbers as padded by them, where that is one node."""
    pad = _beside_numbers(known, node)
    return pad if pad is not None and joins(known.graph, pad, join) else None


def _beside_numbers(known: KnownValues, node: Node) -> Node | None:
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


def _joined(known: KnownValues, node: Node, inner: Node) -> Node | None:
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
