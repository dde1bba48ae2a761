"""Search for attention products of which a causal mask hides half, so that a kernel skips it.

A mask is causal here if it compares positions with positions, and selects between scores and a
constant or is added to scores. Both sides of the comparison are computed from `iota` alone, as in
`where(query >= key, scores, -inf)` or with `jnp.tril`; or both are one argument of positions, as
rows and as columns. A captured triangle is causal, too. Another mask that is an argument of the
function, or that compares the data, hides an unknown share; its kernel is priced for the whole
square.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shardalg.costs.compute import contracts
from shardalg.costs.kernels.fused_attention import elements, handed_on
from shardalg.graph.ir import Graph, Node, once_per_graph
from shardalg.graph.union_find import UnionFind

ORDERS = ("lt", "le", "gt", "ge")
# A mask or a position keeps its meaning in these operators, which change only layout and type.
_ARRANGE = frozenset(
    ("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose")
)
Givers = Mapping[int, Sequence[int]]
"""By value that equals others, such as the argument of a loop body, the values that it equals."""


@once_per_graph
def causal_products(graph: Graph) -> frozenset[int]:
    """Return the products that compute or read attention scores under a causal mask.

    Softmax weights, and the gradients of scores and weights, count as scores: they are the values
    of equal size that pointwise operators and loops connect with the masked scores.
    """
    givers = defaultdict(list)
    for source, targets in handed_on(graph).items():
        for target in targets:
            givers[target].append(source)
    masked = _masked_scores(graph, givers)
    if not masked:
        return frozenset()
    # Union-find, because a connection has no direction: operand and result belong to one set.
    scores = UnionFind(len(graph.values))
    for target, sources in givers.items():
        for source in sources:
            scores.join(source, target)
    for node in graph.nodes:
        if node.bodies or contracts(node.signature):
            continue
        # A sum over a row, or a mask of fewer elements, is no score, so the sizes must be equal.
        for result in node.results:
            for operand in node.operands:
                if elements(graph, operand) == elements(graph, result) > 1:
                    scores.join(operand, result)
    roots = {scores.root(value) for value in masked}
    return frozenset(
        node.index
        for node in graph.nodes
        if contracts(node.signature)
        and any(scores.root(value) in roots for value in (*node.operands, *node.results))
    )


def _masked_scores(graph: Graph, givers: Givers) -> set[int]:
    """Return the results of operators that apply a causal mask to scores.

    The operator is a select by the mask, or for example an addition of a mask of constants.

    Args:
      givers: for each argument of a loop body and similar values, the values that it is equal to.
    """
    masked: set[int] = set()
    triangles = frozenset(_triangles(graph))
    # A comparison, and a select between constants, is a mask that another operator may add to the
    # scores.
    masks = set(triangles)
    for node in graph.nodes:
        result = node.results[0] if node.results else None
        if result is None or node.bodies or contracts(node.signature):
            continue
        if _orders(graph, node, givers):
            masks.add(result)
            continue
        if node.primitive == "select_n":
            # The predicate is a causal mask if a comparison of positions, or a constant mask, is
            # among the values from which it is computed.
            predicate, *cases = node.operands
            sources = _sources(graph, predicate, givers, constants=True)
            if any(
                value in triangles or (maker is not None and _orders(graph, maker, givers))
                for value, maker in sources
            ):
                # A select between constants is a mask itself; a select with data applies the mask.
                has_data = any(_reads_data(graph, case, givers) for case in cases)
                (masked if has_data else masks).add(result)
                continue
        if not masks.isdisjoint(node.operands):
            # An operator between a mask and constants gives a mask; with data, it applies the mask.
            other_operands = [v for v in node.operands if v not in masks]
            has_data = any(_reads_data(graph, v, givers) for v in other_operands)
            (masked if has_data else masks).add(result)
    return {value for value in masked if len(graph.values[value].type.shape) >= 2}


def _triangles(graph: Graph) -> Iterator[int]:
    """Yield the constants of a graph that are causal masks: square, true on and below the diagonal.

    Such a mask is an array that the function captured.
    """
    for value, array in graph.constants:
        if graph.values[value].type.dtype == "bool" and np.ndim(array) >= 2:
            mask = np.asarray(array)
            square = np.ones(mask.shape[-2:], bool)
            if mask.shape[-2] > 1 and (mask == np.tril(square)).all():
                yield value


def _orders(graph: Graph, node: Node, givers: Givers) -> bool:
    """Return whether a node is an order comparison of positions with positions.

    Positions are computed from `iota` and constants alone, or are one argument of the function that
    is compared with itself, once as rows and once as columns.
    """
    if node.primitive not in ORDERS:
        return False
    sides = [[*_sources(graph, operand, givers)] for operand in node.operands]
    # The data, and the primitives, from which each side of the comparison is computed.
    data = [{value for value, maker in side if maker is None} for side in sides]
    primitives = [{maker.primitive for _, maker in side if maker is not None} for side in sides]
    if not any(data) and all("iota" in found for found in primitives):
        return True
    # A program may get its positions as an argument: `p[:, None] >= p[None, :]`.
    is_one = data[0] == data[1] and len(data[0]) == 1 and primitives[0] | primitives[1] <= _ARRANGE
    return is_one and node.operands[0] != node.operands[1] and elements(graph, *data[0]) > 1


def _reads_data(graph: Graph, value: int, givers: Givers) -> bool:
    """Return whether a value depends on an argument of the function, or on a product."""
    return any(node is None for _, node in _sources(graph, value, givers))


def _sources(
    graph: Graph, value: int, givers: Givers, *, constants: bool = False
) -> Iterator[tuple[int, Node | None]]:
    """Yield (value, node that computes it) for all values from which a value is computed.

    The node is None for data: arguments of the function, and results of products and loops. The
    search ends at data.

    Args:
      constants: whether constants are yielded too, as if they were data.
    """
    waiting, seen, arguments = [value], set(), frozenset(graph.arguments)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        # An argument of a loop body, for example, equals the values outside that enter the loop.
        if value in givers:
            waiting += givers[value]
            continue
        maker = graph.producer[value]
        if maker is None:
            if constants or value in arguments:
                yield value, None
            continue
        node = graph.nodes[maker]
        if node.bodies or contracts(node.signature):
            yield value, None
        else:
            yield value, node
            waiting += node.operands
