"""Slices move through pointwise operators to the slices and pads that they are one with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from shardalg.graph.ir import Graph, Node, Signature, ValueType
from shardalg.ops.families import pointwise
from shardalg.ops.rows import BUILDERS

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
