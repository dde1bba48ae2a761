"""Copies that are made more than once: what keeping one, or making it before a loop, would save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.reshard.paths import reshard_price

Copy = tuple[int, Sharding]
"""A value in a layout that is not its home."""


@dataclass(frozen=True)
class Copied:
    """A copy of a value that is made more than once.

    Attributes:
      before, after: the layout that it is made from, and its own.
      option: the switch that makes it less often.
      times: executions per step without the switch; fewest: with it.
    """

    value: int
    before: Sharding
    after: Sharding
    option: str
    times: int
    fewest: int


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


def gather_choices(graph: Graph, copies: Iterable[Copied]) -> Iterator[GatherChoice]:
    """The copies for which something is sent, with their prices."""
    for copied in copies:
        type_, size = graph.values[copied.value].type, prod(copied.after.shard_shape)
        sent = reshard_price(copied.before, copied.after) * type_.itemsize
        if sent:
            how = copied.option, copied.times, copied.fewest
            held = type_.itemsize * size
            yield GatherChoice(copied.value, copied.after, *how, sent, held)


def within(choices: Iterable[GatherChoice], budget_bytes: int) -> frozenset[Copy]:
    """The copies to keep in so many bytes: those that save most per byte held first."""
    kept: list[Copy] = []
    for choice in sorted(choices, key=lambda c: (-c.saved_wire_bytes / c.held_bytes, c.value)):
        if choice.held_bytes <= budget_bytes:
            kept.append((choice.value, choice.layout))
            budget_bytes -= choice.held_bytes
    return frozenset(kept)
