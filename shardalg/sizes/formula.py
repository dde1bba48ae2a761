"""Exact formulas of named sizes: Laurent polynomials in which `ceil(D/n)` is one factor.

A formula is `sum coefficient * product of sizes to integer powers`. The code that prices
a collective or a block only adds, multiplies and divides by products, so it runs on `int`,
`Fraction` and `Formula` alike. Every size is a positive integer; tensor dimensions and mesh axes
share one name space. In contrast to sympy, a formula is always expanded, so that equal formulas
have equal dictionaries. `sizes.amounts` creates the ceilings, and `sizes.growth` gives the order of
a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, wraps
from numbers import Rational
from typing import TYPE_CHECKING, Any

import numpy as np

from shardalg.errors import ShardalgError
from shardalg.sizes.array_steps import Code, run
from shardalg.sizes.formula_text import factored_sum, text, to_sympy

if TYPE_CHECKING:
    import sympy

Number = int | Fraction
Monomial = frozenset[tuple[Any, int]]
UNIT: Monomial = frozenset()


class FormulaError(ShardalgError, ValueError):
    """Error: the result of an operation is no formula, or a size has no value."""


def _formula_operator(method: Callable[[Formula, Formula], Any]) -> Callable[[Formula, Any], Any]:
    """Decorate a binary operator of `Formula`, so that the other operand may be a number.

    An integer or fraction becomes a formula; for any other type the operator returns
    `NotImplemented`.
    """

    @wraps(method)
    def operator(self: Formula, other: Any) -> Any:
        if type(other) is not Formula:
            if type(other) is not int and not isinstance(other, Rational):
                return NotImplemented
            return method(self, _constant(other))
        return method(self, other)

    return operator


def _constant(value: Any) -> Formula:
    """Return the constant formula of a number."""
    return Formula({UNIT: value})


@dataclass(frozen=True, eq=False, repr=False)
class Formula:
    """Exact sum of products of named sizes; a constant formula equals its number.

    Attributes:
      terms: the coefficient (int or Fraction) of each monomial. A monomial is a set of pairs
        (factor, exponent). A factor is a name, a `Ceil`, a `MaximumFactor` or a `SumFactor`.

    Raises:
      FormulaError: division by a sum, a power that is no integer.

    >>> B, M, X, Y = symbols("B M X Y")
    >>> 2 * B * M * (X - 1) / X
    2*B*M - 2*B*M/X
    >>> (X - 1) * (X + 1) == X**2 - 1, (M / X).at({"M": 12, "X": 8})
    (True, Fraction(3, 2))
    """

    terms: Mapping[Monomial, Number]

    def __post_init__(self) -> None:
        """Normalise the coefficients, and drop terms with coefficient 0."""
        terms = self.terms.items()
        # Terms are unique and nonzero, so that equal formulas have equal dictionaries.
        nonzero_terms = {m: c if type(c) is int else _normalize(c) for m, c in terms if c}
        object.__setattr__(self, "terms", nonzero_terms)

    @staticmethod
    def of(value: Formula | Number) -> Formula:
        """Return a number as a formula, and a formula unchanged."""
        if type(value) is Formula:
            return value
        if not isinstance(value, Rational):
            raise FormulaError(f"{value!r} is no exact number: give an int or a Fraction.")
        return _constant(value)

    @_formula_operator
    def __add__(self, other: Formula) -> Formula:
        """Return the sum; coefficients of equal monomials are added."""
        total = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total[monomial] = total.get(monomial, 0) + coefficient
        return Formula(total)

    @_formula_operator
    def __mul__(self, other: Formula) -> Formula:
        """Return the product as a sum of monomials: each term times each term of the other."""
        total: dict[Monomial, Number] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                # Products of monomials are cached, because prices multiply the same sizes again and
                # again.
                monomial = _times(left, right)
                total[monomial] = total.get(monomial, 0) + a * b
        return Formula(total)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Formula:
        return Formula({m: -c for m, c in self.terms.items()})

    @_formula_operator
    def __sub__(self, other: Formula) -> Formula:
        return self + -other

    @_formula_operator
    def __rsub__(self, other: Formula) -> Formula:
        return other + -self

    @_formula_operator
    def __truediv__(self, other: Formula) -> Formula:
        return self * other._inverse()

    @_formula_operator
    def __rtruediv__(self, other: Formula) -> Formula:
        return other * self._inverse()

    @_formula_operator
    def __floordiv__(self, other: Formula) -> Formula:
        return flooring(self / other)

    @_formula_operator
    def __rfloordiv__(self, other: Formula) -> Formula:
        return other // self

    def __pow__(self, exponent: int) -> Formula:
        """Return an integer power; a negative exponent is allowed for a single term."""
        if type(exponent) is not int:
            raise FormulaError(f"({self})**{exponent}: the exponent of a formula is an integer.")
        base = self._inverse() if exponent < 0 else self
        return math.prod([base] * abs(exponent), start=Formula({UNIT: 1}))

    def _inverse(self) -> Formula:
        """Return `1 / self`; raise FormulaError if the formula is a sum."""
        if len(self.terms) != 1:
            raise FormulaError(f"1/({self}) is no formula: only products divide.")
        [(monomial, coefficient)] = self.terms.items()
        inverse = frozenset((f, -e) for f, e in monomial)
        return Formula({inverse: 1 / Fraction(coefficient)})

    @_formula_operator
    def __eq__(self, other: Formula) -> bool:
        return self.terms == other.terms

    @cached_property
    def _hash(self) -> int:
        """The hash, cached, because formulas are keys of many dictionaries."""
        # A constant formula has the hash of its number, because it is equal to it.
        number = self.number
        return hash(frozenset(self.terms.items()) if number is None else number)

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def number(self) -> Number | None:
        """The number that the formula equals, or None if it depends on sizes."""
        terms = self.terms
        return terms.get(UNIT) if len(terms) == 1 else None if terms else 0

    @cached_property
    def atoms(self) -> frozenset[Any]:
        """The factors of all terms that are no names: ceilings, maxima and sums.

        Ceilings inside of these factors are not included.
        """
        factors = {factor for monomial in self.terms for factor, _ in monomial}
        return frozenset(factor for factor in factors if type(factor) is not str)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the sizes in the formula, including those in ceilings, maxima and sums."""
        factors = {factor for monomial in self.terms for factor, _ in monomial}
        return frozenset().union(factors - self.atoms, *(atom.names for atom in self.atoms))

    @cached_property
    def fraction(self) -> tuple[Formula, Formula]:
        """Pair (numerator, denominator): a sum without division, and a product that divides it.

        >>> B, X, Y = symbols("B X Y")
        >>> (B / X + B / (6 * Y)).fraction
        (B*X + 6*B*Y, 6*X*Y)
        """
        powers: dict[Any, int] = {}
        for monomial in self.terms:
            for factor, exponent in monomial:
                powers[factor] = max(powers.get(factor, 0), -exponent)
        # Multiplied by the largest negative power of each factor, no term has a division left. The
        # least common multiple of the denominators makes the coefficients integers.
        scale = math.lcm(*(Fraction(c).denominator for c in self.terms.values()))
        below = Formula({frozenset((f, e) for f, e in powers.items() if e): scale})
        return self * below, below

    def at(self, values: Mapping[str, Number]) -> Number:
        """Return the exact value at given sizes: an int if it is whole, else a Fraction.

        Args:
          values: a number for each name in the formula.

        Raises:
          FormulaError: a size has no value, or a divisor is 0.

        >>> ceiling(symbol("M") / symbol("X")).at({"M": 10, "X": 4})
        3
        """
        self._demand(values)
        value_of: dict[Any, Number] = {**values}
        value_of |= {atom: atom.at(values) for atom in self.atoms}
        try:
            total: Number = 0
            for monomial, c in self.terms.items():
                # One Fraction per term, because its arithmetic is much slower than that of ints.
                numerator = c * math.prod(value_of[f] ** e for f, e in monomial if e > 0)
                denominator = math.prod(value_of[f] ** -e for f, e in monomial if e < 0)
                total += numerator * Fraction(1, denominator) if denominator != 1 else numerator
            return _normalize(total)
        except ZeroDivisionError:
            zero = sorted(name for name in self.names if values[name] == 0)
            raise FormulaError(f"{self} divides by {', '.join(zero)}, which is 0.") from None

    def _demand(self, values: Mapping[str, Any]) -> None:
        """Raise FormulaError unless each size of the formula has a value."""
        if missing := sorted(self.names - values.keys()):
            raise FormulaError(f"{self} needs {', '.join(missing)}; given are {sorted(values)}.")

    def subs(self, values: Mapping[str, Formula | Number]) -> Formula:
        """Return the formula with some sizes replaced by numbers or formulas.

        >>> B, M, X, b = symbols("B M X b")
        >>> (B * M / X).subs({"B": b * X, "M": 8})
        8*b
        """

        def new(factor: Any) -> Formula:
            if type(factor) is not str:
                return Formula.of(factor.subs(values))
            return Formula.of(values[factor]) if factor in values else symbol(factor)

        return self.replace(new)

    def replace(self, new: Callable[[Any], Formula]) -> Formula:
        """Return the formula with each factor replaced by `new(factor)`.

        A factor is a name, a ceiling, a maximum or a sum.
        """
        total = Formula({})
        for monomial, coefficient in self.terms.items():
            total += math.prod((new(f) ** e for f, e in monomial), start=coefficient)
        return total

    def lambdify(self) -> Callable[..., np.ndarray]:
        """Return a function that evaluates the formula at numpy arrays of its sizes.

        The sizes are keyword arguments, whose arrays broadcast; other names are ignored. The result
        has double precision. Ceilings are exact if their numerators are below 2**52.

        >>> cost = (ceiling(symbol("M") / symbol("X")) * 3).lambdify()
        >>> cost(M=np.array([8, 9, 13]), X=4)
        array([ 6.,  9., 12.])
        """
        code = Code()
        root = code.polynomial(self.terms)

        def sweep(**values: Any) -> np.ndarray:
            self._demand(values)
            return run(code, [root], {name: values[name] for name in self.names})[0]

        return sweep

    def steps(self, code: Code) -> int:
        """Add steps that compute the formula to the numpy program `code`.

        Return the number of the step whose result is the formula's value.
        """
        # One division of two polynomials, because a product with 1/n would be inexact where
        # `ceil(D/n)` jumps.
        above, below = (code.polynomial(part.terms) for part in self.fraction)
        return above if below == code.number(1) else code.step("divide", above, below)

    def sympy(
        self, *, factored: bool = True, symbols: Mapping[str, sympy.Symbol] | None = None
    ) -> sympy.Expr:
        """Return the formula as a sympy expression in positive integer symbols.

        Args:
          factored: whether common factors are written in front of brackets, as in `B*(X - 1)/X`.
            Otherwise the result is the expanded sum.
          symbols: sympy symbols for some of the names; the others get new symbols.

        >>> B, M, X = symbols("B M X")
        >>> (2 * B - 2 * B / X).sympy(), (2 * M - 2 * M / X + B * X + B).sympy()
        (2*B*(X - 1)/X, B*(X + 1) + 2*M*(X - 1)/X)
        """
        show = factored_sum if factored else to_sympy
        return show(self.terms, symbols or {})

    def __repr__(self) -> str:
        return text(self.terms)


@dataclass(frozen=True)
class Ceil:
    """The factor `ceil(ratio)` of a monomial: an integer that has no simpler formula.

    Attributes:
      ratio: the formula that is rounded up.
      pair: always (). The same attribute of a `MaximumFactor` has its two sides.
    """

    ratio: Formula
    pair = ()

    @cached_property
    def _hash(self) -> int:
        """The hash, cached, because ceilings are parts of keys of many dictionaries."""
        return hash((Ceil, self.ratio))

    def __hash__(self) -> int:
        return self._hash

    @property
    def names(self) -> frozenset[str]:
        """Names of the sizes in the ratio."""
        return self.ratio.names

    def at(self, values: Mapping[str, Number]) -> int:
        """Return the ceiling at given sizes."""
        return math.ceil(self.ratio.at(values))

    def subs(self, values: Mapping[str, Formula | Number]) -> Formula:
        """Return the ceiling with some sizes replaced."""
        return ceiling(self.ratio.subs(values))

    def steps(self, code: Code) -> int:
        """Add steps that compute the ceiling to the numpy program `code`.

        Return the number of the step whose result is the ceiling.
        """
        return code.step("ceil", self.ratio.steps(code))

    def __repr__(self) -> str:
        above, below = self.ratio.fraction
        return f"ceil({text(above.terms, within='/')}/{text(below.terms, within='**')})"

    def sympy(self, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
        """Return the sympy expression `ceiling(ratio)`; `symbols` as in `Formula.sympy`."""
        import sympy

        above, below = self.ratio.fraction
        return sympy.ceiling(to_sympy(above.terms, symbols) / to_sympy(below.terms, symbols))


def has_formula(sizes: Iterable[Any]) -> bool:
    """Return whether at least one of the sizes is a `Formula`."""
    return any(type(size) is Formula for size in sizes)


def _normalize(number: Number) -> Number:
    """Return an int for a whole Fraction, and any other number unchanged."""
    return int(number.numerator) if number.denominator == 1 else number


@lru_cache(maxsize=1 << 16)
def _times(left: Monomial, right: Monomial) -> Monomial:
    """Return the product of two monomials: exponents add, and an exponent of 0 is left out."""
    powers = dict(left)
    for factor, exponent in right:
        powers[factor] = powers.get(factor, 0) + exponent
    return frozenset((f, e) for f, e in powers.items() if e)


@lru_cache(maxsize=4096)
def symbol(name: str) -> Formula:
    """Return the formula that is the size `name` alone; a size is a positive integer.

    Raises:
      FormulaError: `name` is no identifier.
    """
    if not name.isidentifier():
        raise FormulaError(f"{name!r} is no name of a size: letters, digits and _, as in Python.")
    return Formula({frozenset({(name, 1)}): 1})


def symbols(names: str) -> tuple[Formula, ...]:
    """Return the formulas of several sizes, whose names are separated by blanks."""
    return tuple(symbol(name) for name in names.split())


@lru_cache(maxsize=1 << 14)
def ceiling(ratio: Formula) -> Formula:
    """Return the formula of the smallest integer at or above a formula, simplified if possible.

    `ceil(k + r) = k + ceil(r)` for an integer k; `ceil(ceil(a)/n) = ceil(a/n)` for an integer n >=
    1 (Graham, Knuth, Patashnik, "Concrete Mathematics", 3.11); `ceil(1/n) = 1`.

    >>> M, V, X, Y = symbols("M V X Y")
    >>> ceiling((V + X - 1) / X), ceiling(ceiling(M / X) / (2 * Y)), ceiling(4 * M * X / X)
    (ceil((V - 1)/X) + 1, ceil(M/(2*X*Y)), 4*M)
    """
    # Terms without division and with integer coefficients are integers: they leave the ceiling.
    whole_terms = Formula(
        {m: c for m, c in ratio.terms.items() if type(c) is int and all(e > 0 for _, e in m)}
    )
    other_terms = ratio - whole_terms
    if other_terms.number is not None:
        return whole_terms + math.ceil(other_terms.number)
    if len(other_terms.terms) == 1:
        [(monomial, coefficient)] = other_terms.terms.items()
        if inner := _nested_ceiling(monomial, coefficient):
            return whole_terms + ceiling(inner)
        # 1/n is in (0, 1] for every n >= 1.
        if 0 < coefficient <= 1 and all(e < 0 for _, e in monomial):
            return whole_terms + 1
    return whole_terms + Formula({frozenset({(Ceil(other_terms), 1)}): 1})


def flooring(ratio: Formula) -> Formula:
    """Return the formula of the largest integer at or below a formula.

    `floor(a/n) = ceil((a + 1)/n) - 1` for integers a and n >= 1. So the floor of a positive formula
    consists of ceilings of positive ones.

    >>> H, X = symbols("H X")
    >>> flooring((H + 1) / 2), flooring((H - 1) / 2), flooring(H / X)
    (ceil(H/2), ceil(H/2) - 1, ceil((H + 1)/X) - 1)
    """
    above, below = ratio.fraction
    # If a may be no integer, or has no growing term, `-ceil(-a/n)` is used: it is right for any a.
    whole = all(type(factor) in (str, Ceil) for monomial in above.terms for factor, _ in monomial)
    grows = any(c > 0 for monomial, c in above.terms.items() if monomial)
    return ceiling(ratio + 1 / below) - 1 if whole and grows else -ceiling(-ratio)


def _nested_ceiling(monomial: Monomial, coefficient: Number) -> Formula | None:
    """Return `a/n` for the term `ceil(a)/n`; None for a term of another form.

    n is a product of sizes, which are integers. A caller that takes the ceiling of the term can use
    `a/n` instead.

    Args:
      monomial, coefficient: the term.
    """
    numerator = [(f, e) for f, e in monomial if e > 0]
    if len(numerator) != 1 or numerator[0][1] != 1 or type(numerator[0][0]) is not Ceil:
        return None
    # The coefficient must be 1 over an integer, so that n is an integer.
    if coefficient <= 0 or Fraction(coefficient).numerator != 1:
        return None
    # ceil(ceil(a)/n) = ceil(a/n) for an integer n >= 1.
    atom = numerator[0][0]
    return Formula({monomial - {(atom, 1)}: coefficient}) * atom.ratio
