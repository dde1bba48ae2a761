"""Floating-point operations and memory traffic: of a graph node, and of a local operator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from shardalg.algebra.digits import Digits, parts
from shardalg.costs.flops import flops, read_dims, slides
from shardalg.graph.ir import Graph, Node, Params, Signature, ValueType
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.sizes.amounts import quotient
from shardalg.sizes.formula import has_formula

Shapes = tuple[tuple[Any, ...], ...]
"""Of operands, then of results; numbers or formulas."""


@lru_cache(maxsize=65536)
def signature_flops(signature: Signature) -> int:
    """Floating-point operations of an operator on global shapes; 0 for one without a row."""
    return sum(flops(rule) for rule in rules(signature) or ())


@lru_cache(maxsize=65536)
def signature_local_flops(signature: Signature, loops: tuple[tuple[str, Digits], ...]) -> int:
    """Floating-point operations of an operator on one device, padding included.

    `flops per iteration * iterations`, a loop of extent E over n partitions having `ceil(E / n)`.

    Args:
      loops: digits of each sharded loop.
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
    """Floating-point operations of an operator on operands and results of other shapes.

    A loop runs over as many elements as the dimensions that it walks have there: local shapes give
    the flops of a device, padding of blocks included, and formulas a formula. Of an operator that
    reads through windows, only iterations that read an element count.

    Args:
      shapes: of the operands, then of the results.
      params: the parameters in which the operator on these shapes differs (`Apply.params`).
      row: of an operator with windows whose shapes are formulas, its row on these shapes.

    >>> from shardalg.sizes.formula import symbols
    >>> from shardalg.graph.ir import ValueType
    >>> B, M, X = symbols("B M X")
    >>> a, b = ValueType((8, 6), "float32"), ValueType((6, 4), "float32")
    >>> params = (("dimension_numbers", (((1,), (0,)), ((), ()))),)
    >>> dot = Signature("dot_general", params, (a, b), (ValueType((8, 4), "float32"),))
    >>> shaped_flops(dot, ((B / X, M), (M, 4), (B / X, 4)))
    8*B*M/X
    """
    return sum(found.flops for found in executed(signature, shapes, params, row))


class Executed(NamedTuple):
    """A row of an operator that does arithmetic, on other shapes.

    Attributes:
      rule: on the operator's own shapes. sizes: of its loops on the other shapes.
    """

    rule: Rule
    sizes: Mapping[str, Any]
    flops: Any


@lru_cache(maxsize=65536)
def executed(
    signature: Signature, shapes: Shapes, params: Params = (), row: Rule | None = None
) -> tuple[Executed, ...]:
    """The rows that do arithmetic on other shapes; arguments as of `shaped_flops`."""
    found = []
    for rule, places in _counted(signature):
        if not slides(rule):
            sizes = _loop_sizes(rule, places, shapes)
            found.append(Executed(rule, sizes, flops(rule, sizes)))
            continue
        named = has_formula(size for shape in shapes for size in shape)
        own = row or (rule if named else local_row(signature, shapes, params))
        # A window over a dimension does not tell how long it is itself.
        count, read = len(signature.operands), read_dims(own)
        walked = (p for p in _places(own, count) if (p[1], p[2]) not in read or len(p[0]) == 1)
        sizes = {**own.extents, **_loop_sizes(own, tuple(walked), shapes)}
        found.append(Executed(rule, sizes, flops(own, sizes, shapes)))
    return tuple(found)


@lru_cache(maxsize=65536)
def windows(signature: Signature) -> bool:
    """Whether an operator does arithmetic on what it reads through windows."""
    return any(slides(rule) for rule, _ in _counted(signature))


@lru_cache(maxsize=65536)
def local_row(signature: Signature, shapes: Shapes, params: Params) -> Rule:
    """The row of an operator with windows on local shapes, with the parameters that differ."""
    count = len(signature.operands)
    types = (*signature.operands, *signature.results)
    local = tuple(ValueType(shape, t.dtype) for shape, t in zip(shapes, types, strict=True))
    merged = tuple((dict(signature.params) | dict(params)).items())
    made = rules(Signature(signature.primitive, merged, local[:count], local[count:]))
    (found,) = [rule for rule in made or () if rule.flops]
    return found


Places = tuple[tuple[tuple[str, ...], int, int], ...]
"""(loops, tensor, dimension) per dimension that loops make up; tensors as in `Shapes`."""


@lru_cache(maxsize=65536)
def _counted(signature: Signature) -> tuple[tuple[Rule, Places], ...]:
    """The rows that do arithmetic, and where the sizes of their loops stand."""
    rows = rules(signature) or ()
    count = len(signature.operands)
    return tuple(
        (rule, tuple(_places(rule, count + (number if len(rows) > 1 else 0))))
        for number, rule in enumerate(rows)
        if rule.flops
    )


def _places(rule: Rule, first_result: int) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Dimensions of one loop come first: where several nest, the major one is cut."""
    found = [
        (tuple(name for name, _ in dim_loops(rule, tensor, dim)), tensor, dim)
        for tensor in rule.tensors
        for dim in range(len(rule.indices(tensor)))
    ]
    for loops, tensor, dim in sorted(found, key=lambda place: len(place[0]) > 1):
        if loops:
            yield loops, tensor if tensor >= 0 else first_result + ~tensor, dim


def _loop_sizes(rule: Rule, places: Places, shapes: Shapes) -> dict[str, Any]:
    """Sizes of the loops that dimensions walk."""
    found: dict[str, Any] = {}
    for loops, tensor, dim in places:
        if len(loops) == 1:
            found[loops[0]] = shapes[tensor][dim]
            continue
        free = next((name for name in loops if name not in found), None)
        if free is not None:
            others = (found.get(n, rule.extents[n]) for n in loops if n != free)
            found[free] = quotient(shapes[tensor][dim], math.prod(others))
    return found


@lru_cache(maxsize=65536)
def contracts(signature: Signature) -> bool:
    """Whether an operator multiplies and sums over a loop that its result lacks (matrix unit).

    Such an operator writes its result to memory; others are fused with their neighbours.
    """
    return any(_contracts(rule) for rule in rules(signature) or ())


def _contracts(rule: Rule) -> bool:
    return rule.combine == SUM and bool(rule.reduced) and any(len(t) > 1 for t in rule.terms)


def useful_flops(graph: Graph) -> int:
    """Floating-point operations of one call of the function, trip counts included.

    What one device would execute: no padding, nothing computed twice by two devices; what the
    function itself recomputes (remat) counts.
    """
    return sum(node_flops(graph, node) for node in graph.walk())


def node_flops(graph: Graph, node: Node) -> int:
    """Floating-point operations of a node on global shapes, trip counts included.

    In a manual region a node stands for one operator on each device.
    """
    devices = math.prod(graph.manual_axes(node.region).values())
    return signature_flops(node.signature) * graph.trip_count(node) * devices


def operand_type(signature: Signature) -> str:
    """Item type that the arithmetic of an operator runs in: that of its first operand."""
    types = signature.operands or signature.results
    return types[0].dtype if types else "float32"
