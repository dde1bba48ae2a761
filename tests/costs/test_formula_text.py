"""Formulas in sympy, put together without its simplifier, against sympy itself."""

import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st

from shardalg.algebra.dims import Size
from shardalg.sizes.formula import Formula
from shardalg.sizes.formula_text import _factors, _shared, to_sympy

NAMES = ("B", "X", "Y", "Z2", "Z10", "x")
SIZES = {name: Size(name, 2 + place) for place, name in enumerate(NAMES[:4])}
monomials = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 2), max_size=3)
numbers = st.integers(-9, 9).filter(bool)


def polynomials(least, most):
    pairs = st.tuples(monomials.map(lambda powers: frozenset(powers.items())), numbers)
    return st.lists(pairs, min_size=least, max_size=most).map(lambda terms: Formula(dict(terms)))


def plain(formula):
    """Sums of products as sympy makes them."""
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
    _, rest = _shared(product)
    found = _factors(frozenset(rest.items()))
    assert found == sympy.factor(to_sympy(rest, {})).as_coeff_Mul()


@pytest.mark.parametrize("hint", [3, 5])
def test_symbols_of_other_hints_are_not_mixed_up(hint):
    terms = {frozenset({("B", 1), ("X", -1)}): 2, frozenset({("B", 1)}): -2}
    symbols = {"B": Size("B", 4), "X": Size("X", hint)}
    shown = Formula(terms).sympy(symbols=symbols)
    assert shown.free_symbols == set(symbols.values())
    assert shown == 2 * symbols["B"] * (1 - symbols["X"]) / symbols["X"]
