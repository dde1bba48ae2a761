"""What follows from a graph alone, on every mesh: worked out once and remembered on the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from shardalg.graph.ir import Graph

Given = ParamSpec("Given")
Made = TypeVar("Made")
MEMO = "_once_per_graph"


def once_per_graph(
    make: Callable[Concatenate[Graph, Given], Made],
) -> Callable[Concatenate[Graph, Given], Made]:
    """A function of a graph, and of more that hashes, that remembers what it made of each graph.

    It is remembered in the graph, as a cached property is, and gone with it: a frozen graph has no
    better key, for its hash walks all nodes. Planning again on another mesh would else index the
    graph again: 0.17 s of process time beside the 0.22 s of the plan, of 64 unrolled layers.
    """

    @wraps(make)
    def known(graph: Graph, *args: Given.args, **kwargs: Given.kwargs) -> Made:
        memo = vars(graph).setdefault(MEMO, {})
        key = (make, *args, *sorted(kwargs.items()))
        if key not in memo:
            memo[key] = make(graph, *args, **kwargs)
        return memo[key]

    return known
