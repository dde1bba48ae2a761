"""Changes to completed shardings: values that no annotation reaches, and gathered concatenations.

Unreached values: XLA's GSPMD replicates a value to which no annotation propagates. It gathers it at
once, and every device then repeats the work that follows. An example is the gradient of a depthwise
convolution, whose groups GSPMD does not shard. By the paper's policy such a value keeps the
sharding in which it is computed, as in Shardy, and its readers gather it. The sharding must have
all digits of the largest operand, in even blocks; a Fourier transform may have uneven blocks. A
value that crosses the border of a loop, a branch or the function keeps its completed sharding.

Concatenations: a concatenation along a sharded dimension moves the borders of all blocks. If its
readers gather the result anyway (a sort along the dimension), the parts can be gathered instead. No
borders move, and a part that another operator gathers, too, is gathered only once.

A `top_k` counts as such a reader, although it can send only the largest elements of each device:
these can still be more elements than the sharded parts have.
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
    """Return the graph with changed shardings of values that completion left replicated.

    Such a value gets the sharding in which its node computes it, if this has the digits of the
    largest operand. Annotated values, and values at borders of loops, branches or the function,
    keep theirs.

    Args:
      chip: the chip whose rates compare bytes sent with arithmetic.
      padded: whether blocks may be padded while they are moved.
      finite: whether sums are deferred behind products, too.
    """
    graph, found = sharded.graph, list(sharded.shardings)
    made = []
    uneven: set[int] = set()
    for node in _inner_nodes(graph):
        (value,) = node.results
        # Completed and annotated shardings take precedence: only a value that nothing reached may
        # change.
        if any(found[value].dims) or value in sharded.fixed:
            continue
        # The largest operand decides how much work the node divides. Of equally large operands a
        # sharded one is compared.
        largest = max(
            node.operands,
            key=lambda v: (prod(found[v].shape), any(found[v].dims)),
            default=None,
        )
        if largest is None or not any(found[largest].dims):
            continue
        layout = _computed_sharding(node, found, chip, padded=padded, finite=finite)
        is_even = even_prefix(layout) == layout
        # A real Fourier transform keeps n/2 + 1 of n frequencies, which rarely divides. An exchange
        # of uneven blocks then sends less than a gather.
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
    """Return the sharding in which the node computes its only result, if no reader is considered.

    The choice is that of `node_plan` for operands in their current shardings.
    """
    key = NodeKey(
        signature=node.signature,
        values=tuple([node.operands.index(v) for v in node.operands]),
        sources=tuple([(plain(shardings[v]),) for v in node.operands]),
        value_shardings=(plain(shardings[node.results[0]]),),
        rates=chip.rates(operand_type(node.signature)),
        # An unread result is not moved to its sharding, so the choice does not pay for that move.
        unread=(0,),
        padded=padded,
        finite=finite,
    )
    (layout,) = node_plan(key).choice.produced
    return interned(layout.mesh, layout.shape, layout.dims, ())


def _digits(layout: Sharding) -> set[Digit]:
    """Return the mesh digits along which any dimension is sharded."""
    return {digit for digits in layout.dims for digit in digits}


@once_per_graph
def _inner_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes with a row of RULES whose only result stays inside its region.

    Nodes with bodies, annotations and barriers are excluded.
    """
    # The two sides of a border must agree on a sharding, and annotations and barriers keep theirs.
    crossing = border_values(graph)
    return tuple(
        node
        for node in graph.walk()
        if not node.bodies
        and len(node.results) == 1
        and node.signature.primitive not in KEPT
        and node.results[0] not in crossing
        and rules(node.signature) is not None
    )


def border_values(graph: Graph) -> frozenset[int]:
    """Return the values at the borders of the function, of bodies, and of calls with bodies.

    They are the arguments, operands and results.
    """
    given = [v for region in graph.regions for v in (*region.arguments, *region.results)]
    calls = [v for node in graph.walk() if node.bodies for v in (*node.operands, *node.results)]
    return frozenset([*graph.results, *given, *calls])


JOINS = ("concatenate", "join_ends", "pad")


def joined_whole(sharded: ShardedGraph) -> ShardedGraph | None:
    """Return the graph with concatenations gathered along dimensions that all readers would gather.

    Such a dimension is replicated in the new graph, so that it is gathered once. The same applies
    to paddings. None if no concatenation or padding has such a sharded dimension.
    """
    graph, shardings, reasons = sharded.graph, list(sharded.shardings), []
    fixed = border_values(graph) | sharded.fixed
    for node in graph.nodes_of(JOINS):
        (value,) = node.results
        layout = plain(shardings[value])
        # An annotation is the user's decision, and both sides of a border must agree on it.
        if value in fixed or layout.unreduced or not any(layout.dims):
            continue
        # One reader that keeps a dimension sharded would have to slice it again, so only dimensions
        # that all readers gather are made whole.
        readers = graph.users[value]
        whole_dims = set(range(len(layout.dims))) if readers else set()
        for reader in readers:
            whole_dims &= _whole_in(graph.nodes[reader], value)
        dims = tuple(() if dim in whole_dims else digits for dim, digits in enumerate(layout.dims))
        if dims != layout.dims:
            shardings[value] = interned(layout.mesh, layout.shape, dims, ())
            reason = Reason(value, shardings[value], "read whole", node.index, sources=(value,))
            reasons.append(reason)
    if not reasons:
        return None
    # The history explains to the user why a value has its sharding.
    history = (*sharded.history, *reasons)
    return replace(sharded, shardings=tuple(shardings), _history=lambda: history)


def _whole_in(node: Node, value: int) -> set[int]:
    """Return the dimensions of a value that this reader needs whole, such as a sorted dimension.

    If the reader has the value as several operands, these are the dimensions common to all of them.
    """
    rows = rules(node.signature)
    # Loops and calls, and operators without a rule, decide for themselves.
    if not rows or node.bodies:
        return set()
    rule, common = rows[0], None
    for number, operand in enumerate(node.operands):
        if operand != value:
            continue
        indices = enumerate(rule.operands.get(number, ()))
        # A `top_k` compares all elements along its reduced loops, so it gathers these, too.
        gathered = rule.whole | (frozenset(rule.reduced) if rule.combine == TOP else frozenset())
        # A dimension is needed whole if all loops that index it are.
        whole_dims = {
            dim for dim, index in indices if index.variables and set(index.variables) <= gathered
        }
        common = whole_dims if common is None else common & whole_dims
    return common or set()
