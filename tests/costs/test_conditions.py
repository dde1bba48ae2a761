import random
from itertools import pairwise

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from shardalg.costs.collectives import step_wire_bytes
from shardalg.sizes.conditions import Condition, always, conditions, crossovers, primitive
from shardalg.sizes.formula import Formula, FormulaError, symbol, symbols
from shardalg.sizes.tile import tile

B, S, M, H, X, Y = symbols("B S M H X Y")
NAMES = "BSMHXY"
HINTS = {"B": 64, "S": 1024, "M": 8192, "H": 65536, "X": 8, "Y": 16}


def gathered(block, parts):
    return step_wire_bytes("all_gather", group_size=parts, local_bytes=block)


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
    ],
)
def test_what_holds_for_all_sizes(difference, shardings, expected):
    assert always(difference, shardings=shardings) is expected


terms = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.integers(-1, 2), max_size=3),
        st.integers(-4, 9),
        st.booleans(),
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
        total += product * (tile(M, X) if uneven else 1)
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


def test_conditions_are_distinct_open_and_the_closest_first():
    weight, activation = 2 * M * H / (X * Y), 2 * B * S * M / (X * Y)
    candidates = [
        Condition(gathered(weight, X), gathered(activation, X), "gather the weight"),
        Condition(gathered(3 * weight, X), gathered(3 * activation, X), "the same again"),
        Condition(activation, activation * Y, "never dearer"),
        Condition(activation, 4 * B * S * H / Y, "far away"),
        Condition(tile(B, X) * S, S * B, "never dearer where X divides B"),
    ]
    found = conditions(candidates, hints=HINTS)
    assert [c.what for c in found] == [
        "gather the weight",
        "never dearer where X divides B",
        "far away",
    ]
    margins = [c.margin(HINTS) for c in found]
    assert margins == sorted(margins)
    assert margins[0] == 0.0
    assert margins[1] == 1 - 1 / 8
    assert [c.what for c in conditions(candidates, hints=HINTS, shardings=[(H, Y)])] == [
        c.what for c in found
    ]


def test_a_condition_is_solved_for_each_size_it_is_linear_in():
    weight, activation = 2 * M * H / (X * Y), 2 * B * S * M / (X * Y)
    condition = Condition(gathered(weight, X), gathered(activation, X))
    assert [str(bound) for bound in condition.bounds()] == ["B >= H/S", "H <= B*S", "S >= H/B"]
    square = Condition(M**2, B * M * X**2 + B * H * X**2)
    assert str(square.bounds()[-1]) == "X >= M/(sqrt(B)*sqrt(H + M))"
    assert not any(bound.name == "M" for bound in square.bounds())


@given(terms, st.randoms())
@settings(max_examples=60)
def test_bounds_say_when_a_condition_holds(terms, rng):
    condition = Condition(Formula({}), formula_of(terms))
    point = {name: rng.randint(1, 9) for name in NAMES}
    for bound in condition.bounds():
        others = {name: value for name, value in point.items() if name != bound.name}
        values = {s: others[s.name] for s in bound.threshold.free_symbols}
        threshold = bound.threshold.subs(values)
        if not threshold.is_finite:  # divided by 0: the size does not matter here
            assert condition.holds(point) is condition.holds({**point, bound.name: 10**9})
            continue
        sized = sympy.Integer(point[bound.name])
        right = sized >= threshold if bound.relation == ">=" else sized <= threshold
        assert bool(right) is condition.holds(point)


def test_where_its_divisor_is_0_a_bound_says_nothing():
    condition = Condition(3 * B * S, 1 + 3 * B)
    (bound,) = (bound for bound in condition.bounds() if bound.name == "B")
    assert str(bound) == "B <= 1/(3*(S - 1))"
    assert all(condition.holds({"B": size, "S": 1}) for size in (1, 9, 10**9))


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
