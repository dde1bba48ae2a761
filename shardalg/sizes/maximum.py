"""The larger of two prices: one factor of a formula, where sizes decide which of them it is."""

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
        return hash((MaximumFactor, self.first, self.second))

    def __hash__(self) -> int:
        return self._hash

    @property
    def names(self) -> frozenset[str]:
        """The sizes that it depends on."""
        return self.first.names | self.second.names

    def at(self, values: Mapping[str, Number]) -> Number:
        """The exact value at sizes."""
        return max(self.first.at(values), self.second.at(values))

    def subs(self, values: Mapping[str, Formula | Number]) -> Any:
        """With some sizes replaced."""
        return larger(self.first.subs(values), self.second.subs(values))

    @property
    def pair(self) -> tuple[Mapping[Monomial, Number], ...]:
        """The terms of both."""
        return self.first.terms, self.second.terms

    @property
    def least(self) -> Least:
        """The smaller of the two."""
        return Least(self)

    def steps(self, code: Code) -> int:
        """Of arrays."""
        return code.step("max", *map(code.polynomial, self.pair))

    def __repr__(self) -> str:
        return f"max({self.first}, {self.second})"

    def sympy(self, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
        """Return `Max(first, second)`, whose arguments sympy does not compare."""
        from shardalg.algebra import dims

        return dims.Max(*(to_sympy(f.terms, symbols) for f in (self.first, self.second)))


@dataclass(frozen=True)
class SumFactor:
    """A sum as one factor of a monomial, so that it may divide."""

    inside: Formula
    pair = ()

    @cached_property
    def _hash(self) -> int:
        return hash((SumFactor, self.inside))

    def __hash__(self) -> int:
        return self._hash

    @property
    def names(self) -> frozenset[str]:
        """The sizes that it depends on."""
        return self.inside.names

    def at(self, values: Mapping[str, Number]) -> Number:
        """The exact value at sizes."""
        return self.inside.at(values)

    def subs(self, values: Mapping[str, Formula | Number]) -> Formula:
        """With some sizes replaced."""
        return grouped(self.inside.subs(values))

    def steps(self, code: Code) -> int:
        """Of arrays."""
        return self.inside.steps(code)

    def __repr__(self) -> str:
        return f"({self.inside})"

    def sympy(self, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
        """The sum."""
        return to_sympy(self.inside.terms, symbols)


def grouped(amount: Any) -> Any:
    """Return a formula with which others can be divided: of a sum, one factor.

    >>> from shardalg.sizes.formula import symbols
    >>> B, H = symbols("B H")
    >>> B / grouped(H - 2), (B / grouped(H - 2)).at({"B": 6, "H": 4}), grouped(2 * B), grouped(3)
    (B/(H - 2), 3, 2*B, 3)
    """
    if type(amount) is not Formula or len(amount.terms) == 1:
        return amount
    shared = _shared(amount, amount)
    return shared * Formula({frozenset({(SumFactor(amount / shared), 1)}): 1})


@dataclass(frozen=True)
class Least:
    """The smaller one of two prices, where formulas are swept."""

    of: MaximumFactor

    def steps(self, code: Code) -> int:
        """Of arrays."""
        return code.step("min", *map(code.polynomial, self.of.pair))


_SHIFTED_TERMS = 8
"""Longest difference that is tested for being positive in sizes less 1."""


def larger(first: Any, second: Any) -> Any:
    """The larger of two numbers or formulas; a factor of both stands outside.

    Every size is at least 1, so that a difference of positive products alone decides.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> larger(2, 3), larger(B * M, 2 * B), larger(B * M, 2 * B * M / X + B * M)
    (3, B*max(2, M), B*M + 2*B*M/X)
    """
    if type(first) is not Formula and type(second) is not Formula:
        return max(first, second)
    return _larger(Formula.of(first), Formula.of(second))


def largest_of(amounts: Sequence[Any]) -> Any:
    """The largest of several numbers or formulas.

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
    """The smaller of two numbers or formulas.

    >>> from shardalg.sizes.formula import symbols
    >>> smaller(2, 3), smaller(*symbols("B M"))
    (2, B + M - max(B, M))
    """
    if type(first) is not Formula and type(second) is not Formula:
        return min(first, second)
    return first + second - larger(first, second)


@lru_cache(maxsize=1 << 12)
def _larger(first: Formula, second: Formula) -> Formula:
    if _never_less(first - second):
        return first
    if _never_less(second - first):
        return second
    shared = _shared(first, second)
    inside = MaximumFactor(*sorted((first / shared, second / shared), key=repr))
    return shared * Formula({frozenset({(inside, 1)}): 1})


def _never_less(difference: Formula) -> bool:
    """Whether a formula is at least 0 at all sizes: a sum of positive products, in sizes less 1."""
    factors = {factor for monomial in difference.terms for factor, _ in monomial}
    least = {factor: _least(factor) for factor in factors}
    if None in least.values():
        return False
    if all(c >= 0 for c in difference.terms.values()):
        return True
    smooth = _between_ceilings(difference)
    if smooth is not None:
        return _never_less(smooth)
    # In H - 1 the size is 1 or more: with h = H - 1, a sum without negative terms is left.
    divides = any(e < 0 for monomial in difference.terms for _, e in monomial)
    if divides or len(difference.terms) > _SHIFTED_TERMS:
        return False
    shifted = difference.replace(
        lambda factor: Formula({frozenset({(factor, 1)}): 1}) + (least[factor] or 0)
    )
    return all(c >= 0 for c in shifted.terms.values())


def _between_ceilings(difference: Formula) -> Formula | None:
    """Return `a - b + q` for `ceil(a) - ceil(b) + q`; None for a difference of another form.

    q is a whole number, so that the difference is `ceil(a + q) - ceil(b)`: it is at least 0 where
    `a + q` is at least b.
    """
    ends: dict[int, Formula] = {}
    rest: dict[Monomial, Number] = {}
    for monomial, c in difference.terms.items():
        (factor, power), *others = (*monomial, (None, 0))
        alone = type(factor) is Ceil and power == 1 and len(others) == 1
        if alone and c in (1, -1) and c not in ends:
            ends[int(c)] = factor.ratio
        elif type(c) is int and all(type(f) is str and e > 0 for f, e in monomial):
            rest[monomial] = c
        else:
            return None
    if not ends:
        return None
    return ends.get(1, Formula({})) - ends.get(-1, Formula({})) + Formula(rest)


@lru_cache(maxsize=1 << 12)
def _least(factor: Any) -> int | None:
    """A number that a factor is never below, 1 or 0; None where neither is known."""
    if type(factor) is str:
        return 1
    if type(factor) is not Ceil:
        return None
    if all(c > 0 for c in factor.ratio.terms.values()) and all(map(_least, factor.ratio.atoms)):
        return 1
    return 0 if _never_less(factor.ratio) else None


def _shared(first: Formula, second: Formula) -> Formula:
    """The largest product of positive factors that is in every term of both."""
    terms = [dict(m) for formula in (first, second) for m in formula.terms]
    factors = {factor for found in terms for factor in found if _least(factor)}
    least = {f: min(found.get(f, 0) for found in terms) for f in factors}
    numbers = [Fraction(c) for formula in (first, second) for c in formula.terms.values()]
    above = math.gcd(*(n.numerator for n in numbers))
    below = math.lcm(*(n.denominator for n in numbers))
    return Formula({frozenset((f, e) for f, e in least.items() if e): Fraction(above, below)})
