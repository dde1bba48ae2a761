"""Floating-point operations of a graph node on global shapes, and of an operator on local ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from shardalg.algebra.digits import Digits, parts
from shardalg.costs.flops import flops, read_dims, slides
from shardalg.costs.kernels.kernel_price import at_shapes, is_kernel, kernel_type, price_of
from shardalg.graph.ir import Graph, Node, Params, Signature, ValueType
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.sizes.amounts import quotient
from shardalg.sizes.formula import has_formula

Shapes = tuple[tuple[Any, ...], ...]
"""Shapes of the operands, then of the results, in numbers or formulas."""


@lru_cache(maxsize=65536)
def signature_flops(signature: Signature) -> int:
    """Return the flops of an operator on the global shapes of its signature.

    The result is 0 if the operator has neither a row in the table of operators nor a price.
    """
    price = price_of(signature)
    if price is not None:
        return price.flops
    return sum(flops(rule) for rule in rules(signature) or ())


@lru_cache(maxsize=65536)
def signature_local_flops(signature: Signature, loops: tuple[tuple[str, Digits], ...]) -> int:
    """Return the flops of an operator on one device, padding included.

    A loop of extent E over n partitions has `ceil(E / n)` iterations on each device.

    Args:
      loops: pairs (name of a sharded loop, digits of device positions that shard it).
    """
    split = {name: parts(digits) for name, digits in loops}
    return sum(
        flops(rule, {name: -(-n // split[name]) for name, n in rule.loops if name in split})
        for rule in rules(signature) or ()
    )


@lru_cache(maxsize=65536)
def shaped_flops(
    signature: Signature, shapes: Shapes, params: Params = (), row: Rule | None = None
) -> Any:
    """Return the flops of an operator on other shapes than those of its signature.

    Local shapes give the flops of a device, padding of blocks included. Formulas give a formula.
    The size of a loop is read from the dimensions that the loop indexes. If an operator reads
    through sliding windows, only the iterations that read an element count.

    Args:
      shapes: shapes of the operands, then of the results.
      params: parameters that the operator has on these shapes instead (`Apply.params`).
      row: the operator's rule for these shapes. It is needed for convolutions and other sliding
        windows on shapes that are formulas.

    >>> from shardalg.sizes.formula import symbols
    >>> from shardalg.graph.ir import ValueType
    >>> B, M, X = symbols("B M X")
    >>> a, b = ValueType((8, 6), "float32"), ValueType((6, 4), "float32")
    >>> params = (("dimension_numbers", (((1,), (0,)), ((), ()))),)
    >>> dot = Signature("dot_general", params, (a, b), (ValueType((8, 4), "float32"),))
    >>> shaped_flops(dot, ((B / X, M), (M, 4), (B / X, 4)))
    8*B*M/X
    """
    price = price_of(signature)
    if price is not None:
        return at_shapes(price.flops, signature, shapes)
    return sum(found.flops for found in rule_executions(signature, shapes, params, row))


class Executed(NamedTuple):
    """Flops of one rule of an operator on given shapes, such as the local shapes of a device.

    Attributes:
      rule: the rule, with the loop extents of the operator's signature.
      sizes: size of each loop on the given shapes.
      flops: floating-point operations on the given shapes.
    """

    rule: Rule
    sizes: Mapping[str, Any]
    flops: Any


@lru_cache(maxsize=65536)
def rule_executions(
    signature: Signature, shapes: Shapes, params: Params = (), row: Rule | None = None
) -> tuple[Executed, ...]:
    """Return the loop sizes and the flops of each rule of an operator on given shapes.

    The size of a loop follows from the dimensions that it indexes. A dimension that is read through
    a window does not tell the sizes of its loops, so these come from the rule of the operator on
    the local shapes. Rules without arithmetic are left out. The arguments are those of
    `shaped_flops`.
    """
    found = []
    for rule, places in _rules_with_flops(signature):
        if not slides(rule):
            sizes = _loop_sizes(rule, places, shapes)
            found.append(Executed(rule, sizes, flops(rule, sizes)))
            continue
        named = has_formula(size for shape in shapes for size in shape)
        own = row or (rule if named else local_rule(signature, shapes, params))
        # A dimension that is read through a window has index `stride*o + dilation*r - padding`. Its
        # size determines neither the loop over the image nor the loop over the window.
        through_window = read_dims(own)
        sized = tuple(
            (loops, tensor, dim)
            for loops, tensor, dim in _places(own, len(signature.operands))
            if (tensor, dim) not in through_window or len(loops) == 1
        )
        sizes = {**own.extents, **_loop_sizes(own, sized, shapes)}
        found.append(Executed(rule, sizes, flops(own, sizes, shapes)))
    return tuple(found)


@lru_cache(maxsize=65536)
def windows(signature: Signature) -> bool:
    """Return whether an operator computes on a sliding window, which may exceed its operand."""
    return any(slides(rule) for rule, _ in _rules_with_flops(signature))


@lru_cache(maxsize=65536)
def local_rule(signature: Signature, shapes: Shapes, params: Params) -> Rule:
    """Return the rule of an operator with a sliding window, for the local shapes of a device.

    Args:
      params: parameters that replace those of the signature, such as a local padding.
    """
    count = len(signature.operands)
    types = (*signature.operands, *signature.results)
    local = tuple(ValueType(shape, t.dtype) for shape, t in zip(shapes, types, strict=True))
    # Parameters such as padding differ on a device, because its block has a halo.
    merged = tuple((dict(signature.params) | dict(params)).items())
    all_rules = rules(Signature(signature.primitive, merged, local[:count], local[count:]))
    # Other rules of the operator, such as that of an index computation, have no arithmetic.
    (rule_with_flops,) = [rule for rule in all_rules or () if rule.flops]
    return rule_with_flops


Places = tuple[tuple[tuple[str, ...], int, int], ...]
"""Dimensions that loops index: (names of the loops, number of the tensor, number of the dimension).

Tensors are numbered as in `Shapes`, because the sizes are read from there.
"""


@lru_cache(maxsize=65536)
def _rules_with_flops(signature: Signature) -> tuple[tuple[Rule, Places], ...]:
    """Return an operator's rules that have flops, each with the dimensions that its loops index."""
    rows = rules(signature) or ()
    count = len(signature.operands)
    # Tensors are numbered operands first. One row has all results; of several rows, row k has
    # result k.
    return tuple(
        (rule, tuple(_places(rule, count + (number if len(rows) > 1 else 0))))
        for number, rule in enumerate(rows)
        if rule.flops
    )


def _places(rule: Rule, first_result: int) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yield (loops, tensor, dimension) for each dimension that a rule's loops index.

    Dimensions of a single loop come first.

    Args:
      first_result: the number of the rule's result in `Shapes`.
    """
    # The order matters to `_loop_sizes`: a compound dimension (`n*i + j`) gives the size of its
    # first loop that no other dimension has determined.
    found = [
        (tuple(name for name, _ in dim_loops(rule, tensor, dim)), tensor, dim)
        for tensor in rule.tensors
        for dim in range(len(rule.indices(tensor)))
    ]
    for loops, tensor, dim in sorted(found, key=lambda place: len(place[0]) > 1):
        if loops:
            yield loops, tensor if tensor >= 0 else first_result + ~tensor, dim


def _loop_sizes(rule: Rule, places: Places, shapes: Shapes) -> dict[str, Any]:
    """Return the size of each loop, read from the shapes at the dimensions that it indexes."""
    sizes: dict[str, Any] = {}
    for loops, tensor, dim in places:
        if len(loops) == 1:
            sizes[loops[0]] = shapes[tensor][dim]
            continue
        # A dimension with the index `4*i + j` has as many elements as the product of both loops. So
        # its size gives the one loop that is still unknown, divided by the sizes of the others.
        unknown_loop = next((name for name in loops if name not in sizes), None)
        if unknown_loop is not None:
            other_sizes = (sizes.get(n, rule.extents[n]) for n in loops if n != unknown_loop)
            sizes[unknown_loop] = quotient(shapes[tensor][dim], math.prod(other_sizes))
    return sizes


def multiplies(signature: Signature) -> bool:
    """Return whether the matrix unit computes an operator.

    This holds for matrix products and convolutions, and for kernels whose price says so.
    """
    price = price_of(signature)
    return price.multiplies if price is not None else contracts(signature)


@lru_cache(maxsize=65536)
def contracts(signature: Signature) -> bool:
    """Return whether an operator is a sum of products, such as `dot_general` or a convolution.

    Such an operator writes its result to memory; others are fused with their neighbours.
    """
    return any(
        rule.combine == SUM and bool(rule.reduced) and any(len(t) > 1 for t in rule.terms)
        for rule in rules(signature) or ()
    )


def useful_flops(graph: Graph) -> int:
    """Return the flops of one call of the function, trip counts included.

    The flops are those of the unpartitioned function: no padding, and no work that several devices
    repeat. Operations that the function itself repeats (remat) count.
    """
    return sum(node_flops(graph, node) for node in graph.walk())


def node_flops(graph: Graph, node: Node) -> int:
    """Return the flops of a node on global shapes, times its executions per call.

    A node in the body of a `shard_map` runs on each device of the manual axes, so its flops are
    multiplied by their number.
    """
    devices = math.prod(graph.manual_axes(node.region).values())
    return signature_flops(node.signature) * graph.trip_count(node) * devices


def operand_type(signature: Signature) -> str:
    """Return the item type of an operator's arithmetic, such as "bfloat16".

    It is the type of the first operand; of a kernel call, of the first floating-point operand.
    """
    if is_kernel(signature):
        return kernel_type(signature)
    types = signature.operands or signature.results
    return types[0].dtype if types else "float32"
