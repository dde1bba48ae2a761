"""`plan.patch()`: the constraints, their worth, and the check against XLA's own program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.errors import PatchError
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.plan.patching.candidates import alternatives, by_difference, grouped
from shardalg.plan.patching.constraint_trials import Chosen, ConstraintTrials, XlaFigures
from shardalg.plan.patching.edits import Edit, SourceNames, edits
from shardalg.plan.patching.explicit_edits import ExplicitPatch, explicit_patch
from shardalg.plan.patching.minimal import NEAR, MinimalSearch
from shardalg.plan.patching.patch_check import PatchCheck, checked
from shardalg.plan.patching.probes import BORDER, Constraint, has_open_border, marked_plan
from shardalg.plan.patching.source_patch import SourcePatch
from shardalg.plan.patching.user_code import UserFile, user_files
from shardalg.tables import Parts, Table, bytes_text, seconds_text

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

LINE_COLUMNS = ("place", "constraint", "worth_bytes", "worth_s", "worth_flops")
LEFT_OUT_COLUMNS = ("place", "constraint", "saved_bytes", "added_s", "reason")
MOST_CONSTRAINTS = 24
"""Constraints that are tried; values of the lines with the largest differences come first."""


@dataclass(frozen=True, eq=False, repr=False)
class Patch(SourcePatch):
    """The fewest sharding constraints in the user's source under which XLA agrees with a plan.

    Attributes:
      plan: the plan.
      trials: the sets of constraints that XLA was asked about.
      chosen: the constraints of the patch.
      limit: most sets that XLA was asked about.
    """

    plan: Plan
    trials: ConstraintTrials
    chosen: Chosen
    limit: int

    @property
    def is_limited(self) -> bool:
        """True if the search ended because XLA was asked about as many sets as allowed."""
        return len(self.trials.known) >= self.limit

    @property
    def plan_bytes(self) -> float:
        """Bytes that the plan sends per device and step."""
        return float(self.plan._stages.traffic.wire_bytes)

    @property
    def before(self) -> XlaFigures:
        """Figures of XLA's program without the patch."""
        return self._figures(frozenset())

    @property
    def after(self) -> XlaFigures:
        """Figures of XLA's program with the constraints of the patch."""
        return self._figures(self.chosen)

    @property
    def is_reached(self) -> bool:
        """True if XLA's program sends at most 1.05 times the plan's bytes."""
        return self.after.wire_bytes <= NEAR * self.plan_bytes

    def _figures(self, chosen: Chosen) -> XlaFigures:
        found = self.trials.figures(chosen)
        if found is None:
            raise PatchError("XLA does not compile the function: plan.compare_xla() says why.")
        return found

    @property
    def table(self) -> Table:
        """The constraints with their worth: `lines`."""
        return self.lines

    @cached_property
    def lines(self) -> Table:
        """A row per constraint: its place, its text, and its worth to XLA's program.

        `worth_bytes` are bytes, `worth_s` estimated seconds, and `worth_flops` floating-point
        operations, per device and step: XLA's program needs so many more without the line.
        """
        rows = []
        for each in sorted(self.chosen):
            # XLA compiles the patch without this line. If it cannot, the worth is not known.
            without = self.trials.figures(self.chosen - {each})
            worth: tuple[float | None, ...] = (None, None, None)
            if without is not None:
                worth = (
                    without.wire_bytes - self.after.wire_bytes,
                    without.step_s - self.after.step_s,
                    without.flops - self.after.flops,
                )
            rows.append((*self._row(each), *worth))
        return Table(LINE_COLUMNS, tuple(rows))

    @cached_property
    def left_out(self) -> Table:
        """A row per constraint that was tried with the patch, saves bytes, and takes more time.

        It has the bytes that the constraint saves and the seconds that it adds.
        """
        rows = []
        # `known` has XLA's figures of all sets of constraints that were tried.
        for tried_set, figures in self.trials.known.items():
            # Only sets with one constraint more than the patch say what this constraint changes.
            more = tried_set - self.chosen
            if figures is None or len(more) != 1 or not tried_set > self.chosen:
                continue
            saved_bytes = self.after.wire_bytes - figures.wire_bytes
            added_s = figures.step_s - self.after.step_s
            if saved_bytes > 0 and added_s > 0:
                (each,) = more
                reason = f"{seconds_text(added_s)} more per step for {bytes_text(saved_bytes)} less"
                rows.append((*self._row(each), saved_bytes, added_s, reason))
        return Table(LEFT_OUT_COLUMNS, tuple(rows))

    def _row(self, each: Constraint) -> tuple[str, str]:
        """Return the file and line of a constraint, and its text."""
        if each == BORDER:
            return "jax.jit", "in_shardings=..., out_shardings=... (jit_kwargs)"
        expression = self.expressions[each.expression]
        text = self._names(expression.file).constrained(expression.text, each.spec)
        return self.place(each.expression), text

    def _names(self, file: UserFile) -> SourceNames:
        return SourceNames.of(file, self.axes)

    @property
    def jit_kwargs(self) -> dict[str, Any]:
        """The shardings of arguments and results that `jax.jit` needs besides the diff; {} if none.

        Raises:
          LoweringError: as `Plan.jit_kwargs` does.
        """
        return self.plan.jit_kwargs() if BORDER in self.chosen else {}

    def edits_of(self, file: UserFile) -> list[Edit]:
        """Return the edits of a file; [] if it does not change."""
        return edits(file, self.expressions, self.chosen - {BORDER}, self._names(file))

    def check(self) -> PatchCheck:
        """Run the patched source through JAX and XLA, and compare its program with the plan.

        The user's functions run with the patched source while they are traced, and as before
        afterwards. Files do not change.

        Raises:
          PatchError: JAX or XLA refuses the patched source.
        """
        patched = {file: self.texts[file.path] for file in self.files if file.path in self.texts}
        has_border = BORDER in self.chosen
        return checked(self.trials, self.before, patched, has_border=has_border)

    @property
    def conclusion(self) -> str:
        """One or two sentences: the number of constraints, and the bytes before and after.

        Bytes are those that XLA's program sends per device and step, beside those of the plan.
        """
        plan, before, after = (
            bytes_text(n) for n in (self.plan_bytes, self.before.wire_bytes, self.after.wire_bytes)
        )
        # No constraint was chosen: XLA needs none, or none of those that were tried helps.
        if not self.chosen:
            if self.is_reached:
                return f"Nothing to add: XLA sends {before} per device and step, the plan {plan}."
            return (
                f"No patch was found: of {len(self.trials.known) - 1} sets of constraints none is "
                f"better{self._ended}. XLA sends {before} per device and step, the plan {plan}. "
                "Run the plan with plan.lower()."
            )
        count = f"{len(self.chosen)} constraint{'s' if len(self.chosen) > 1 else ''}"
        times = " to ".join(seconds_text(each.step_s) for each in (self.before, self.after))
        text = (
            f"{count}: XLA sends {after} per device and step instead of {before}; the plan sends "
            f"{plan}. The estimated step goes from {times}."
        )
        if not self.is_reached:
            text += (
                f" This is the best of {len(self.trials.known)} sets that were tried, and more "
                f"than 1.05 times the plan's bytes{self._ended}."
            )
        elif self._ended:
            text += f" There may be fewer constraints{self._ended}."
        return text

    @property
    def _ended(self) -> str:
        """A remark if the search ended because of its limit, else ""."""
        return f" (the search ended at trials={self.limit})" if self.is_limited else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about steps that the diff leaves to the user."""
        inside = self.chosen - {BORDER}
        notes = []
        # The border is no line of the source, but arguments of `jax.jit`.
        if inside != self.chosen:
            notes.append(
                "Pass the plan's shardings of arguments and results: "
                "jax.jit(fn, **plan.jit_kwargs())."
            )
        if not inside:
            return tuple(notes)
        files = {self.expressions[each.expression].file for each in inside}
        # In a file without a global mesh of these axes, the constraints have specs only.
        if not all(self._names(file).mesh for file in files):
            notes.append(
                "The constraints name axes of the mesh: call the function under "
                "jax.set_mesh(mesh), or put NamedSharding(mesh, ...) in place of the specs."
            )
        # A cell of a notebook has source, but no file to which a diff applies.
        cells = [file.path for file in files if not Path(file.path).is_file()]
        if cells:
            notes.append(f"{', '.join(cells)} is no file: change the lines by hand.")
        return tuple(notes)

    def parts(self) -> Parts:
        """Return the conclusion, the lines with their worth, the diff, and omitted lines."""
        if not self.chosen:
            return (self.conclusion,)
        left = ("Left out:", self.left_out) if len(self.left_out) else ()
        diff = (self.diff,) if self.diff else ()
        return (self.conclusion, self.lines, *diff, *left, *self.notes)


def patch(
    plan: Plan,
    *,
    hardware: Any = None,
    partitioner: str | None = None,
    trials: int = 200,
    progress: bool | None = None,
    explicit: bool = False,
) -> Patch | ExplicitPatch:
    """Find the edits of the user's source that bring XLA's program close to a plan.

    Args and errors: as of `Plan.patch`.
    """
    retrace = plan._traced.changed
    if retrace is None or plan.is_symbolic:
        why = "was loaded from a file and has no function" if retrace is None else "has named sizes"
        raise PatchError(f"this plan {why}. Plan the function again, with sizes as numbers.")
    if type(trials) is not int or trials < 1:
        raise PatchError(f"trials is {trials!r:.40}: give a whole number from 1 on.")
    # Tracing the function shows in which files it runs.
    _, files = user_files(lambda: retrace(lambda fn: fn))
    if not files:
        raise PatchError(
            "no function with source was found to patch: its file changed since it was loaded, or "
            "it was typed at a prompt. Save it in a file, and plan it again."
        )
    if explicit:
        return explicit_patch(plan, files)
    # A mark is an annotation at an expression of the source, to which a sharding can be given. The
    # first trace with marks shows which forms each value has; the second has a mark per form.
    whose, first = partitioner or installed_partitioner(), marked_plan(plan, files)
    # Expressions whose sharding differs most between the plan and XLA come first.
    ranked = by_difference(plan, first, whose)
    forms: dict[int, list[Constraint]] = {number: [] for number in ranked}
    forms |= grouped(first.constraints(), ranked)
    candidates = [each for number in ranked for each in forms[number]][:MOST_CONSTRAINTS]
    alternative_candidates = [
        alternative
        for number in ranked[:MOST_CONSTRAINTS]
        for alternative in alternatives(number, forms[number], first.shapes[number], plan.mesh)
    ]
    # The number of marks that each expression needs: its deepest constraint.
    depths: dict[int, int] = {}
    for each in (*candidates, *alternative_candidates):
        depths[each.expression] = max(depths.get(each.expression, 0), each.depth + 1)
    marked = marked_plan(plan, files, depths)
    constraint_trials = ConstraintTrials(marked, plan._stages.machine(hardware), whose)
    say = _reporter(progress, trials)
    search = MinimalSearch(constraint_trials, float(plan._stages.traffic.wire_bytes), trials, say)
    border = [BORDER] * has_open_border(plan)
    chosen = search.run([*border, *candidates], alternative_candidates)
    say(0, 0.0)
    return Patch(
        files, marked.expressions, dict(plan.mesh.axes), plan, constraint_trials, chosen, trials
    )


def _reporter(progress: bool | None, trials: int) -> Callable[[int, float], None]:
    """Return a function that shows the number of tried sets and the best bytes on one line.

    Args:
      progress: True for a line on stderr, None for one if stderr is a terminal.
    """
    shown = sys.stderr.isatty() if progress is None else progress
    last = 0

    def say(tried: int, best: float) -> None:
        """Show the number of tried sets and the best bytes; 0 sets clear the line at the end."""
        nonlocal last
        if shown and tried != last:
            last = tried
            text = f"{tried} of at most {trials} sets, best {bytes_text(best)}" if tried else ""
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    return say
