"""Exact evaluation of formulas, and calls of functions, at many values of the named sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from shardalg.sizes.formula import Formula
from shardalg.sizes.recorded import formula_of

_SAFE = 1 << 62
"""A sum does not overflow in 64-bit integers if its terms' absolute values add up to less."""


class ExactPoints:
    """Points at which formulas are evaluated exactly, with caches.

    A point is a dictionary from each named size to its number.

    >>> from shardalg.sizes.formula import symbols
    >>> B, X = symbols("B X")
    >>> points = ExactPoints([{"B": 12, "X": 4}, {"B": 6, "X": 4}])
    >>> points.of(5 * B), points.of(B / X)
    (array([60, 30]), array([3, Fraction(3, 2)], dtype=object))
    """

    def __init__(self, points: Sequence[Mapping[str, int]]) -> None:
        """Start with empty caches of factors, formulas and results of called functions."""
        self.points = points
        self._columns: dict[Any, np.ndarray] = {}
        self._known: dict[Formula, np.ndarray] = {}
        self._called: dict[Any, Mapping[str, np.ndarray]] = {}

    def of(self, size: Any) -> np.ndarray:
        """Return an array with the exact value of a size at each point.

        Args:
          size: a number, a formula or a recorded size.
        """
        formula = formula_of(size)
        if formula not in self._known:
            numerator, denominator = map(self._polynomial, formula.fraction)
            # Most quotients are whole at all points: only otherwise are Fractions needed.
            quotients = numerator // denominator
            if (quotients * denominator != numerator).any():
                pairs = zip(numerator.tolist(), denominator.tolist(), strict=True)
                quotients = np.array([_ratio(*pair) for pair in pairs], object)
            self._known[formula] = quotients
        return self._known[formula]

    def _polynomial(self, formula: Formula) -> np.ndarray:
        """Return the values of a formula without division at each point.

        They are 64-bit integers if these cannot overflow, otherwise Python integers.
        """
        for factor in dict.fromkeys(f for monomial in formula.terms for f, _ in monomial):
            # Formulas share factors (names, ceilings, maxima), so each is evaluated only once.
            if factor not in self._columns:
                numbers = [p[factor] if type(factor) is str else factor.at(p) for p in self.points]
                self._columns[factor] = np.array(numbers, object)
        columns = [{f: self._columns[f] for f, _ in monomial} for monomial in formula.terms]
        # A bound of the sum decides the type: Python integers are exact, but much slower.
        terms = list(zip(columns, formula.terms.items(), strict=True))
        bound = sum(
            abs(c) * math.prod(int(max(abs(column_of[f]))) ** e for f, e in monomial)
            for column_of, (monomial, c) in terms
        )
        dtype = np.dtype(np.int64 if bound < _SAFE else object)
        values = np.zeros(len(self.points), dtype)
        for column_of, (monomial, c) in terms:
            values = values + math.prod(column_of[f].astype(dtype) ** e for f, e in monomial) * int(
                c
            )
        return values

    def each(
        self, function: Callable[..., Mapping[str, float]], *sizes: Any
    ) -> Mapping[str, np.ndarray]:
        """Call a function at each point, and return an array for each key of its results.

        The function is called once for each distinct row of arguments. If its result lacks a key at
        a point, the array is 0 there.

        Args:
          function: function from numbers to a dictionary of numbers.
          sizes: its arguments: numbers, formulas or recorded sizes, evaluated at each point.

        >>> points = ExactPoints([{"B": 12}, {"B": 6}, {"B": 12}])
        >>> points.each(lambda n, m: {"half": n / m}, Formula({frozenset({("B", 1)}): 1}), 2)
        {'half': array([6., 3., 6.])}
        """
        key = (function, *map(formula_of, sizes))
        if key not in self._called:
            rows = list(zip(*(self.of(size).tolist() for size in sizes), strict=True))
            result_of = {row: function(*row) for row in dict.fromkeys(rows)}
            # A function may give other names at other sizes: collect them all.
            names = dict.fromkeys(name for made in result_of.values() for name in made)
            self._called[key] = {
                name: np.array([result_of[row].get(name, 0.0) for row in rows]) for name in names
            }
        return self._called[key]


def _ratio(above: int, below: int) -> int | Fraction:
    """Return the exact quotient, as an int if it is whole."""
    ratio = Fraction(above, below)
    return ratio.numerator if ratio.denominator == 1 else ratio
