"""A graph as Shardy's propagation visits it: operators, and edges of values that share a layout.

A loop's carry is one edge: what it starts with and what the body makes are its sources, the body's
argument and the loop's result its targets. What is made of numbers alone is no tensor here: Shardy
gives every reader a copy of its own (`constant_or_scalar_splitter.cc`), so nothing passes through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardalg.graph.ir import Graph, Node, RegionArgument
from shardalg.graph.once import once_per_graph
from shardalg.propagate.gspmd import priority
from shardalg.propagate.gspmd.index import Index, Rules, Visit, assembled, post_order
from shardalg.propagate.operator_classes import OperatorClass, edge, kind_of, pass_through

JOINED = ("init", "carry", "result")
"""Ties that are one edge where they share a value; the others are an edge each."""


def edge_index(graph: Graph, rules: Rules, _: bool = True) -> Index:
    """The index of a graph for Shardy's steps; annotated results change none."""
    return _edge_index(graph, rules)


@once_per_graph
def _edge_index(graph: Graph, rules: Rules) -> Index:
    builder = _Builder(graph, rules)
    steps = [*builder.region(0), *builder.exits()]
    return assembled(graph, list(builder.found), steps)


@dataclass(eq=False)
class _Builder:
    graph: Graph
    rules: Rules
    found: dict[OperatorClass, int] = field(default_factory=dict)
    numbers: dict[object, int | None] = field(default_factory=dict)
    across: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.graph
        self.made_of_numbers = _made_of_numbers(graph)
        self.region_arguments: dict[int, list[RegionArgument]] = {}
        for tie in graph.region_arguments:
            if not tie.is_manual:
                self.region_arguments.setdefault(tie.call, []).append(tie)
        uses = Counter(v for node in graph.nodes if not node.bodies for v in node.operands)
        uses.update(graph.results)
        uses.update(tie.source for tie in graph.region_arguments if tie.kind != "result")
        self.uses = uses

    def region(self, number: int) -> Iterator[Visit]:
        """Steps in order of execution, a call's edges behind its bodies."""
        for position in post_order(self.graph, number):
            node = self.graph.nodes[position]
            if node.bodies:
                for body in node.bodies:
                    yield from self.region(body)
                yield from self._edges(position)
            else:
                yield from self._operator(node)

    def exits(self) -> Iterator[Visit]:
        """One per result of the function: the value, and the stand-in of its annotation."""
        for stand_in, value in enumerate(self.graph.results, len(self.graph.values)):
            shape = self.graph.values[value].type.shape
            if shape:
                kind = self._edge_kind(shape, 1, 1, (priority.EXIT, True))
                yield kind, (value, stand_in), None

    def _operator(self, node: Node) -> Iterator[Visit]:
        if all(value in self.made_of_numbers for value in node.results):
            return
        absent = tuple(value in self.made_of_numbers for value in node.operands)
        key = (node.signature, absent, self._is_alone(node.operands))
        if key not in self.numbers:
            self.numbers[key] = self._kind(node, absent, key[2])
        number = self.numbers[key]
        if number is not None:
            yield number, node.operands + node.results, node.index

    def _kind(self, node: Node, absent: tuple[bool, ...], alone: bool) -> int | None:
        rows = self.rules(node.signature) if node.signature.operands else None
        if not rows:
            return None
        kind = kind_of(node.signature, rows, (False,) * len(node.results))
        maps = kind.maps if kind.image is None else kind.image.nested(kind.maps)
        pairs = zip(maps, (*absent, *(False for _ in node.results)), strict=True)
        maps = tuple(((),) * len(dims) if gone else dims for dims, gone in pairs)
        return self._add(replace(kind, maps=maps, alone=alone))

    def _is_alone(self, operands: tuple[int, ...]) -> bool:
        shapes = self.graph.values
        return all(
            self.uses[value] <= 1
            for value in operands
            if shapes[value].type.shape and value not in self.made_of_numbers
        )

    def _edges(self, call: int) -> Iterator[Visit]:
        region_arguments = self.region_arguments.get(call, [])
        for tie in region_arguments:
            if tie.kind not in JOINED and tie.source not in self.made_of_numbers:
                yield from self._single(tie)
        for sources, targets in _joined([tie for tie in region_arguments if tie.kind in JOINED]):
            shape = self.graph.values[targets[0]].type.shape
            known = tuple(value for value in sources if value not in self.made_of_numbers)
            if shape and known:
                role = (priority.LOOP, self._is_alone(known))
                kind = self._edge_kind(shape, len(known), len(targets), role)
                yield kind, known + targets, call

    def _single(self, tie: RegionArgument) -> Iterator[Visit]:
        drop = (tie.source_drop, tie.target_drop)
        shape = self.graph.values[tie.source].type.shape[drop[0] :]
        alone = self._is_alone((tie.source,))
        key = (shape, drop, alone)
        if key not in self.across:
            kind = replace(pass_through(shape, False, drop), alone=alone)
            through = frozenset(f"d{i}" for i in range(len(shape)))
            self.across[key] = self._add(replace(kind, through=through))
        yield self.across[key], (tie.source, tie.target), tie.call

    def _edge_kind(
        self, shape: tuple[int, ...], sources: int, targets: int, role: tuple[str, bool]
    ) -> int:
        key = (shape, sources, targets, role)
        if key not in self.across:
            made = edge(shape, sources, targets, role=role[0], alone=role[1])
            self.across[key] = self._add(made)
        return self.across[key]

    def _add(self, kind: OperatorClass) -> int:
        return self.found.setdefault(kind, len(self.found))


def _made_of_numbers(graph: Graph) -> set[int]:
    """Values without data: no argument or constant array is behind them, in their own region."""
    found = {value for value, _ in graph.constants}
    sites = {site.node for site in graph.sites}
    for node in graph.walk():
        made = not node.bodies and node.index not in sites
        if made and all(value in found for value in node.operands):
            found.update(node.results)
    return found


def _joined(
    region_arguments: list[RegionArgument],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(sources, targets) of each edge: region arguments that share a value are one."""
    groups: list[set[int]] = []
    for tie in region_arguments:
        here = {tie.source, tie.target}
        for group in [g for g in groups if g & here]:
            here |= group
            groups.remove(group)
        groups.append(here)
    order = dict.fromkeys(v for tie in region_arguments for v in (tie.source, tie.target))
    targets = {tie.target for tie in region_arguments}
    return [
        (
            tuple(v for v in order if v in group and v not in targets),
            tuple(v for v in order if v in group and v in targets),
        )
        for group in groups
    ]
