"""Formulas in sympy, put together without its simplifier, against sympy itself."""

import random
import re
from fractions import Fraction

import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st

from shardalg.algebra.dims import Size
from shardalg.sizes.formula import UNIT, Formula, ceiling, symbols
from shardalg.sizes.formula_text import _common_factor, _factors, to_sympy
from shardalg.sizes.maximum import larger
from tests.costs import fuzz_formulas

NAMES = ("B", "X", "Y", "Z2", "Z10", "x")
SIZES = {name: Size(name, 2 + place) for place, name in enumerate(NAMES[:4])}
monomials = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 2), max_size=3)
numbers = st.integers(-9, 9).filter(bool)


def polynomials(least, most):
    pairs = st.tuples(monomials.map(lambda powers: frozenset(powers.items())), numbers)
    return st.lists(pairs, min_size=least, max_size=most).map(lambda terms: Formula(dict(terms)))


def plain(formula):
    """Return sums of products as sympy makes them."""
    symbol = {n: SIZES.get(n, sympy.Symbol(n, positive=True, integer=True)) for n in NAMES}
    products = (
        sympy.Rational(c.numerator, c.denominator) * sympy.Mul(*(symbol[f] ** e for f, e in m))
        for m, c in formula.terms.items()
    )
    return sympy.Add(*products)


@given(polynomials(0, 4), polynomials(1, 1))
def test_a_sum_of_products_is_what_sympy_makes(above, below):
    ratio = above / below
    assert to_sympy(ratio.terms, SIZES) == plain(ratio)


@given(polynomials(2, 4), polynomials(1, 2))
def test_brackets_are_factored_as_sympy_does(first, second):
    product = (first * second).terms
    assume(len(product) > 1)
    _, rest = _common_factor(product)
    found = _factors(frozenset(rest.items()))
    assert found == sympy.factor(to_sympy(rest, {})).as_coeff_Mul()


@pytest.mark.parametrize("hint", [3, 5])
def test_symbols_of_other_hints_are_not_mixed_up(hint):
    terms = {frozenset({("B", 1), ("X", -1)}): 2, frozenset({("B", 1)}): -2}
    symbols = {"B": Size("B", 4), "X": Size("X", hint)}
    shown = Formula(terms).sympy(symbols=symbols)
    assert shown.free_symbols == set(symbols.values())
    assert shown == 2 * symbols["B"] * (1 - symbols["X"]) / symbols["X"]


def test_the_largest_of_two_is_decided_between_numbers_alone():
    """sympy compares the arguments after each substitution and takes `2/(X*Y) > 1` as true here."""
    B, N, X, Y = symbols("B N X Y")
    formula = larger(ceiling(B / (8 * X * Y)), ceiling(N / 8))
    positive = {n: sympy.Symbol(n, positive=True, integer=True) for n in "BNXY"}
    shown = formula.sympy(symbols=positive)
    for point in ({"B": 16, "N": 16, "X": 2, "Y": 2}, {"N": 8, "B": 48, "Y": 3, "X": 1}):
        found = shown
        for name, size in point.items():
            found = found.subs(positive[name], size)
        assert found == formula.at(point)


LONG_FRACTION = re.compile(r"\d{13,}\s*/|/\s*\(?\d{13,}")
TOTALS = {
    "compute_s": lambda totals: totals.sum("time_s", communication=False),
    "communication_s": lambda totals: totals.sum("time_s", communication=True),
    "flops": lambda totals: totals.sum("flops"),
    "wire_bytes": lambda totals: totals.sum("wire_bytes"),
    "peak_memory_bytes": lambda totals: totals.peak_bytes,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(10))
def test_prices_print_without_long_fractions_and_keep_their_value(seed):
    rng = random.Random(f"long fractions {seed}")
    case = fuzz_formulas.random_case(rng)
    cost = case.named().cost(rng.choice(fuzz_formulas.CHIPS))
    by_cause = {**cost.seconds_by_cause, "utilization": cost.flops_utilization}
    for name, shown in by_cause.items():
        assert not LONG_FRACTION.search(str(shown)), (name, shown)
    points = [fuzz_formulas.random_point(rng, case) for _ in range(5)]
    totals = {**TOTALS, "step_time_s": cost._time}
    for name, exact in totals.items():
        line = str(getattr(cost, name))
        assert not LONG_FRACTION.search(line), (name, line)
        printed = sympy.sympify(line, {n: sympy.Symbol(n) for n in cost.sizes.hints})
        for point in points:
            expected = Fraction(Formula.of(exact(cost.totals)).at(point))
            found = fuzz_formulas.number(printed, point)
            if name.endswith("_s"):
                assert float(found) == pytest.approx(float(expected), rel=1e-12)
            else:
                assert Fraction(int(found.p), int(found.q)) == expected


def test_a_rate_is_a_float_and_an_amount_is_exact():
    (B, X) = symbols("B X")
    assert str((3 * B / X / 10**12).sympy()) == "3.0e-12*B/X"
    assert str((Fraction(3, 8) * B).sympy()) == "3*B/8"
    alone = Formula({UNIT: Fraction(1258678679615, 8)}).sympy()
    assert str(alone) == "157334834951.875"
    assert sympy.Rational(str(alone)) == sympy.Rational(1258678679615, 8)
