"""Nodes replaced one for one: what passes over a graph have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from shardalg.graph.ir import Graph, Node

Rewrite = Callable[[Node], Node | None]
"""What stands in place of a node; None where it stays."""


def rewritten(graph: Graph, table: Mapping[str, Rewrite]) -> Graph:
    """The graph with nodes of some primitives replaced; the same object where none is.

    Args:
      table: per primitive, the rewrite; nodes are asked in order of execution.
    """
    found = {}
    for node in graph.nodes_of(table):
        made = table[node.primitive](node)
        if made is not None:
            found[node.index] = made
    return with_nodes(graph, found)


def with_nodes(graph: Graph, found: Mapping[int, Node]) -> Graph:
    """The graph with other nodes in place of some, which no equation of JAX's binds then."""
    if not found:
        return graph
    nodes, bindings = list(graph.nodes), list(graph.bindings)
    for number, node in found.items():
        nodes[number] = node
        if bindings:
            bindings[number] = None
    return replace(graph, nodes=tuple(nodes), bindings=tuple(bindings))
