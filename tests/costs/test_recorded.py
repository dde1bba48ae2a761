"""Recorded numbers: equal answers as plain ones, and every question is recorded."""

import math
import operator
import random
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardalg.sizes.decided import Guards, decided, recorder
from shardalg.sizes.exact import ExactPoints
from shardalg.sizes.facts import BROKEN, NONNEGATIVE, NONZERO, POSITIVE, WHOLE, ZERO, Fact, Facts
from shardalg.sizes.formula import Formula, ceiling, symbols
from shardalg.sizes.maximum import larger
from shardalg.sizes.recorded import (
    Answers,
    Recorded,
    Recorder,
    first_largest,
    first_least,
    least_sum,
)

NAMES = ("B", "M", "X")
ARITHMETIC = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv,
)  # fmt: skip
QUESTIONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


def sizes(hints, made=None):
    made = made or Recorder(Answers(hints))
    return made, {name: made.size(*symbols(name)) for name in hints}


def plain(number):
    return number.value if type(number) is Recorded else number


def computed(rng, held, steps):
    """Run the same random program on any numbers; return its results and answers."""
    held, answers = list(held), []
    for _ in range(steps):
        a, b = rng.choice(held), rng.choice([*held, rng.randint(1, 6)])
        if rng.random() < 0.5:
            answers.append(bool(rng.choice(QUESTIONS)(a, b)))
        else:
            act = rng.choice(ARITHMETIC)
            answers.append(bool(b != 0))
            if b != 0:
                found = (
                    act(Fraction(a), b) if act is operator.truediv and type(a) is int else act(a, b)
                )
                held.append(found)
    return held, answers


def test_where_all_facts_hold_a_program_goes_the_same_way(show):
    same = sum(points_that_hold(seed) for seed in range(60))
    show(f"{same} of {60 * 40} points hold")
    assert same > 150


def points_that_hold(seed):
    rng = random.Random(seed)
    hints = {name: rng.randint(2, 12) for name in NAMES}
    made, held = sizes(hints)
    numbers, answers = computed(random.Random(seed), held.values(), 12)
    exact, told = computed(random.Random(seed), hints.values(), 12)
    assert answers == told
    assert list(map(plain, numbers)) == exact
    facts, same = Facts(made.facts), 0
    for _ in range(40):
        point = {name: rng.randint(1, 24) for name in NAMES}
        if not facts.failing(point):
            there, told = computed(random.Random(seed), point.values(), 12)
            at = [n.formula.at(point) if type(n) is Recorded else n for n in numbers]
            assert (at, answers) == (there, told), (seed, hints, point)
            same += 1
    assert facts.failing(hints) == ()
    return same


@pytest.mark.parametrize("use", [range, math.gcd, float, int, [0] * 99], ids=str)
def test_a_bare_number_is_noted_as_staying_what_it_is(use):
    made, held = sizes({"B": 8})
    found = use[held["B"]] if isinstance(use, list) else use(held["B"])
    assert found is not None
    assert [str(fact) for fact in made.facts] == ["B - 8 == 0"]


def test_sizes_of_two_runs_are_never_equal():
    (_, first), (_, second) = sizes({"B": 8}), sizes({"B": 8})
    assert first["B"] != second["B"]
    assert len({first["B"], second["B"]}) == 2


@pytest.mark.parametrize(
    ("relation", "text", "here", "there"),
    [
        (POSITIVE, "B - 2*X > 0", {"B": 9, "X": 4}, {"B": 8, "X": 4}),
        (NONNEGATIVE, "B - 2*X >= 0", {"B": 8, "X": 4}, {"B": 7, "X": 4}),
        (ZERO, "B - 2*X == 0", {"B": 8, "X": 4}, {"B": 9, "X": 4}),
        (NONZERO, "B - 2*X != 0", {"B": 9, "X": 4}, {"B": 8, "X": 4}),
        (WHOLE, "B/X is whole", {"B": 8, "X": 4}, {"B": 9, "X": 4}),
        (BROKEN, "B/X is not whole", {"B": 9, "X": 4}, {"B": 8, "X": 4}),
    ],
)
def test_every_relation_holds_and_fails(relation, text, here, there):
    B, X = symbols("B X")
    fact = Fact(B / X if relation in (WHOLE, BROKEN) else B - 2 * X, relation)
    assert str(fact) == text
    assert (Facts([fact]).failing(here), Facts([fact]).failing(there)) == ((), (fact,))


def test_many_facts_are_checked_as_one_by_one():
    rng = random.Random(7)
    B, M, X = symbols("B M X")
    parts = (B, M, X, ceiling(B / X), ceiling((M - 1) / (2 * X)), Formula.of(3))
    relations = (POSITIVE, NONNEGATIVE, ZERO, NONZERO)
    facts = [
        Fact(rng.choice(parts) * rng.choice(parts) - rng.randint(1, 9) * rng.choice(parts), r)
        for r in relations * 40
    ]
    facts += [
        Fact(rng.choice(parts[:3]) * M / (rng.choice(parts[:3]) * 2), WHOLE) for _ in range(9)
    ]
    facts = [fact for fact in facts if fact.formula.names]
    checked = Facts(facts)
    for size in (9, 1 << 12, 1 << 40):  # the last one is beyond 64 bits
        for _ in range(20):
            point = {name: rng.randint(1, size) for name in NAMES}
            failing = {fact for fact in facts if not fact.holds(point)}
            assert set(checked.failing(point)) == failing, point


def test_the_largest_notes_only_what_makes_it_the_largest():
    made, held = sizes({"B": 4, "M": 9, "X": 3})
    assert first_largest([held["B"], held["X"], held["M"], 5]) == 2
    assert sorted(map(str, made.facts)) == ["-B + M > 0", "M - 5 >= 0", "M - X > 0"]


def test_the_least_is_noted_with_what_else_it_could_have_been(show):
    """Wherever all that was noted holds, the least rank is the same one."""
    rng, same = random.Random(9), 0
    for _ in range(200):
        hints = {name: rng.randint(2, 9) for name in NAMES}
        made, held = sizes(hints)
        drawn = [(rng.choice(NAMES), rng.choice(NAMES), rng.choice(NAMES)) for _ in range(4)]
        ranks = [(held[a] * held[b], -held[c], i) for i, (a, b, c) in enumerate(drawn)]
        made_of = [partial(tuple, rank) for rank in ranks]
        least = first_least(held.values(), [int] * 4, made_of, lambda best, other: (best, other))
        assert {best for best, _ in made.facts.values()} <= {least}
        assert made.about is None
        for _ in range(20):
            point = {name: rng.randint(1, 12) for name in NAMES}
            there = [(point[a] * point[b], -point[c], i) for i, (a, b, c) in enumerate(drawn)]
            if all(fact.holds(point) for fact in made.facts):
                assert least == min(range(4), key=there.__getitem__), (drawn, hints, point)
                same += 1
    show(f"{same} points at which all holds")
    assert same > 200


@pytest.mark.parametrize("seed", range(20))
def test_of_several_sums_the_least_is_the_same_wherever_its_range_says_so(seed):
    """Outside the range, another sum may be the smallest one."""
    rng = random.Random(seed)
    count = rng.randint(2, 6)
    lines = [(rng.randint(0, 9), rng.randint(0, 60)) for _ in range(count)]
    sets = [frozenset(rng.sample(range(count), rng.randint(1, count))) for _ in range(5)]

    def least(row):
        sums = [sum(row[place] for place in one) for one in sets]
        best = [one for one, total in zip(sets, sums, strict=True) if total == min(sums)]
        return min((one for one in best if not any(o < one for o in best)), key=sorted)

    made, held = sizes({"B": rng.randint(1, 40)})
    found = least_sum([a * held["B"] + c for a, c in lines], least)
    for size in range(1, 80):
        same = least([a * size + c for a, c in lines]) == found
        assert same == all(fact.holds({"B": size}) for fact in made.facts), size


@given(
    points=st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(1, 9)), min_size=1, max_size=5)
)
def test_formulas_at_many_points_are_those_of_each(points):
    """Beyond 64 bits, with ceilings and the larger of two, and fractions where they arise."""
    B, X = symbols("B X")
    given_points = [{"B": b, "X": x} for b, x in points]
    exact = ExactPoints(given_points)
    for formula in (B * B * X, B / X, ceiling(B / X) * 3 + 1, Formula.of(larger(B, 7 * X)) / 2):
        assert exact.of(formula).tolist() == [formula.at(point) for point in given_points]
    found = exact.each(lambda b, x: {"small": b / x} if b < 9 else {"large": float(b)}, B, X)
    rows = zip(found.get("small", [0.0] * len(points)), points, strict=True)
    assert all(small == (b / x if b < 9 else 0.0) for small, (b, x) in rows)


def test_guards_at_many_points_are_those_of_each():
    asked = recorder({"B": 12, "X": 4})
    B, X = (asked.size(size) for size in symbols("B X"))
    assert B > 2 * X
    assert not _parity(B)
    guards = Guards(asked)
    points = [{"B": b, "X": x} for b in range(4, 40, 3) for x in (1, 2, 4, 16)]
    assert guards.holding(points).tolist() == [guards.hold(point) for point in points]
    assert 0 < guards.holding(points).sum() < len(points)


@decided(8, lambda size: [size])
def _parity(size):
    """Return a value after asking more than the result depends on."""
    return bool(size % 2) if size > 9 else size in (5, 7, 9)


def test_a_fact_knows_what_it_was_asked_for_first():
    made, held = sizes({"B": 8, "M": 4})
    assert held["B"] > 3
    for made.about in ("first", "second"):
        assert held["B"] > held["M"] + (made.about == "second")
        assert range(held["M"])
    assert {str(fact): about for fact, about in made.facts.items()} == {
        "B - 3 > 0": None, "B - M > 0": "first", "M - 4 == 0": "first", "B - M - 1 > 0": "second",
    }  # fmt: skip


@decided(16, lambda *numbers: numbers)
def smaller_half(a, b):
    """Ask for the larger number, and return a value that does not depend on it if both are even."""
    larger = a if a > b else b
    return (a + b) // 2 if larger else None


def test_a_call_stands_where_asked_again_it_gives_the_same():
    made = recorder({"B": 8, "M": 4})
    B, M = (made.size(size) for size in symbols("B M"))
    assert smaller_half(B, M).value == 6
    assert not made.facts
    guards = Guards(made)
    assert guards.facts.failing({"B": 2, "M": 4})
    assert guards.hold({"B": 2, "M": 4})
    assert not guards.hold({"B": 3, "M": 4})


def test_what_a_call_rests_on_is_asked_again_too():
    @decided(16, lambda *numbers: numbers)
    def outer(a, b):
        return smaller_half(a, b) > 3

    made = recorder({"B": 8, "M": 4})
    assert outer(*(made.size(size) for size in symbols("B M"))) is True
    guards = Guards(made)
    assert guards.hold({"B": 7, "M": 4})  # another inner result, the same outer one
    assert not guards.hold({"B": 1, "M": 4})
