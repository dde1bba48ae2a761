"""A graph as Shardy's propagation visits it: operators, and edges of values that share a layout.

The operators are those of the module that XLA hands to Shardy, in its order. What a loop carries is
one value: an edge from what it starts with and what the body makes to the body's argument and the
loop's result. What a loop only reads is read from outside (`stablehlo.while` is canonicalised so),
annotated values through an open copy (`open_while_free_vars_sharding.cc`); branches read all of it
so. What is made of numbers alone, or is full of one, is no tensor here: Shardy gives every reader a
copy of its own (`constant_or_scalar_splitter.cc`), so nothing passes through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardalg.graph.ir import Graph, once_per_graph
from shardalg.planner.propagate.gspmd.index import Rules, SweepIndex, Visit, assembled
from shardalg.planner.propagate.operator_classes import OperatorClass, edge
from shardalg.planner.propagate.shardy.shardy_module import (
    Given,
    ShardyModuleBuilder,
    ShardyOperator,
)


def edge_index(graph: Graph, rules: Rules, given: Given = (frozenset(), ())) -> SweepIndex:
    """The index of a graph for Shardy's steps."""
    return _edge_index(graph, rules, given)


@once_per_graph
def _edge_index(graph: Graph, rules: Rules, given: Given) -> SweepIndex:
    builder = ShardyModuleBuilder(graph, rules, *given)
    operators = [*builder.region(0), *builder.exits()]
    return _Finished(builder, operators).index()


@dataclass(eq=False)
class _Finished:
    """The operators with what only all of them together say."""

    builder: ShardyModuleBuilder
    operators: list[ShardyOperator]

    def __post_init__(self) -> None:
        builder = self.builder
        self.absent = builder.numbers | builder.full
        held = {value: rows[0][0] for value, rows in builder.asked.items() if self._takes(value)}
        self.instead = {v: self._copy(node) for v, node in held.items() if is_carried(builder, v)}
        self.seeded = {v: node for v, node in held.items() if v not in self.instead}
        self.operators = [*map(self._redirected, self.operators)]
        self.uses = Counter(v for o in self.operators if not o.is_edge for v in o.operands)
        self.found: dict[OperatorClass, int] = {}
        # Operators of equal layers share one class object, so its identity finds their number.
        self.numbered: dict[tuple[int, tuple[bool, ...], bool], int] = {}

    def _takes(self, value: int) -> bool:
        """Whether what annotated sites say of a value holds for it (`shouldApply`).

        It has no annotation of its own, and all say the same, and leave no dimension open.
        """
        builder, rows = self.builder, self.builder.asked[value]
        is_free = value not in builder.annotated and value < len(builder.graph.values)
        one = len({number for _, number, _ in rows}) == 1
        return is_free and value not in self.absent and one and rows[0][2]

    def _copy(self, node: int) -> tuple[int, int]:
        """The annotated copy of a value that readers read instead, and the node that makes it."""
        return self.builder.graph.nodes[node].results[0], node

    def _redirected(self, made: ShardyOperator) -> ShardyOperator:
        """An operator that reads a value's annotated copy instead of the value."""
        return made._replace(
            operands=tuple(
                self.instead[v][0] if v in self.instead and self.instead[v][1] != made.node else v
                for v in made.operands
            )
        )

    def index(self) -> SweepIndex:
        """The steps, and who is told of a change."""
        builder = self.builder
        kept = [(*row, made) for made in self.operators if (row := self._step(made)) is not None]
        steps: list[Visit] = [
            (kind, self._tensors(values), made.node) for kind, values, made in kept
        ]
        places = (builder.names, builder.shapes)
        index = assembled(builder.graph, [*self.found], steps, places=places)
        told = self._told([values for _, values, _ in kept], [made for _, _, made in kept])
        return replace(index, told=told, related=self._aliases(), seeded=self.seeded)

    def _step(self, made: ShardyOperator) -> tuple[int, tuple[int, ...]] | None:
        """The number of an operator's kind, and its values as they are read."""
        kind = made.kind
        if kind is None:
            return None
        known = tuple(v for v in made.operands if v not in self.absent)
        if made.is_edge:
            if not known:
                return None
            count = len(known)
            kind = edge(self.builder.shape(made.results[0]), count, 1, role=kind.role, alone=True)
            return self._number(kind), (*known, *made.results)
        gone = (*(v in self.absent for v in made.operands), *(False for _ in made.results))
        alone = all(self.uses[v] == 1 for v in known if self.builder.shape(v))
        key = id(kind), gone, alone
        if key not in self.numbered:
            maps = tuple(
                ((),) * len(dims) if is_gone else dims
                for dims, is_gone in zip(kind.maps, gone, strict=True)
            )
            self.numbered[key] = self._number(replace(kind, maps=maps, alone=alone))
        return self.numbered[key], (*made.operands, *made.results)

    def _number(self, kind: OperatorClass) -> int:
        return self.found.setdefault(kind, len(self.found))

    def _tensors(self, values: Iterable[int]) -> tuple[int, ...]:
        """Values by the one that has their layout."""
        return tuple(self.builder.target.get(v, v) for v in values)

    def _told(
        self, read: list[tuple[int, ...]], kept: list[ShardyOperator]
    ) -> dict[int, list[int]]:
        """Per value the steps that follow a change of it, in the order in which they wait.

        The last is visited first. Readers wait last ones first, but those of a loop's result, whose
        readers are given it anew by the edge (`addDataFlowEdges`, replaceAllUsesExcept).
        """
        makers: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for step, (values, made) in enumerate(zip(read, kept, strict=True)):
            count = len(values) - len(made.results)
            makers.update(dict.fromkeys(values[count:], step))
            for value in values[:count]:
                readers.setdefault(value, []).append(step)
        told = {}
        inner = self.builder.inner
        for value in dict.fromkeys((*makers, *readers)):
            own = readers.get(value, [])
            before = [s for v in inner.get(value, ()) for s in reversed(readers.get(v, []))]
            maker = [makers[value]] if value in makers else []
            told[value] = [*before, *maker, *(own if value in inner else own[::-1])]
        return told

    def _aliases(self) -> dict[int, tuple[int, ...]]:
        """Per value the others that are it, or have its layout."""
        found: dict[int, tuple[int, ...]] = {}
        for value in range(len(self.builder.graph.values)):
            (one,) = self._tensors((self._known(value),))
            if one != value:
                found[one] = (*found.get(one, ()), value)
        return found

    def _known(self, value: int) -> int:
        builder = self.builder
        while value in builder.same or value in builder.captured:
            if value in builder.same:
                value = builder.same[value]
            else:
                call, outside = builder.captured[value]
                outer = self._known(outside)
                return builder.copies.get((call, outer), outer)
        return value


def is_carried(builder: ShardyModuleBuilder, value: int) -> bool:
    """Whether a value has one layout with others, as what a loop carries has."""
    return value in builder.target or value in builder.inner
