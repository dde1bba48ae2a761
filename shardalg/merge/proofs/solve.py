"""Asking z3: is a statement true for every value of its unknowns?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import z3


@dataclass(frozen=True)
class Proved:
    """The negation has no solution.

    Attributes:
      ms: processor time of the solver, milliseconds; other programs on the machine do not count.
    """

    ms: float
    smt2: str
    status: str = "proved"


@dataclass(frozen=True)
class Refuted:
    """The negation has a solution: `values` of the unknowns."""

    ms: float
    smt2: str
    values: tuple[tuple[str, int], ...]
    status: str = "refuted"


@dataclass(frozen=True)
class Unknown:
    """The solver gave up, or ran out of time."""

    ms: float
    smt2: str
    reason: str
    status: str = "unknown"


Outcome = Proved | Refuted | Unknown

# In units of the solver's own work (about 20 ms): the plain core decides nearly every claim in less
# than the portfolio of tactics takes to start; what it does not decide goes to the portfolio.
PLAIN_EFFORT = 100_000


def decide(
    hypotheses: Sequence[z3.BoolRef],
    goal: z3.BoolRef,
    *,
    timeout_s: float = 30.0,
    seed: int = 0,
    text: str = "",
) -> Outcome:
    """Whether the hypotheses imply the goal; never raises for lack of time.

    Args:
      seed: of the solver's random choices; proofs that need luck show with other seeds.
      text: the negation as SMT-LIB text, in place of hypotheses and goal.

    >>> x = z3.Int("x")
    >>> decide([x > 2], x > 1).status, decide([x > 2], x > 3).values
    ('proved', (('x', 3),))
    >>> "(> x 2)" in decide([x > 2], x > 1).smt2  # as asked, not as simplified
    True
    """
    negated = [] if text else [*hypotheses, z3.Not(goal)]
    start = time.thread_time()  # the solver works in this thread; waiting for a core is no work
    for make, effort in ((z3.SimpleSolver, PLAIN_EFFORT), (z3.Solver, 0)):
        solver = make()
        solver.set("timeout", max(1, int(timeout_s * 1000)))
        solver.set("random_seed", seed)
        solver.set("rlimit", effort)
        answer, fault = _asked(solver, negated, text)
        if answer != z3.unknown:
            break
    ms = (time.thread_time() - start) * 1e3
    smt2 = text or _script(negated)
    if answer == z3.unsat:
        return Proved(ms, smt2)
    if answer == z3.unknown:
        return Unknown(ms, smt2, fault or solver.reason_unknown())
    return Refuted(ms, smt2, _values(solver.model()))


def _asked(
    solver: z3.Solver, negated: Sequence[z3.BoolRef], text: str
) -> tuple[z3.CheckSatResult, str]:
    """The answer, and the fault where the solver stopped itself."""
    try:
        solver.from_string(text) if text else solver.add(*negated)
        return solver.check(), ""
    except z3.Z3Exception as error:
        return z3.unknown, str(error)


def _script(formulas: Sequence[z3.BoolRef]) -> str:
    """The formulas as SMT-LIB; a solver's own text is what its simplifier left of them."""
    *others, last = formulas
    asts = (z3.Ast * len(others))(*(formula.as_ast() for formula in others))
    head = ("shardalg", "", "unknown", "", len(others), asts, last.as_ast())
    return z3.Z3_benchmark_to_smtlib_string(last.ctx.ref(), *head)


def version() -> str:
    """Version of the solver."""
    return z3.get_version_string()


def _values(model: z3.ModelRef) -> tuple[tuple[str, int], ...]:
    """Whole numbers of a model, by name."""
    pairs = ((str(d), model[d]) for d in model.decls() if d.arity() == 0)
    return tuple(sorted((name, v.as_long()) for name, v in pairs if z3.is_int_value(v)))
