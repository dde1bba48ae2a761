"""`Options(policy="cost")`: the shardings of all values that minimise the seconds of a step.

The module turns a completed graph into a problem of coordinate descent (`descent.py`), and applies
the solution to the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter

from shardalg.algebra.derived_layouts import interned, plain, whole
from shardalg.algebra.sharding import Sharding
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.hardware import Hardware
from shardalg.costs.step_time import estimate
from shardalg.costs.topology import Topology, machine
from shardalg.graph.ir import Graph, Node
from shardalg.graph.ops.rows import rules
from shardalg.planner.partition.choose.choices import ComponentCandidate, candidates
from shardalg.planner.partition.choose.component import components
from shardalg.planner.partition.choose.key import LoopDigits
from shardalg.planner.partition.choose.node_classes import remade_values
from shardalg.planner.partition.choose.regions import (
    TiedArguments,
    border,
    layouts,
    slot_sharding,
    tied,
)
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
"""Number of random starts, in addition to the start from completion."""
MOST_OPTIONS = 2000
"""The largest number of options of all units together for which there are random starts."""


def by_cost(
    completed: Sequence[ShardedGraph], roles: Sequence[str], options: Options
) -> tuple[ShardedGraph, SpmdProgram]:
    """Return the fastest sharded graph that the search finds, and its program.

    The search is coordinate descent from the fastest completion, on small graphs also from `STARTS`
    random points. Annotations, arguments and results keep their completed shardings. A carry, a
    constant of a loop, and a value that branches read or return have one sharding each
    (`choose/regions.py`). Memory is not limited.

    Args:
      completed: per entry of `options.completions`, the graph as this policy completes it. None of
        their programs is faster than the returned one, by `costs/step_time.py`.
      roles: the role of each graph value, such as "parameters".
      options: passed on to `pipeline.partition`; `hardware` and `finite_sums` are read here.
    """
    # Decisions are made at the rates of the data sheet, so that a new fit never changes a plan.
    chip = machine(options.hardware).on(DATASHEET)

    def timed(graph: ShardedGraph, options: Options) -> tuple[float, ShardedGraph, SpmdProgram]:
        program = partition(graph, roles, options)
        return estimate(program, graph.graph, chip, roles=roles).step_time_s, graph, program

    seconds = itemgetter(0)
    weighed = [timed(graph, options) for graph in completed]
    _, start, _ = min(weighed, key=seconds)
    problem = CostProblem(start, chip, finite=options.switches.finite_sums)
    # On larger graphs the random starts would take minutes.
    more = STARTS if sum(map(len, problem.problem.units)) <= MOST_OPTIONS else 0
    found = problem.applied(best_of(problem.problem, problem.completed, more=more))
    # Each completion is partitioned by its own policy, too, so that "cost" is never slower.
    faithful = map(timed, completed, options.completions)
    return min((timed(found, options), *weighed, *faithful), key=seconds)[1:]


@dataclass(frozen=True, eq=False)
class CostProblem:
    """A completed graph as a problem for `descent.best_of`: units, options and prices.

    A unit is a node (or a component of it), or a group of values at the border of a call that share
    a sharding.

    Attributes:
      sharded: the completed graph; fixed values keep its shardings.
      hardware: the machine whose seconds are minimised.
      finite: whether sums are deferred behind products too (`Switches.finite_sums`).
    """

    sharded: ShardedGraph
    hardware: Hardware | Topology
    finite: bool = False

    @property
    def graph(self) -> Graph:
        """The graph without shardings."""
        return self.sharded.graph

    @cached_property
    def value_shardings(self) -> tuple[Sharding, ...]:
        """The completed shardings, without axes of size 1 and without open dimensions."""
        return tuple(map(plain, self.sharded.shardings))

    @cached_property
    def places(self) -> tuple[tuple[Node, int], ...]:
        """For each unit that computes a node or a component of a node: (node, component number).

        A component is a group of the node's rows of RULES that is decided on its own
        (`components`). The other units, groups of region arguments, come after these in
        `problem.units`.
        """
        return tuple(
            (node, place)
            for node in self.graph.walk()
            if not node.bodies
            for place in range(len(components(rules(node.signature) or ())) or 1)
        )

    @cached_property
    def found(self) -> tuple[tuple[ComponentCandidate, ...], ...]:
        """For each part of a node in `places`, all ways to compute it.

        A node without a row of RULES has one candidate: every device computes it on whole operands.
        """
        return tuple(self._candidates(node, place) for node, place in self.places)

    @cached_property
    def region_arguments(self) -> tuple[tuple[TiedArguments, tuple[Sharding, ...]], ...]:
        """Groups of values at the border of a call that share a sharding, such as a loop's carry.

        Each entry is a group and its candidate shardings. An annotated group has one candidate.
        """
        found = []
        for one in tied(self.graph):
            entering = self._body_arguments(one)
            fixed = [self.value_shardings[v] for v in entering if v in self.sharded.fixed]
            # A stacked value has one more dimension. So candidates are made for an argument of the
            # body, or for another member that has the shared sharding itself (`plain`).
            free = layouts(self.value_shardings[(entering or one.plain)[0]])
            # All values of a group have one sharding, so one annotated value fixes the others.
            found.append((one, tuple(dict.fromkeys(fixed or free))))
        return tuple(found)

    def _body_arguments(self, one: TiedArguments) -> list[int]:
        """Return the values of a group of tied values that are arguments of bodies of a call."""
        return [v for v, _ in one.makes if self.graph.producer[v] is None]

    def _candidates(self, node: Node, place: int) -> tuple[ComponentCandidate, ...]:
        """Return all ways to compute the component with number `place` of a node.

        A candidate has digits for loops, the shardings that it requires of operands, and those in
        which it produces results. Both are pairs (number, sharding).
        """
        value_shardings = tuple(self.value_shardings[v] for v in (*node.operands, *node.results))
        if rules(node.signature):
            return candidates(
                node.signature, value_shardings, place, self.hardware, finite=self.finite
            )
        # An operator without a row in `RULES` has no loops that could be sharded.
        # Its only candidate computes it whole on every device.
        whole_layouts, count = tuple(map(whole, value_shardings)), len(node.operands)
        required = tuple(enumerate(whole_layouts[:count]))
        produced = tuple(enumerate(whole_layouts[count:]))
        return (ComponentCandidate((), required, produced),)

    @cached_property
    def problem(self) -> UnitProblem:
        """The problem that `descent.best_of` minimises: options of units, and prices of moves."""
        units = [
            tuple(self._option(node, place, candidate) for candidate in found)
            for (node, place), found in zip(self.places, self.found, strict=True)
        ]
        # A group of region arguments is a unit without work; its options are shardings.
        for one, found_layouts in self.region_arguments:
            agreed = []
            for at in found_layouts:
                asks = tuple(slot_sharding(slot, at) for slot in one.asks)
                makes = tuple(slot_sharding(slot, at) for slot in one.makes)
                agreed.append(Option(asks, makes, 0.0))
            units.append(tuple(agreed))
        # The sharding of a body's argument is the option of its group already. A move inside the
        # body to another result sharding would be paid in every iteration.
        still = {
            v for one, _ in self.region_arguments for v in self._body_arguments(one)
        } - self.sharded.fixed
        given, value_shardings = self._given_and_kept()
        wanted = tuple(self._required_outside())
        required_outside = {value for value, _ in wanted}
        # Partial sums that several readers take would be reduced by each of them, so only a value
        # with one reader may stay partial.
        alone = {v for v, users in enumerate(self.graph.users) if len(users) == 1}
        alone -= required_outside
        # `given` has the values that no unit computes, `value_shardings` those whose result
        # sharding is fixed, and `wanted` what other readers require, such as the results.
        return UnitProblem(
            tuple(units), given, value_shardings, wanted,
            move=self._move, first_move=partial(self._moves_s, is_first=True),
            alone=frozenset(alone), still=frozenset(still),
        )  # fmt: skip

    def _option(self, node: Node, place: int, candidate: ComponentCandidate) -> Option:
        """Return a candidate of a node's component as an option of the descent.

        Its seconds are those of all executions of the node in one training step. The option has the
        shardings in which operands are read (`asks`) and results are computed (`makes`).

        Args:
          place: the number of the component in the node.
        """
        values = (*node.operands, *node.results)
        shardings = tuple(self.value_shardings[v] for v in values)
        made, read = fused_values(self.graph)
        # The operator's price leaves out memory traffic for values that stay inside of a fused
        # kernel. For an operand, its operator and all its readers must fuse. A result that fuses
        # counts, too: the price of its first move includes writing it.
        fused = frozenset(
            k for k, v in enumerate(values) if v in made and (v in read or k >= len(node.operands))
        )
        part = OperatorPart(
            signature=node.signature,
            place=place,
            shardings=shardings,
            fused=fused,
            finite=self.finite,
        )
        seconds = operator_s(part, candidate, self.hardware)
        times = self.graph.trip_count(node)
        asks = tuple((node.operands[k], layout) for k, layout in candidate.required_shardings)
        makes = tuple((node.results[k], layout) for k, layout in candidate.produced)
        return Option(asks, makes, seconds * times)

    def _given_and_kept(self) -> tuple[dict[int, Sharding], dict[int, Sharding]]:
        """Return two dictionaries from values to shardings: `given` and `kept`.

        `given` has the values that no unit of the search computes: arguments, constants, arguments
        of bodies, and results of calls. Values of a group of region arguments are left out, because
        such a group is a unit. `kept` has all values whose result sharding is not chosen: those of
        `given` and annotated values.
        """
        graph, value_shardings = self.graph, self.value_shardings
        in_groups = {v for one, _ in self.region_arguments for v, _ in one.makes}
        body_arguments = (v for region in graph.regions for v in region.arguments)
        call_results = (v for node in graph.walk() if node.bodies for v in node.results)
        given = {
            v: value_shardings[v] for v in (*body_arguments, *graph.arguments) if v not in in_groups
        }
        # Every device has the whole of a constant.
        constants = {v: whole(value_shardings[v]) for v, _ in graph.constants}
        given |= constants
        given |= {v: value_shardings[v] for v in call_results if v not in in_groups}
        # Annotated values (`fixed`) are computed by units, in a sharding that the user gave.
        kept = {v: value_shardings[v] for v in (*given, *self.sharded.fixed)}
        return given, kept | constants

    def _required_outside(self) -> Iterator[Asked]:
        """Yield (value, required sharding) for the readers whose sharding is not chosen by price.

        These readers are the function's results, and those borders of loops and branches that keep
        their completed shardings because no group in `region_arguments` contains them.
        """
        graph = self.graph
        for value, given in zip(graph.results, self.sharded.results, strict=True):
            yield value, plain(given)
        # The shardings at other borders stay as completed, so that their readers require these.
        decided = {(one.call, v) for one, _ in self.region_arguments for v, _ in one.asks}
        for node in graph.walk():
            if node.bodies:
                agreed = border(graph, node, self.value_shardings)
                # A call reads its operands, and the end of a body reads the body's results.
                crossing = list(zip(node.operands, agreed.operands, strict=True))
                for body, (_, results) in zip(node.bodies, agreed.bodies, strict=True):
                    crossing += zip(graph.regions[body].results, results, strict=True)
                for value, layout in crossing:
                    if (node.index, value) not in decided:
                        yield value, layout

    @cached_property
    def _times(self) -> tuple[int, ...]:
        """Per value, how often one training step computes it (loops repeat their bodies)."""
        producer = self.graph.producer
        nodes = self.graph.nodes
        # An argument or constant of the function has no producer, and exists once.
        times = [1 if n is None else self.graph.trip_count(nodes[n]) for n in producer]
        for region in self.graph.regions:
            # An argument of a body is made once per iteration.
            for value in region.arguments:
                times[value] = region.trip_count
        return tuple(times)

    def _move(self, value: int, source: Sharding, target: Sharding) -> float:
        return self._moves_s(value, source, target, is_first=False)

    def _moves_s(self, value: int, source: Sharding, target: Sharding, *, is_first: bool) -> float:
        """Return the seconds that moves of a value between two shardings take in one step.

        Args:
          is_first: whether `source` is the sharding in which the value is computed. The seconds
            then include writing the value to memory.
        """
        # Every device can compute this value itself in any sharding, as an iota: it is never sent.
        if value in remade_values(self.graph):
            return 0.0
        made, read = (value in side for side in fused_values(self.graph))
        dtype = self.graph.values[value].type.dtype
        around = Neighbours(made, read, is_first)
        return move_s(source, target, dtype, self.hardware, around) * self._times[value]

    @cached_property
    def completed(self) -> tuple[int, ...]:
        """Per unit, the number of the option that is cheapest with the completed shardings.

        The descent starts from these options.
        """
        held, move = self.value_shardings, self._move

        def seconds(option: Option) -> float:
            """Return the seconds of an option with the moves of its operands and results."""
            # An option is priced as if all other units kept the completed shardings: its operands
            # are moved from these, and its results back to these.
            reads = sum(move(value, held[value], layout) for value, layout in option.asks)
            results = sum(move(value, layout, held[value]) for value, layout in option.makes)
            return option.seconds + reads + results

        prices = [[seconds(option) for option in options] for options in self.problem.units]
        return tuple(of_unit.index(min(of_unit)) for of_unit in prices)

    def applied(self, taken: Sequence[int]) -> ShardedGraph:
        """Return the sharded graph in which unit `k` uses its option number `taken[k]`.

        A unit is a node, a part of a node, or a group of values at the border of a call. The
        options decide the shardings of values, the loops of nodes, and the shardings of arguments
        and results of bodies.
        """
        problem = self.problem
        loops: dict[int, tuple[LoopDigits, ...]] = {}
        required: dict[int, tuple[tuple[tuple[int, Sharding], ...], ...]] = {}
        # `taken` is longer than `places`: options of region arguments follow, which change borders
        # only (`_borders`).
        for (node, _), alternatives, number in zip(self.places, self.found, taken, strict=False):
            # A value of numbers alone is computed again in each sharding, which decides its loops.
            if rules(node.signature) and node.results[0] not in remade_values(self.graph):
                # The components of a node follow each other in `places`, so each adds one entry.
                chosen = alternatives[number]
                loops[node.index] = (*loops.get(node.index, ()), chosen.loops)
                earlier = required.get(node.index, ())
                required[node.index] = (*earlier, chosen.required_shardings)
        # Result shardings are no options: each follows from the options of its maker and readers.
        value_shardings, changed = list(self.sharded.shardings), []
        for value in problem.makers:
            if value not in problem.value_shardings:
                best = problem.result_sharding(value, taken)[1]
                value_shardings[value] = interned(best.mesh, best.shape, best.dims, ())
                if value_shardings[value].dims != self.value_shardings[value].dims:
                    changed.append(Reason(value, value_shardings[value], "chosen by cost"))
        before = self.sharded
        borders = self._borders(taken[len(self.places) :])
        return replace(
            self.sharded,
            shardings=tuple(value_shardings),
            loops=loops,
            required=required,
            borders=borders,
            _history=lambda: (*before.history, *changed),
        )

    def _borders(self, taken: Sequence[int]) -> dict[int, RegionBorder]:
        """Return per loop or conditional (node index) the shardings of its arguments and results.

        Args:
          taken: for each group of values in `region_arguments`, the number of its chosen sharding.
        """
        # Per call, the completed shardings of all values, changed for the values of its groups.
        # Stacked values are left out, because `border` derives them from their slices in the body.
        value_shardings: dict[int, list[Sharding]] = {}
        for (one, found), k in zip(self.region_arguments, taken, strict=True):
            here = value_shardings.setdefault(one.call, list(self.value_shardings))
            for value in one.plain:
                here[value] = found[k]
        nodes = self.graph.nodes
        return {
            call: border(self.graph, nodes[call], here) for call, here in value_shardings.items()
        }
