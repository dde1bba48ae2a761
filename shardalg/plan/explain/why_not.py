"""Why a value does not have a sharding: the first obstacle, and the cost of the sharding."""

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
    """The reason why a value does not have a wanted sharding, and the cost of asking for it.

    Attributes:
      value, has, wanted: the value's name, its completed sharding, and the sharding in question.
      obstacle: the first step of completion that contradicts the wanted sharding, as text.
      verdict: the verdict on that step's sharding and the wanted one, with a reason and a witness;
        None if no step contradicts it.
      refused: the operators that proposed the wanted sharding, or a coarser one, in vain; see
        `refusals`.
      cost: the changes of the plan if the value is annotated with the wanted sharding.
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
        """The changes of the plan's figures if the value is annotated with the wanted sharding."""
        return self.cost.table

    def parts(self) -> Parts:
        """Return the obstacle, its witness, operators that proposed the sharding, and the costs."""
        head = f"{self.value} is {self.has.text()}, not {self.wanted.text()}: {self.obstacle}."
        refused = (
            ("Operators proposed it, and were refused:", self.refused) if len(self.refused) else ()
        )
        costs = ("With this annotation, the plan would change:", *self.cost.parts()[1:])
        if self.cost.is_empty:
            costs = ("With this annotation, the plan would be the same.",)
        contradiction: Parts = ()
        if self.verdict is not None and not self.verdict:
            # A coarser sharding has no conflict with the step's. The evidence of the verdict alone
            # would not tell why completion cannot choose it.
            coarser = self.verdict.relation == "refines"
            undo = "Completion only refines shardings, and would have to undo one: "
            contradiction = ((undo if coarser else "") + self.verdict.evidence,)
        return (head, *contradiction, *refused, *costs)


def why_not(trials: Trials, name: str, spec: object) -> WhyNot:
    """Return the first obstacle to a sharding of a value, and the cost of the sharding.

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
    """Check that a sharding does not split a value of a `shard_map` along its manual axes.

    Along manual axes the program is each device's own, so that a value there has no blocks.

    Raises:
      StrategyError: it does.
    """
    maker = graph.producer[value]
    # A value without a producer is an argument of a region; region 0 is the function itself.
    inside = (r.index for r in graph.regions if value in r.arguments)
    region = next(inside, 0) if maker is None else graph.nodes[maker].region
    manual = wanted.mesh.digits(graph.manual_axes(region))
    # A dimension may use a sub-axis of a manual axis only, which overlaps with it.
    if any(overlap(d, m) for dim in wanted.dims for d in dim for m in manual):
        raise StrategyError(
            f"{graph.values[value].name} is inside a shard_map over "
            f"{list(graph.manual_axes(region))}. Along these axes each device has its own value, "
            f"which {wanted.text()} would split. Ask for a value outside, or for other axes."
        )


def annotated_as(stages: Stages, value: int, wanted: Sharding) -> Annotations:
    """Return the annotations of a plan with one more: the sharding `wanted` for `value`.

    It replaces the value's own annotation. If the value is an argument whose new value is a result
    of the step, the annotation of the result changes, too.
    """
    given, graph = stages.annotations, stages.graph
    # Three places for an annotation: a site that makes the value, an annotated argument, or else
    # the list of annotated values.
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    if value in sites:
        slots: tuple[Slot, ...] = (("sites", sites.index(value)),)
    elif value in graph.arguments and given.arguments[graph.arguments.index(value)] is not None:
        slots = slots_of_argument(stages.traced, given, graph.arguments.index(value))
    else:
        return replace(given, values=(*given.values, (value, wanted)))
    return filled(given, slots, wanted)


def _obstacle(sharded: ShardedGraph, value: int, wanted: Sharding) -> tuple[str, Verdict | None]:
    """Return the first obstacle to a sharding as text, and the verdict on it.

    The verdict is None if no step of completion contradicts the sharding.
    """
    if sharded.shardings[value].dims == wanted.dims:
        return "it already has this sharding", None
    # Completion only refines: a step whose sharding the wanted one does not refine excludes it.
    for _, reason in sharded.changes.get(value, ()):
        layout = replace(reason.layout, unspecified_dims=())
        finer = refines(wanted, layout)
        if not finer:
            joint = compatible(layout, wanted)
            # Incompatibility is the stronger reason, and its verdict has a witness.
            verdict = finer if joint else joint
            return f"{_origin(sharded, reason)} {layout.text()}", verdict
    if value in sharded.fixed and _closed(sharded, value, wanted):
        return _kept(sharded, value), None
    return _unasked(sharded, value, wanted), None


def _kept(sharded: ShardedGraph, value: int) -> str:
    """Return text that an annotation fixes the value's sharding, with the remedy."""
    place = annotated(sharded, sharded.reasons[value])
    text = f"{place or 'its annotation'} is fixed as {sharded.shardings[value].text()}"
    return f"{text}; leave a dimension open (P.UNCONSTRAINED) to let completion refine it"


def _closed(sharded: ShardedGraph, value: int, wanted: Sharding) -> bool:
    """Return whether the wanted sharding differs in a dimension that the annotation closes."""
    has = sharded.shardings[value]
    differ = {d for d, dims in enumerate(has.dims) if dims != wanted.dims[d]}
    return not differ <= set(has.unspecified_dims)


def _origin(sharded: ShardedGraph, reason: Reason) -> str:
    """Return the annotation or the operator from which a value got a sharding, as text."""
    place = annotated(sharded, reason)
    return f"it came {reason.text(sharded.graph)} as" if place is None else f"{place} is annotated"


def _unasked(sharded: ShardedGraph, value: int, wanted: Sharding) -> str:
    """Return text: the reason why completion did not choose the sharding `wanted`.

    It is used if no step of completion contradicts the sharding. There are three reasons: an
    operator's proposal was refused, the size does not divide, or no operator proposed it.
    """
    graph = sharded.graph
    # A proposal of the wanted sharding, or of a coarser one, that came too late.
    for conflict in sharded.conflicts:
        if conflict.value == value and refines(wanted, conflict.refused):
            return f"it was {conflict.kept.text()} when {conflict.refused.text()} was proposed"
    if not wanted.is_even and value in (*graph.arguments, *graph.results):
        return "its size does not divide, and completion gives arguments and results even shardings"
    return "no operator that makes or reads the value proposes it"
