"""The reasons for a collective, and the cheapest change of annotations that removes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.costs.collectives import MovedValue
from shardalg.errors import StrategyError
from shardalg.plan.explain.changes import AnnotationChange, Changes
from shardalg.plan.explain.disagreements import Side, disagreement
from shardalg.plan.explain.explained import Annotated, ValueExplanation, explanation
from shardalg.plan.explain.removals import (
    QUICK_NODES,
    Effort,
    Trial,
    pairs,
    ranked,
    singles,
    together,
    undominated,
)
from shardalg.planner.padded_samples import stacks
from shardalg.planner.partition.choose.regions import stops
from shardalg.planner.stages import Stages
from shardalg.planner.trials import TrialOutcome, Trials
from shardalg.planner.trips import executions_text
from shardalg.sizes.amounts import number
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import AllReduce, ReduceScatter, ReduceScatters
from shardalg.tables import Answer, Parts, Table, bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

SUMS = (AllReduce, ReduceScatter, ReduceScatters)
SIDE_COLUMNS = ("side", "sharding", "who", "annotations")
CHANGE_COLUMNS = (
    "annotation", "sharding", "becomes", "changed_dims", "removes", "helps", "collectives",
    "wire_bytes", "peak_memory_bytes", "step_time_s",
)  # fmt: skip


@dataclass(frozen=True, repr=False, eq=False)
class CollectiveExplanation(Answer):
    """The reasons for a collective, and the changes of annotations that would remove it.

    Attributes:
      moved: the collective, and the value that it moves.
      has: the sharding that the value has before the collective, with its annotations.
      needs: the sharding that is needed, with its annotations.
    """

    moved: MovedValue
    has: Side
    needs: Side
    _trials: Trials = field(repr=False)
    _effort: Effort = field(default_factory=Effort, repr=False)

    @property
    def annotations(self) -> tuple[Annotated, ...]:
        """The annotations that cause the shardings `has` and `needs`; those of `has` come first."""
        return tuple(dict.fromkeys((*self.has.annotations, *self.needs.annotations)))

    @property
    def headline(self) -> str:
        """The kind, value, axes, bytes and cause of the collective, as text."""
        return _headline(self.moved, self._trials)

    @property
    def sides(self) -> Table:
        """The sharding that the value has and the one that is needed, with their annotations."""
        rows = [
            (name, side.layout.text(), side.words, ", ".join(map(str, side.annotations)) or "none")
            for name, side in (("has", self.has), ("needs", self.needs))
        ]
        return Table(SIDE_COLUMNS, tuple(rows))

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that change one annotation, best first (`removals.ranked`)."""
        return singles(self._trials, self.moved, (self.has, self.needs), self._effort)

    @cached_property
    def pairs(self) -> tuple[Trial, ...]:
        """The trials of two changes; empty if one removes the collective without more bytes."""
        found = any(trial.removes and not trial.more for trial in self.trials)
        return () if found else pairs(self._trials, self.moved, self.trials, self._effort)

    @cached_property
    def together(self) -> tuple[Trial, ...]:
        """A trial that changes three or more annotations to remove the collective.

        It is empty if one or two changes suffice, or if the number of trial plans is used up.
        """
        # Fewer changes are easier to make: larger sets are planned only if no pair removes it.
        if any(trial.removes for trial in (*self.trials, *self.pairs)):
            return ()
        # A set needs many plans: without effort left, the text offers `thorough=True` instead.
        if self._effort.is_spent:
            self._effort.leaves_out = True
            return ()
        return together(self._trials, self.moved)

    @property
    def change(self) -> AnnotationChange | Changes | None:
        """The cheapest change that removes the collective, `Changes` if of several; or None.

        The price of a step on the chip is its seconds, then its memory. See `helps`.
        """
        best = next(iter(self._removing), None)
        return None if best is None else best.change

    @property
    def helps(self) -> bool:
        """True if a change that removes the collective makes a step cheaper in time or memory."""
        return any(trial.helps for trial in self._removing)

    @cached_property
    def _removing(self) -> list[Trial]:
        """The trials that remove the collective, best first."""
        # Each of the three plans its trials when it is read. Pairs and sets stay empty if smaller
        # changes suffice, so they are read after the single changes.
        found = (*self.trials, *self.pairs, *self.together)
        return [trial for trial in ranked(found) if trial.removes]

    @cached_property
    def changes(self) -> Table:
        """A row per change that removes the collective, cheapest first, with the step's costs.

        A change is left out if an earlier one is as good in seconds, number of changed dimensions,
        wire bytes and peak memory. If no change removes the collective, the only row is the change
        that leaves the fewest bytes. The column `helps` says whether a step gets cheaper.
        """
        # Changes that another one beats in all figures would only lengthen the table.
        found = undominated(self._removing) or ranked([*self.trials, *self.pairs])[:1]
        return Table(CHANGE_COLUMNS, tuple(_trial_row(trial) for trial in found))

    @property
    def table(self) -> Table:
        """The changes of annotations that were planned, a row each."""
        return self.changes

    def parts(self) -> Parts:
        """Return the headline, both shardings, and the changes that would remove the collective."""
        return (
            self.headline,
            self.sides,
            "\n".join(filter(None, (*self._remedies(), self._by_layer()))),
            self.changes,
        )

    def _remedies(self) -> tuple[str, ...]:
        """Return the advice, and a note if the program is too large to plan all changes.

        The advice is a switch for a sum in a loop, or else a change of annotations.
        """
        # A switch needs no change of the user's annotations, so it is the simpler remedy.
        loop = self._after_the_loop()
        if loop:
            return (loop,)
        advice = self._advice()
        if not self._effort.leaves_out:
            return (advice,)
        count = counted(len(self.trials) + len(self.pairs), "change")
        return (
            advice,
            f"The program is large, so planning stopped after {count}: "
            f"plan.explain({self.moved.number}, thorough=True) plans more.",
        )

    def _after_the_loop(self) -> str:
        """Return the effect of `defer_in_loops` on a sum in a loop, as text; "" if it has none.

        With this switch, a loop adds up partial sums, and they are reduced once after the loop.
        """
        trials, place = self._trials, self.moved.place
        adds = isinstance(self.moved.step.instruction.attributes, SUMS)
        # It is no sum, the switch is on already, or the sum runs only once.
        if not adds or trials.options.switches.defer_in_loops or self.moved.step.count == 1:
            return ""
        now, then = trials.now, trials.deferred
        # If the loop itself reads the sum, it is still reduced there: the switch does not help.
        if number(then.sent.get(place, 0)) >= number(now.sent[place]):
            return ""
        effect = _effect(now, then, trials.machine)
        return (
            "It is reduced in every iteration of a loop that only adds it up. "
            f"Switches(defer_in_loops=True) reduces it once, after the loop. {effect}"
        )

    def _by_layer(self) -> str:
        """Return the effect of flipping `stream_layers`, as text.

        "" if the collective moves no stack of layers that a loop reads, and no layer of one.
        """
        trials, stages = self._trials, self._trials.stages
        loops = stages.graph.nodes_of(["scan"])
        # `stacks` gives pairs (stack of all layers, layer of one iteration); both can be gathered.
        known = {v for node in loops for pair in stacks(stages.graph, node) for v in pair}
        other = trials.other_layers if self.moved.value in known else None
        if other is None:
            return ""
        effect = _effect(trials.now, other, trials.machine)
        return f"{LAYERS[stages.streams]} {effect}"

    def _advice(self) -> str:
        """Return the cheapest change that removes the collective, and its effect, as text.

        If no change removes it, the text names the change that leaves the fewest bytes.
        """
        removing, now = self._removing, self._trials.now
        chip = self._trials.machine
        if removing:
            best = removing[0]
            size = len(best.change.steps)
            what = _SETS.get(size, f"Set of {size} changes that removes it, all of them needed")
            if not self.helps:
                what = f"It can be removed, but no change makes a step cheaper. {what}"
            return f"{what}: {best.change}. {_effect(now, best.outcome, chip)}"
        # A collective in a `shard_map`, or of a choice by cost, has no annotation behind it.
        if not self.trials:
            return f"No annotation causes it, so no change of a strategy removes it (now: {now})."
        tried = f"None of {len(self.trials)} single changes" + (
            f" and {len(self.pairs)} pairs" if self.pairs else ""
        )
        # A change that only shrinks the collective can still help. `ranked` puts the change that
        # leaves the fewest bytes first if none removes the collective.
        near = ranked([*self.trials, *self.pairs])[0]
        return (
            f"{tried} removes it. The nearest is {near.change}. {_effect(now, near.outcome, chip)}"
        )


LAYERS = {
    False: "The stack is gathered before the loop, which reads one layer per iteration: "
    "Options(stream_layers=True) fetches one layer per iteration.",
    True: "The loop fetches one layer of the stack per iteration: Options(stream_layers=False) "
    "gathers the stack before the loop.",
}
_SETS = {
    1: "Cheapest change that removes it",
    2: "Cheapest pair of changes that removes it",
}


def _effect(now: TrialOutcome, then: TrialOutcome, chip: str) -> str:
    """Return seconds, bytes sent and peak memory of a step before and after a change, as text.

    Args:
      now, then: the figures before and after. chip: the name of the chip for the seconds.
    """
    sent, sent_after = number(now.wire_bytes), number(then.wire_bytes)
    verdict = "the same"
    if sent_after != sent:
        # Of nothing sent before, there is no share.
        share = f"{abs(sent_after - sent) / sent:.0%}" if sent else "all of it"
        verdict = f"{share} less" if sent_after < sent else f"{share} MORE: it moves elsewhere"
    seconds = f"{seconds_text(now.step_time_s)} to {seconds_text(then.step_time_s)} on {chip}"
    memory = f"{bytes_text(now.peak_memory_bytes)} to {bytes_text(then.peak_memory_bytes)}"
    counts = f"{now.collectives:,} to {then.collectives:,} collectives"
    fits = "" if then.fits else ", which does not fit"
    return (
        f"Step {seconds}, sent {bytes_text(sent)} to {bytes_text(sent_after)} ({verdict}), "
        f"{counts}, peak memory {memory}{fits}."
    )


def _headline(moved: MovedValue, trials: Trials) -> str:
    """Return the kind, value, axes, line, bytes and cause of a collective, as text.

    E.g. "all_gather of w along X at model.py:12: 4 MB sent per device, 12 times; ...".
    """
    stages = trials.stages
    # `alike` is the pair (kind, digits).
    kind, instruction, graph = moved.alike[0], moved.step.instruction, stages.graph
    axes = ",".join(stages.mesh.texts(moved.digits))
    name = graph.values[moved.value].name
    node = None if instruction.node is None else graph.nodes[instruction.node]
    line = "" if node is None or not node.source else f" at {node.source}"
    times = executions_text(graph, moved.step.loops, moved.step.count)
    sent = f"{bytes_text(moved.wire_bytes)} sent per device, {times}"
    # A sum in a loop may stay there, because an operator prevents its deferral.
    adds = isinstance(instruction.attributes, SUMS)
    loop_note = _in_loop(moved, trials) if adds else ""
    return f"{kind} of {name} along {axes}{line}: {sent}; {instruction.why}.{loop_note}"


def _in_loop(moved: MovedValue, trials: Trials) -> str:
    """Return text about the operator past which a sum in a loop cannot be deferred, or "".

    A sum that could be deferred past all operators would be reduced once, after the loop.
    """
    defers = trials.options.switches.defer_in_loops
    by = stops(trials.stages.graph, moved.value) if defers else None
    if by is None:
        return ""
    operator = f"{by.primitive} ({by.source})" if by.source else by.primitive
    return f" It is reduced in every iteration: no sum can be deferred past {operator}."


def _trial_row(trial: Trial) -> tuple[object, ...]:
    """Return the row of `CHANGE_COLUMNS` for one trial; several changes are joined by "and".

    It has the places, their shardings before and after, and the figures of the plan with them.
    """
    steps, outcome = trial.change.steps, trial.outcome
    return (
        " and ".join(str(step.place) for step in steps),
        " and ".join(step.before.text() for step in steps),
        " and ".join(step.after.text() for step in steps),
        trial.change.changed_dims, trial.removes, trial.helps, outcome.collectives,
        number(outcome.wire_bytes), outcome.peak_memory_bytes, outcome.step_time_s,
    )  # fmt: skip


def explain_collective(
    trials: Trials, table: Table, which: object, *, thorough: bool = False
) -> CollectiveExplanation:
    """Return the explanation of a collective.

    Args:
      table: the collectives. which: a row of the table, its number, or the instruction.
      thorough: whether to plan every change of one annotation, even in a large program.

    Raises:
      StrategyError: there is no such collective.
    """
    stages = trials.stages
    moved = stages.traffic.collectives[_number(stages, table, which)]
    sides, effort = disagreement(stages.sharded, stages.traffic, moved), Effort()
    if not thorough:
        effort.nodes = QUICK_NODES
    return CollectiveExplanation(moved, *sides, trials, effort)


def explain(
    plan: Plan, what: object, *, thorough: bool
) -> ValueExplanation | CollectiveExplanation:
    """Return why a value has its sharding, or why a collective is there; see `Plan.explain`.

    Raises:
      StrategyError: no value of that name, or no such collective.
    """
    # Text always names a value: collectives have a number, a row or an instruction.
    if isinstance(what, str):
        return explanation(plan._sharded, what)
    return explain_collective(plan._trials, plan._collectives_table, what, thorough=thorough)


def _number(stages: Stages, table: Table, which: Any) -> int:
    """Return the number of a collective in the plan; `which` is as in `explain_collective`.

    Raises:
      StrategyError: there is no such collective.
    """
    count, found = len(stages.traffic.collectives), None
    if isinstance(which, Instruction):
        runs = (m.number for m in stages.traffic.collectives if m.step.instruction == which)
        found = next(runs, None)
    # pandas is not imported before a table is asked for, so a row is recognised by its type's name.
    elif type(which).__name__ == "Series":
        label = _index(which.name)
        # The label of a row is its number, but a row of another plan has a label, too.
        if label is not None and 0 <= label < len(table) and tuple(which) == table.rows[label]:
            found = label
    else:
        found = _index(which)
    if found is None or not 0 <= found < count:
        raise StrategyError(
            f"{which!r:.200} is not a collective of this plan, which has {count}, numbered from "
            "0. Pass the name of a value, or a row of plan.collectives() or its number."
        )
    return found


def _index(which: Any) -> int | None:
    """Return a Python, numpy or JAX integer as an int; None for any other value."""
    try:
        return which.__index__()
    except AttributeError:
        return None
