"""Dependencies between the values of a graph, direct and transitive."""

from __future__ import annotations

from collections.abc import Iterable

from shardalg.graph.ir import Graph


def dependencies(graph: Graph, *, carried: bool = True) -> list[list[int]]:
    """Return, per value, the values that are computed directly from it.

    Values enter and leave the bodies of loops and branches by region arguments.

    Args:
      carried: whether an iteration's results reach the arguments of the next iteration.
    """
    edges: list[list[int]] = [[] for _ in graph.values]
    for node in graph.nodes:
        if node.primitive == "optimization_barrier":  # each result is its own operand
            for value, result in zip(node.operands, node.results, strict=True):
                edges[value].append(result)
            continue
        for value in node.operands if not node.bodies else ():
            edges[value].extend(node.results)
    for tie in graph.region_arguments:
        if carried or tie.kind != "carry":
            edges[tie.source].append(tie.target)
    return edges


def reachable(edges: list[list[int]], start: Iterable[int]) -> bytearray:
    """Return, per value, 1 if it is in `start` or computed from a value of `start`, else 0.

    >>> list(reachable([[1], [2], [], [2]], [1]))
    [0, 1, 1, 0]
    """
    seen = bytearray(len(edges))
    stack = list(start)
    for value in stack:
        seen[value] = 1
    while stack:
        for target in edges[stack.pop()]:
            if not seen[target]:
                seen[target] = 1
                stack.append(target)
    return seen
