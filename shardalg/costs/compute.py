"""Floating-point operations and memory traffic: of a graph node, and of a local operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.graph.ir import Graph, Node, Signature
from shardalg.ops.rule import SUM, Rule
from shardalg.ops.table import rules

_LARGEST_GRID = 1 << 22


def existing_iterations(rule: Rule, extents: Mapping[str, int]) -> int:
    """Iterations of `rule` that exist when its loops have these extents.

    The product of the extents of the loops that no guard determines. A read that joins several
    loops, such as `2*o+r-1` of a convolution, counts only the combinations inside its tensor, so
    that padding is not counted as work; but where one of its loops is cut into blocks, the local
    operator reads a halo, and all of them exist.

    >>> from shardalg.ops.rule import Access
    >>> conv = Rule("conv", (("o", 4), ("r", 3)), ((Access(0, (Index.of("o") + "r" - 1,)),),),
    ...             ((Index.of("o"),),), flops=2, operand_shapes=((4,),))
    >>> existing_iterations(conv, {"o": 4, "r": 3}), existing_iterations(conv, {"o": 2, "r": 3})
    (10, 6)
    """
    determined = {name for guard in rule.guards for name in guard.loop.variables}
    free = {name: n for name, n in extents.items() if name not in determined}
    total, joined = 1, set()
    for index, size in _joining_reads(rule):
        loops = {name: free[name] for name in index.variables if name in free}
        whole = all(n == rule.extents[name] for name, n in loops.items())
        if whole and len(loops) == len(index.terms) and not joined & set(loops) and not index.mod:
            joined |= set(loops)
            total *= _inside(index, size, loops)
    return total * math.prod(n for name, n in free.items() if name not in joined)


def _joining_reads(rule: Rule) -> tuple[tuple[Index, int], ...]:
    """Index and size of operand dimensions that join loops; not of alternative reads."""
    if len(rule.terms) != 1 or not rule.operand_shapes:
        return ()
    return tuple(
        (index, size)
        for access in rule.terms[0]
        for index, size in zip(access.dims, rule.operand_shapes[access.operand], strict=True)
        if len(index.variables) > 1
    )


def _inside(index: Index, size: int, loops: dict[str, int]) -> int:
    """Combinations of `loops` for which `index` exists and is in `[0, size)`."""
    count = math.prod(loops.values())
    if count > _LARGEST_GRID:
        return count
    grid = np.full((1,) * len(loops), index.constant)
    for place, (name, n) in enumerate(loops.items()):
        shape = [-1 if place == i else 1 for i in range(len(loops))]
        grid = grid + dict(index.terms)[name] * np.arange(n).reshape(shape)
    exists = grid % index.div == 0 if index.exact else np.True_
    at = grid // index.div
    return int((exists & (at >= 0) & (at < size)).sum())


@lru_cache(maxsize=65536)
def signature_flops(signature: Signature) -> int:
    """Floating-point operations of an operator on global shapes; 0 for one without a row."""
    return signature_local_flops(signature, ())


@lru_cache(maxsize=65536)
def signature_local_flops(signature: Signature, loops: tuple[tuple[str, Digits], ...]) -> int:
    """Floating-point operations of an operator on one device, padding included.

    `flops per iteration * iterations`, a loop of extent E over n partitions having `ceil(E / n)`.

    Args:
      loops: digits of each sharded loop.
    """
    split = {name: parts(digits) for name, digits in loops}
    return sum(_rule_flops(rule, split) for rule in rules(signature) or () if rule.flops)


def _rule_flops(rule: Rule, split: dict[str, int]) -> int:
    extents = {name: -(-n // split.get(name, 1)) for name, n in rule.loops}
    return rule.flops * existing_iterations(rule, extents)


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
    """Floating-point operations of a node on global shapes, trip counts included."""
    return signature_flops(node.signature) * graph.trip_count(node)


def operand_type(signature: Signature) -> str:
    """Item type that the arithmetic of an operator runs in: that of its first operand."""
    types = signature.operands or signature.results
    return types[0].dtype if types else "float32"
