"""The larger of two prices: one factor of a formula, where sizes decide which of them it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from shardalg.sizes.formula import Formula, Monomial, Number
from shardalg.sizes.formula_text import to_sympy
from shardalg.sizes.points import lanes
from shardalg.sizes.points.array_steps import Code

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Max:
    """The factor `max(first, second)` of a monomial."""

    first: Formula
    second: Formula

    @cached_property
    def _hash(self) -> int:
        return hash((Max, self.first, self.second))

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
        """`Max(first, second)`; sympy is not asked which of them it is, which takes seconds."""
        import sympy

        return sympy.Max(*(to_sympy(f.terms, symbols) for f in (self.first, self.second)),
                         evaluate=False)  # fmt: skip


@dataclass(frozen=True)
class Least:
    """The smaller one of two prices, where formulas are swept."""

    of: Max

    def steps(self, code: Code) -> int:
        """Of arrays."""
        return code.step("min", *map(code.polynomial, self.of.pair))


def larger(first: Any, second: Any) -> Any:
    """The larger of two numbers or formulas; a factor of both stands outside.

    Every size is at least 1, so that a difference of positive products alone decides.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> larger(2, 3), larger(B * M, 2 * B), larger(B * M, 2 * B * M / X + B * M)
    (3, B*max(2, M), B*M + 2*B*M/X)
    """
    if type(first) is not Formula and type(second) is not Formula:
        return lanes.largest((first, second))
    return _larger(Formula.of(first), Formula.of(second))


def smaller(first: Any, second: Any) -> Any:
    """The smaller of two numbers or formulas.

    >>> from shardalg.sizes.formula import symbols
    >>> smaller(2, 3), smaller(*symbols("B M"))
    (2, B + M - max(B, M))
    """
    if type(first) is not Formula and type(second) is not Formula:
        return lanes.least((first, second))
    return first + second - larger(first, second)


@lru_cache(maxsize=1 << 12)
def _larger(first: Formula, second: Formula) -> Formula:
    if _never_less(first - second):
        return first
    if _never_less(second - first):
        return second
    shared = _shared(first, second)
    inside = Max(*sorted((first / shared, second / shared), key=repr))
    return shared * Formula({frozenset({(inside, 1)}): 1})


def _never_less(difference: Formula) -> bool:
    """Whether a formula is at least 0 at all sizes, as a sum of positive products."""
    return all(c >= 0 for c in difference.terms.values()) and not any(
        type(atom) is Max for atom in difference.atoms
    )


def _shared(first: Formula, second: Formula) -> Formula:
    """The largest product that is in every term of both."""
    terms = [dict(m) for formula in (first, second) for m in formula.terms]
    factors = {factor for found in terms for factor in found}
    least = {f: min(found.get(f, 0) for found in terms) for f in factors}
    numbers = [Fraction(c) for formula in (first, second) for c in formula.terms.values()]
    above = math.gcd(*(n.numerator for n in numbers))
    below = math.lcm(*(n.denominator for n in numbers))
    return Formula({frozenset((f, e) for f, e in least.items() if e): Fraction(above, below)})
