"""Why a value does not have a layout: the first obstacle, and what the layout would cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardalg.algebra.digits import overlap
from shardalg.algebra.sharding import Sharding
from shardalg.errors import StrategyError
from shardalg.graph.ir import Graph
from shardalg.merge.compatible import compatible, refines
from shardalg.merge.verdict import Verdict
from shardalg.plan.explain.changes import Slot, filled, slots_of_argument
from shardalg.plan.explain.decisions import PlanDifference, difference
from shardalg.plan.explain.explained import annotated, refusals, value_named
from shardalg.planner.propagate.sharded import Reason, ShardedGraph
from shardalg.planner.propagate.strategy import Annotations, layout_of
from shardalg.planner.stages import Stages
from shardalg.planner.trials import Trials
from shardalg.tables import Answer, Parts, Table


@dataclass(frozen=True, repr=False, eq=False)
class WhyNot(Answer):
    """Why a value does not have a layout, and what it would cost if it had.

    Attributes:
      value, has, wanted: name, completed layout, and the one asked about.
      obstacle: the first step of completion that stands against it, in words.
      verdict: of the layout of that step and the wanted one, with `reason` and `witness`; None
        where no step contradicts it.
      refused: the operators that asked for the wanted layout, or for a coarser one, in vain; see
        `refusals`.
      cost: what changes in the plan where the value is annotated so.
    """

    value: str
    has: Sharding
    wanted: Sharding
    obstacle: str
    verdict: Verdict | None
    refused: Table
    cost: PlanDifference

    @property
    def table(self) -> Table:
        """What would change."""
        return self.cost.table

    def parts(self) -> Parts:
        """The obstacle, its witness, who asked for the layout in vain, and the costs."""
        head = f"{self.value} is {self.has.text()}, not {self.wanted.text()}: {self.obstacle}."
        refused = ("It was asked for, and refused:", self.refused) if len(self.refused) else ()
        costs = ("Annotated so, the plan would change:", *self.cost.parts()[1:])
        if self.cost.is_empty:
            costs = ("Annotated so, the plan would be the same.",)
        return (head, *_contradiction(self.verdict), *refused, *costs)


def _contradiction(verdict: Verdict | None) -> Parts:
    """Why the layout of a step and the wanted one do not go together, with the witness."""
    if verdict is None or verdict:
        return ()
    coarser = verdict.relation == "refines"
    undone = "Steps only refine layouts, and this one would be undone: " if coarser else ""
    return (undone + verdict.evidence,)


def why_not(trials: Trials, name: str, spec: object) -> WhyNot:
    """The first obstacle to a layout of a value, and what the layout would cost.

    Raises:
      StrategyError: no value has that name, or the spec does not fit it.
    """
    stages = trials.stages
    sharded, graph = stages.sharded, stages.graph
    value = value_named(graph, name)
    wanted = layout_of(graph, stages.mesh, value, spec)
    _refuse_own(graph, value, wanted)
    words, verdict = _obstacle(sharded, value, wanted)
    other = trials.under(annotated_as(stages, value, wanted))
    cost = difference(stages, other)
    refused = refusals(sharded, (value,), lambda asked: bool(refines(wanted, asked)))
    return WhyNot(name, sharded.shardings[value], wanted, words, verdict, refused, cost)


def _refuse_own(graph: Graph, value: int, wanted: Sharding) -> None:
    """In a manual region each device has a value of its own, which no layout cuts."""
    maker = graph.producer[value]
    inside = (r.index for r in graph.regions if value in r.arguments)
    region = next(inside, 0) if maker is None else graph.nodes[maker].region
    manual = wanted.mesh.digits(graph.manual_axes(region))
    if any(overlap(d, m) for dim in wanted.dims for d in dim for m in manual):
        raise StrategyError(
            f"{graph.values[value].name} stands in a shard_map over "
            f"{list(graph.manual_axes(region))}: along these each device has a value of its own, "
            f"and {wanted.text()} cuts it. Ask of a value outside, or of other axes."
        )


def annotated_as(stages: Stages, value: int, wanted: Sharding) -> Annotations:
    """The annotations with one value annotated: where it has an annotation, else beside them.

    State that comes as an argument and goes as a result is changed at both ends.
    """
    given, graph = stages.annotations, stages.graph
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    if value in sites:
        slots: tuple[Slot, ...] = (("sites", sites.index(value)),)
    elif value in graph.arguments and given.arguments[graph.arguments.index(value)] is not None:
        slots = slots_of_argument(stages.traced, given, graph.arguments.index(value))
    else:
        return replace(given, values=(*given.values, (value, wanted)))
    return filled(given, slots, wanted)


def _obstacle(sharded: ShardedGraph, value: int, wanted: Sharding) -> tuple[str, Verdict | None]:
    """The first change of a value that the wanted layout does not refine; what else stands in."""
    if sharded.shardings[value].dims == wanted.dims:
        return "it is laid out so already", None
    for _, reason in sharded.changes.get(value, ()):
        layout = replace(reason.layout, unspecified_dims=())
        finer = refines(wanted, layout)
        if not finer:
            joint = compatible(layout, wanted)
            verdict = finer if joint else joint
            return f"{_said(sharded, reason)} {layout.text()}", verdict
    if value in sharded.fixed and _closed(sharded, value, wanted):
        return _kept(sharded, value), None
    return _unasked(sharded, value, wanted), None


def _kept(sharded: ShardedGraph, value: int) -> str:
    place = annotated(sharded, sharded.reasons[value])
    said = f"{place or 'its annotation'} is kept as it is, {sharded.shardings[value].text()}"
    return f"{said}; leave a dimension open (P.UNCONSTRAINED) to let completion refine it"


def _closed(sharded: ShardedGraph, value: int, wanted: Sharding) -> bool:
    """Whether an annotated value would differ in a dimension that its annotation does not open."""
    has = sharded.shardings[value]
    differ = {d for d, dims in enumerate(has.dims) if dims != wanted.dims[d]}
    return not differ <= set(has.unspecified_dims)


def _said(sharded: ShardedGraph, reason: Reason) -> str:
    place = annotated(sharded, reason)
    return f"it came {reason.text(sharded.graph)} as" if place is None else f"{place} is annotated"


def _unasked(sharded: ShardedGraph, value: int, wanted: Sharding) -> str:
    """Why no step brought a layout that nothing contradicts."""
    graph = sharded.graph
    for conflict in sharded.conflicts:
        if conflict.value == value and refines(wanted, conflict.refused):
            return f"it was {conflict.kept.text()} when {conflict.refused.text()} was asked for"
    if not wanted.is_even and value in (*graph.arguments, *graph.results):
        return "its size does not divide, and an argument or result is completed evenly"
    return "nothing that it is made of, or used for, asks for it"
