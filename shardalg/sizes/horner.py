"""Polynomials over numpy arrays: nested so that few operations remain, run block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np

Powers = frozenset[tuple[Hashable, int]]
Values = Mapping[Any, Any]
Evaluator = Callable[[Values], Any]

# Points that are evaluated together: an operand of 8-byte numbers stays in the first-level cache.
_BLOCK = 1 << 12


def evaluator(terms: Mapping[Powers, Any]) -> Evaluator:
    """A function that evaluates `sum coefficient * prod factor**exponent` on arrays.

    Horner's scheme in several variables: the factor that most terms share is taken out, inside and
    outside of the bracket again, so that 30 terms of a price need about 40 operations.

    Args:
      terms: coefficient per product; exponents are positive.

    >>> twice = evaluator({frozenset({("x", 1), ("y", 2)}): 3, frozenset(): 1})
    >>> twice({"x": np.array([1.0, 2.0]), "y": 2.0})
    array([13., 25.])
    """
    shared = Counter(factor for powers in terms for factor, _ in powers)
    factor, users = max(shared.items(), key=lambda item: (item[1], str(item[0])), default=("", 0))
    if users < 2:
        return _sum([_product(powers, c) for powers, c in terms.items()])
    least = min(e for powers in terms for f, e in powers if f == factor)
    inside = {_without(p, factor, least): c for p, c in terms.items() if factor in dict(p)}
    outside = {p: c for p, c in terms.items() if factor not in dict(p)}
    bracket, power = evaluator(inside), _power(factor, least)
    if not outside:
        return lambda values: bracket(values) * power(values)
    rest = evaluator(outside)
    return lambda values: bracket(values) * power(values) + rest(values)


def _without(powers: Powers, factor: Hashable, exponent: int) -> Powers:
    left = ((f, e - exponent if f == factor else e) for f, e in powers)
    return frozenset((f, e) for f, e in left if e)


def _power(factor: Hashable, exponent: int) -> Evaluator:
    if exponent == 1:
        return lambda values: values[factor]
    return lambda values: values[factor] ** exponent


def _product(powers: Powers, coefficient: Any) -> Evaluator:
    factors = [_power(f, e) for f, e in sorted(powers, key=str)]

    def product(values: Values) -> Any:
        result: Any = float(coefficient)
        for factor in factors:
            result = result * factor(values)
        return result

    return product


def _sum(parts: list[Evaluator]) -> Evaluator:
    def total(values: Values) -> Any:
        result: Any = 0.0
        for part in parts:
            result = result + part(values)
        return result

    return parts[0] if len(parts) == 1 else total


def in_blocks(evaluate: Callable[[dict[str, Any]], Any], values: Values) -> np.ndarray:
    """`evaluate` on arrays that broadcast against each other, a cache-sized block at a time.

    >>> in_blocks(lambda v: v["x"] + v["y"], {"x": np.arange(3), "y": 1})
    array([1., 2., 3.])
    """
    arrays = {name: np.asarray(value, dtype=float) for name, value in values.items()}
    shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    if not shape:
        return np.asarray(evaluate(arrays), dtype=float)
    result = np.empty(shape)
    for rows in _row_blocks(shape):
        result[rows] = evaluate({n: _rows(a, rows, shape) for n, a in arrays.items()})
    return result


def _row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, int(np.prod(shape[1:]))))
    return (slice(start, start + step) for start in range(0, shape[0], step))


def _rows(array: np.ndarray, rows: slice, shape: tuple[int, ...]) -> np.ndarray:
    """The rows of an array that has them; one that is repeated along them as it is."""
    return array[rows] if array.ndim == len(shape) and array.shape[0] == shape[0] else array
