"""A program as a listing in which every value tells, when pointed at, why it is sharded so."""

from __future__ import annotations

from functools import cache

from shardalg.costs.collectives import Traffic
from shardalg.plan.explain.disagreements import Side, disagreement
from shardalg.plan.explain.explained import chain
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.show.html import Listing
from shardalg.spmd.program import SpmdProgram

MOST_STEPS = 8
"""Steps of a chain that a title shows."""


def program_listing(program: SpmdProgram, sharded: ShardedGraph) -> Listing:
    """The program with source lines; each local value of a graph value has its chain as title.

    What a collective makes has the two sides that disagree behind it.
    """
    told = cache(lambda value: chain_text(sharded, value))
    titles = {v.index: told(v.origin) for v in program.locals if v.origin is not None}
    traffic = Traffic(program, sharded.graph)
    for moved in traffic.collectives:
        words = sides_text(moved.number, disagreement(sharded, traffic, moved))
        for result in moved.step.instruction.results:
            titles[result] = "\n".join(filter(None, (titles.get(result), words)))
    named = ((f"%{index}", title) for index, title in titles.items())
    return Listing(program.text(sharded.graph), tuple(named))


def sides_text(number: int, sides: tuple[Side, Side]) -> str:
    """A collective by its number, and the two layouts that meet there, each with who says so."""
    lines = [f"collective {number}, see plan.explain({number}):"]
    for side in sides:
        said = ", ".join(map(str, side.annotations)) or "no annotation"
        lines.append(f"  {side.words}: {side.layout.text()} ({said})")
    return "\n".join(lines)


def chain_text(sharded: ShardedGraph, value: int) -> str:
    """The steps that gave a value its layout, one a line, deeper ones indented; the first few.

    >>> import jax
    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.graph.tracing.trace import trace
    >>> from shardalg.planner.propagate import Strategy, propagate, resolve
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
