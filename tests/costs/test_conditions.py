import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardalg.sizes.amounts import tile
from shardalg.sizes.conditions import always, crossovers, flips, is_open, margin, primitive, words
from shardalg.sizes.facts import BROKEN, NONNEGATIVE, NONZERO, POSITIVE, WHOLE, ZERO, Fact
from shardalg.sizes.formula import Formula, FormulaError, ceiling, symbol, symbols

B, S, M, H, X, Y = symbols("B S M H X Y")
NAMES = "BSMHXY"
HINTS = {"B": 64, "S": 1024, "M": 8192, "H": 65536, "X": 8, "Y": 16}


RELATIONS = (POSITIVE, NONNEGATIVE, NONZERO)


@pytest.mark.parametrize(
    ("difference", "shardings", "expected"),
    [
        (Formula({}), [], True),
        (B * M - B, [], True),
        ((B - 1) * (M - 1), [], True),
        (B * M - B - M + 1, [], True),
        (B * M - B - M, [], False),
        ((2 * B - 3) * (M - 1), [], False),
        (M - X, [], False),
        (M - X, [(M, X)], True),
        (M - X, [(M, Y)], False),
        (M - X * Y, [(M, X), (M, X * Y)], True),
        (M * X - B, [(B, X)], False),
        (B * M - X * Y, [(B, X), (M, Y)], True),
        (M - 4, [(M, 4)], True),
        (2 * M / X - M / X**2, [], True),
        (M / X**2 - M / X, [], False),
        (-M, [], False),
        (tile(M, X) - 1, [], True),
        (tile(M, X) - M / X, [], True),
        (M / X - tile(M, X), [], False),
        (tile(M, X) - 2, [], False),
        (X * tile(M, X) * tile(B, Y) * Y - M * B, [], True),
        (tile(tile(M, X) + 1, Y) - M / (X * Y), [], True),
        # A ceiling that divides, as parts of a plan of uneven sizes do.
        (tile(M, X) / tile(B, Y), [], True),
        ((B * tile(M, X) - B * M / X) / tile(H, Y), [], True),
        ((B * M / X - B * tile(M, X)) / tile(H, Y), [], False),
        (tile(M, X) / tile(M, Y) - 1, [], False),
    ],
)
def test_what_holds_for_all_sizes(difference, shardings, expected):
    assert always(difference, shardings=shardings) is expected


terms = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.integers(-1, 2), max_size=3),
        st.integers(-4, 9),
        st.sampled_from([0, 0, 1, -1]),
    ),
    min_size=1,
    max_size=4,
)


def formula_of(terms):
    total = Formula({})
    for powers, coefficient, uneven in terms:
        product = Formula.of(coefficient)
        for name, exponent in powers.items():
            product = product * symbol(name) ** exponent
        total += product * tile(M, X) ** uneven
    return total


@given(terms, st.randoms())
@settings(max_examples=200)
def test_what_holds_always_holds_at_random_sizes(terms, rng):
    difference = formula_of(terms)
    free, known = always(difference), always(difference, shardings=[(M, X), (H, X * Y)])
    assert known or not free
    for _ in range(10):
        point = {name: rng.choice([1, 1, 2, 3, 7, 40]) for name in NAMES}
        grown = {**point, "M": point["M"] * point["X"], "H": point["H"] * point["X"] * point["Y"]}
        assert not free or difference.at(point) >= 0
        assert not known or difference.at(grown) >= 0


@given(terms, st.randoms())
@settings(max_examples=100)
def test_the_primitive_form_is_one_for_all_multiples_and_keeps_the_sign(terms, rng):
    difference = formula_of(terms)
    scaled = 6 * difference * B / (X * Y)
    assert primitive(scaled) == primitive(difference)
    assert primitive(primitive(difference)) == primitive(difference)
    point = {name: rng.randint(1, 30) for name in NAMES}
    assert (primitive(difference).at(point) >= 0) is (difference.at(point) >= 0)


@pytest.mark.slow
@given(terms, st.sampled_from(RELATIONS), st.randoms())
@settings(max_examples=200)
def test_what_is_not_open_holds_at_random_sizes(terms, relation, rng):
    fact = Fact(primitive(formula_of(terms)), relation)
    for _ in range(10):
        point = {name: rng.choice([1, 1, 2, 3, 7, 40]) for name in NAMES}
        assert is_open(fact) or fact.holds(point)


@pytest.mark.parametrize(
    ("fact", "text", "near"),
    [
        (Fact(2 * B * S - M, POSITIVE), "M < 2*B*S", 1 - 8192 / (2 * 64 * 1024)),
        (Fact(M - 2 * B * S, NONNEGATIVE), "2*B*S <= M", None),
        (Fact(X - 8, ZERO), "X = 8", None),
        (Fact(1 - X, NONZERO), "X != 1", 7 / 8),
        (Fact(X - Y, NONZERO), "Y != X", 0.5),
        (Fact(M / (2 * X), WHOLE), "2*X divides M", None),
        (Fact(B / X, BROKEN), "X does not divide B", None),
        (Fact(B - X * tile(B, X), NONZERO), "X does not divide B", None),
        (Fact(Y * S - Y * X * tile(S, X), ZERO), "X*Y divides S*Y", None),
        (Fact(B + X * ceiling(-B / X), NONZERO), "X does not divide B", None),
        (Fact(B - Y * tile(B, X), NONZERO), "Y*ceil(B/X) != B", None),
    ],
)
def test_facts_in_words(fact, text, near):
    assert words(fact) == text
    if near is not None:
        assert margin(fact, HINTS) == near
    elif fact.relation != NONNEGATIVE and "!=" not in text:
        assert margin(fact, HINTS) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("relation", [NONNEGATIVE, POSITIVE])
def test_sizes_at_which_a_comparison_turns_are_the_nearest(relation):
    """Against every size from 1 to 80; roots without a change of sign are left out."""
    rng, seen = random.Random(5), 0
    for _ in range(600):
        formula = sum((rng.randint(-9, 9) * X**k * B for k in range(-1, 3)), rng.randint(0, 3) * M)
        fact, hints = Fact(Formula.of(formula), relation), {"X": 7, "B": 2, "M": 5}
        values = {x: fact.formula.at({**hints, "X": x}) for x in range(1, 81)}
        if values[7] <= 0 or 0 in values.values():
            continue
        low = [x for x in range(6, 0, -1) if values[x] < 0][:1]
        high = [x for x in range(8, 81) if values[x] < 0][:1]
        found = tuple(x for x in flips(fact, hints).get("X", ()) if x <= 80)
        assert found == (*low, *high), (fact, hints)
        seen += len(found)
    assert seen > 60


def test_a_comparison_of_ceilings_turns_at_whole_blocks():
    fact = Fact(tile(M, X) * X - 2 * B, POSITIVE)
    assert flips(fact, {"M": 100, "X": 8, "B": 40}) == {"B": (52,), "M": (80,)}


@pytest.mark.parametrize(
    "difference", [10 * X**2 * tile(B, X * Y) - 29, 10 * X * tile(X * B, Y) - 29]
)
def test_no_size_at_which_a_comparison_turns_is_below_one(difference):
    """A comparison without ceilings changes between X = 1 and X = 2, one with them at 1 too."""
    assert "X" not in flips(Fact(difference, POSITIVE), {"B": 11, "X": 8, "Y": 5})


@pytest.mark.parametrize(
    ("difference", "name", "values", "expected"),
    [
        (M * X - 12 * B, "X", {"M": 2, "B": 8}, [48.0]),
        (M * X - 12 * B, "X", {"M": 200, "B": 8}, []),
        (X**2 - 5 * X + 6, "X", {}, [2.0, 3.0]),
        ((X - 4) ** 2, "X", {}, []),
        (X - 7 + 10 / X, "X", {}, [2.0, 5.0]),
        (B / X - M, "X", {"B": 30, "M": 2}, [15.0]),
        (tile(B, X) * M - 60, "X", {"B": 30, "M": 20}, [10.0]),
        (B - M, "X", {"B": 1, "M": 2}, []),
        (25 * X**2 - 25 * X + 4, "X", {}, []),
        (Formula({}), "X", {}, []),
    ],
)
def test_crossovers(difference, name, values, expected):
    assert crossovers(difference, name, values=values) == pytest.approx(expected)


def test_the_sign_changes_at_crossovers_and_nowhere_else():
    rng = random.Random(11)
    for _ in range(40):
        difference = sum((rng.randint(-9, 9) * X**k for k in range(-1, 4)), Formula({}))
        found = crossovers(difference, "X")
        sign = [difference.at({"X": x}) for x in range(2, 60)]
        for x, (a, b) in enumerate(pairwise(sign), start=2):
            inside = sum(x < root < x + 1 for root in found)
            if a * b < 0:
                assert inside % 2 == 1
            elif a * b > 0:
                assert inside % 2 == 0


def test_crossovers_need_all_other_sizes():
    with pytest.raises(FormulaError, match=r"crossovers in X of M\*X - 12\*B: B is open"):
        crossovers(M * X - 12 * B, "X", values={"M": 3})
