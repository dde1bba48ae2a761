"""The index of a graph for the sweeps: steps in order of execution, and the steps of each value.

It does not depend on mesh and annotations, so that it is made once per graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import itemgetter

from shardalg.graph.ir import Graph, RegionArgument, Signature, ValueType, once_per_graph
from shardalg.graph.ops.rule import Rule
from shardalg.planner.propagate.gspmd.image import ZEROS
from shardalg.planner.propagate.operator_classes import (
    OperatorClass,
    edge,
    operator_class,
    pass_through,
)
from shardalg.sizes.recorded import equal_key

Rules = Callable[[Signature], tuple[Rule, ...] | None]
Visit = tuple[int, tuple[int, ...], int | None]
"""A step: (number of its operator class, its values, operands first, its node or call or None)."""
Span = tuple[int, int, int, int]
"""The steps and the places of one computation: (first step, end, first place, end)."""
Places = tuple[Sequence[int], Sequence[tuple[int, ...]]]
"""The values after the graph's: (the graph's value that names each of them, the shape of each)."""
ENTER = ("const", "init", "xs")
"""Kinds of region arguments by which values enter a loop's body; by the other kinds they leave."""


@dataclass(frozen=True, eq=False)
class SweepIndex:
    """Steps (nodes with a rule, region arguments, then one step per result) in sweep order.

    Each result of the function has a stand-in: an extra value, whose number follows the numbers of
    the graph's values. It has the result's annotation, while the value itself stays free.

    Attributes:
      kinds: the distinct operator classes.
      kind_of_step: per step, the number of its class.
      steps_of_kind: per class, its steps.
      tensors: per step, its values.
      pick: per step, a function from the layouts of all values to those of the step's values.
      nodes: per step, its node (the call for a region argument, None for a result).
      readers: per value, (step, operand position) of every read, in order.
      steps_of: per value, the steps that it is a tensor of.
      operand_places: per value, the places of those steps' operands.
      order: values by first appearance, computation by computation.
      place: per step, the places of its values in this order.
      reads: per place, the reads by the steps of its computation.
      shapes: the distinct shapes.
      shape_of: per value, the number of its shape.
      result_count: the number of the function's results.
      spans: per computation (first step, end, first place, end), in the order of sweeps.
      names: per value, the value of the graph whose name stands for it in messages: a stand-in has
        the name of its result.
      related: per value, the others that always have its sharding.
      late_backward: values to which readers pass no sharding before the level of a sweep that
        includes broadcasts.
      tuple_groups: per step from one tuple to another, all steps between these two tuples.
      notified: per value, the steps that are visited after a change of it, the next one last.
      seeded: values that have the annotation of a node that reads them, with this node.
    """

    kinds: list[OperatorClass]
    kind_of_step: list[int]
    steps_of_kind: list[list[int]]
    tensors: list[tuple[int, ...]]
    pick: list[itemgetter]
    nodes: list[int | None]
    readers: list[list[tuple[int, int]]]
    steps_of: list[list[int]]
    operand_places: list[Collection[int]]
    order: list[int]
    place: list[tuple[int, ...]]
    reads: list[list[tuple[int, int]]]
    shapes: list[tuple[int, ...]]
    shape_of: list[int]
    result_count: int
    spans: list[Span]
    names: list[int]
    related: dict[int, tuple[int, ...]] = field(default_factory=dict)
    late_backward: frozenset[int] = frozenset()
    tuple_groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    notified: dict[int, list[int]] = field(default_factory=dict)
    seeded: dict[int, int] = field(default_factory=dict)

    @cached_property
    def of_role(self) -> dict[str, tuple[bytes, bytes]]:
        """For each role of operators, bytes that mark its steps and the places of their operands.

        Each entry is (one byte per step, one byte per place). The byte is 1 if the step, or an
        operand's place, belongs to an operator of the role.
        """
        marks: dict[str, tuple[bytearray, bytearray]] = {}
        # Several operator classes may have one role, such as "pointwise".
        for kind, steps in zip(self.kinds, self.steps_of_kind, strict=True):
            empty = bytearray(len(self.tensors)), bytearray(len(self.order))
            step_marks, place_marks = marks.setdefault(kind.role, empty)
            for step in steps:
                step_marks[step] = 1
                for place in self.place[step][: kind.num_operands]:
                    place_marks[place] = 1
        return {role: (bytes(steps), bytes(places)) for role, (steps, places) in marks.items()}

    def kind(self, step: int) -> OperatorClass:
        """Return the operator class of a step."""
        return self.kinds[self.kind_of_step[step]]


def index(graph: Graph, rules: Rules, results_given: bool = True) -> SweepIndex:
    """Return the steps of a graph in the order of the sweeps, with the tables that sweeps read.

    Args:
      results_given: whether some result is annotated. If so, XLA gives every result a reader of its
        own. If not, the tuple of all results is the only reader, and it does not count
        (`sharding_propagation.cc`, ComputeNonRootUsers).
    """
    return _index(graph, rules, results_given)


@once_per_graph
def _index(graph: Graph, rules: Rules, results_given: bool) -> SweepIndex:
    """Return the steps and tables of a graph; see `index`, which only sets the default argument.

    The cache distinguishes positional and keyword arguments, so `index` passes all by position.
    """
    kinds = _ClassTable(graph, rules, results_given)
    steps = [*_region_steps(graph, kinds, 0), *_zero_stacks(graph, kinds)]
    # A scalar has no dimension to shard, so its result needs no step.
    for stand_in, value in enumerate(graph.results, len(graph.values)):
        shape = graph.values[value].type.shape
        if shape:
            steps.append((kinds.of_tie(shape, False), (value, stand_in), None))
    return assembled(graph, list(kinds.found), steps)


def assembled(
    graph: Graph,
    found: list[OperatorClass],
    steps: list[Visit],
    computations: Sequence[int] = (),
    places: Places = ((), ()),
) -> SweepIndex:
    """Return the `SweepIndex` of the given steps, which are in sweep order.

    Layouts are numbered in one list: the graph's values, then the results of the function (each has
    an entry of its own, a stand-in), then further places, such as entries of tuples.

    Args:
      found: the operator classes; a step names its class by the number in this list.
      computations: how many steps each computation has; () is one computation of all steps.
      places: for the further places, the value that names each one in texts, and its shape.
    """
    named, shaped = places
    # Stand-ins of results and places are numbered after the graph's values, so that one list of
    # layouts serves all three.
    count = len(graph.values) + len(graph.results) + len(named)
    tensors = [values for _, values, _ in steps]
    order, place, spans = _number_places(tensors, computations or (len(steps),), count)
    readers, steps_of = _readers_and_steps(found, steps, count)
    steps_of_kind: list[list[int]] = [[] for _ in found]
    for position, (kind, _, _) in enumerate(steps):
        steps_of_kind[kind].append(position)
    known = [*(v.type.shape for v in graph.values), *shaped]
    # Equal shapes share one number, so that initial layouts are made once per shape.
    shapes = {shape: i for i, shape in enumerate(dict.fromkeys(known))}
    shape_of = [shapes[v.type.shape] for v in graph.values]
    return SweepIndex(
        kinds=found,
        kind_of_step=[kind for kind, _, _ in steps],
        steps_of_kind=steps_of_kind,
        tensors=tensors,
        pick=[itemgetter(*values) for values in tensors],
        nodes=[node for _, _, node in steps],
        readers=readers,
        steps_of=steps_of,
        operand_places=_operand_places(found, steps, (steps_of, place)),
        order=order,
        place=place,
        reads=_reads_by_place(found, steps, order, place),
        shapes=list(shapes),
        shape_of=[
            *shape_of,
            *(shape_of[v] for v in graph.results),
            *(shapes[shape] for shape in shaped),
        ],
        result_count=len(graph.results),
        spans=spans,
        names=[*range(len(graph.values)), *graph.results, *named],
    )


def _number_places(
    tensors: list[tuple[int, ...]], computations: Sequence[int], count: int
) -> tuple[list[int], list[tuple[int, ...]], list[Span]]:
    """Return three lists: the values in order, each step's places, and the spans of computations.

    The first list has each value once per computation, in the order of first appearance. A place is
    a position in this list. A span is (first step, end, first place, end) of one computation.

    Args:
      tensors: per step, its values. computations: how many steps each computation has.
      count: the number of values.
    """
    order: list[int] = []
    place: list[tuple[int, ...]] = []
    spans: list[Span] = []
    # A value that two computations use has a place in each, so that each sweeps its own readers.
    for size in computations:
        first, here = len(place), tensors[len(place) : len(place) + size]
        known = list(dict.fromkeys(chain.from_iterable(here)))
        at = {value: number for number, value in enumerate(known, len(order))}
        place += [tuple([at[value] for value in values]) for values in here]
        spans.append((first, len(place), len(order), len(order) + len(known)))
        order += known
    # Values of no step have places, too, so that every value has one; they follow all spans.
    unread = set(range(count)).difference(order)
    return [*order, *sorted(unread)], place, spans


def _reads_by_place(
    found: list[OperatorClass],
    steps: list[Visit],
    order: list[int],
    place: list[tuple[int, ...]],
) -> list[list[tuple[int, int]]]:
    """Return per place the (step, operand position) of every read in its computation.

    A place is a value's position in the list `order`, which has a value once per computation.

    Args:
      found: the operator classes, by number.
      steps: the steps of all computations, each with the number of its class.
      place: per step, the places of its operands and then of its results.
    """
    reads: list[list[tuple[int, int]]] = [[] for _ in order]
    for position, (kind, _, _) in enumerate(steps):
        for k in range(found[kind].num_operands):
            reads[place[position][k]].append((position, k))
    return reads


@dataclass(eq=False)
class _ClassTable:
    """The operator classes found so far with their numbers.

    Attributes:
      numbers: the class of a node, by its signature and whether each result has a single reader.
      across: the class of a region argument, by its shape, `single` and `drop` (see `of_tie`).
    """

    graph: Graph
    rules: Rules
    results_given: bool
    found: dict[OperatorClass, int] = field(default_factory=dict)
    numbers: dict[object, int | None] = field(default_factory=dict)
    across: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compute which values have one reader, and group the region arguments by their call."""
        self.single = _single_readers(self.graph, self.results_given)
        self.region_arguments: dict[int, list[RegionArgument]] = {}
        for tie in self.graph.region_arguments:
            # XLA has a manual region (`shard_map`) in the computation around it: it has no border.
            if not tie.is_manual:
                self.region_arguments.setdefault(tie.call, []).append(tie)

    def of_node(self, signature: Signature, results: tuple[int, ...]) -> int | None:
        """Return the number of a node's operator class, or None if no sharding passes through it.

        Nodes of one class (as in the layers of a model) pass shardings in the same way.

        Args:
          signature: primitive, parameters and types of the node.
          results: the values that the node returns.
        """
        # A class depends on whether its results have single readers, because XLA replaces the
        # shardings of such values more readily.
        single = self.single
        key = (
            signature,
            single[results[0]] if len(results) == 1 else tuple(single[v] for v in results),
        )
        # `numbers` is a memo: a large model has few different keys.
        if key not in self.numbers:
            rows = self.rules(signature) if signature.operands else None
            flags = tuple(single[v] for v in results)
            kind = operator_class(signature, rows, flags) if rows else None
            self.numbers[key] = None if kind is None or kind.is_closed else self._add(kind)
        return self.numbers[key]

    def of_tie(self, shape: tuple[int, ...], single: bool, drop: tuple[int, int] = (0, 0)) -> int:
        """Return the number of the class of a step across the border of a loop or branch.

        In such a step, a value outside and the same value inside (or a stack and its slice) take
        shardings from each other. The number is that of the class in `found`.

        Args:
          shape: the shape that the values on both sides have in common.
          single: whether the value to which the step leads has exactly one user.
          drop: (m, n): the first value has m leading dimensions that the second one lacks, and the
            second one has n that the first one lacks. A stack and its slice have (1, 0).
        """
        key = (shape, single, drop)
        if key not in self.across:
            self.across[key] = self._add(pass_through(shape, single, drop))
        return self.across[key]

    def of_zeros(self, shape: tuple[int, ...]) -> int:
        """Return the number of the class of an edge between two stacks that begin as equal zeros.

        Both stacks have the given shape. XLA has one array of zeros for them, through which
        sharding passes from one to the other.
        """
        return self._add(edge(shape, 1, 1, role=ZEROS, alone=False))

    def _add(self, kind: OperatorClass) -> int:
        return self.found.setdefault(kind, len(self.found))


def _single_readers(graph: Graph, results_given: bool) -> list[bool]:
    """Return per value whether it has exactly one user: a node, a region argument, or a result.

    Args:
      results_given: whether the results of the function count as users.
    """
    counts = [len(users) for users in graph.users]
    # A call reads its operands through its region arguments, which are counted below.
    for node in graph.nodes:
        for value in set(node.operands) if node.bodies else ():
            counts[value] -= 1
    for tie in graph.region_arguments:
        counts[tie.source] += 1
    for value in set(graph.results) if results_given else ():
        counts[value] += 1
    return [n == 1 for n in counts]


def _region_steps(graph: Graph, kinds: _ClassTable, number: int) -> Iterator[Visit]:
    """Yield a region's steps in order of execution: into a call, through its body, out of it.

    A step is (number of an operator class, its operands and results, index of the node). Nodes
    through which no sharding passes have no step.

    Args:
      kinds: the table that numbers the operator classes.
      number: index of the region.
    """
    for position in post_order(graph, number):
        node = graph.nodes[position]
        if not node.bodies:
            kind = kinds.of_node(node.signature, node.results)
            if kind is not None:
                yield kind, node.operands + node.results, position
            continue
        # A call has no step of its own. Shardings enter its body by `const`, `init` and `xs`, and
        # reach the next iteration and the results by the other kinds of region arguments.
        region_arguments = kinds.region_arguments.get(position, [])
        yield from (
            _border_step(graph, kinds, tie) for tie in region_arguments if tie.kind in ENTER
        )
        for body in node.bodies:
            yield from _region_steps(graph, kinds, body)
        yield from (
            _border_step(graph, kinds, tie) for tie in region_arguments if tie.kind not in ENTER
        )


def _zero_stacks(graph: Graph, kinds: _ClassTable) -> Iterator[Visit]:
    """Yield a step between the first stack of a type in a region and every other one of the type.

    Stacks are results that a scan collects. They begin as zeros, and XLA makes equal zeros once, so
    that sharding passes between the stacks.
    """
    first: dict[int, dict[ValueType, int]] = {}
    for position, region_arguments in sorted(kinds.region_arguments.items()):
        stacks = first.setdefault(graph.nodes[position].region, {})
        for tie in region_arguments:
            if tie.kind == "ys":
                kind = graph.values[tie.target].type
                # `equal_key` compares with each known type: a lookup by hash would not record, for
                # named sizes, that two types differ.
                other = stacks.setdefault(equal_key(stacks, kind), tie.target)
                if other != tie.target:
                    yield kinds.of_zeros(kind.shape), (other, tie.target), position


def post_order(graph: Graph, number: int) -> list[int]:
    """Return a region's nodes in XLA's order: from the results down, operands first, each once.

    XLA visits instructions so (`HloComputation::MakeInstructionPostOrder`), and where two layouts
    conflict the first wins. Nodes that no result needs come last.
    """
    region, producer, nodes = graph.regions[number], graph.producer, graph.nodes
    # An explicit stack, because the depth of a graph exceeds Python's limit of recursion.
    waiting, order = bytearray(len(nodes)), []
    for node in region.nodes:
        waiting[node] = 1
    # The producer of the first result is on top of the stack, and nodes without a reader are at its
    # bottom. A value from outside of the region has no producer here.
    producers = [producer[value] for value in reversed(region.results)]
    stack = [*reversed(region.nodes), *(node for node in producers if node is not None)]
    while stack:
        node = stack[-1]
        # A node may be on the stack several times, once for each reader.
        if not waiting[node]:
            stack.pop()
            continue
        # A node stays on the stack below the producers of its operands until all are in order.
        producers = [producer[value] for value in nodes[node].operands[::-1]]
        missing = [p for p in producers if p is not None and waiting[p]]
        stack += missing
        if not missing:
            waiting[stack.pop()] = 0
            order.append(node)
    return order


def _border_step(graph: Graph, kinds: _ClassTable, tie: RegionArgument) -> Visit:
    """Return the step between a value outside of a body and the body's value for it.

    Args:
      tie: the pair of values, for example an operand of a loop and the body's argument.
    """
    drop = (tie.source_drop, tie.target_drop)
    shape = graph.values[tie.source].type.shape[drop[0] :]
    return kinds.of_tie(shape, kinds.single[tie.target], drop), (tie.source, tie.target), tie.call


def _readers_and_steps(
    kinds: list[OperatorClass], steps: list[Visit], count: int
) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Return per value its reads as (step, operand position), and all steps that it takes part in.

    Args:
      kinds: the operator classes, by number.
      steps: (number of the class, values: operands and then results, node) of each step.
      count: the number of values.
    """
    readers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    steps_of: list[list[int]] = [[] for _ in range(count)]
    num_operands = [kind.num_operands for kind in kinds]
    for position, (kind, values, _) in enumerate(steps):
        for k in range(num_operands[kind]):
            readers[values[k]].append((position, k))
        # A step that reads a value twice is one step of the value.
        for value in values:
            known = steps_of[value]
            if not known or known[-1] != position:
                known.append(position)
    return readers, steps_of


def _operand_places(
    kinds: list[OperatorClass],
    steps: list[Visit],
    where: tuple[list[list[int]], list[tuple[int, ...]]],
) -> list[Collection[int]]:
    """Return, for each value, the places of the operands that a backward sweep must visit again.

    If the value changes, the operands of all its steps may change. A place is a position in the
    order in which a sweep visits values.

    Args:
      steps: the steps, each with the number of its class in `kinds`.
      where: (per value the numbers of its steps, per step the places of its values).
    """
    steps_of, place = where
    count = [kind.num_operands for kind in kinds]
    operands = [places[: count[kind]] for places, (kind, _, _) in zip(place, steps, strict=True)]

    def of_steps(found: list[int]) -> Collection[int]:
        # Most values have one step, whose tuple serves without a copy.
        if len(found) == 1:
            return operands[found[0]]
        return {place for step in found for place in operands[step]}

    return [of_steps(found) for found in steps_of]
