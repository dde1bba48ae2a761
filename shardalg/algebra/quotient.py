"""Closed forms in a partition id: `slope*p + floor((rest*p + constant) / divisor)`, one per map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardalg.algebra.affine import Index
from shardalg.algebra.offset import partition_symbol

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True, slots=True)
class Quotient:
    """The integer map `p -> slope*p + floor((rest*p + constant) / divisor)`.

    Canonical: `0 <= rest < divisor` with `gcd(rest, divisor) = 1`, and `divisor = 1` without a
    rest. Two maps are equal on all integers exactly if they are equal as values. From p to p + 1 a
    map grows by `slope` or by `slope + 1`, so it is monotone.

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
        """`floor((slope*p + constant) / divisor)`; rounded up with `up`. The divisor is positive.

        `floor((g*r*p + c) / (g*m)) = floor((r*p + floor(c/g)) / m)` makes it canonical.

        >>> Quotient.of(3, -1), Quotient.of(2, 1, 4), Quotient.of(2, 1, 4, up=True)
        (3*p - 1, floor(p/2), floor(p/2) + 1)
        """
        assert divisor > 0, divisor
        if up:
            constant += divisor - 1
        whole, rest = divmod(slope, divisor)
        common = math.gcd(rest, divisor)
        return Quotient(whole, rest // common, constant // common, divisor // common)

    def at(self, p: int) -> int:
        """The value at the partition id `p` (a number, or an array of numbers).

        >>> [Quotient.of(3, 1, 2).at(p) for p in range(4)]
        [0, 2, 3, 5]
        """
        return self.slope * p + (self.rest * p + self.constant) // self.divisor

    def plus(self, slope: int, constant: int = 0) -> Quotient:
        """This map and `slope*p + constant`.

        >>> Quotient.of(1, 0, 2).plus(2, -3)
        2*p + floor(p/2) - 3
        """
        constant = self.constant + constant * self.divisor
        return Quotient(self.slope + slope, self.rest, constant, self.divisor)

    def __neg__(self) -> Quotient:
        slope = self.slope * self.divisor + self.rest
        return Quotient.of(-slope, -self.constant, self.divisor, up=True)

    @property
    def index(self) -> Index:
        """The same as an index expression in the variable `p`.

        >>> print(Quotient.of(6, 5, 4).index)
        (3*p+2)//2
        """
        slope = self.slope * self.divisor + self.rest
        return Index((("p", slope),) if slope else (), self.constant, self.divisor)

    @property
    def is_constant(self) -> bool:
        """Whether every partition has the same value."""
        return not (self.slope or self.rest)

    def max(self, first: int, last: int) -> int:
        """The largest value over `first <= p <= last`: a monotone map has it at an end.

        >>> Quotient.of(-3, 1, 2).max(0, 7)
        0
        """
        return max(self.at(first), self.at(last))

    def min(self, first: int, last: int) -> int:
        """The smallest value over `first <= p <= last`."""
        return min(self.at(first), self.at(last))

    @property
    def expr(self) -> sympy.Expr:
        """The same in sympy, in the symbol `p`.

        >>> Quotient.of(6, 5, 4).expr
        p + floor(p/2) + 1
        """
        import sympy

        p = partition_symbol()
        return self.slope * p + sympy.floor((self.rest * p + self.constant) / sympy.S(self.divisor))

    def __repr__(self) -> str:
        if not self.rest:
            return _linear(self.slope, self.constant)
        whole, inner = divmod(self.constant, self.divisor)
        text = _linear(self.rest, inner)
        floor = f"floor({text if text == 'p' else f'({text})'}/{self.divisor})"
        head = f"{_linear(self.slope, 0)} + " if self.slope else ""
        return head + floor + _signed(whole)


def _linear(slope: int, constant: int) -> str:
    """`slope*p + constant` as sympy prints it: `3*p - 1`, `1 - p`.

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
    return f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else ""
