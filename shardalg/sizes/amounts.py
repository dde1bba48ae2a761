"""Functions for amounts that are numbers or formulas: quotients, block sizes, divisibility."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from shardalg.sizes.formula import Ceil, Formula, ceiling, symbol


def over(amount: Any, rate: float) -> Any:
    """Return `amount / rate`: a float for a number, an exact formula for a formula.

    In a formula, the rate is the decimal number that it prints as.

    >>> from shardalg.sizes.formula import symbol
    >>> over(3, 1e9), over(symbol("B"), 1e9), over(symbol("B"), math.inf)
    (3e-09, B/1000000000, 0)
    """
    return _over(amount, rate) if type(amount) is Formula else float(amount) / rate


@lru_cache(maxsize=1 << 14)
def _over(amount: Formula, rate: float) -> Formula:
    """Return `amount / rate` for a formula; 0 for an infinite rate."""
    return amount / Fraction(repr(rate)) if math.isfinite(rate) else Formula({})


def times(amount: Any, figure: float) -> Any:
    """Return `amount * figure`: a float for a number, an exact formula for a formula.

    >>> from shardalg.sizes.formula import symbol
    >>> times(3, 1e-6), times(symbol("X") - 1, 1e-6)
    (3e-06, X/1000000 - 1/1000000)
    """
    return amount * (Fraction(repr(figure)) if type(amount) is Formula else figure)


def quotient(above: Any, below: Any) -> Any:
    """Return `above / below` exactly: an int if it is whole, else a Fraction or a formula.

    >>> quotient(12, 4), quotient(3, 4)
    (3, Fraction(3, 4))
    """
    if type(above) is int and type(below) is int:
        whole, remainder = divmod(above, below)
        return Fraction(above, below) if remainder else whole
    return above / below


def number(value: Any) -> Any:
    """Return the nearest float of a Fraction, and any other value unchanged, for tables."""
    return float(value) if type(value) is Fraction else value


Divides = Iterable[tuple[Formula | int, Formula | int]]
"""Pairs (D, n), each of which states that n divides D: a formula of D/n then needs no ceiling."""


def tile(size: Any, parts: Any, *, divides: Divides = ()) -> Any:
    """Return the block size of a dimension in some parts: `ceil(size / parts)`.

    Numbers give a number. A formula has no ceiling if `parts` divides `size` as polynomials do, or
    if that follows from `divides`.

    Args:
      divides: pairs (D, n) of which n is known to divide D.

    >>> from shardalg.sizes.formula import symbols
    >>> M, V, X, Y = symbols("M V X Y")
    >>> tile(10, 4), tile(V - 1, X * Y), tile(4 * M * X, X), tile(tile(M, X), Y)
    (3, ceil((V - 1)/(X*Y)), 4*M, ceil(M/(X*Y)))
    >>> tile(4 * M, X, divides=[(M, X * Y)])
    4*M/X
    """
    if type(size) is not Formula and type(parts) is not Formula:
        return -(-size // parts)
    return given(ceiling(Formula.of(size) / parts), divides)


def given(formula: Formula, divides: Divides) -> Formula:
    """Return a formula in which ceilings of quotients that are known to be whole are left out.

    Args:
      divides: pairs (D, n) of which n is known to divide D.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X, Y = symbols("B M X Y")
    >>> given(tile(M, X) * tile(B, Y), [(M, X)])
    M*ceil(B/Y)/X
    """
    # `is_whole` asks for quotients that are integers, and a pair (size, parts) gives one.
    facts = tuple(Formula.of(size) / parts for size, parts in divides)
    if not facts or not formula.atoms:
        return formula

    def new(factor: Any) -> Formula:
        """Return a factor of the formula; a ceiling loses the whole part of its quotient.

        For example, `ceil(k + r)` becomes `k + ceil(r)` if k is whole.
        """
        if type(factor) is not Ceil:
            return symbol(factor)
        ratio = given(factor.ratio, divides_again)
        if is_whole(ratio, facts):
            return ratio
        # A ceiling of a whole number plus a rest is the whole number plus the ceiling of the rest.
        whole_terms = {m: c for m, c in ratio.terms.items() if is_whole(Formula({m: c}), facts)}
        return Formula(whole_terms) + ceiling(ratio - Formula(whole_terms))

    divides_again = tuple((fact, 1) for fact in facts)
    return formula.replace(new)


def is_whole(ratio: Formula, facts: tuple[Formula, ...] = ()) -> bool:
    """Return whether a formula is certainly an integer at all sizes.

    It is an integer in three cases. Its coefficients are integers and it has no division. Each of
    its terms is an integer. Or it is the product of a formula in `facts` and another integer. The
    test is incomplete: False means "not known".

    Args:
      facts: formulas that are known to be integers.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X, Y = symbols("B M X Y")
    >>> is_whole(6 * B * M / (X * Y), (B / (2 * X), M / Y)), is_whole(M / (X * Y), (M / X, M / Y))
    (True, False)
    """
    debt = _debt(ratio)
    if not debt:
        return True
    terms = ratio.terms.items()
    if len(terms) > 1 and all(is_whole(Formula({m: c}), facts) for m, c in terms):
        return True
    # Only quotients that are closer to a polynomial are tried, so that the recursion ends.
    left = (multiple(ratio, fact) for fact in facts)
    return any(_debt(rest) < debt and is_whole(rest, facts) for rest in left if rest is not None)


def multiple(formula: Formula, unit: Formula) -> Formula | None:
    """Return the single term c with `formula = c * unit`; None if there is no such term.

    For example, 6*B*X - 6*X is 3*X times the unit 2*B - 2.
    """
    if len(formula.terms) != len(unit.terms) or not unit:
        return None
    # The unit's first term must come from one of the formula's terms: try each quotient.
    monomial, coefficient = next(iter(unit.terms.items()))
    first = Formula({monomial: coefficient})
    candidates = (Formula({m: c}) / first for m, c in formula.terms.items())
    return next((c for c in candidates if c * unit == formula), None)


def _debt(ratio: Formula) -> int:
    """Return a number that shows how far a formula is from an integer polynomial; 0 if it is one.

    Each division by a size adds its exponent, and each fraction its denominator minus 1.
    """
    powers = sum(-e for m in ratio.terms for _, e in m if e < 0)
    return powers + sum(Fraction(c).denominator - 1 for c in ratio.terms.values())
