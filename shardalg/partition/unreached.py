"""Values that completion says nothing of: each lies as it is made, for nobody wants it otherwise.

A value that no annotation reaches is replicated where XLA's GSPMD partitions it: what was made in
blocks is gathered at once, and every device then computes all that follows (the gradient of a
depthwise convolution, whose groups GSPMD leaves alone). By the paper's policy such a value has the
digits of the largest operand it is made of, where it has them all, in even blocks (of a Fourier
transform also in uneven ones), one node after
the other, as Shardy leaves it; who wants it whole gathers it then. What crosses the border of a
loop, a branch or the function stays as completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from shardalg.algebra.derived_layouts import even_prefix, interned, plain
from shardalg.algebra.digits import Digit
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import operand_type
from shardalg.costs.topology import machine
from shardalg.graph.ir import Graph, Node
from shardalg.graph.once import once_per_graph
from shardalg.ops.rows import rules
from shardalg.partition.choose.key import NodeKey
from shardalg.partition.choose.node_classes import KEPT
from shardalg.partition.choose.node_plan import node_plan
from shardalg.propagate.options import Options
from shardalg.propagate.sharded import Reason, ShardedGraph


def settled(sharded: ShardedGraph, options: Options) -> ShardedGraph:
    """The completed graph, values that nothing reaches as they are made."""
    graph, found = sharded.graph, list(sharded.shardings)
    made = []
    uneven: set[int] = set()
    for node in _inner_nodes(graph):
        (value,) = node.results
        if any(found[value].dims) or value in sharded.fixed:
            continue
        largest = max(node.operands, key=lambda v: _weight(found[v]), default=None)
        if largest is None or not any(found[largest].dims):
            continue
        layout = _as_made(node, found, options)
        is_even = even_prefix(layout) == layout
        # half of a spectrum rarely divides: an exchange of uneven blocks sends less than a gather
        may_be_uneven = node.primitive == "fft" or largest in uneven
        if _digits(plain(found[largest])) == _digits(layout) and (is_even or may_be_uneven):
            found[value] = layout
            if not is_even:
                uneven.add(value)
            made.append(Reason(value, layout, "as made", node.index, sources=(largest,)))
    if not made:
        return sharded
    return replace(sharded, shardings=tuple(found), _history=lambda: (*sharded.history, *made))


def _as_made(node: Node, homes: Sequence[Sharding], options: Options) -> Sharding:
    """The layout in which the node makes its result where nobody asks for another."""
    held = tuple([(plain(homes[v]),) for v in node.operands])
    key = NodeKey(
        node.signature,
        tuple([node.operands.index(v) for v in node.operands]),
        held,
        (plain(homes[node.results[0]]),),
        machine(options.hardware).chip.rates(operand_type(node.signature)),
        unread=(0,),
        padded=options.switches.pad_blocks,
        finite=options.switches.finite_sums,
    )
    (layout,) = node_plan(key).choice.produced
    return interned(layout.mesh, layout.shape, layout.dims, ())


def _weight(layout: Sharding) -> tuple[int, bool]:
    """By the larger tensor, of equal ones by the one that is cut."""
    return prod(layout.shape), any(layout.dims)


def _digits(layout: Sharding) -> set[Digit]:
    """All that splits a value."""
    return {digit for digits in layout.dims for digit in digits}


@once_per_graph
def _inner_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes that have a rule and one result that stays inside its region."""
    crossing = bound(graph)
    return tuple(
        node
        for node in graph.walk()
        if not node.bodies
        and len(node.results) == 1
        and node.signature.primitive not in KEPT
        and node.results[0] not in crossing
        and rules(node.signature) is not None
    )


def bound(graph: Graph) -> frozenset[int]:
    """Values that cross a border: of the function, of a loop, a branch or a region."""
    given = [v for region in graph.regions for v in (*region.arguments, *region.results)]
    calls = [v for node in graph.walk() if node.bodies for v in (*node.operands, *node.results)]
    return frozenset([*graph.results, *given, *calls])
