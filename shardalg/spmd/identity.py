"""The identity of every way to combine, as a plain number of the item type."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from shardalg.errors import ProgramError
from shardalg.graph.ops.families.building import has_zero

_ZERO = ("sum", "or", "xor", "pick")
# log(exp(-inf) + exp(x)) = x, so the lowest number is the identity of logsumexp as well.
_LOWEST = ("max", "argmax", "logsumexp", "top")
_HIGHEST = ("min", "argmin")


def is_float(dtype: str) -> bool:
    """Return whether `dtype` is a floating type (`bfloat16` and the complex types included).

    >>> is_float("bfloat16"), is_float("int32")
    (True, False)
    """
    return dtype.startswith(("float", "bfloat", "complex"))


def identity(combine: str, dtype: str) -> int | float | bool:
    """Return the identity of a combination: `combine(identity, x) = x`.

    Raises:
      ProgramError: `combine` has no identity that a device could hold.

    >>> identity("sum", "float32"), identity("max", "bfloat16"), identity("min", "uint8")
    (0, -inf, 255)
    >>> identity("and", "bool"), identity("and", "int32")
    (True, -1)
    >>> identity("logsumexp", "float32"), f'{identity("logsumexp", "complex64"):.2e}'
    (-inf, '-1.70e+38')
    """
    if combine in _ZERO and has_zero(dtype):
        return False if dtype == "bool" else 0
    if combine == "top" and is_float(dtype):
        return math.copysign(math.nan, -1)  # below all numbers in the total order
    if combine == "logsumexp" and dtype.startswith("complex"):
        return float(np.finfo(dtype).min) / 2  # JAX subtracts its double, which stays finite
    if combine == "product":
        return 1
    if combine == "and":  # x & (all bits set) = x
        return extreme(dtype, highest=True) if dtype.startswith(("bool", "uint")) else -1
    if combine in _LOWEST + _HIGHEST:
        return extreme(dtype, highest=combine in _HIGHEST)
    raise ProgramError(
        f"{combine!r} of {dtype} has no identity; the known ways to combine are "
        f"{[*_ZERO, 'product', 'and', *_LOWEST, *_HIGHEST]}."
    )


def identity_if_any(combine: str, dtype: str) -> int | float | bool | None:
    """Return the identity, or None if it would be a zero that the type lacks.

    >>> [identity_if_any("sum", dtype) for dtype in ("float8_e4m3fn", "float8_e8m0fnu")]
    [0, None]
    """
    return None if combine in _ZERO and not has_zero(dtype) else identity(combine, dtype)


def is_kept(combine: str, number: float, dtype: str) -> bool:
    """Return whether a number stays the same when any number of its copies are combined.

    >>> [is_kept(combine, 0.0, "float32") for combine in ("sum", "product", "max", "logsumexp")]
    [True, True, True, False]
    >>> is_kept("sum", 1.0, "float32"), is_kept("max", 1.0, "float32")
    (False, True)
    """
    # Idempotent combinations keep every number except NaN, which is not equal to itself.
    if combine in ("max", "min", "and", "or"):
        return number == number
    # Zero absorbs products, so it is kept as well as the identity.
    return number == identity(combine, dtype) or (combine == "product" and number == 0)


def extreme(dtype: str, *, highest: bool) -> int | float | bool:
    """Return the largest or smallest number of an item type.

    It is finite for types without infinities.

    >>> extreme("int8", highest=False), extreme("bool", highest=True)
    (-128, True)
    >>> extreme("float8_e5m2", highest=True), extreme("float8_e4m3fn", highest=True)
    (inf, 448.0)
    """
    if dtype == "bool":
        return highest
    if is_float(dtype):
        # Narrow types without infinities turn one into a NaN or into a number.
        narrow = dtype.startswith(("float8_", "float6_", "float4_"))
        if narrow and not np.isinf(np.array(math.inf).astype(getattr(ml_dtypes, dtype))):
            limits = ml_dtypes.finfo(getattr(ml_dtypes, dtype))
            return float(limits.max if highest else limits.min)
        return math.inf if highest else -math.inf
    # `int8`, `uint4` and the like: the number of bits is in the name.
    bits = int(dtype.lstrip("uint"))
    if dtype.startswith("uint"):
        return (1 << bits) - 1 if highest else 0
    return (1 << (bits - 1)) - 1 if highest else -(1 << (bits - 1))
