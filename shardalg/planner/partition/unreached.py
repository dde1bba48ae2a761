"""Values that completion says nothing of: each lies as it is made, for nobody wants it otherwise.

A value that no annotation reaches is replicated where XLA's GSPMD partitions it: what was made in
blocks is gathered at once, and every device then computes all that follows (the gradient of a
depthwise convolution, whose groups GSPMD leaves alone). By the paper's policy such a value has the
digits of the largest operand it is made of, where it has them all, in even blocks (of a Fourier
transform also in uneven ones), one node after
the other, as Shardy leaves it; who wants it whole gathers it then. What crosses the border of a
loop, a branch or the function stays as completed.

Concatenations that every reader gathers: their parts are gathered instead.

A concatenation along a sharded dimension moves the borders of all blocks. If its readers gather the
result anyway (a sort along the dimension), the parts can be gathered instead. No borders move, and
a part that another operator gathers, too, is gathered only once.

For a `top_k`, each device sends its largest elements. They are fewer than all elements of the
result, but can be more than the elements of the sharded parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from shardalg.algebra.derived_layouts import even_prefix, interned, plain
from shardalg.algebra.digits import Digit
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import operand_type
from shardalg.costs.hardware import Hardware
from shardalg.graph.ir import Graph, Node, once_per_graph
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import TOP
from shardalg.planner.partition.choose.key import NodeKey
from shardalg.planner.partition.choose.node_classes import KEPT
from shardalg.planner.partition.choose.node_plan import node_plan
from shardalg.planner.propagate.sharded import Reason, ShardedGraph


def shard_unreached(
    sharded: ShardedGraph, chip: Hardware, *, padded: bool, finite: bool
) -> ShardedGraph:
    """The completed graph, values that nothing reaches as they are made."""
    graph, found = sharded.graph, list(sharded.shardings)
    made = []
    uneven: set[int] = set()
    for node in _inner_nodes(graph):
        (value,) = node.results
        if any(found[value].dims) or value in sharded.fixed:
            continue
        # The larger tensor; of equally large ones a sharded one.
        largest = max(
            node.operands,
            key=lambda v: (prod(found[v].shape), any(found[v].dims)),
            default=None,
        )
        if largest is None or not any(found[largest].dims):
            continue
        layout = _computed_sharding(node, found, chip, padded=padded, finite=finite)
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


def _computed_sharding(
    node: Node, shardings: Sequence[Sharding], chip: Hardware, *, padded: bool, finite: bool
) -> Sharding:
    """Return the sharding in which the node computes its result when no reader needs another."""
    key = NodeKey(
        node.signature,
        tuple([node.operands.index(v) for v in node.operands]),
        tuple([(plain(shardings[v]),) for v in node.operands]),
        (plain(shardings[node.results[0]]),),
        chip.rates(operand_type(node.signature)),
        # An unread result is not moved to its sharding, so the choice does not pay for that move.
        unread=(0,),
        padded=padded,
        finite=finite,
    )
    (layout,) = node_plan(key).choice.produced
    return interned(layout.mesh, layout.shape, layout.dims, ())


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


JOINS = ("concatenate", "join_ends", "pad")


def joined_whole(sharded: ShardedGraph) -> ShardedGraph | None:
    """Return the graph with concatenations replicated where all readers gather, or None."""
    graph, found, made = sharded.graph, list(sharded.shardings), []
    fixed = bound(graph) | sharded.fixed
    for node in graph.nodes_of(JOINS):
        (value,) = node.results
        layout = plain(found[value])
        if value in fixed or layout.unreduced or not any(layout.dims):
            continue
        whole = _whole_dims(graph, value)
        dims = tuple(() if d in whole else digits for d, digits in enumerate(layout.dims))
        if dims != layout.dims:
            found[value] = interned(layout.mesh, layout.shape, dims, ())
            made.append(Reason(value, found[value], "read whole", node.index, sources=(value,)))
    if not made:
        return None
    history = (*sharded.history, *made)
    return replace(sharded, shardings=tuple(found), _history=lambda: history)


def _whole_dims(graph: Graph, value: int) -> set[int]:
    """Return the dimensions of a value that all of its readers need whole."""
    every = set(range(len(graph.values[value].type.shape)))
    users = graph.users[value]
    for reader in users:
        every &= _whole_in(graph.nodes[reader], value)
    return every if users else set()


def _whole_in(node: Node, value: int) -> set[int]:
    rows = rules(node.signature)
    if not rows or node.bodies:
        return set()
    rule, found = rows[0], None
    for number, operand in enumerate(node.operands):
        if operand != value:
            continue
        indices = enumerate(rule.operands.get(number, ()))
        gathered = rule.whole | (frozenset(rule.reduced) if rule.combine == TOP else frozenset())
        whole = {d for d, i in indices if i.variables and set(i.variables) <= gathered}
        found = whole if found is None else found & whole
    return found or set()
