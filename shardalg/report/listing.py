"""A program as a listing in which every value tells, when pointed at, why it is sharded so."""

from __future__ import annotations

from functools import cache

from shardalg.propagate.sharded import ShardedGraph
from shardalg.report.chains import chain
from shardalg.report.html import Listing
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.text import program_text

MOST_STEPS = 8
"""Steps of a chain that a title shows."""


def program_listing(program: SpmdProgram, sharded: ShardedGraph) -> Listing:
    """The program with source lines; each local value of a graph value has its chain as title."""
    told = cache(lambda value: chain_text(sharded, value))
    titles = {f"%{v.index}": told(v.origin) for v in program.locals if v.origin is not None}
    return Listing(program_text(program, sharded.graph), tuple(titles.items()))


def chain_text(sharded: ShardedGraph, value: int) -> str:
    """The steps that gave a value its layout, one a line, deeper ones indented; the first few.

    >>> import jax
    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.graph.trace import trace
    >>> from shardalg.propagate import Strategy, propagate, resolve
    >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
    >>> graph = trace(lambda x: -x, x)
    >>> strategy = Strategy(Mesh({"X": 2}), (jax.sharding.PartitionSpec("X"),))
    >>> print(chain_text(propagate(graph, resolve(graph, strategy)), graph.results[0]))
    neg:1... [X, None]
      from x through neg (pointwise, forward, level 0), ...
        x [X, None]: annotated
    """
    graph, links = sharded.graph, list(chain(sharded, value))
    lines = [f"{graph.values[value].name} {sharded.shardings[value].text()}"]
    for link in links[:MOST_STEPS]:
        source = "" if link.reason.node is None else graph.nodes[link.reason.node].source
        name, words = graph.values[link.reason.value].name, link.reason.text(graph)
        own = "" if not link.depth else f"{name} {link.reason.layout.text()}: "
        lines.append("  " * (link.depth + 1) + own + words + (f", {source}" if source else ""))
    return "\n".join(lines + [f"... {len(links) - MOST_STEPS} more"] * (len(links) > MOST_STEPS))
