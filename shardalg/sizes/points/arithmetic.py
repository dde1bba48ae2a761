"""Operations on columns of numbers, by name: of whole numbers, of fractions, and of any at all."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

FLOAT = np.dtype(float)


def _plain(act: Callable[[Any, Any], Any]) -> Callable[[Any, Any], np.ndarray]:
    """With fractions as objects, which numpy does not know."""

    def done(a: Any, b: Any) -> np.ndarray:
        if type(b) is Fraction:
            b = np.array(b, object)
        return np.asarray(act(a, b))

    return done


def _quotient(a: Any, b: Any) -> np.ndarray:
    """`a / b` without rounding, of floats in floats."""
    if any(isinstance(x, float) or getattr(x, "dtype", None) is FLOAT for x in (a, b)):
        return np.asarray(a / b)
    above, below = np.broadcast_arrays(np.asarray(a, object), np.asarray(b, object))
    return np.array([ratio(x, y) for x, y in zip(above, below, strict=True)], object)


def ratio(above: Any, below: Any) -> Any:
    """The quotient without rounding: whole where it is."""
    found = Fraction(above) / below
    return found.numerator if found.denominator == 1 else found


def _swapped(act: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: act(b, a)


ON_ANY: dict[str, Callable[[Any, Any], Any]] = {
    "add": _plain(operator.add),
    "mul": _plain(operator.mul),
    "sub": _plain(operator.sub),
    "rsub": _swapped(_plain(operator.sub)),
    "truediv": _quotient,
    "rtruediv": _swapped(_quotient),
    "floordiv": _plain(operator.floordiv),
    "rfloordiv": _swapped(_plain(operator.floordiv)),
    "mod": _plain(operator.mod),
    "rmod": _swapped(_plain(operator.mod)),
    "lt": _plain(operator.lt),
    "le": _plain(operator.le),
    "gt": _plain(operator.gt),
    "ge": _plain(operator.ge),
    "eq": _plain(operator.eq),
}


def _divided(above: Any, below: Any) -> tuple[np.ndarray, np.ndarray]:
    made = np.broadcast_arrays(np.asarray(above), np.asarray(below))
    return made[0], made[1]


# Of a/u and c/v.
OF_RATIOS: dict[str, Callable[..., Any]] = {
    "add": lambda a, u, c, v: _divided(a * v + c * u, u * v),
    "sub": lambda a, u, c, v: _divided(a * v - c * u, u * v),
    "rsub": lambda a, u, c, v: _divided(c * u - a * v, u * v),
    "mul": lambda a, u, c, v: _divided(a * c, u * v),
    "truediv": lambda a, u, c, v: _divided(a * v, u * c),
    "rtruediv": lambda a, u, c, v: _divided(c * u, a * v),
    "lt": lambda a, u, c, v: a * v < c * u,
    "le": lambda a, u, c, v: a * v <= c * u,
    "gt": lambda a, u, c, v: a * v > c * u,
    "ge": lambda a, u, c, v: a * v >= c * u,
    "eq": lambda a, u, c, v: a * v == c * u,
}
OF_WHOLE: dict[str, Callable[[Any, Any], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "rsub": lambda a, b: np.subtract(b, a),
    "mul": np.multiply,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
}
"""What is done most: on small whole numbers, without asking what may go wrong."""
