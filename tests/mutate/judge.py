"""Verdicts on tampered programs: by `verify` alone, and by running them."""

import random
import signal
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import jax
import numpy as np

from shardalg.lower import lower
from shardalg.spmd.host.simulate import simulate
from shardalg.verify.verify import verify
from tests.mutate.tampering import Subject, is_sound, mutant

DRAWS = (1, 2)
"""Seeds of the arguments that a mutant runs on."""
REFUTED, NO_VERDICT, SAME, WRONG = "refuted", "no verdict", "accepted", "wrong"


class TimeLimitError(TimeoutError):
    """A mutant ran too long: a loop that never ends."""


@contextmanager
def at_most(seconds):
    """Interrupts what takes longer."""

    def interrupt(*_):
        raise TimeLimitError(f"{seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a mutant.

    Attributes:
      status: `REFUTED`, `NO_VERDICT`, `SAME` (accepted, and computes the same), or `WRONG`.
      checked: whether its structure is sound.
      words: the refuted claim, the exception, or what is computed instead.
    """

    status: str
    checked: bool
    words: str = ""


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges mutants of one case."""

    case: object

    @cached_property
    def subject(self):
        return Subject(self.case.plan.program, self.case.plan.graph)

    def mutant(self, name, seed, number):
        """Return the mutant of a name, a seed and a number; it is always the same."""
        return mutant(random.Random(f"{name}/{seed}/{number}"), self.subject)

    @cached_property
    def wanted(self):
        """Arguments and results of one device, per draw."""
        drawn = [self.case.drawn(seed) for seed in DRAWS]
        return [(given, jax.tree.leaves(self.case.fn(*given))) for given in drawn]

    def verdict(self, program):
        """Judge by `verify` alone; run the mutant if it is accepted."""
        checked = is_sound(program)
        try:
            with at_most(60):
                switches = self.case.options.switches
                trusts = {
                    "finite": switches.finite_sums,
                    "finite_in_loops": switches.defer_in_loops,
                }
                report = verify(self.case.plan.sharded, program, **trusts)
        except Exception:  # what is looked for
            return Verdict(NO_VERDICT, checked, traceback.format_exc(limit=-2))
        if not report.ok:
            claim = next(c for c in report.claims if c.status not in ("proved", "trusted"))
            return Verdict(REFUTED, checked, f"{claim.claim} {claim.status}: {claim.words}")
        fault = self.fault(program)
        return Verdict(WRONG if fault else SAME, checked, fault)

    def fault(self, program):
        """Return how the program differs from the planned one, in words; "" if it does not."""
        plan = self.case.plan.program
        if program.mesh != plan.mesh:
            return "the mesh is not the one that was asked for"
        given = self.case.plan.sharded.annotations
        for side in ("argument", "result"):
            asked = getattr(given, f"{side}s")
            found, wanted = (_layouts(asked, side, one) for one in (program, plan))
            if found != wanted:
                return f"the {side}s are not laid out as was asked for"
        run = partial(simulate, program, self.case.plan.graph)
        return next(filter(None, (_difference(run, *one) for one in self.wanted)), "")

    def lowered_fault(self, program):
        """Return how the lowered program differs, on one draw."""

        def run(*arguments):
            return jax.tree.leaves(lower(program, self.case.plan.graph)(*arguments))

        return _difference(run, *self.wanted[0])


def _difference(run, given, wants):
    """Return how the results of a run differ from the expected ones."""
    try:
        with at_most(60), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = run(*given)
    except Exception as error:  # a program that cannot run is wrong
        return f"{type(error).__name__}: {str(error)[:300]}"
    if len(results) != len(wants):
        return f"{len(results)} results instead of {len(wants)}"
    bad = [k for k, pair in enumerate(zip(results, wants, strict=True)) if not _alike(*pair)]
    return f"results {bad} of {len(wants)} differ" if bad else ""


def _layouts(asked, side, program):
    """Layouts at a border where one was asked for, in canonical digits; elsewhere any is right."""
    layouts = getattr(program, f"{side}_shardings")
    return [x.key for x, annotation in zip(layouts, asked, strict=True) if annotation is not None]


def _alike(result, want):
    want = np.asarray(want)
    if (result.shape, result.dtype) != (want.shape, want.dtype):
        return False
    if want.dtype.kind in "biu":
        return bool((np.asarray(result) == want).all())
    scale = max(1.0, float(np.abs(np.where(np.isfinite(want), want, 0)).max(initial=0)))
    return bool(
        np.allclose(
            np.float64(result), np.float64(want), rtol=1e-4, atol=1e-5 * scale, equal_nan=True
        )
    )
