"""What pointwise operators and layouts make of numbers, where every compiler must agree.

A place of padding that holds a known number still holds one behind an operator whose operands are
numbers there. Only results that no rounding touches are told: a compiler may compute the others in
more, or fewer, bits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from shardalg.graph.ir import Signature
from shardalg.ops.families.building import FLOATS
from shardalg.ops.families.pointwise import COPIES

Number = int | float | bool
INF = math.inf
MOVES = "broadcast_in_dim reshape squeeze transpose"
"""Layouts of one operand whose elements stay what they are."""
SAME = frozenset((COPIES + MOVES).split()) - {"convert_element_type"}
ODD = "asin asinh atan atanh cbrt erf erf_inv expm1 log1p sin sinh sqrt tan tanh"
"""Functions that are 0 at 0."""
# Functions that are computed by approximation, where they are exact all the same.
POINTS: dict[str, dict[float, float]] = {
    **{name: {0: 0} for name in ODD.split()},
    "cos": {0: 1},
    "exp": {0: 1, -INF: 0},
    "exp2": {0: 1, -INF: 0},
    "logistic": {0: 0.5, -INF: 0, INF: 1},
}
PRODUCTS = ("mul", "square")
EXACT: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "add": operator.add,
    "add_any": operator.add,
    "clamp": lambda low, x, high: min(max(x, low), high),
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "max": max,
    "min": min,
    "mul": operator.mul,
    "ne": operator.ne,
    "neg": operator.neg,
    "select_n": lambda which, *cases: cases[which],
    "sign": lambda x: (x > 0) - (x < 0),
    "square": lambda x: x * x,
    "sub": operator.sub,
}


def at_numbers(signature: Signature, numbers: Mapping[int, Number]) -> Number | None:
    """The result where operands are numbers; None where it is not known, or inexact.

    Args:
      numbers: per operand that the result's elements are made of.

    >>> from shardalg.graph.ir import ValueType
    >>> x = ValueType((4,), "float32")
    >>> at_numbers(Signature("mul", (), (x, x), (x,)), {0: 0.0, 1: 0.5})
    0.0
    >>> at_numbers(Signature("exp", (), (x,), (x,)), {0: 0.5}) is None
    True
    """
    if signature.primitive in SAME:
        return next(iter(numbers.values())) if len(numbers) == 1 else None
    types = {signature.operands[k].dtype for k in numbers} | {signature.results[0].dtype}
    if len(numbers) != len(signature.operands) or any(t.startswith("complex") for t in types):
        return None
    given = [numbers[k] for k in sorted(numbers)]
    if any(map(math.isnan, given)):  # Python orders a NaN otherwise than JAX
        return None
    if any(is_subnormal(numbers[k], signature.operands[k].dtype) for k in numbers):
        return None  # 0 to some compilers, to XLA's on a CPU too
    if signature.primitive == "select_n" and given[0] not in range(len(given) - 1):
        return None  # Python counts negative numbers from the end, and JAX leaves it open
    dtype = signature.results[0].dtype
    if signature.primitive == "convert_element_type":
        return _converted(given[0], dtype)
    if signature.primitive == "integer_pow":
        return given[0] if given[0] in (0, 1) and signature.param("y") > 0 else None
    if signature.primitive in POINTS:
        return POINTS[signature.primitive].get(given[0])
    if signature.primitive not in EXACT:
        return None
    result = EXACT[signature.primitive](*given)
    underflows = signature.primitive in PRODUCTS and not result and 0 not in given
    return None if underflows else _told(result, given, dtype)


def is_subnormal(number: Number, dtype: str) -> bool:
    """Whether a floating type has it with fewer bits than others.

    >>> is_subnormal(1e-40, "float32"), is_subnormal(1e-40, "float64")
    (True, False)
    """
    if dtype not in FLOATS or not number:
        return False
    _, exponent = FLOATS[dtype]
    return abs(number) < math.ldexp(1, 2 - 2 ** (exponent - 1))


def _told(result: Number, given: list[Number], dtype: str) -> Number | None:
    """The result, unless a type of few bits may round it, or has no place for it."""
    if dtype == "bool":
        return bool(result)
    if dtype not in FLOATS:
        # of what is no whole number a range counts all of its own
        return result if isinstance(result, int) and result in integers(dtype) else None
    plain = {0.0, 1.0, -1.0, *given, *(-number for number in given)}
    return float(result) if result in plain else None


def _converted(number: Number, dtype: str) -> Number | None:
    """0, 1 and infinities are what they are in every floating type, 0 and 1 in all others."""
    if dtype in FLOATS:
        return float(number) if number in (0, 1, INF, -INF) else None
    if number not in (0, 1):
        return None
    return bool(number) if dtype == "bool" else int(number)


def integers(dtype: str) -> range:
    """Numbers of an integer type; of another type none.

    >>> integers("int8"), integers("float32")
    (range(-128, 128), range(0, 0))
    """
    if not dtype.startswith(("int", "uint")):
        return range(0)
    bits = int(dtype.lstrip("uint"))
    return (
        range(2**bits) if dtype.startswith("uint") else range(-(2 ** (bits - 1)), 2 ** (bits - 1))
    )
