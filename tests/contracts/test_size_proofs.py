"""Proofs about sizes, against enumeration."""

import itertools
import random

from shardalg.plan.contracts.bound_formulas import fact_of, formula_of
from shardalg.plan.contracts.size_proofs import follows
from shardalg.sizes.facts import NONNEGATIVE, Fact

NAMES = ("B", "M", "X", "Y")
KNOWN = ("X divides B", "Y divides B", "X divides M", "X >= 2", "B >= 4", "Y > 1", "M >= 2*X")
TERMS = ("B", "M", "X", "B*X", "B/X", "M/X", "B*M/X", "X*X", "B//Y", "ceil(M/Y)", "max(B, M)", "1")
DIMS, AXES = (1, 2, 3, 4, 6, 8, 12, 24), (1, 2, 3, 4, 6)
POINTS = [
    dict(zip(NAMES, sizes, strict=True)) for sizes in itertools.product(DIMS, DIMS, AXES, AXES)
]


def test_what_is_proved_holds_wherever_the_known_facts_hold(show):
    drawn, proved, false = random.Random(7), 0, 0
    for _ in range(40):
        known = [fact_of(text, NAMES) for text in drawn.sample(KNOWN, drawn.randint(0, 4))]
        signs = [drawn.choice("+-") for _ in range(3)]
        text = " ".join(
            f"{sign} {drawn.randint(1, 4)}*{term}"
            for sign, term in zip(signs, drawn.sample(TERMS, 3), strict=True)
        )
        difference = formula_of(text.removeprefix("+ "), NAMES)
        holds = [
            difference.at(point) >= 0
            for point in POINTS
            if all(fact.holds(point) for fact in known)
        ]
        if follows(Fact(difference, NONNEGATIVE), known):
            proved += 1
            assert all(holds), (text, known)
        false += not all(holds)
    show(f"40 inequalities: {proved} proved, {false} false at a point")
    assert proved >= 10
    assert false >= 15


def test_nonlinear_inequalities_of_bytes_are_proved():
    for text, known in (
        ("2*4*2*M*B*(X-1)//(X*Y) >= 16*B*M*(X-1)/(X*Y)", ["X divides M", "Y divides B"]),
        ("4*B*M >= 4*B*M*(X-1)/X", []),
        ("ceil(B/X)*X >= B", []),
        ("max(B, M) >= M", []),
        ("B*M >= 6*X", ["X divides B", "M >= 6"]),
    ):
        facts = [fact_of(one, NAMES) for one in known]
        assert follows(fact_of(text, NAMES), facts), text
    # Without the division, the floor loses bytes.
    assert not follows(fact_of("2*4*2*M*B*(X-1)//(X*Y) >= 16*B*M*(X-1)/(X*Y)", NAMES), [])
