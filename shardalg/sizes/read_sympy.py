"""Conversion of sympy expressions, in which users write sizes, to formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from shardalg.sizes.formula import UNIT, Formula, FormulaError, ceiling, flooring, symbol

if TYPE_CHECKING:
    import sympy

from fractions import Fraction


def from_sympy(expression: sympy.Expr | int) -> Formula:
    """Return the formula of a sympy expression.

    The expression may contain names, numbers, `+ - * /`, integer powers, ceilings and floors.

    Raises:
      FormulaError: the expression has another function, such as a root, or divides by a sum.

    >>> import sympy
    >>> B, S, X = sympy.symbols("B S X", positive=True, integer=True)
    >>> from_sympy(4 * B * (S - 1) / X), from_sympy(sympy.ceiling(B / X))
    (4*B*S/X - 4*B/X, ceil(B/X))
    """
    import sympy

    expression = sympy.sympify(expression)
    if expression.is_Rational:
        return Formula({UNIT: Fraction(int(expression.p), int(expression.q))})
    if expression.is_Symbol:
        return symbol(expression.name)
    if expression.func not in _readers():
        kind = expression.func.__name__
        raise FormulaError(f"{expression}: a formula has no {kind}; write sums of products.")
    return _readers()[expression.func](*expression.args)


@cache
def _readers() -> Mapping[type, Callable[..., Formula]]:
    """Return, for each class of sympy expressions, the function from its arguments to a formula."""
    import sympy

    return {
        sympy.Add: lambda *terms: sum(map(from_sympy, terms), Formula({})),
        sympy.Mul: lambda *factors: math.prod(map(from_sympy, factors), start=Formula({UNIT: 1})),
        sympy.Pow: _power,
        sympy.ceiling: lambda ratio: ceiling(from_sympy(ratio)),
        sympy.floor: lambda ratio: flooring(from_sympy(ratio)),
    }


def _power(base: sympy.Expr, exponent: Any) -> Formula:
    """Return the formula of `base ** exponent`; raise FormulaError for a fractional exponent."""
    if not exponent.is_Integer:
        raise FormulaError(f"({base})**({exponent}): the exponent of a formula is an integer.")
    return from_sympy(base) ** int(exponent)
