"""Products that a causal mask covers by half, so that a fused attention kernel skips the half.

A mask is causal here if it selects between scores and a constant by comparing positions with
positions: both sides of the comparison are computed from `iota` alone, as in
`where(query >= key, scores, -inf)` or with `jnp.tril`. A mask that is an argument of the function,
or that compares the data, hides an unknown share; its kernel is priced for the whole square.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from shardalg.costs.compute import contracts
from shardalg.costs.kernels.fused_attention import elements, handed_on
from shardalg.graph.ir import Graph, Node, once_per_graph

ORDERS = ("lt", "le", "gt", "ge")
Givers = Mapping[int, Sequence[int]]


@once_per_graph
def causal_products(graph: Graph) -> frozenset[int]:
    """Return the products whose operand or result belongs to scores under a causal mask.

    Scores, weights and their gradients are one set of values: pointwise operators compute one from
    the other, and borders of loops hand them on.
    """
    givers = defaultdict(list)
    for source, targets in handed_on(graph).items():
        for target in targets:
            givers[target].append(source)
    masked = _masked_scores(graph, givers)
    if not masked:
        return frozenset()
    above = list(range(len(graph.values)))

    def first(value: int) -> int:
        while above[value] != value:
            above[value] = value = above[above[value]]
        return value

    for target, sources in givers.items():
        for source in sources:
            above[first(source)] = first(target)
    for node in graph.nodes:
        if node.bodies or contracts(node.signature):
            continue
        # Sums over a row, and masks of fewer elements, are other values.
        for result in node.results:
            for operand in node.operands:
                if elements(graph, operand) == elements(graph, result) > 1:
                    above[first(operand)] = first(result)
    roots = {first(value) for value in masked}
    return frozenset(
        node.index
        for node in graph.nodes
        if contracts(node.signature)
        and any(first(value) in roots for value in (*node.operands, *node.results))
    )


def _masked_scores(graph: Graph, givers: Givers) -> set[int]:
    """Return the values that a causal mask is applied to: by a select, or as an added constant."""
    found: set[int] = set()
    # A select between constants is a mask itself, which another operator adds to the scores.
    masks: set[int] = set()
    for node in graph.nodes:
        result = node.results[0] if node.results else None
        if result is None or node.bodies or contracts(node.signature):
            continue
        if node.primitive == "select_n" and _compares(graph, node.operands[0], givers):
            cases = node.operands[1:]
            plain = not any(_reads_data(graph, case, givers) for case in cases)
            (masks if plain else found).add(result)
        elif not masks.isdisjoint(node.operands):
            others = [v for v in node.operands if v not in masks]
            data = any(_reads_data(graph, v, givers) for v in others)
            (found if data else masks).add(result)
    return {value for value in found if len(graph.values[value].type.shape) >= 2}


def _compares(graph: Graph, predicate: int, givers: Givers) -> bool:
    """Return whether a comparison of positions with positions takes part in a predicate."""
    for node in _sources(graph, predicate, givers):
        if node is not None and node.primitive in ORDERS:
            sides = [[*_sources(graph, v, givers)] for v in node.operands]
            if all(
                any(n is not None and n.primitive == "iota" for n in side) and None not in side
                for side in sides
            ):
                return True
    return False


def _reads_data(graph: Graph, value: int, givers: Givers) -> bool:
    """Return whether a value depends on an argument of the function, or on a product."""
    return None in _sources(graph, value, givers)


def _sources(graph: Graph, value: int, givers: Givers) -> Iterator[Node | None]:
    """Yield the operators that a value is computed by; None for data, at which the search ends.

    Data are arguments, results of products and of calls. Constants are none.
    """
    waiting, seen, arguments = [value], set(), frozenset(graph.arguments)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in givers:
            waiting += givers[value]
            continue
        maker = graph.producer[value]
        if maker is None:
            if value in arguments:
                yield None
            continue
        node = graph.nodes[maker]
        if node.bodies or contracts(node.signature):
            yield None
        else:
            yield node
            waiting += node.operands
