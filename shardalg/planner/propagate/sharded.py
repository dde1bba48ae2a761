"""The completed graph: a sharding per value, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.planner.propagate.strategy import Annotations


class Reason(NamedTuple):
    """The reason of a value's sharding. It is a named tuple, because every plan has one per value.

    Attributes:
      value: the value; layout: its new sharding.
      kind: "annotated", "annotated operand" (of an annotation), "completed", "border" (uneven
        argument or result), "loop" (made equal to what the loop carries), "product" (made as its
        operands are, and moved for its readers), "as made" (nothing else reached it), "read whole"
        (its readers gather it), "streamed" (a layer that a loop fetches in each iteration),
        "chosen by cost", or "replicated" (nothing reached it).
      node: the node that propagated it (at a loop's border: the call), or None.
      direction: "forward", "backward" or "".
      sources: the values whose shardings it took.
      role, level: the role class of the node, and the priority level of the change.
    """

    value: int
    layout: Sharding
    kind: str
    node: int | None = None
    direction: str = ""
    sources: tuple[int, ...] = ()
    role: str = ""
    level: int = 0

    def text(self, graph: Graph) -> str:
        """Return the reason of a value's sharding in words.

        For example, "from w through dot_general (contraction, forward, level 0)": an operator
        passed the sharding on. Other kinds of reasons have a sentence of their own.
        """
        names = ", ".join(graph.values[v].name for v in self.sources)
        if self.kind != "completed":
            return {
                "replicated": "no annotation propagates to it",
                "border": "uneven at the border: replicated",
                "loop": f"as {names}, which the loop carries",
                "as made": f"no annotation propagates to it: the sharding of its operands, {names}",
                "read whole": "every reader gathers it: its parts are gathered instead",
                "streamed": f"a part of one layer of {names}: the loop fetches one per iteration",
                "product": f"as {names} have it, summed over the digits that readers want",
            }.get(self.kind, self.kind)
        through = "the program's border" if self.node is None else graph.nodes[self.node].primitive
        side = "from" if self.direction == "forward" else "for"
        return (
            f"{side} {names} through {through} ({self.role}, {self.direction}, level {self.level})"
        )


@dataclass(frozen=True, slots=True)
class Conflict:
    """A choice that the order of steps decided: `value` kept one sharding and refused another."""

    value: int
    node: int | None
    direction: str
    sources: tuple[int, ...]
    kept: Sharding
    refused: Sharding


Merge = tuple[int, Sharding, Sharding, Sharding]
"""A merge of two shardings: (value, first, second, merged)."""
Layouts = tuple[Sharding, ...]


@dataclass(frozen=True)
class RegionBorder:
    """The shardings at the border of a loop, a conditional or a manual region.

    Attributes:
      operands, results: the shardings of the call's operands and results.
      bodies: per body, the shardings of its arguments and those of its results.
    """

    operands: Layouts
    bodies: tuple[tuple[Layouts, Layouts], ...]
    results: Layouts


@dataclass(frozen=True, eq=False)
class ShardedGraph:
    """A graph with a sharding for every value.

    Attributes:
      shardings: one per value.
      results: one per result of the function: its annotation, or its value's sharding.
      fixed: the values that annotations determine.
      annotations: the annotations that completion started from.
      loops: per node, and per part of a node that is decided alone, the digits on its loops.
      borders: per loop or conditional, the shardings of its operands, bodies and results. `loops`
        and `borders` are empty unless policy "cost" chose them.
      required: for each entry of `loops`, the shardings in which operands are read: pairs (operand
        number, sharding).
      contested: products whose operands would shard different dimensions of the result along one
        mesh axis.
    """

    graph: Graph
    mesh: Mesh
    shardings: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    fixed: frozenset[int]
    annotations: Annotations
    _history: Callable[[], tuple[Reason, ...]] = field(repr=False)
    _conflicts: Callable[[], tuple[Conflict, ...]] = field(repr=False)
    _merges: Callable[[], tuple[Merge, ...]] = field(repr=False)
    loops: Mapping[int, tuple[tuple[tuple[str, Digits], ...], ...]] = field(default_factory=dict)
    required: Mapping[int, tuple[tuple[tuple[int, Sharding], ...], ...]] = field(
        default_factory=dict
    )
    borders: Mapping[int, RegionBorder] = field(default_factory=dict)
    contested: frozenset[int] = frozenset()

    @cached_property
    def history(self) -> tuple[Reason, ...]:
        """Every change of every value, in order."""
        return self._history()

    @cached_property
    def changes(self) -> Mapping[int, Sequence[tuple[int, Reason]]]:
        """For each value whose sharding changed, (index in `history`, change) of each change."""
        found: dict[int, list[tuple[int, Reason]]] = {}
        for moment, reason in enumerate(self.history):
            found.setdefault(reason.value, []).append((moment, reason))
        return found

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """The reason of each value's sharding: its last change."""
        last = {reason.value: reason for reason in self.history}
        none = enumerate(self.shardings)
        return tuple([last.get(v) or Reason(v, sharding, "replicated") for v, sharding in none])

    @cached_property
    def conflicts(self) -> tuple[Conflict, ...]:
        """The shardings that operators proposed for values without annotation, in vain.

        A proposal is refused if the value already has a sharding that contradicts it.
        """
        return self._conflicts()

    @cached_property
    def merges(self) -> tuple[Merge, ...]:
        """The merges of two shardings, in order, each as (value, first, second, merged)."""
        return self._merges()

    def why(self, value: int) -> str:
        """Return the reason of a value's sharding, in words."""
        return self.reasons[value].text(self.graph)

    def __repr__(self) -> str:
        tiled = sum(not s.is_replicated for s in self.shardings)
        counts = f"{tiled} partitioned, {len(self.fixed)} annotated"
        return f"ShardedGraph({len(self.shardings)} values on {self.mesh!r}, {counts})"
