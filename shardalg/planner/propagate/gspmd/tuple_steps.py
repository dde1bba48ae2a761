"""The steps of a graph's computations as XLA has their instructions, tuples of loops among them.

A graph as XLA's own propagation sweeps it: computation by computation, tuples as XLA has them.

A loop is in HLO one `while` whose tuple enters its bodies, comes out of them and is handed on: per
element one layout, wherever the tuple stands (`related`). Bodies are visited before what is around
them, each computation forward and then backward. What a tuple holds has a layout beside that of the
value that was put into it: a place, numbered after the graph's values and the stand-ins of results.
Source: `sharding_propagation.cc`, RunToFixPoint and MaybeComputationPropagation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from shardalg.graph.ir import Graph, Node, Signature, once_per_graph
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.elements import Element, Literal, literals, read_literals
from shardalg.planner.propagate.gspmd.index import Rules, Span, SweepIndex, Visit, assembled
from shardalg.planner.propagate.gspmd.instructions import Instructions, Key
from shardalg.planner.propagate.gspmd.step import hlo_class, is_written_over, written
from shardalg.planner.propagate.operator_classes import (
    OperatorClass,
    joined,
    pass_through,
    stacking,
)

Shape = tuple[int, ...]
ARGUMENTS = ("argmax", "argmin")
"""Operators that XLA has as a reduction of several operands to a tuple."""


@dataclass(eq=False)
class Computations(Instructions):
    """The computations found so far.

    Attributes:
      names, shapes: of the places: the value that each stands for in words, and its shape.
      related: places that have one layout, since they are one element of a tuple.
      late: what broadcasts make, which hears its readers late.
      put: per body (value, place) of what is put into the tuple that it returns.
    """

    graph: Graph
    rules: Rules
    results_given: bool
    found: dict[OperatorClass, int] = field(default_factory=dict)
    names: list[int] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    related: dict[int, tuple[int, ...]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    classes: dict[tuple[Signature, str], OperatorClass | None] = field(default_factory=dict)
    put: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    regions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = self.graph
        self.first = len(graph.values) + len(graph.results)
        self.find_elements(self._place)
        for found in self.elements.values():
            for element in found:
                self.related.update(element.related())
        self._join_literals()
        self.users = self._counted()

    def _place(self, value: int, shape: Shape) -> int:
        """A new place, which stands for a value in words."""
        self.names.append(value)
        self.shapes.append(shape)
        return self.first + len(self.names) - 1

    def _join_literals(self) -> None:
        """Equal constants of a computation are one, with the zeros that stacks begin as."""
        groups: dict[int, dict[Literal, list[int]]] = literals(self.graph)
        self._join_stacks(groups)
        self.read: dict[int, list[int]] = {}
        for number, keys in read_literals(self.graph).items():
            node = self.graph.nodes[number]
            if self._reads_literals(node):
                for key in dict.fromkeys(keys):
                    first = self._first_of(groups[node.region], key, node.results[0])
                    self.read.setdefault(number, []).append(first)
        self.first_of: dict[int, int] = {}
        for group in chain.from_iterable(found.values() for found in groups.values()):
            self.late.update(group)
            self.first_of.update(dict.fromkeys(group, group[0]))
            for value in group if len(group) > 1 else ():
                self.related[value] = tuple(v for v in group if v != value)

    def _join_stacks(self, groups: dict[int, dict[Literal, list[int]]]) -> None:
        for call, found in self.elements.items():
            region = self.graph.nodes[call].region
            for element in found:
                if element.kind == "ys" and element.result is not None:
                    key = (0.0, self.graph.values[element.result].type)
                    element.outer = self._first_of(groups[region], key, element.result)

    def _first_of(self, groups: dict[Literal, list[int]], key: Literal, name: int) -> int:
        """The first value that is full of a number, or a place for it."""
        group = groups.setdefault(key, [])
        if not group:
            group.append(self._place(name, key[1].shape))
        return group[0]

    def _counted(self) -> list[int]:
        """Per value, how many instructions of its computation read it, but for the last tuple."""
        graph = self.graph
        counts = [0] * (self.first + len(self.names))
        for node in graph.nodes:
            for value in () if node.index in self.elements else set(node.operands):
                counts[value] += 1
        for call, found in self.elements.items():
            for tuples in _tuples(graph, call, found):
                for value in tuples:
                    counts[value] += 1
        for region in graph.regions:
            if self._hands_on(region.index):
                for value in set(region.results):
                    counts[value] += 1
        for value in set(graph.results) if self.results_given else ():
            counts[value] += 1
        return counts

    def computations(self, region: int) -> Iterator[list[Visit]]:
        """The steps of each computation, bodies first."""
        for node in self._nodes(region):
            if node in self.elements:
                for body in sorted(self.graph.nodes[node].bodies, key=self._is_condition):
                    yield from self.computations(body)
        self.regions.append(region)
        yield [*self._steps(region)]

    def _steps(self, region: int) -> Iterator[Visit]:
        for key in self.in_order(region):
            yield from self._emitted(key)
        if region == 0:
            yield from self._exits()

    def _emitted(self, key: Key) -> Iterator[Visit]:
        yield from getattr(self, f"_{key[0]}")(*key[1:])

    def _node(self, number: int, _: int) -> Iterator[Visit]:
        node = self.graph.nodes[number]
        kind = self._class(node)
        if kind is None:
            return
        if kind.role == image.BROADCAST:
            self.late.update(node.results)
        kind = replace(kind, single=tuple([self.users[v] == 1 for v in node.results]))
        if node.primitive in ARGUMENTS:
            yield from self._argument(node, kind)
            return
        yield self._numbered(kind), node.operands + node.results, number
        for literal in self.read.get(number, ()):
            yield self._tie(image.LOOP, (literal, node.results[0]), number)

    def _argument(self, node: Node, kind: OperatorClass) -> Iterator[Visit]:
        """What finds the largest: XLA has the values and where they are in one tuple.

        It reduces the operand with its positions, a broadcast, and gives both to either. The first
        hears the layout of the largest values alone, the other that of their positions.
        """
        (operand,), (result,) = node.operands, node.results
        largest, positions = (
            self._place(result, kind.shapes[1]),
            self._place(operand, kind.shapes[0]),
        )
        self.late.add(positions)
        for target, own in ((largest, operand), (result, positions)):
            for source in (operand, positions):
                heard = kind if source == own else replace(kind, deaf=frozenset((0,)))
                yield self._numbered(heard), (source, target), node.index

    def _reads_literals(self, node: Node) -> bool:
        kind = self._class(node)
        pointwise = kind is not None and kind.role == image.POINTWISE
        return pointwise or is_written_over(self.graph, node)

    def _class(self, node: Node) -> OperatorClass | None:
        """The class of a node, as XLA's levels have it; None where nothing is inferred."""
        key = node.signature, written(self.graph, node)
        if key not in self.classes:
            self.classes[key] = hlo_class(node, self.rules, key[1])
        return self.classes[key]

    def _call(self, number: int, _: int) -> Iterator[Visit]:
        tuples: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for element in self.elements[number]:
            if element.outer is not None:
                for branch, place in enumerate(element.tuples or ()):
                    tuples[branch].append((element.outer, place))
        for parts in tuples.values():
            yield from self._put_in(parts, number)
        for element in self.elements[number]:
            if element.loop is not None and element.tuples is not None:
                yield self._tie(image.WHILE, (element.tuples[0], element.loop), number)

    def _leave(self, value: int, _: int) -> Iterator[Visit]:
        call, element = self.leaving[value]
        if element.loop is not None:
            yield self._tie(image.ELEMENT, (element.loop, value), call)

    def _enter(self, value: int, _: int) -> Iterator[Visit]:
        element, region = self.entering[value]
        call = self.graph.regions[region].node
        assert call is not None  # a body is a call's
        parameter = element.parameters.get(region)
        if parameter is None:
            return
        if element.kind == "branch":
            place = element.place_of(region)
            if place is None:  # a branch that reads one value alone gets no tuple
                assert element.outer is not None
                yield self._tie(image.LOOP, (element.outer, value), call)
                return
            yield self._tie(image.BRANCH, (place, parameter), call)
        if element.kind != "xs":
            yield self._tie(image.ELEMENT, (parameter, value), call)
            return
        stack = element.stacks[region]
        yield self._tie(image.ELEMENT, (parameter, stack), call)
        shape = self.graph.values[value].type.shape
        kind = pass_through(shape, self.users[value] == 1, (1, 0))
        yield self._numbered(kind), (stack, value), call

    def _tuple(self, region: int, _: int) -> Iterator[Visit]:
        call = self.graph.regions[region].node
        parts = [*zip(*self._parts(region), strict=True)]
        yield from self._put_in([p for p in parts if self.graph.values[p[0]].type.shape], call)

    def _put_in(self, parts: list[tuple[int, int]], call: int | None) -> Iterator[Visit]:
        """Values put into one tuple, each with all its places there."""
        places: dict[int, list[int]] = defaultdict(list)
        for value, place in parts:
            places[self.first_of.get(value, value)].append(place)
        for value, found in places.items():
            yield self._numbered(joined(self._shape(value), len(found))), (value, *found), call

    def _parts(self, region: int) -> tuple[tuple[int, ...], list[int]]:
        """The results of a call, and their places in its tuple."""
        results = self.graph.regions[region].results
        if region not in self._tuple_places:
            shapes = [self.graph.values[v].type.shape for v in results]
            found = [self._place(v, shape) for v, shape in zip(results, shapes, strict=True)]
            self._tuple_places[region] = found
        return results, self._tuple_places[region]

    @property
    def _tuple_places(self) -> dict[int, list[int]]:
        known: dict[int, list[int]] = vars(self).setdefault("tuple_places", {})
        return known

    def _part(self, region: int, number: int) -> Iterator[Visit]:
        """One of a call's results, taken out of its tuple, and put into the loop's stack."""
        call = self.graph.regions[region].node
        assert call is not None  # as of `_enter`
        values, places = self._parts(region)
        shape = self.graph.values[values[number]].type.shape
        element = self._made(call, region, number)
        if shape:
            taken = self._place(values[number], shape)
            single = element is not None and element.kind == "ys"
            yield self._tie(image.ELEMENT, (places[number], taken), call, single=single)
            yield from self._put(call, region, element, taken)
        else:
            yield from self._put(call, region, element, values[number])

    def _made(self, call: int, region: int, number: int) -> Element | None:
        found = [e for e in self.elements[call] if e.numbers.get(region) == number]
        return found[0] if found else None

    def _put(self, call: int, region: int, element: Element | None, made: int) -> Iterator[Visit]:
        """A result in the tuple with which the next trip begins, or which the call returns."""
        if element is None or region not in element.roots:
            return
        if element.kind == "ys":
            stack = element.stacks[region]
            yield self._tie(image.ELEMENT, (element.parameters[region], stack), call)
            written = self._place(
                made if made < self.first else element.result or 0, self.shapes[stack - self.first]
            )
            kind = stacking(self.shapes[stack - self.first])
            yield self._numbered(kind), (made, stack, written), call
            made = written
        self.put[region].append((made, element.roots[region]))

    def _root(self, region: int, _: int) -> Iterator[Visit]:
        found = self.graph.regions[region]
        if found.node is None:
            return
        if not self._hands_on(region):
            for number, value in enumerate(found.results):
                yield from self._put(
                    found.node, region, self._made(found.node, region, number), value
                )
        for element in self.elements[found.node]:
            if element.numbers.get(region) is None and region in element.roots:
                inner = element.stacks.get(region) or element.inside.get(region)
                if inner is not None:
                    self.put[region].append((inner, element.roots[region]))
        yield from self._put_in(self.put[region], found.node)

    def _exits(self) -> Iterator[Visit]:
        for number, value in enumerate(self.graph.results, len(self.graph.values)):
            shape = self.graph.values[value].type.shape
            if shape:
                yield self._numbered(pass_through(shape, False)), (value, number), None

    def _tie(
        self, role: str, ends: tuple[int, int], call: int | None, *, single: bool = True
    ) -> Visit:
        """One value on both sides of a tuple's border."""
        source, target = ends
        if role == image.ELEMENT and target < len(self.users):
            single = single and self.users[target] == 1
        kind = pass_through(self._shape(source), single and role != image.LOOP)
        return self._numbered(replace(kind, role=role)), ends, call

    def _shape(self, value: int) -> Shape:
        if value >= self.first:
            return self.shapes[value - self.first]
        values = self.graph.values
        return values[value].type.shape

    def _numbered(self, kind: OperatorClass) -> int:
        return self.found.setdefault(kind, len(self.found))


def _tuples(graph: Graph, call: int, found: list[Element]) -> Iterator[set[int]]:
    """What is put into each tuple that a call reads."""
    if found and found[0].kind == "branch":
        for body in graph.nodes[call].bodies:
            yield {e.outer for e in found if e.outer is not None and body in e.parameters}
        return
    yield {e.outer for e in found if e.outer is not None}


@once_per_graph
def computations(graph: Graph, rules: Rules, results_given: bool = True) -> SweepIndex:
    """The index of a graph for GSPMD's own sweeps.

    Args:
      results_given: whether some result is annotated: as of `index`.
    """
    builder = Computations(graph, rules, results_given)
    found = [*builder.computations(0)]
    made = assembled(
        graph,
        list(builder.found),
        [*chain.from_iterable(found)],
        [len(steps) for steps in found],
        (builder.names, builder.shapes),
    )
    for region, span in zip(builder.regions, made.spans, strict=True):
        _order_readers(graph, made, region, span)
    return replace(
        made,
        related=builder.related,
        late=frozenset(builder.late),
        together=_together(made),
    )


def _together(made: SweepIndex) -> dict[int, tuple[int, ...]]:
    """Steps from one tuple to another, each with all those of the two tuples."""
    pairs: dict[tuple[int, int | None], list[int]] = {}
    for number, (first, end, _, _) in enumerate(made.spans):
        for step in range(first, end):
            if made.kind(step).role in (image.WHILE, image.BRANCH):
                pairs.setdefault((number, made.nodes[step]), []).append(step)
    return {step: tuple(steps) for steps in pairs.values() for step in steps}


def _order_readers(graph: Graph, made: SweepIndex, region: int, span: Span) -> None:
    """Bring what reads an argument of a scan's body into the order in which XLA has it.

    The body is a call that is inlined: the last of its readers takes the place of the call
    (`hlo_instruction.cc`, Users::RemoveUser). Elsewhere the order is that from the results down.
    """
    found = graph.regions[region]
    arguments = set(found.arguments) if found.kind == "scan" else set()
    for place in range(span[2], span[3]):
        readers = made.heard[place]
        if len(readers) > 1 and made.order[place] in arguments:
            root = [r for r in readers if _is_last(made, r[0], found.node)]
            inner = [r for r in readers if r not in root]
            made.heard[place] = [*inner[-1:], *root, *inner[:-1]]


def _is_last(made: SweepIndex, step: int, call: int | None) -> bool:
    """Whether a step puts a value into the tuple that a body returns."""
    return made.nodes[step] == call and made.kind(step).role == image.TUPLE
