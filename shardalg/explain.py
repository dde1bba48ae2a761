"""Answers that are checked by planning again: what removes a collective, what a layout would cost.

The trial is `stages.planned`, which is what `plan.replan` runs: the same trace, one annotation
other than it is. Every figure is that of the plan that it gives; with named sizes, at the hints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import axis_names
from shardalg.costs.cost import number
from shardalg.errors import StrategyError
from shardalg.merge.compatible import compatible, refines
from shardalg.merge.verdict import Verdict
from shardalg.propagate.sharded import Reason, ShardedGraph
from shardalg.propagate.strategy import Annotations, Options, layout_of
from shardalg.report.answers import Answer, Parts
from shardalg.report.chains import Annotated, annotated, value_named
from shardalg.report.difference import PlanDifference, difference
from shardalg.report.disagreements import Moved, Side, disagreement
from shardalg.spmd.program import Instruction
from shardalg.stages import Stages, planned
from shardalg.table import Table
from shardalg.traced import Traced

MOST_PLACES = 6
"""So many of the annotations behind a collective are tried otherwise, the value's own first."""
SIDE_COLUMNS = ("side", "sharding", "who", "annotations")
CHANGE_COLUMNS = (
    "annotation", "sharding", "becomes", "changed_dims", "removes", "collectives",
    "wire_bytes", "peak_memory_bytes",
)  # fmt: skip
Slot = tuple[str, int]
"""An entry of `Annotations`: its field, and the place in it."""


@dataclass(frozen=True)
class Change:
    """One annotation with another layout.

    Attributes:
      place: what is annotated; slots: all that one spec says (sites of one name, a state's argument
        and result).
      before, after: its layout; changed_dims: in how many dimensions they differ.
    """

    place: Annotated
    slots: tuple[Slot, ...]
    before: Sharding
    after: Sharding

    @property
    def changed_dims(self) -> int:
        """In how many dimensions the layouts differ."""
        pairs = zip(self.before.dims, self.after.dims, strict=True)
        return sum(before != after for before, after in pairs)

    def applied(self, annotations: Annotations) -> Annotations:
        """The annotations with this change."""
        return _filled(annotations, self.slots, self.after)

    def __str__(self) -> str:
        return f"{self.place} as {self.after.text()} instead of {self.before.text()}"


@dataclass(frozen=True, eq=False)
class Trials:
    """Plans of the same trace under other annotations, each made once."""

    stages: Stages
    options: Options
    _made: dict[Annotations, Stages] = field(default_factory=dict, repr=False)

    def under(self, annotations: Annotations) -> Stages:
        """The plan under these annotations."""
        if annotations not in self._made:
            self._made[annotations] = planned(self.stages.traced, annotations, self.options)
        return self._made[annotations]


@dataclass(frozen=True)
class Trial:
    """A change, the plan that it gives, and what that does to the collective in question.

    Attributes:
      removes: whether it is gone; left_bytes: wire bytes of a step that still move its value at its
        operator.
    """

    change: Change
    stages: Stages
    removes: bool
    left_bytes: int | float


@dataclass(frozen=True, repr=False, eq=False)
class CollectiveExplanation(Answer):
    """Why a collective is there, and which single annotation, changed, would remove it.

    Attributes:
      moved: the collective.
      has, needs: the two sides that disagree.
    """

    moved: Moved
    has: Side
    needs: Side
    _trials: Trials = field(repr=False)

    @property
    def annotations(self) -> tuple[Annotated, ...]:
        """What either side comes from, the value's own first."""
        return tuple(dict.fromkeys((*self.has.annotations, *self.needs.annotations)))

    @property
    def sides(self) -> Table:
        """What the value has and what is needed of it, with the annotations behind."""
        rows = [
            (name, side.layout.text(), side.words, ", ".join(map(str, side.annotations)))
            for name, side in (("has", self.has), ("needs", self.needs))
        ]
        return Table(SIDE_COLUMNS, tuple(rows))

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every single change that was tried, planned again.

        First those that remove the collective, the smallest first (dimensions changed, then wire
        bytes of the step); then the others, by the bytes that still move the value at the operator.
        """
        before = self._trials.stages
        tried = []
        for change in _changes(before, self.annotations, self.moved.digits):
            made = self._trials.under(change.applied(before.annotations))
            gone, left = _removes(self.moved, before, made), _left(self.moved, made)
            tried.append(Trial(change, made, gone, left))
        return tuple(sorted(tried, key=_rank))

    @property
    def change(self) -> Change | None:
        """The smallest single change that removes the collective; None where none does."""
        return self.trials[0].change if self.trials and self.trials[0].removes else None

    @cached_property
    def changes(self) -> Table:
        """The changes that remove it with what the step then costs; the nearest where none does."""
        found = [trial for trial in self.trials if trial.removes] or self.trials[:1]
        return Table(CHANGE_COLUMNS, tuple(_trial_row(trial) for trial in found))

    @property
    def table(self) -> Table:
        """The changes."""
        return self.changes

    def parts(self) -> Parts:
        """What moves, the two sides, and what would remove it."""
        return (
            _headline(self.moved, self._trials.stages),
            self.sides,
            self._advice(),
            self.changes,
        )

    def _advice(self) -> str:
        now = f"now: {_price(self._trials.stages)}"
        if self.change is not None:
            then = _price(self.trials[0].stages)
            return f"Smallest change that removes it: {self.change} ({now}; then: {then})."
        if not self.trials:
            return f"No annotation stands behind it that could be changed ({now})."
        near = f"{self.trials[0].change} ({now}; then: {_price(self.trials[0].stages)})"
        return f"None of {len(self.trials)} single changes removes it; the nearest is {near}."


def _headline(moved: Moved, stages: Stages) -> str:
    kind, instruction = moved.alike[0], moved.step.instruction
    axes = ",".join(axis_names(stages.mesh, moved.digits))
    name = stages.graph.values[moved.value].name
    sent = f"{number(moved.wire_bytes):,} wire bytes per device, {moved.step.count} times a step"
    return f"{kind} of {name} along {axes}: {sent}; {instruction.why}."


def _price(stages: Stages) -> str:
    traffic, peak = stages.traffic, stages.memory.peak_bytes
    sent = f"{number(traffic.wire_bytes):,} wire bytes"
    return f"{len(traffic.collectives)} collectives, {sent}, peak {number(peak):,} bytes"


def _trial_row(trial: Trial) -> tuple[object, ...]:
    change, traffic = trial.change, trial.stages.traffic
    return (
        str(change.place), change.before.text(), change.after.text(), change.changed_dims,
        trial.removes, len(traffic.collectives), number(traffic.wire_bytes),
        trial.stages.memory.peak_bytes,
    )  # fmt: skip


def _rank(trial: Trial) -> tuple[object, ...]:
    sent = trial.stages.traffic.wire_bytes
    first = trial.change.changed_dims if trial.removes else trial.left_bytes
    return (not trial.removes, first, sent)


def _removes(moved: Moved, before: Stages, after: Stages) -> bool:
    """Whether a plan lacks a collective that another has, and does not do the same elsewhere.

    Nothing moves the value at that operator, and collectives of its kind along its axes run fewer
    times in a step: a sum that is finished one operator later is not removed.
    """
    return not _left(moved, after) and _runs(moved, after) < _runs(moved, before)


def _left(moved: Moved, stages: Stages) -> int | float:
    here = [other for other in stages.traffic.collectives if other.place == moved.place]
    return sum(other.step.count * other.wire_bytes for other in here)


def _runs(moved: Moved, stages: Stages) -> int:
    alike = [o.step.count for o in stages.traffic.collectives if o.alike == moved.alike]
    return sum(alike)


def _changes(stages: Stages, places: tuple[Annotated, ...], digits: Digits) -> Iterator[Change]:
    """Each of the annotations with some of the collective's axes dropped, added or moved."""
    seen: set[tuple[Slot, ...]] = set()
    for place in places:
        slots = _slots(stages.traced, stages.annotations, place)
        if slots in seen or len(seen) == MOST_PLACES:
            continue
        seen.add(slots)
        field_, at = slots[0]
        before = getattr(stages.annotations, field_)[at]
        for dims in _edits(before, digits):
            yield Change(place, slots, before, before.with_dims(dims))


def _edits(layout: Sharding, digits: Digits) -> Iterator[tuple[Digits, ...]]:
    """Layouts in which one axis, or all of them, stand on another dimension or on none."""
    groups = [(digit,) for digit in digits] + ([digits] if len(digits) > 1 else [])
    found: dict[tuple[Digits, ...], None] = {}
    for group in groups:
        rest = tuple(tuple(d for d in dim if d not in group) for dim in layout.dims)
        found[rest] = None
        for at, dim in enumerate(rest):
            longer = (*dim, *group)
            if layout.shape[at] % parts(longer) == 0:
                found[(*rest[:at], longer, *rest[at + 1 :])] = None
    found.pop(layout.dims, None)
    yield from found


def _slots(traced: Traced, annotations: Annotations, place: Annotated) -> tuple[Slot, ...]:
    """All annotations that one spec of the user's stands for, sorted."""
    return _TOGETHER[place.kind](traced, annotations, place.number)


def _sites(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    """Sites of one name, or of one line where they have none, that are annotated alike."""
    graph = traced.graph

    def spelled(at: int) -> tuple[object, ...]:
        site, layout = graph.sites[at], annotations.sites[at]
        line = site.name or graph.nodes[site.node].source
        return line, layout and layout.dims

    alike = [at for at in range(len(graph.sites)) if spelled(at) == spelled(number)]
    return tuple(("sites", at) for at in alike)


def _argument(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    result = dict(_states(traced, annotations)).get(number)
    return (("arguments", number), *([("results", result)] if result is not None else []))


def _result(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    for argument, result in _states(traced, annotations):
        if result == number:
            return (("arguments", argument), ("results", result))
    return (("results", number),)


_TOGETHER: Mapping[str, Callable[[Traced, Annotations, int], tuple[Slot, ...]]] = {
    "site": _sites,
    "argument": _argument,
    "result": _result,
}


def _states(traced: Traced, annotations: Annotations) -> Iterator[tuple[int, int]]:
    """(argument, result) of state that a step takes and gives back: donated, of one path and spec.

    Such a pair keeps one layout, or every step would begin with a reshard that no plan shows.
    """
    graph, free = traced.graph, dict.fromkeys(range(len(traced.graph.results)))
    for argument in traced.donated:
        path = graph.argument_paths[argument]
        tail = path[path.index("[") :] if "[" in path else ""
        kind = graph.values[graph.arguments[argument]].type
        for result in free:
            alike = graph.values[graph.results[result]].type == kind
            same = annotations.arguments[argument] == annotations.results[result]
            if alike and same and graph.result_paths[result].endswith(tail):
                del free[result]
                yield argument, result
                break


def explain_collective(trials: Trials, table: Table, which: object) -> CollectiveExplanation:
    """Why a collective is there.

    Args:
      table: of the collectives; which: a row of it, its number, or the instruction.

    Raises:
      StrategyError: there is no such collective.
    """
    stages = trials.stages
    moved = stages.traffic.collectives[_number(stages, table, which)]
    return CollectiveExplanation(
        moved, *disagreement(stages.sharded, stages.traffic, moved), trials
    )


def _number(stages: Stages, table: Table, which: object) -> int:
    found = _FINDERS.get(type(which).__name__, _by_number)(stages, table, which)
    if found is None or not 0 <= found < len(table):
        raise StrategyError(
            f"{which!r:.200} is no collective of this plan, which has {len(table)}, numbered from "
            "0. Pass the name of a value, or a row of plan.collectives() or its number."
        )
    return found


def _by_number(stages: Stages, table: Table, which: Any) -> int | None:
    try:
        return which.__index__()
    except AttributeError:
        return None


def _by_row(stages: Stages, table: Table, which: Any) -> int | None:
    """A row of the DataFrame: its label, if its content is still that of the table's row."""
    at = _by_number(stages, table, which.name)
    known = at is not None and 0 <= at < len(table)
    return at if known and tuple(which) == table.rows[at] else None


def _by_instruction(stages: Stages, table: Table, which: Any) -> int | None:
    found = [m.number for m in stages.traffic.collectives if m.step.instruction == which]
    return found[0] if found else None


_FINDERS: Mapping[str, Callable[[Stages, Table, Any], int | None]] = {
    "Series": _by_row,
    Instruction.__name__: _by_instruction,
}


@dataclass(frozen=True, repr=False, eq=False)
class WhyNot(Answer):
    """Why a value does not have a layout, and what it would cost if it had.

    Attributes:
      value, has, wanted: name, completed layout, and the one asked about.
      obstacle: the first step of completion that stands against it, in words.
      verdict: of the layout of that step and the wanted one, with `reason` and `witness`; None
        where no step contradicts it.
      cost: what changes in the plan where the value is annotated so.
    """

    value: str
    has: Sharding
    wanted: Sharding
    obstacle: str
    verdict: Verdict | None
    cost: PlanDifference

    @property
    def table(self) -> Table:
        """What would change."""
        return self.cost.table

    def parts(self) -> Parts:
        """The obstacle, its witness, and the costs."""
        head = f"{self.value} is {self.has.text()}, not {self.wanted.text()}: {self.obstacle}."
        shown = () if self.verdict is None or self.verdict else (self.verdict.reason,)
        return (head, *shown, "Annotated so, the plan would change:", *self.cost.parts()[1:])


def why_not(trials: Trials, name: str, spec: object) -> WhyNot:
    """The first obstacle to a layout of a value, and what the layout would cost.

    Raises:
      StrategyError: no value has that name, or the spec does not fit it.
    """
    stages = trials.stages
    sharded, graph = stages.sharded, stages.graph
    value = value_named(graph, name)
    wanted = layout_of(graph, stages.mesh, value, spec)
    words, verdict = _obstacle(sharded, value, wanted)
    other = trials.under(_with(stages, value, wanted))
    cost = difference(stages, other)
    return WhyNot(name, sharded.shardings[value], wanted, words, verdict, cost)


def _with(stages: Stages, value: int, wanted: Sharding) -> Annotations:
    """The annotations with one value annotated: where it has an annotation, else beside them.

    State that comes as an argument and goes as a result is changed at both ends.
    """
    given, graph = stages.annotations, stages.graph
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    if value in sites:
        slots: tuple[Slot, ...] = (("sites", sites.index(value)),)
    elif value in graph.arguments and given.arguments[graph.arguments.index(value)] is not None:
        slots = _argument(stages.traced, given, graph.arguments.index(value))
    else:
        return replace(given, values=(*given.values, (value, wanted)))
    return _filled(given, slots, wanted)


def _filled(given: Annotations, slots: tuple[Slot, ...], layout: Sharding) -> Annotations:
    """The annotations with one layout in some of their places."""
    sides = {name: list(getattr(given, name)) for name, _ in slots}
    for name, at in slots:
        shape = layout.shape if sides[name][at] is None else sides[name][at].shape
        sides[name][at] = replace(layout, shape=shape)
    return replace(given, **{name: tuple(side) for name, side in sides.items()})


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
        return "its annotation is kept as it is; leave a dimension open to refine it", None
    return _unasked(sharded, value, wanted), None


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
        if conflict.value == value and refines(conflict.refused, wanted):
            node = "a result" if conflict.node is None else graph.nodes[conflict.node].primitive
            return f"{node} asks for {conflict.refused.text()}, after the order was decided"
    if not wanted.is_even and value in (*graph.arguments, *graph.results):
        return "its size does not divide, and an argument or result is completed evenly"
    return "nothing that it is made of, or used for, asks for it"
