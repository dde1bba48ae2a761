"""Copies that are made more than once: what keeping one, or making it before a loop, would save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node
from shardalg.partition.emit.context import ANY_PHASE, PartitionContext
from shardalg.reshard.paths import nearest, reshard_price

Copy = tuple[int, Sharding]
"""A value in a layout that is not its home."""


@dataclass(frozen=True)
class GatherChoice:
    """A copy of a value, and its price in bytes and in memory.

    Attributes:
      value, layout: of the graph, and the layout that is brought.
      option: the switch that makes it less often.
      times: executions per step without the switch; fewest: with it.
      wire_bytes: that a device sends for one; held_bytes: that it holds longer with the switch.
    """

    value: int
    layout: Sharding
    option: str
    times: int
    fewest: int
    wire_bytes: Any
    held_bytes: int

    @property
    def saved_wire_bytes(self) -> Any:
        """Per device and step."""
        return self.wire_bytes * (self.times - self.fewest)


def repeated(context: PartitionContext) -> Iterator[GatherChoice]:
    """Copies that a finished run made once in every phase that wants them."""
    phases: dict[Copy, set[str]] = {}
    for value, layout, phase in context.copies:
        if phase != ANY_PHASE:
            phases.setdefault((value, layout), set()).add(phase)
    for (value, layout), found in phases.items():
        known, padded = context.lasting_sources(value), context.options.pad_blocks
        home = nearest(known, layout, context.links, padded=padded)
        sent, held = _price(context.graph, value, home, after=layout)
        if len(found) > 1 and sent and value not in context.remade:
            yield GatherChoice(value, layout, "keep_gathers", len(found), 1, sent, held)


def hoistable(
    graph: Graph, hoisted: Iterable[tuple[Node, int, Sharding, Sharding]]
) -> Iterator[GatherChoice]:
    """Constants of loops that every trip brings into the same layout."""
    for node, value, before, after in hoisted:
        sent, held = _price(graph, value, before, after=after)
        once = graph.trip_count(node)
        times = once * node.signature.param("length")
        if sent:
            yield GatherChoice(value, after, "hoist_gathers", times, once, sent, held)


def within(choices: Iterable[GatherChoice], budget_bytes: int) -> frozenset[Copy]:
    """The copies to keep in so many bytes: those that save most per byte held first."""
    kept: list[Copy] = []
    for choice in sorted(choices, key=lambda c: (-c.saved_wire_bytes / c.held_bytes, c.value)):
        if choice.held_bytes <= budget_bytes:
            kept.append((choice.value, choice.layout))
            budget_bytes -= choice.held_bytes
    return frozenset(kept)


def _price(graph: Graph, value: int, before: Sharding, *, after: Sharding) -> tuple[Any, int]:
    """Bytes that a device sends for the copy, and that it then holds."""
    type_ = graph.values[value].type
    held = type_.itemsize
    for size in after.shard_shape:
        held *= size
    return reshard_price(before, after) * type_.itemsize, held
