"""Maxima, minima and sums as factors of a formula.

`larger(B, M)` is `max(B, M)` in a formula, because the sizes decide which one is larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from shardalg.sizes.array_steps import Code
from shardalg.sizes.formula import Ceil, Formula, Monomial, Number
from shardalg.sizes.formula_text import to_sympy

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class MaximumFactor:
    """The factor `max(first, second)` of a monomial."""

    first: Formula
    second: Formula

    @cached_property
    def _hash(self) -> int:
        """The hash, cached, because factors are parts of keys of many dictionaries."""
        return hash((MaximumFactor, self.first, self.second))

    def __hash__(self) -> int:
        return self._hash

    @property
    def names(self) -> frozenset[str]:
        """Names of the sizes in both formulas."""
        return self.first.names | self.second.names

    def at(self, values: Mapping[str, Number]) -> Number:
        """Return the exact value of the maximum at given sizes."""
        return max(self.first.at(values), self.second.at(values))

    def subs(self, values: Mapping[str, Formula | Number]) -> Any:
        """Return the maximum of both sides, in which sizes are replaced by numbers or formulas."""
        return larger(self.first.subs(values), self.second.subs(values))

    @property
    def pair(self) -> tuple[Mapping[Monomial, Number], ...]:
        """The terms of the first and of the second formula."""
        return self.first.terms, self.second.terms

    @property
    def least(self) -> Least:
        """The factor `min(first, second)` of the same two formulas."""
        return Least(self)

    def steps(self, code: Code) -> int:
        """Add the maximum to a program on arrays, and return the number of its last step."""
        return code.step("max", *map(code.polynomial, self.pair))

    def __repr__(self) -> str:
        return f"max({self.first}, {self.second})"

    def sympy(self, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
        """Return the expression `Max(first, second)`; `symbols` as in `Formula.sympy`."""
        # sympy's own `Max` compares its arguments, and decides some signs wrongly.
        from shardalg.algebra import dims

        return dims.Max(*(to_sympy(f.terms, symbols) for f in (self.first, self.second)))


@dataclass(frozen=True)
class SumFactor:
    """A sum as one factor of a monomial, so that a formula can be divided by it.

    Attributes:
      inside: the sum.
      pair: always (). The same attribute of a `MaximumFactor` has its two sides.
    """

    inside: Formula
    pair = ()

    @cached_property
    def _hash(self) -> int:
        """The hash, cached, because factors are parts of keys of many dictionaries."""
        return hash((SumFactor, self.inside))

    def __hash__(self) -> int:
        return self._hash

    @property
    def names(self) -> frozenset[str]:
        """Names of the sizes in the sum."""
        return self.inside.names

    def at(self, values: Mapping[str, Number]) -> Number:
        """Return the exact value of the sum at given sizes."""
        return self.inside.at(values)

    def subs(self, values: Mapping[str, Formula | Number]) -> Formula:
        """Return the sum with some sizes replaced by numbers or formulas."""
        return grouped(self.inside.subs(values))

    def steps(self, code: Code) -> int:
        """Add the steps that evaluate this sum to `code`; return the number of the last step."""
        return self.inside.steps(code)

    def __repr__(self) -> str:
        return f"({self.inside})"

    def sympy(self, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
        """Return the sum as a sympy expression; `symbols` as in `Formula.sympy`."""
        return to_sympy(self.inside.terms, symbols)


def grouped(amount: Any) -> Any:
    """Return an equal amount in which a sum is a single factor, so that formulas can divide by it.

    >>> from shardalg.sizes.formula import symbols
    >>> B, H = symbols("B H")
    >>> B / grouped(H - 2), (B / grouped(H - 2)).at({"B": 6, "H": 4}), grouped(2 * B), grouped(3)
    (B/(H - 2), 3, 2*B, 3)
    """
    if type(amount) is not Formula or len(amount.terms) == 1:
        return amount
    shared = _common_factor(amount, amount)
    return shared * Formula({frozenset({(SumFactor(amount / shared), 1)}): 1})


@dataclass(frozen=True)
class Least:
    """The factor `min(first, second)`, which occurs only in programs on arrays.

    Formulas write a minimum as `a + b - max(a, b)`, and `Code` replaces this by the minimum.

    Attributes:
      of: the maximum of the same two formulas.
    """

    of: MaximumFactor

    def steps(self, code: Code) -> int:
        """Add the minimum to a program on arrays, and return the number of its last step."""
        return code.step("min", *map(code.polynomial, self.of.pair))


# The sign of a difference is found by writing each size as 1 plus a rest, such as `H = 1 + h`. A
# difference with more terms than this is not rewritten, because the products get too many terms.
_SHIFTED_TERMS = 8


def larger(first: Any, second: Any) -> Any:
    """Return the larger of two numbers or formulas; for formulas, for example `B*max(2, M)`.

    If one formula is at least as large at all sizes, it is returned. Otherwise the result is their
    maximum (`MaximumFactor`), with common factors in front of it.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> larger(2, 3), larger(B * M, 2 * B), larger(B * M, 2 * B * M / X + B * M)
    (3, B*max(2, M), B*M + 2*B*M/X)
    """
    if type(first) is not Formula and type(second) is not Formula:
        return max(first, second)
    return _larger(Formula.of(first), Formula.of(second))


def largest_of(amounts: Sequence[Any]) -> Any:
    """Return the largest of several numbers or formulas.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M = symbols("B M")
    >>> largest_of([B, 2 * B, M])
    max(2*B, M)
    """
    first, *others = amounts
    for other in others:
        first = larger(first, other)
    return first


def smaller(first: Any, second: Any) -> Any:
    """Return the smaller of two numbers or formulas.

    >>> from shardalg.sizes.formula import symbols
    >>> smaller(2, 3), smaller(*symbols("B M"))
    (2, B + M - max(B, M))
    """
    if type(first) is not Formula and type(second) is not Formula:
        return min(first, second)
    # min(a, b) = a + b - max(a, b), so that formulas need one kind of factor only.
    return first + second - larger(first, second)


@lru_cache(maxsize=1 << 12)
def _larger(first: Formula, second: Formula) -> Formula:
    """Return the larger of two formulas; their `MaximumFactor` if that depends on the sizes."""
    if _is_nonnegative(first - second):
        return first
    if _is_nonnegative(second - first):
        return second
    shared = _common_factor(first, second)
    # Sorted arguments make `max(a, b)` and `max(b, a)` one factor.
    inside = MaximumFactor(*sorted((first / shared, second / shared), key=repr))
    return shared * Formula({frozenset({(inside, 1)}): 1})


def _is_nonnegative(difference: Formula) -> bool:
    """Return whether a formula is certainly at least 0 at all sizes of at least 1.

    The answer is yes if no coefficient is negative, possibly after each factor is written as its
    lower bound plus a number of at least 0. False means "not known".
    """
    factors = {factor for monomial in difference.terms for factor, _ in monomial}
    least = {factor: _lower_bound(factor) for factor in factors}
    # Without a lower bound of each factor nothing is known about the products.
    if None in least.values():
        return False
    if all(c >= 0 for c in difference.terms.values()):
        return True
    # Ceilings are monotonic: if the arguments are ordered, so are the ceilings.
    smooth = _drop_ceilings(difference)
    if smooth is not None:
        return _is_nonnegative(smooth)
    # For example, H - 1 becomes h for H = 1 + h. A quotient has no such form, and a long formula
    # would get too many terms.
    divides = any(e < 0 for monomial in difference.terms for _, e in monomial)
    if divides or len(difference.terms) > _SHIFTED_TERMS:
        return False
    # Sizes less their lower bounds are at least 0, so positive coefficients are enough.
    shifted = difference.replace(
        lambda factor: Formula({frozenset({(factor, 1)}): 1}) + (least[factor] or 0)
    )
    return all(c >= 0 for c in shifted.terms.values())


def _drop_ceilings(difference: Formula) -> Formula | None:
    """Return `a - b + q` for the formula `ceil(a) - ceil(b) + q`; None for another form.

    If the result is at least 0, so is the formula: q is an integer, so the formula is
    `ceil(a + q) - ceil(b)`, and ceil never decreases.
    """
    # `ratio_of_sign` has a at the key 1 and b at -1, the signs of their ceilings. Every other term
    # must be an integer at all sizes: an integer times names without division.
    ratio_of_sign: dict[int, Formula] = {}
    integer_terms: dict[Monomial, Number] = {}
    for monomial, c in difference.terms.items():
        (factor, power), *others = (*monomial, (None, 0))
        is_lone_ceiling = type(factor) is Ceil and power == 1 and len(others) == 1
        if is_lone_ceiling and c in (1, -1) and c not in ratio_of_sign:
            ratio_of_sign[int(c)] = factor.ratio
        elif type(c) is int and all(type(f) is str and e > 0 for f, e in monomial):
            integer_terms[monomial] = c
        else:
            return None
    if not ratio_of_sign:
        return None
    return (
        ratio_of_sign.get(1, Formula({}))
        - ratio_of_sign.get(-1, Formula({}))
        + Formula(integer_terms)
    )


@lru_cache(maxsize=1 << 12)
def _lower_bound(factor: Any) -> int | None:
    """Return a lower bound of a factor at all sizes, 1 or 0; None if no bound is known."""
    if type(factor) is str:
        return 1
    if type(factor) is not Ceil:
        return None
    # A sum of positive products is positive, so that its ceiling is at least 1.
    if all(c > 0 for c in factor.ratio.terms.values()) and all(
        map(_lower_bound, factor.ratio.atoms)
    ):
        return 1
    return 0 if _is_nonnegative(factor.ratio) else None


def _common_factor(first: Formula, second: Formula) -> Formula:
    """Return the largest product that divides every term of two formulas, with its number.

    For example, for 4*B*X - 6*B and 2*B it is 2*B.
    """
    terms = [dict(m) for formula in (first, second) for m in formula.terms]
    # A factor that may be 0 cannot be divided out. Of the others, the least power is common.
    factors = {factor for powers in terms for factor in powers if _lower_bound(factor)}
    common_powers = {f: min(powers.get(f, 0) for powers in terms) for f in factors}
    numbers = [Fraction(c) for formula in (first, second) for c in formula.terms.values()]
    # The gcd of fractions is the gcd of their numerators over the lcm of their denominators.
    numerator = math.gcd(*(n.numerator for n in numbers))
    denominator = math.lcm(*(n.denominator for n in numbers))
    return Formula(
        {frozenset((f, e) for f, e in common_powers.items() if e): Fraction(numerator, denominator)}
    )
