"""Concatenations that every reader gathers: their parts are gathered instead.

A concatenation along a sharded dimension moves the borders of all blocks. If its readers gather the
result anyway (a sort along the dimension), the parts can be gathered instead. No borders move, and
a part that another operator gathers, too, is gathered only once.

For a `top_k`, each device sends its largest elements. They are fewer than all elements of the
result, but can be more than the elements of the sharded parts.
"""

from __future__ import annotations

from dataclasses import replace

from shardalg.algebra.derived_layouts import interned, plain
from shardalg.graph.ir import Graph, Node
from shardalg.ops.rows import rules
from shardalg.ops.rule import TOP
from shardalg.partition.unreached import bound
from shardalg.propagate.sharded import Reason, ShardedGraph

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
