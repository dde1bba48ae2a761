"""`policy="cost"`: what every node computes where, chosen by seconds instead of by completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter

from shardalg.algebra.derived_layouts import interned, plain, whole
from shardalg.algebra.sharding import Sharding
from shardalg.costs.hardware import Hardware
from shardalg.costs.step_time import estimate
from shardalg.costs.topology import Topology, machine
from shardalg.graph.ir import Graph, Node
from shardalg.graph.ops.rows import rules
from shardalg.planner.partition.choose.choices import ComponentCandidate, candidates
from shardalg.planner.partition.choose.component import components
from shardalg.planner.partition.choose.key import LoopDigits
from shardalg.planner.partition.choose.node_classes import remade_values
from shardalg.planner.partition.choose.regions import TiedArguments, border, laid, layouts, tied
from shardalg.planner.partition.descent import Asked, Option, UnitProblem, best_of
from shardalg.planner.partition.prices import (
    Neighbours,
    OperatorPart,
    fused_values,
    move_s,
    operator_s,
)
from shardalg.planner.pipeline import partition
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.sharded import Reason, RegionBorder, ShardedGraph
from shardalg.spmd.program import SpmdProgram

STARTS = 8
"""Random starts beside the one from completion, where they take seconds at most."""
MOST_OPTIONS = 2000
"""Options of all units together, up to which random starts are taken."""


def by_cost(
    completed: Sequence[ShardedGraph], roles: Sequence[str], options: Options
) -> tuple[ShardedGraph, SpmdProgram]:
    """The layouts, the loops and the program that take the fewest seconds, as far as found.

    Annotations, arguments and results stay as completed; what a loop carries, its constants and
    what branches read and give have one layout each (`choose.regions`). Coordinate descent from the
    fastest completion, and on small graphs from `STARTS` random points; that completion itself
    stands where nothing is faster by `costs.step_time`. Memory is not limited.

    Args:
      completed: the completions of `options.completions`. None of these plans is faster then.
    """
    chip = machine(options.hardware)

    def timed(graph: ShardedGraph, options: Options) -> tuple[float, ShardedGraph, SpmdProgram]:
        program = partition(graph, roles, options)
        return estimate(program, graph.graph, chip, roles=roles).step_time_s, graph, program

    seconds = itemgetter(0)
    weighed = [timed(graph, options) for graph in completed]
    _, start, _ = min(weighed, key=seconds)
    problem = CostProblem(start, chip, finite=options.switches.finite_sums)
    more = STARTS if sum(map(len, problem.problem.units)) <= MOST_OPTIONS else 0
    found = problem.applied(best_of(problem.problem, problem.completed, more=more))
    faithful = map(timed, completed, options.completions)
    return min((timed(found, options), *weighed, *faithful), key=seconds)[1:]


@dataclass(frozen=True, eq=False)
class CostProblem:
    """A completed graph as a problem of descent.

    Attributes:
      hardware: what the seconds are of.
      finite: whether sums wait behind products too (`Switches.finite_sums`).
    """

    sharded: ShardedGraph
    hardware: Hardware | Topology
    finite: bool = False

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.sharded.graph

    @cached_property
    def value_shardings(self) -> tuple[Sharding, ...]:
        """The completed layouts alone, of axes that split something."""
        return tuple(map(plain, self.sharded.shardings))

    @cached_property
    def places(self) -> tuple[tuple[Node, int], ...]:
        """Per unit of a node the node, and the component of it; region arguments come after."""
        return tuple(
            (node, place)
            for node in self.graph.walk()
            if not node.bodies
            for place in range(len(components(rules(node.signature) or ())) or 1)
        )

    @cached_property
    def found(self) -> tuple[tuple[ComponentCandidate, ...], ...]:
        """Per unit its candidates; of a node without a row the one of whole operands."""
        return tuple(self._candidates(node, place) for node, place in self.places)

    @cached_property
    def region_arguments(self) -> tuple[tuple[TiedArguments, tuple[Sharding, ...]], ...]:
        """What lies alike across borders, each with its layouts: one of its own if annotated."""
        found = []
        for one in tied(self.graph):
            entering = self._entering(one)
            fixed = [self.value_shardings[v] for v in entering if v in self.sharded.fixed]
            free = layouts(self.value_shardings[(entering or one.plain)[0]])
            found.append((one, tuple(dict.fromkeys(fixed or free))))
        return tuple(found)

    def _entering(self, one: TiedArguments) -> list[int]:
        """What are arguments of bodies among these."""
        return [v for v, _ in one.makes if self.graph.producer[v] is None]

    def _candidates(self, node: Node, place: int) -> tuple[ComponentCandidate, ...]:
        value_shardings = tuple(self.value_shardings[v] for v in (*node.operands, *node.results))
        if rules(node.signature):
            return candidates(
                node.signature, value_shardings, place, self.hardware, finite=self.finite
            )
        count = len(node.operands)
        asks = tuple(
            (k, whole(result_sharding)) for k, result_sharding in enumerate(value_shardings[:count])
        )
        makes = tuple(
            (k, whole(result_sharding)) for k, result_sharding in enumerate(value_shardings[count:])
        )
        return (ComponentCandidate((), asks, makes),)

    @cached_property
    def problem(self) -> UnitProblem:
        """Units, values, and seconds of moves."""
        units = [
            tuple(self._option(node, place, candidate) for candidate in found)
            for (node, place), found in zip(self.places, self.found, strict=True)
        ]
        units += [
            tuple(_agreed(one, layout) for layout in found) for one, found in self.region_arguments
        ]
        still = {
            v for one, _ in self.region_arguments for v in self._entering(one)
        } - self.sharded.fixed
        given, value_shardings = self._fixed()
        wanted = tuple(self._wanted())
        asked = {value for value, _ in wanted}
        alone = {v for v, users in enumerate(self.graph.users) if len(users) == 1} - asked
        return UnitProblem(
            tuple(units), given, value_shardings, wanted,
            move=self._move, first_move=partial(self._moved, is_first=True),
            alone=frozenset(alone), still=frozenset(still),
        )  # fmt: skip

    def _option(self, node: Node, place: int, candidate: ComponentCandidate) -> Option:
        values = (*node.operands, *node.results)
        shardings = tuple(self.value_shardings[v] for v in values)
        made, read = fused_values(self.graph)
        # What fusing operators make is written by its first move, if at all.
        fused = frozenset(
            k for k, v in enumerate(values) if v in made and (v in read or k >= len(node.operands))
        )
        part = OperatorPart(node.signature, place, shardings, fused, self.finite)
        seconds = operator_s(part, candidate, self.hardware)
        times = self.graph.trip_count(node)
        asks = tuple((node.operands[k], layout) for k, layout in candidate.required_shardings)
        makes = tuple((node.results[k], layout) for k, layout in candidate.produced)
        return Option(asks, makes, seconds * times)

    def _fixed(self) -> tuple[dict[int, Sharding], dict[int, Sharding]]:
        """What no unit makes, and what keeps its completed home."""
        graph, value_shardings = self.graph, self.value_shardings
        made = {v for one, _ in self.region_arguments for v, _ in one.makes}
        entering = (v for region in graph.regions for v in region.arguments)
        left = (v for node in graph.walk() if node.bodies for v in node.results)
        given = {v: value_shardings[v] for v in (*entering, *graph.arguments) if v not in made}
        given |= {v: whole(value_shardings[v]) for v, _ in graph.constants}
        given |= {v: value_shardings[v] for v in left if v not in made}
        kept = {
            v: value_shardings[v] for v in (*given, *self.sharded.fixed) if v < len(value_shardings)
        }
        return given, kept | {v: whole(value_shardings[v]) for v, _ in graph.constants}

    def _wanted(self) -> Iterator[Asked]:
        """What the function gives back, and what no tie says of what calls take and hand on."""
        graph = self.graph
        for value, given in zip(graph.results, self.sharded.results, strict=True):
            yield value, plain(given)
        said = {(one.call, v) for one, _ in self.region_arguments for v, _ in one.asks}
        for node in graph.walk():
            if node.bodies:
                asked = self._border_asks(node)
                yield from ((v, at) for v, at in asked if (node.index, v) not in said)

    def _border_asks(self, node: Node) -> Iterator[Asked]:
        """What the completed border of a call asks of its operands and of its bodies' results."""
        agreed = border(self.graph, node, self.value_shardings)
        yield from zip(node.operands, agreed.operands, strict=True)
        for body, (_, results) in zip(node.bodies, agreed.bodies, strict=True):
            yield from zip(self.graph.regions[body].results, results, strict=True)

    @cached_property
    def _times(self) -> tuple[int, ...]:
        """How often each value is made in a step."""
        producer = self.graph.producer
        nodes = self.graph.nodes
        found = [1 if n is None else self.graph.trip_count(nodes[n]) for n in producer]
        for region in self.graph.regions:
            for value in region.arguments:
                found[value] = region.trip_count
        return tuple(found)

    def _move(self, value: int, source: Sharding, target: Sharding) -> float:
        return self._moved(value, source, target, is_first=False)

    def _moved(self, value: int, source: Sharding, target: Sharding, *, is_first: bool) -> float:
        if value in remade_values(self.graph):
            return 0.0
        made, read = (value in side for side in fused_values(self.graph))
        dtype = self.graph.values[value].type.dtype
        around = Neighbours(made, read, is_first)
        return move_s(source, target, dtype, self.hardware, around) * self._times[value]

    @cached_property
    def completed(self) -> tuple[int, ...]:
        """Per unit what is nearest to the completed layouts: the start of the descent."""
        return tuple(
            min(range(len(options)), key=lambda k: self._apart(options[k]))
            for options in self.problem.units
        )

    def _apart(self, option: Option) -> float:
        """Seconds of an option alone, from and to the completed layouts."""
        asks = sum(self._move(v, self.value_shardings[v], layout) for v, layout in option.asks)
        makes = sum(self._move(v, layout, self.value_shardings[v]) for v, layout in option.makes)
        return option.seconds + asks + makes

    def applied(self, taken: Sequence[int]) -> ShardedGraph:
        """The graph with the layouts and the loops of these options."""
        problem = self.problem
        loops: dict[int, tuple[LoopDigits, ...]] = {}
        required: dict[int, tuple[tuple[tuple[int, Sharding], ...], ...]] = {}
        for (node, _), found, k in zip(self.places, self.found, taken, strict=False):
            # What numbers alone make is made again in each layout: its loops follow from that.
            if rules(node.signature) and node.results[0] not in remade_values(self.graph):
                chosen = found[k]
                loops[node.index] = (*loops.get(node.index, ()), chosen.loops)
                asked = (*required.get(node.index, ()), chosen.required_shardings)
                required[node.index] = asked
        value_shardings, changed = list(self.sharded.shardings), []
        for value in problem.makers:
            if value not in problem.value_shardings:
                at = problem.result_sharding(value, taken)[1]
                value_shardings[value] = interned(at.mesh, at.shape, at.dims, ())
                if value_shardings[value].dims != self.value_shardings[value].dims:
                    changed.append(Reason(value, value_shardings[value], "chosen by cost"))
        history = partial(_history, self.sharded, tuple(changed))
        borders = self._borders(taken[len(self.places) :])
        return replace(
            self.sharded,
            shardings=tuple(value_shardings),
            loops=loops,
            required=required,
            borders=borders,
            _history=history,
        )

    def _borders(self, taken: Sequence[int]) -> dict[int, RegionBorder]:
        """The borders of calls with these layouts of what is tied."""
        value_shardings: dict[int, list[Sharding]] = {}
        for (one, found), k in zip(self.region_arguments, taken, strict=True):
            here = value_shardings.setdefault(one.call, list(self.value_shardings))
            for value in one.plain:
                here[value] = found[k]
        nodes = self.graph.nodes
        return {
            call: border(self.graph, nodes[call], here) for call, here in value_shardings.items()
        }


def _agreed(one: TiedArguments, layout: Sharding) -> Option:
    """What is tied in this layout."""
    asks, makes = (tuple(laid(place, layout) for place in side) for side in (one.asks, one.makes))
    return Option(asks, makes, 0.0)


def _history(sharded: ShardedGraph, changed: tuple[Reason, ...]) -> tuple[Reason, ...]:
    return (*sharded.history, *changed)
