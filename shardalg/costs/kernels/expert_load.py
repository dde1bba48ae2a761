"""Work of the busiest device if experts, or blocks of ragged size, are sharded over devices.

The number of rows per expert is known only at run time, so a price needs an assumption. The load
factor is the number of rows of the busiest device divided by the average: 1.0 is a perfect balance.
With "worst", all rows belong to the experts of one device. A group is the rows of one expert:

    rows of the busiest device = min(all rows, load * all rows * own groups / all groups)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from shardalg.algebra.digits import parts
from shardalg.graph.ir import Graph, Params, Signature
from shardalg.graph.ops.families.building import BALANCED, LOAD, WORST
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import Rule
from shardalg.sizes.amounts import quotient
from shardalg.sizes.formula import Formula
from shardalg.sizes.maximum import larger, smaller
from shardalg.spmd.instructions import Apply, RaggedAllToAll
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.rewrite import instructions

LOADED = ("grouped_dot", "ragged_all_to_all")


def with_expert_load(graph: Graph, load: float | str) -> Graph:
    """Return the graph with a load factor as a parameter of each ragged operator.

    Prices of these operators depend on it. The factor is the rows of the busiest device divided by
    the average, or "worst"; `BALANCED` needs no parameter.
    """
    nodes = list(graph.nodes)
    is_unchanged = True
    for node in graph.nodes_of(LOADED):
        old_signature = node.signature
        params: Params = tuple(pair for pair in old_signature.params if pair[0] != LOAD)
        if load != BALANCED:
            params = tuple(sorted((*params, (LOAD, load))))
        if params != old_signature.params:
            signature = Signature(
                old_signature.primitive, params, old_signature.operands, old_signature.results
            )
            nodes[node.index] = replace(node, signature=signature)
            is_unchanged = False
    return graph if is_unchanged else replace(graph, nodes=tuple(nodes))


def busiest(amount: Any, load: Fraction | None, own: Any, whole: Any) -> Any:
    """Return the part of an amount of work that the busiest device has.

    Args:
      amount: the work of all groups, such as rows, flops or bytes.
      load: the load factor; None if the device may have all groups ("worst").
      own, whole: number of groups of one device, and of all groups.

    >>> [busiest(96, load, 2, 8) for load in (Fraction(1), Fraction(3, 2), Fraction(5), None)]
    [24, 36, 96, 96]
    """
    if load is None or own == whole:
        return amount
    if load == 1:
        return quotient(amount * own, whole)
    share = smaller(whole * load.denominator, own * load.numerator)
    return quotient(amount * share, whole * load.denominator)


def busiest_flops(rule: Rule, sizes: Mapping[str, Any], count: Any) -> Any:
    """Return the flops of the busiest device in a product whose rows are divided into groups.

    Args:
      sizes: size of each loop on a device.
      count: the flops if all rows belong to the groups of the device. It is returned unchanged if
        sizes are formulas; `of_named_groups` is for these.
    """
    # A guard selects the group that each row belongs to, so its loop is the loop over groups.
    for guard in rule.guards if rule.load is not None else ():
        assert guard.loop.loop is not None, "a group is one loop"
        own = sizes.get(guard.loop.loop)
        if own is not None and type(own) is not Formula:
            count = busiest(count, rule.load, own, rule.extents[guard.loop.loop])
    return count


def busiest_bytes(ragged: RaggedAllToAll, rows: Any, into: Any) -> Any:
    """Return the bytes that the busiest device of a ragged all-to-all passes to an all-to-all.

    All devices together send as many rows as they receive. So a device sends on average at most the
    rows that it has, and at most the rows that it has room for; one n-th of them go to itself. The
    busiest device sends all its rows, or receives all rows of all devices that it has room for.

    Args:
      rows, into: bytes of the rows that a device may send, and of the array that it receives into.

    >>> from shardalg.algebra.digits import Digit
    >>> four = (Digit(1, 4),)
    >>> [busiest_bytes(RaggedAllToAll(four, load), 96, 256) for load in (1.0, 1.5, 9.0, "worst")]
    [96, 144, 256, 256]
    """
    average = smaller(rows, into)
    if ragged.load == BALANCED:
        return average
    worst = smaller(average * parts(ragged.digits), larger(rows, into))
    if ragged.load == WORST:
        return worst
    load = Fraction(ragged.load).limit_denominator(1 << 10)
    return smaller(quotient(average * load.numerator, load.denominator), worst)


def of_named_groups(signature: Signature, sides: tuple[Any, Any], amount: Any) -> Any:
    """Return the part of an operator's work that the busiest device has, for sizes in formulas.

    If sizes are numbers, or the operator has no groups, `amount` is returned unchanged.

    Args:
      sides: the local shapes and the global shapes; each of the operands, then of the results.
      amount: the work, such as flops, if all rows belong to the groups of the device.
    """
    for rule in rules(signature) or ():
        for guard in rule.guards if rule.load is not None else ():
            # The number of groups is the size of the dimension that the loop over groups indexes,
            # on one device and globally. A negative tensor number means a result.
            tensor, dim = next(
                (tensor, dim)
                for tensor in rule.tensors
                for dim, index in enumerate(rule.indices(tensor))
                if index == guard.loop
            )
            tensor_number = tensor if tensor >= 0 else len(signature.operands)
            local_groups, global_groups = (shapes[tensor_number][dim] for shapes in sides)
            # With numbers, `busiest_flops` has counted the busiest device already.
            if type(local_groups) is Formula:
                amount = busiest(amount, rule.load, local_groups, global_groups)
    return amount


def loads(program: SpmdProgram, graph: Graph) -> tuple[tuple[str, float | str], ...]:
    """Return (source line, load factor) for each operator whose price depends on the factor."""
    lines_and_loads: dict[tuple[str, float | str], None] = {}
    for instruction in instructions(program.block):
        attributes, node = instruction.attributes, instruction.node
        # "g" is the loop over groups. If it is not sharded, each device has all groups, whatever
        # the load factor.
        is_loaded = isinstance(attributes, RaggedAllToAll) or (
            type(attributes) is Apply and "g" in dict(attributes.loops)
        )
        if is_loaded and node is not None and graph.nodes[node].primitive in LOADED:
            load = graph.nodes[node].signature.param(LOAD, BALANCED)
            # A dictionary, because several instructions of one line have one entry, in order.
            lines_and_loads[graph.nodes[node].source or "an unknown line", load] = None
    return tuple(lines_and_loads)
