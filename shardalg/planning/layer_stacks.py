"""Loops over stacks whose layers are divided among devices: one layer is fetched per iteration.

A loop reads one layer in each iteration, so that its stack cannot be sharded along the layers
inside the loop. The layers of a stack are therefore gathered before the loop. The alternative here
exchanges the blocks once, so that each device has a part of every layer, and an iteration gathers
the parts of one layer. It sends one part in `n` more on `n` devices, and no device ever holds the
stack. Gradients that the loop stacks are scattered in each iteration and exchanged after the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardalg.algebra.derived_layouts import interned, plain
from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node
from shardalg.propagate.sharded import Reason, ShardedGraph


def by_layer(sharded: ShardedGraph) -> ShardedGraph | None:
    """Return the layouts in which loops fetch one layer per iteration; None if no stack is divided.

    Only the layers inside the loops have other layouts: nothing is completed from them. By cost the
    layouts at the borders of loops are chosen already.
    """
    if sharded.borders:
        return None
    found, made = list(sharded.shardings), []
    for node in sharded.graph.nodes_of(["scan"]):
        for stack, layer in stacks(sharded.graph, node):
            layout = _divided(plain(found[layer]), plain(found[stack]).dims[0])
            if layout is not None and layer not in sharded.fixed:
                found[layer] = layout
                made.append(Reason(layer, layout, "streamed", node.index, sources=(stack,)))
    if not made:
        return None
    history = (*sharded.history, *made)
    return replace(sharded, shardings=tuple(found), _history=lambda: history)


def stacks(graph: Graph, node: Node) -> Iterator[tuple[int, int]]:
    """Yield the stacks that a loop reads and makes, each with its layer in the body."""
    body = graph.regions[node.bodies[0]]
    consts, carry = (node.signature.param(name) for name in ("num_consts", "num_carry"))
    read = consts + carry
    yield from zip(node.operands[read:], body.arguments[read:], strict=True)
    made = zip(node.results[carry:], body.results[carry:], strict=True)
    yield from ((stack, layer) for stack, layer in made if layer not in body.arguments)


def _divided(layer: Sharding, digits: Digits) -> Sharding | None:
    """Return the layer's layout with the digits of the stack on its largest dimension that fits.

    Dimensions that the digits divide come first. None if a dimension has the digits already, or
    if every dimension has fewer elements than there are parts.
    """
    used = [digit for dim in layer.dims for digit in dim]
    if not digits or any(overlap(own, digit) for own in used for digit in digits):
        return None
    joined = [(*dim, *digits) for dim in layer.dims]
    sizes = [(size, dim) for dim, size in enumerate(layer.shape) if size >= parts(joined[dim])]
    if not sizes:
        return None
    _, dim = max(sizes, key=lambda one: (one[0] % parts(joined[one[1]]) == 0, one[0]))
    dims = tuple(joined[k] if k == dim else own for k, own in enumerate(layer.dims))
    return interned(layer.mesh, layer.shape, dims, ())
