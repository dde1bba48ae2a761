"""A patched source compared with the plan: XLA's program before and after the patch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

from shardalg.errors import PatchError
from shardalg.plan.patching.constraint_trials import ConstraintTrials, XlaFigures, xla_figures
from shardalg.plan.patching.edits import imported
from shardalg.plan.patching.minimal import MORE_FLOPS, NEAR
from shardalg.plan.patching.probes import own_annotations, with_border
from shardalg.plan.patching.user_code import UserFile, replaced
from shardalg.planner.stages import priced
from shardalg.tables import Answer, Parts, Table

CHECK_COLUMNS = ("program", *XlaFigures._fields)


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


def checked(
    trials: ConstraintTrials,
    before: XlaFigures,
    patched: Mapping[UserFile, str],
    *,
    has_border: bool,
) -> PatchCheck:
    """Trace the patched source, compile it with XLA, and return its figures next to the plan's.

    The files on the disk do not change.

    Args:
      trials: the plan, the machine, and the partitioner of XLA.
      before: the figures without the patch.
      patched: the text of each file that changes.
      has_border: whether `jax.jit` gets the plan's shardings of arguments and results.

    Raises:
      PatchError: JAX refuses the patched source.
    """
    plan = trials.marked.plan
    retrace = plan._traced.changed
    assert retrace is not None, "marked_plan refuses plans without a function"
    files, texts = list(patched), list(patched.values())
    try:
        with replaced(files, texts, imported()) if files else nullcontext():
            traced = replace(retrace(lambda fn: fn), first_mesh=plan._traced.first_mesh)
    # The user's function may raise anything; the error is passed on with its text.
    except Exception as error:
        raise PatchError(f"JAX refuses the patched source: {error}") from error
    # The constraints of the patch are in the new trace; the plan's own annotations are added.
    given = own_annotations(plan, traced)
    after = xla_figures(
        traced,
        with_border(plan, given) if has_border else given,
        plan.options,
        trials.on,
        trials.partitioner,
    )
    at = priced(plan._traced, plan.program, trials.on).at_hints
    sent, peak = plan._stages.traffic.wire_bytes, at.peak_memory_bytes
    planned = XlaFigures(float(sent), float(at.flops), None, float(at.step_time_s), float(peak))
    return PatchCheck(planned, before, after)
