"""`plan.patch()`: the constraints, their worth, and the check against XLA's own program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.errors import PatchError
from shardalg.files import write_whole
from shardalg.graph.source import Sources
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.plan.patching.constraint_trials import (
    Chosen,
    ConstraintTrials,
    XlaFigures,
    xla_figures,
)
from shardalg.plan.patching.edits import SourceNames, applied, diff, edits, encoded, imported
from shardalg.plan.patching.explicit_edits import ExplicitPatch, explicit_patch
from shardalg.plan.patching.minimal import MORE_FLOPS, NEAR, MinimalSearch
from shardalg.plan.patching.probes import (
    BORDER,
    Constraint,
    MarkedPlan,
    alternatives,
    has_open_border,
    marked_plan,
    own_annotations,
    with_border,
)
from shardalg.plan.patching.user_code import UserFile, replaced, user_files
from shardalg.planner.stages import priced
from shardalg.tables import Answer, Parts, Table, bytes_text, seconds_text

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

LINE_COLUMNS = ("place", "constraint", "worth_bytes", "worth_s")
LEFT_OUT_COLUMNS = ("place", "constraint", "saved_bytes", "added_s", "reason")
CHECK_COLUMNS = ("program", *XlaFigures._fields)
MOST_CONSTRAINTS = 24
"""Constraints that are tried; values of the lines with the largest differences come first."""


@dataclass(frozen=True, eq=False, repr=False)
class Patch(Answer):
    """The fewest sharding constraints in the user's source under which XLA agrees with a plan.

    Attributes:
      plan: the plan.
      trials: the sets of constraints that XLA was asked about.
      chosen: the constraints of the patch.
      files: the user's files.
    """

    plan: Plan
    trials: ConstraintTrials
    chosen: Chosen
    files: tuple[UserFile, ...]

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

        `worth_bytes` are bytes, and `worth_s` estimated seconds, per device and step.
        """
        rows = []
        for each in sorted(self.chosen):
            without = self.trials.figures(self.chosen - {each})
            worth: tuple[float | None, float | None] = (None, None)
            if without is not None:
                worth = (
                    without.wire_bytes - self.after.wire_bytes,
                    without.step_s - self.after.step_s,
                )
            rows.append((*self._place(each), *worth))
        return Table(LINE_COLUMNS, tuple(rows))

    @cached_property
    def left_out(self) -> Table:
        """A row per constraint that was tried with the patch, saves bytes, and takes more time."""
        rows = []
        for chosen, found in self.trials.known.items():
            more = chosen - self.chosen
            if found is None or len(more) != 1 or not chosen > self.chosen:
                continue
            saved = self.after.wire_bytes - found.wire_bytes
            added = found.step_s - self.after.step_s
            if saved > 0 and added > 0:
                (each,) = more
                reason = f"{seconds_text(added)} more per step for {bytes_text(saved)} less"
                rows.append((*self._place(each), saved, added, reason))
        return Table(LEFT_OUT_COLUMNS, tuple(rows))

    def _place(self, each: Constraint) -> tuple[str, str]:
        """Return the file and line of a constraint, and its text."""
        if each == BORDER:
            return "jax.jit", "in_shardings=..., out_shardings=... (jit_kwargs)"
        expression = self.trials.marked.expressions[each.expression]
        file = Sources().file(expression.file.path)
        names = self._names(expression.file)
        return f"{file}:{expression.node.lineno}", names.constrained(expression.text, each.spec)

    def _names(self, file: UserFile) -> SourceNames:
        return SourceNames.of(file, dict(self.plan.mesh.axes))

    @property
    def jit_kwargs(self) -> dict[str, Any]:
        """The shardings of arguments and results that `jax.jit` needs besides the diff; {} if none.

        Raises:
          LoweringError: as `Plan.jit_kwargs` does.
        """
        return self.plan.jit_kwargs() if BORDER in self.chosen else {}

    @cached_property
    def texts(self) -> dict[str, str]:
        """The patched text of each file that changes, by its path."""
        found = {}
        for file in self.files:
            names = self._names(file)
            made = edits(file, self.trials.marked.expressions, self.chosen - {BORDER}, names)
            if made:
                found[file.path] = applied(file.text, made)
        return found

    @cached_property
    def diff(self) -> str:
        """The patch as a unified diff, which `git apply` accepts; "" if there is nothing to add.

        A cell of a notebook has no file that `git apply` finds: `lines` names its line.
        """
        return "".join(
            diff(file, self.texts[file.path]) for file in self.files if file.path in self.texts
        )

    def write(self, path: str | Path) -> Path:
        """Write the diff to a file, and return its path.

        Raises:
          PatchError: there is nothing to add.
        """
        if not self.diff:
            raise PatchError(f"there is nothing to write: {self.conclusion}")
        write_whole(Path(path), encoded(self.diff, self.files))
        return Path(path)

    def check(self) -> PatchCheck:
        """Run the patched source through JAX and XLA, and compare its program with the plan.

        The user's functions run with the patched source while they are traced, and as before
        afterwards. Files do not change.

        Raises:
          PatchError: JAX or XLA refuses the patched source.
        """
        return check(self)

    @property
    def conclusion(self) -> str:
        """One or two sentences: the number of constraints, and the bytes before and after."""
        plan, before, after = (
            bytes_text(n) for n in (self.plan_bytes, self.before.wire_bytes, self.after.wire_bytes)
        )
        if not self.chosen:
            if self.is_reached:
                return f"Nothing to add: XLA sends {before} per device and step, the plan {plan}."
            return (
                f"No patch was found: of {len(self.trials.known) - 1} sets of constraints none is "
                f"better. XLA sends {before} per device and step, the plan {plan}. Run the plan "
                "with plan.lower()."
            )
        count = f"{len(self.chosen)} constraint{'s' if len(self.chosen) > 1 else ''}"
        times = " to ".join(seconds_text(each.step_s) for each in (self.before, self.after))
        said = (
            f"{count}: XLA sends {after} per device and step instead of {before}; the plan sends "
            f"{plan}. The estimated step goes from {times}."
        )
        if not self.is_reached:
            said += (
                f" This is the best of {len(self.trials.known)} sets that were tried, and more "
                "than 1.05 times the plan's bytes."
            )
        return said

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about steps that the diff leaves to the user."""
        inside = self.chosen - {BORDER}
        found = []
        if inside != self.chosen:
            found.append(
                "Pass the plan's shardings of arguments and results: "
                "jax.jit(fn, **plan.jit_kwargs())."
            )
        if not inside:
            return tuple(found)
        used = {self.trials.marked.expressions[each.expression].file for each in inside}
        if not all(self._names(file).mesh for file in used):
            found.append(
                "The constraints name axes of the mesh: call the function under "
                "jax.set_mesh(mesh), or put NamedSharding(mesh, ...) in place of the specs."
            )
        cells = [file.path for file in used if not Path(file.path).is_file()]
        if cells:
            found.append(f"{', '.join(cells)} is no file: change the lines by hand.")
        return tuple(found)

    def parts(self) -> Parts:
        """Return the conclusion, the lines with their worth, the diff, and omitted lines."""
        if not self.chosen:
            return (self.conclusion,)
        left = ("Left out:", self.left_out) if len(self.left_out) else ()
        diff = (self.diff,) if self.diff else ()
        return (self.conclusion, self.lines, *diff, *left, *self.notes)


@dataclass(frozen=True, eq=False, repr=False)
class PatchCheck(Answer):
    """XLA's program of the source before and after a patch, next to the plan.

    Attributes:
      planned: figures of the plan.
      before, after: figures of XLA's program.
    """

    planned: XlaFigures
    before: XlaFigures
    after: XlaFigures

    @property
    def ok(self) -> bool:
        """True if XLA sends at most 1.05 times the plan's bytes, with no more flops than before."""
        is_near = self.after.wire_bytes <= NEAR * self.planned.wire_bytes
        return is_near and self.after.flops <= MORE_FLOPS * self.before.flops

    @cached_property
    def table(self) -> Table:
        """A row per program: bytes, flops, peak memory, and estimated seconds of a step."""
        rows = [("XLA before", *self.before), ("XLA after", *self.after)]
        return Table(CHECK_COLUMNS, (*rows, ("plan", *self.planned)))

    def parts(self) -> Parts:
        """Return whether the patched program agrees with the plan, and the table."""
        said = "agrees" if self.ok else "does not agree"
        return (f"XLA's program of the patched source {said} with the plan.", self.table)


def check(patch: Patch) -> PatchCheck:
    """Return the figures of XLA's program for the patched source; see `Patch.check`."""
    plan, trials = patch.plan, patch.trials
    retrace = plan._traced.changed
    assert retrace is not None, "marked_plan refuses plans without a function"
    changed = [file for file in patch.files if file.path in patch.texts]
    texts = [patch.texts[file.path] for file in changed]
    with replaced(changed, texts, imported()) if changed else nullcontext():
        try:
            traced = replace(retrace(lambda fn: fn), first_mesh=plan._traced.first_mesh)
        except Exception as error:
            raise PatchError(f"JAX refuses the patched source: {error}") from None
    given = own_annotations(plan, traced)
    if BORDER in patch.chosen:
        given = with_border(plan, given)
    after = xla_figures(traced, given, plan.options, trials.on, trials.partitioner)
    at = priced(plan._traced, plan.program, trials.on).at_hints
    own = XlaFigures(
        patch.plan_bytes,
        float(at.flops),
        None,
        float(at.step_time_s),
        float(at.peak_memory_bytes),
    )
    return PatchCheck(own, patch.before, after)


def patch(
    plan: Plan,
    *,
    hardware: Any = None,
    partitioner: str | None = None,
    trials: int = 200,
    progress: bool | None = None,
    explicit: bool = False,
) -> Patch | ExplicitPatch:
    """Find the edits; see `Plan.patch`."""
    retrace = plan._traced.changed
    if retrace is None or plan.is_symbolic:
        why = "was loaded from a file and has no function" if retrace is None else "has named sizes"
        raise PatchError(f"this plan {why}. Plan the function again, with sizes as numbers.")
    if type(trials) is not int or trials < 1:
        raise PatchError(f"trials is {trials!r:.40}: give a whole number from 1 on.")
    _, files = user_files(lambda: retrace(lambda fn: fn))
    if not files:
        raise PatchError(
            "no function with source was found to patch: its file changed since it was loaded, or "
            "it was typed at a prompt. Save it in a file, and plan it again."
        )
    if explicit:
        return explicit_patch(plan, files)
    # The first trace with marks shows which forms each value has; the second has a mark per form.
    whose, first = partitioner or installed_partitioner(), marked_plan(plan, files)
    ranked = _by_difference(plan, first, whose)
    forms: dict[int, list[Constraint]] = {number: [] for number in ranked}
    forms |= _grouped(first.constraints(), ranked)
    found = [each for number in ranked for each in forms[number]][:MOST_CONSTRAINTS]
    others = [
        other
        for number in ranked[:MOST_CONSTRAINTS]
        for other in alternatives(number, forms[number], first.shapes[number], plan.mesh)
    ]
    depths: dict[int, int] = {}
    for each in (*found, *others):
        depths[each.expression] = max(depths.get(each.expression, 0), each.depth + 1)
    marked = marked_plan(plan, files, depths)
    asked = ConstraintTrials(marked, plan._stages.machine(hardware), whose)
    say = _reporter(progress, trials)
    search = MinimalSearch(asked, float(plan._stages.traffic.wire_bytes), trials, say)
    border = [BORDER] * has_open_border(plan)
    chosen = search.run([*border, *found], others)
    say(0, 0.0)
    return Patch(plan, asked, chosen, files)


def _grouped(
    constraints: Iterable[Constraint], numbers: Sequence[int]
) -> dict[int, list[Constraint]]:
    """Return the constraints of each expression with one of these numbers."""
    found: dict[int, list[Constraint]] = {}
    for each in constraints:
        if each.expression in numbers:
            found.setdefault(each.expression, []).append(each)
    return found


def _by_difference(plan: Plan, marked: MarkedPlan, partitioner: str) -> list[int]:
    """Return the arrays among the expressions, the largest difference of their line's bytes first.

    Only expressions on lines whose collectives or shardings differ from XLA's are returned.
    """
    beside = plan.compare_xla(partitioner)
    differences: dict[str, float] = {}
    for row in beside.lines:
        by = abs((row["xla_wire_bytes"] or 0) - (row["wire_bytes"] or 0))
        line = row["source"].partition(" (")[0]
        if row["verdict"] != "agree":
            differences[line] = differences.get(line, 0.0) + by
    for value in beside.values:
        if value["verdict"] != "agree" and "@" in value["value"]:
            differences.setdefault(value["value"].rpartition("@")[2], 0.0)
    sources, ranked = Sources(), []
    for number in marked.shapes:
        expression = marked.expressions[number]
        file = sources.file(expression.file.path)
        on_lines = [
            differences[n] for n in (f"{file}:{i}" for i in expression.lines) if n in differences
        ]
        if on_lines:
            ranked.append((-max(on_lines), number))
    # Without a line of the user that differs, every value may be the cause.
    return [number for _, number in sorted(ranked)] or sorted(marked.shapes)


def _reporter(progress: bool | None, trials: int) -> Callable[[int, float], None]:
    """Return a function that shows the number of tried sets and the best bytes on one line.

    Args:
      progress: True for a line on stderr, None for one if stderr is a terminal.
    """
    shown = sys.stderr.isatty() if progress is None else progress
    last = 0

    def say(tried: int, best: float) -> None:
        nonlocal last
        if shown and tried != last:
            last = tried
            text = f"{tried} of at most {trials} sets, best {bytes_text(best)}" if tried else ""
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    return say
