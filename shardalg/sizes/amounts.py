"""Amounts, numbers or formulas, divided and weighed: floats of numbers, exact of formulas."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from shardalg.sizes.formula import Formula


def over(amount: Any, rate: float) -> Any:
    """`amount / rate`: a float of a number; exact of a formula, the rate being its decimals.

    >>> from shardalg.sizes.formula import symbol
    >>> over(3, 1e9), over(symbol("B"), 1e9), over(symbol("B"), math.inf)
    (3e-09, B/1000000000, 0)
    """
    return _over(amount, rate) if type(amount) is Formula else float(amount) / rate


@lru_cache(maxsize=1 << 14)
def _over(amount: Formula, rate: float) -> Formula:
    return amount / Fraction(repr(rate)) if math.isfinite(rate) else Formula({})


def times(amount: Any, figure: float) -> Any:
    """`amount * figure`, as `over`.

    >>> from shardalg.sizes.formula import symbol
    >>> times(3, 1e-6), times(symbol("X") - 1, 1e-6)
    (3e-06, X/1000000 - 1/1000000)
    """
    return amount * (Fraction(repr(figure)) if type(amount) is Formula else figure)


def quotient(above: Any, below: Any) -> Any:
    """`above / below` without rounding: an int where it comes out, else a Fraction or a formula.

    >>> quotient(12, 4), quotient(3, 4)
    (3, Fraction(3, 4))
    """
    if type(above) is int and type(below) is int:
        whole, rest = divmod(above, below)
        return Fraction(above, below) if rest else whole
    return above / below


def number(value: Any) -> Any:
    """Return an exact price as a table shows it: ints and formulas stay, else the nearest float."""
    return float(value) if type(value) is Fraction else value
