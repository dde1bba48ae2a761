"""Why a collective is there, and the smallest change of one annotation that removes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardalg.costs.cost import number
from shardalg.errors import StrategyError
from shardalg.explain.changes import Change, changes
from shardalg.explain.trials import Outcome, Trials
from shardalg.report.answers import Answer, Parts
from shardalg.report.chains import Annotated
from shardalg.report.disagreements import Moved, Side, disagreement
from shardalg.spmd.program import Instruction
from shardalg.stages import Stages
from shardalg.table import Table

SIDE_COLUMNS = ("side", "sharding", "who", "annotations")
CHANGE_COLUMNS = (
    "annotation", "sharding", "becomes", "changed_dims", "removes", "collectives",
    "wire_bytes", "peak_memory_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A change, what the plan that it gives sends and holds, and whether that removes a collective.

    Attributes:
      left_bytes: wire bytes of a step that still move the collective's value at its operator.
    """

    change: Change
    outcome: Outcome
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
        stages, moved = self._trials.stages, self.moved
        found = changes(stages, self.annotations, moved.digits)
        tried = [(c, self._trials.outcome(c.applied(stages.annotations))) for c in found]
        now = self._trials.now
        made = [Trial(c, o, _removes(moved, now, o), o.sent.get(moved.place, 0)) for c, o in tried]
        return tuple(sorted(made, key=_rank))

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
        now = f"now: {self._trials.now}"
        if self.change is not None:
            then = self.trials[0].outcome
            return f"Smallest change that removes it: {self.change} ({now}; then: {then})."
        if not self.trials:
            return f"No annotation stands behind it that could be changed ({now})."
        near = f"{self.trials[0].change} ({now}; then: {self.trials[0].outcome})"
        return f"None of {len(self.trials)} single changes removes it; the nearest is {near}."


def _headline(moved: Moved, stages: Stages) -> str:
    kind, instruction = moved.alike[0], moved.step.instruction
    axes = ",".join(stages.mesh.texts(moved.digits))
    name = stages.graph.values[moved.value].name
    sent = f"{number(moved.wire_bytes):,} wire bytes per device, {moved.step.count} times a step"
    return f"{kind} of {name} along {axes}: {sent}; {instruction.why}."


def _trial_row(trial: Trial) -> tuple[object, ...]:
    change, outcome = trial.change, trial.outcome
    return (
        str(change.place), change.before.text(), change.after.text(), change.changed_dims,
        trial.removes, outcome.collectives, number(outcome.wire_bytes), outcome.peak_memory_bytes,
    )  # fmt: skip


def _rank(trial: Trial) -> tuple[object, ...]:
    first = trial.change.changed_dims if trial.removes else trial.left_bytes
    return (not trial.removes, first, trial.outcome.wire_bytes)


def _removes(moved: Moved, now: Outcome, then: Outcome) -> bool:
    """Whether a plan lacks a collective that another has, and does not do the same elsewhere.

    Nothing moves the value at that operator, and collectives of its kind along its axes run fewer
    times in a step: a sum that is finished one operator later is not removed.
    """
    fewer = then.runs.get(moved.alike, 0) < now.runs[moved.alike]
    return moved.place not in then.sent and fewer


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
    count = len(stages.traffic.collectives)
    if found is None or not 0 <= found < count:
        raise StrategyError(
            f"{which!r:.200} is no collective of this plan, which has {count}, numbered from "
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
