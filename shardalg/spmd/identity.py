"""The identity of every way to combine, as a plain number of the item type."""

from __future__ import annotations

import math

import numpy as np

from shardalg.errors import ProgramError

_ZERO = ("sum", "or", "xor", "pick")
_LOWEST = ("max", "argmax", "logsumexp", "top")
_HIGHEST = ("min", "argmin")


def is_float(dtype: str) -> bool:
    """Whether `dtype` has infinities (`bfloat16` and the complex types included).

    >>> is_float("bfloat16"), is_float("int32")
    (True, False)
    """
    return dtype.startswith(("float", "bfloat", "complex"))


def identity(combine: str, dtype: str) -> int | float | bool:
    """The number that changes nothing: `combine(identity, x) = x`.

    >>> identity("sum", "float32"), identity("max", "bfloat16"), identity("min", "uint8")
    (0, -inf, 255)
    >>> identity("and", "bool"), identity("and", "int32")
    (True, -1)
    >>> identity("logsumexp", "float32"), f'{identity("logsumexp", "complex64"):.2e}'
    (-inf, '-1.70e+38')

    Raises:
      ProgramError: `combine` has no identity that a device could hold.
    """
    if combine in _ZERO:
        return False if dtype == "bool" else 0
    if combine == "top" and is_float(dtype):
        return math.copysign(math.nan, -1)  # in total order below all numbers
    if combine == "logsumexp" and dtype.startswith("complex"):
        return float(np.finfo(dtype).min) / 2  # JAX subtracts its double, which stays finite
    if combine == "product":
        return 1
    if combine == "and":
        return True if dtype == "bool" else _ones(dtype)
    if combine in _LOWEST + _HIGHEST:
        return extreme(dtype, highest=combine in _HIGHEST)
    raise ProgramError(
        f"{combine!r} of {dtype} has no identity; the known ways to combine are "
        f"{[*_ZERO, 'product', 'and', *_LOWEST, *_HIGHEST]}."
    )


def extreme(dtype: str, *, highest: bool) -> int | float | bool:
    """The largest, or smallest, number of an item type.

    >>> extreme("int8", highest=False), extreme("bool", highest=True)
    (-128, True)
    """
    if dtype == "bool":
        return highest
    if is_float(dtype):
        return float("inf") if highest else float("-inf")
    bits = int(dtype.lstrip("uint"))
    if dtype.startswith("uint"):
        return (1 << bits) - 1 if highest else 0
    return (1 << (bits - 1)) - 1 if highest else -(1 << (bits - 1))


def _ones(dtype: str) -> int | float | bool:
    """All bits set."""
    return extreme(dtype, highest=True) if dtype.startswith("uint") else -1
