"""Integer maps: index expressions in named variables, and closed forms in a partition id.

An `Index` is affine, with at most one division and one modulo. A `Quotient` is the canonical form
`slope*p + floor((rest*p + constant) / divisor)` of a map of one partition id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardalg.algebra.offset import partition_symbol

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Index:
    """`(sum coefficient * variable + constant) [/ div exactly, or // div] [% mod]`.

    A variable is a loop of an operator, or a run-time symbol `$t`. With an exact division, the
    iterations at which `div` leaves a remainder do not exist.

    >>> print(Index.of("o") * 2 + Index.of("r") - 1)
    2*o+r-1
    >>> print((Index.of("d") - 2).over(3)), print(Index.of("d") % 4)
    (d-2)/3
    (d)%4
    (None, None)
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0
    div: int = 1
    exact: bool = False
    mod: int = 0

    @staticmethod
    def of(value: str | int | Index) -> Index:
        """Return a loop's name or a number as an `Index`; return an `Index` unchanged."""
        if isinstance(value, Index):
            return value
        return Index(((value, 1),)) if isinstance(value, str) else Index((), value)

    def _linear(self) -> dict[str, int]:
        """Return the coefficient of each variable, of an index without division and modulo."""
        assert self.div == 1 and not self.mod, f"{self} is divided: it cannot be added to"
        return dict(self.terms)

    def __add__(self, other: str | int | Index) -> Index:
        """Return the sum of two indices without division and modulo."""
        other = Index.of(other)
        total = self._linear()
        for name, coefficient in other._linear().items():
            total[name] = total.get(name, 0) + coefficient
        # Sorted and without zeros, so that equal expressions are equal values.
        terms = tuple(sorted((n, c) for n, c in total.items() if c))
        return Index(terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        self._linear()
        terms = tuple((n, c * factor) for n, c in self.terms if factor)
        return Index(terms, self.constant * factor)

    def __sub__(self, other: str | int | Index) -> Index:
        return self + Index.of(other) * -1

    def over(self, divisor: int) -> Index:
        """Return this index divided exactly: iterations with a remainder do not exist."""
        return self if divisor == 1 else Index(self.terms, self.constant, divisor, True)

    def __floordiv__(self, divisor: int) -> Index:
        return self if divisor == 1 else Index(self.terms, self.constant, divisor)

    def __mod__(self, modulus: int) -> Index:
        return Index(self.terms, self.constant, self.div, self.exact, modulus)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the loops and run-time symbols in the expression."""
        return tuple(name for name, _ in self.terms)

    @property
    def loop(self) -> str | None:
        """The loop's name if the index is one plain loop, such as `o`; None for any other index."""
        if self.constant or self.div > 1 or self.mod or len(self.terms) != 1:
            return None
        name, coefficient = self.terms[0]
        return name if coefficient == 1 else None

    def at(self, values: Mapping[str, Any]) -> Any:
        """Return the value for given values of the variables; None if it does not exist.

        It does not exist if an exact division leaves a remainder. An index without exact division
        also takes arrays of numbers, and returns an array.
        """
        number = sum(c * values[n] for n, c in self.terms) + self.constant
        # Only exact divisions test a condition, which arrays do not allow.
        if self.exact and number % self.div:
            return None
        number //= self.div
        return number % self.mod if self.mod else number

    @property
    def expr(self) -> sympy.Expr:
        """The index in sympy, with the variables as integer symbols.

        >>> (Index.of("o") * 2 - 1).expr, (Index.of("p") // 4 % 2).expr
        (2*o - 1, Mod(floor(p/4), 2))
        """
        import sympy

        number = sympy.Integer(self.constant)
        for name, coefficient in self.terms:
            number += coefficient * sympy.Symbol(name, integer=True)
        # An exact division has no remainder at the iterations that exist, so no floor is needed.
        number = number / self.div if self.exact else sympy.floor(number / self.div)
        return sympy.Mod(number, self.mod) if self.mod else number

    def __str__(self) -> str:
        """Return the expression as text, such as `2*o+r`."""
        # `terms` are sorted by name, but windows are written with the stride first, `2*o+r`.
        ordered = sorted(self.terms, key=lambda term: -abs(term[1]))
        text = "".join(
            ("+" if c > 0 else "-") + ("" if abs(c) == 1 else f"{abs(c)}*") + n for n, c in ordered
        )
        # A constant 0 is written only if nothing else is.
        text = (text + (f"{self.constant:+d}" if self.constant or not text else "")).lstrip("+")
        if self.div > 1:
            text = f"({text}){'/' if self.exact else '//'}{self.div}"
        return f"({text})%{self.mod}" if self.mod else text


@dataclass(frozen=True, slots=True)
class Quotient:
    """The integer map `p -> slope*p + floor((rest*p + constant) / divisor)`.

    The form is canonical: `0 <= rest < divisor`, `gcd(rest, divisor) = 1`, and `divisor = 1` if
    `rest = 0`. Two maps are equal on all integers exactly if their fields are equal. From p to
    p + 1 a map grows by `slope` or by `slope + 1`, so it is monotone.

    >>> Quotient.of(6, 5, 4), Quotient.of(6, 5, 4) == Quotient.of(3, 2, 2)
    (p + floor(p/2) + 1, True)
    """

    slope: int
    rest: int
    constant: int
    divisor: int

    def __post_init__(self) -> None:
        assert 0 <= self.rest < self.divisor and math.gcd(self.rest, self.divisor) == 1, (
            "built by Quotient.of"
        )

    @staticmethod
    def of(slope: int, constant: int = 0, divisor: int = 1, *, up: bool = False) -> Quotient:
        """Return the map `floor((slope*p + constant) / divisor)`; `up` rounds up instead.

        The divisor is positive.

        >>> Quotient.of(3, -1), Quotient.of(2, 1, 4), Quotient.of(2, 1, 4, up=True)
        (3*p - 1, floor(p/2), floor(p/2) + 1)
        """
        assert divisor > 0, divisor
        if up:
            constant += divisor - 1
        whole, remainder = divmod(slope, divisor)
        # floor((g*r*p + c) / (g*m)) = floor((r*p + floor(c/g)) / m) makes the form canonical.
        common = math.gcd(remainder, divisor)
        return Quotient(whole, remainder // common, constant // common, divisor // common)

    def at(self, p: int) -> int:
        """Return the value at the partition id `p` (a number, or an array of numbers).

        >>> [Quotient.of(3, 1, 2).at(p) for p in range(4)]
        [0, 2, 3, 5]
        """
        return self.slope * p + (self.rest * p + self.constant) // self.divisor

    def plus(self, slope: int, constant: int = 0) -> Quotient:
        """Return the sum of this map and `slope*p + constant`.

        >>> Quotient.of(1, 0, 2).plus(2, -3)
        2*p + floor(p/2) - 3
        """
        constant = self.constant + constant * self.divisor
        return Quotient(self.slope + slope, self.rest, constant, self.divisor)

    def __neg__(self) -> Quotient:
        # The form of a Quotient is a floor, and -floor(x / m) = ceil(-x / m), so the negative map
        # is rounded up.
        """Return the map with the opposite sign, in canonical form."""
        slope = self.slope * self.divisor + self.rest
        return Quotient.of(-slope, -self.constant, self.divisor, up=True)

    @property
    def index(self) -> Index:
        """The map as an index expression in the variable `p`.

        >>> print(Quotient.of(6, 5, 4).index)
        (3*p+2)//2
        """
        slope = self.slope * self.divisor + self.rest
        return Index((("p", slope),) if slope else (), self.constant, self.divisor)

    @property
    def is_constant(self) -> bool:
        """True if the map has the same value for every partition id."""
        return not (self.slope or self.rest)

    def max(self, first: int, last: int) -> int:
        """Return the largest value of the map for `first <= p <= last`.

        >>> Quotient.of(-3, 1, 2).max(0, 7)
        0
        """
        # The map is monotone, so its largest value is at one end of the range.
        return max(self.at(first), self.at(last))

    def min(self, first: int, last: int) -> int:
        """Return the smallest value of the map for `first <= p <= last`."""
        return min(self.at(first), self.at(last))

    @property
    def expr(self) -> sympy.Expr:
        """The map in sympy, in the symbol `p`.

        >>> Quotient.of(6, 5, 4).expr
        p + floor(p/2) + 1
        """
        import sympy

        p = partition_symbol()
        return self.slope * p + sympy.floor((self.rest * p + self.constant) / sympy.S(self.divisor))

    def __repr__(self) -> str:
        """Return the map as text, such as `2*p + floor((p + 3)/4) - 1`."""
        if not self.rest:
            return _linear(self.slope, self.constant)
        # floor((x + k*d)/d) = floor(x/d) + k leaves a number below d inside of the floor.
        whole, inner = divmod(self.constant, self.divisor)
        text = _linear(self.rest, inner)
        floor = f"floor({text if text == 'p' else f'({text})'}/{self.divisor})"
        head = f"{_linear(self.slope, 0)} + " if self.slope else ""
        return head + floor + _signed(whole)


def _linear(slope: int, constant: int) -> str:
    """Return the text of `slope*p + constant` as sympy prints it: `3*p - 1`, `1 - p`.

    >>> _linear(-1, 1), _linear(-2, -1), _linear(0, 5)
    ('1 - p', '-2*p - 1', '5')
    """
    if not slope:
        return str(constant)
    term = "p" if abs(slope) == 1 else f"{abs(slope)}*p"
    if slope < 0 < constant:
        return f"{constant} - {term}"
    return ("-" if slope < 0 else "") + term + _signed(constant)


def _signed(constant: int) -> str:
    """Return a constant as the last term of a sum, such as " + 3" or " - 1"; "" for 0."""
    return f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else ""
