"""Implications between conditions on whole numbers of at least 1, decided by z3."""

from __future__ import annotations

from collections.abc import Sequence

import z3

from shardalg.merge.proofs.integers import conditions


def implied(goal: str, known: Sequence[str], names: Sequence[str], *, seconds: float = 3) -> bool:
    """Return whether a condition holds for all whole numbers that fulfil the known conditions.

    False means "not known": products of unknowns are not decidable, so z3 stops after some time.

    Args:
      goal, known: conditions as text (`integers.conditions`).
      names: all names in them; each is a whole number of at least 1.

    Raises:
      ProofError: text that is no condition.

    >>> implied("b >= x", ["b % x == 0"], ["b", "x"]), implied("b >= x", [], ["b", "x"])
    (True, False)
    """
    solver = z3.Solver()
    solver.set("timeout", int(seconds * 1000))
    solver.add(*(z3.Int(name) >= 1 for name in names))
    for number, text in enumerate((goal, *known)):
        for terms in conditions(text):
            solver.add(terms.formula if number else z3.Not(terms.formula), *terms.definitions)
    return bool(solver.check() == z3.unsat)
