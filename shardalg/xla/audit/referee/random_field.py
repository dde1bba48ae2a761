"""Arithmetic of a finite field on int64 arrays, with infinities, hashes and an order."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

PRIME = (1 << 31) - 1
NEGATIVE, POSITIVE, NAN = -1, PRIME, PRIME + 1
"""Minus infinity, infinity and NaN; residues are in [0, PRIME)."""
_DIGITS = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53, "f8e4m3fn": 4, "f8e5m2": 3}


def random_elements(name: str, shape: Sequence[int]) -> np.ndarray:
    """Return elements that depend on a name and a place alone."""
    places = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    return hashed(name, places)


def hashed(name: str, *operands: np.ndarray) -> np.ndarray:
    """Return an element that depends on a name and on the operands alone."""
    state: np.ndarray | np.uint64 = np.uint64(zlib.crc32(name.encode()))
    for operand in operands:
        state = mixed(state ^ operand.astype(np.int64).view(np.uint64))
    return (mixed(state) >> np.uint64(33)).astype(np.int64) % PRIME


def mixed(state: np.ndarray | np.uint64) -> np.ndarray:
    """Return the splitmix64 hash of 64-bit words."""
    with np.errstate(over="ignore"):
        x = np.asarray(state) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def literal(word: str, dtype: str) -> int:
    """Return the element of a constant: a fraction, because floats have a power of two below.

    >>> literal("3", "f32"), literal("0.5", "f32") * 2 % PRIME, literal("-inf", "f32")
    (3, 1, -1)
    """
    if word in ("inf", "-inf"):
        return POSITIVE if word == "inf" else NEGATIVE
    if "nan" in word:
        return NAN
    value = float(word)
    if dtype != "f64":
        value = struct.unpack("f", struct.pack("f", value))[0]
    number = Fraction(value)
    return number.numerator * pow(number.denominator, -1, PRIME) % PRIME


def is_special(x: np.ndarray) -> np.ndarray:
    """Return where a value is infinite or NaN."""
    return (x < 0) | (x >= PRIME)


def lifted(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return a function of the field in which infinities and NaN absorb."""

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the result; an operand that is infinite or NaN is the result in place of it.

        The first operand has priority, because it is applied last.
        """
        result = function(a, b) % PRIME
        for x in (b, a):
            bad = is_special(x)
            if bad.any():
                result = np.where(bad, x, result)
        return result

    return run


add, subtract = lifted(np.add), lifted(np.subtract)
multiply = lifted(lambda a, b: (a % PRIME) * (b % PRIME))


def negative(x: np.ndarray) -> np.ndarray:
    """Return -x."""
    flipped = np.where(x == NEGATIVE, POSITIVE, np.where(x == POSITIVE, NEGATIVE, x))
    return np.where(is_special(x), flipped, (-x) % PRIME)


def inverse(x: np.ndarray) -> np.ndarray:
    """Return 1/x by Fermat's little theorem; 1/0 is an arbitrary element."""
    result, base, power = np.ones_like(x), x % PRIME, PRIME - 2
    while power:
        if power & 1:
            result = result * base % PRIME
        base = base * base % PRIME
        power >>= 1
    result = np.where(x == 0, 7, result)
    return np.where(is_special(x), np.where(x == NAN, NAN, 0), result)


def total(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Return the sum along axes."""
    bad = is_special(x)
    result = np.sum(np.where(bad, 0, x), axis=axis) % PRIME
    return np.where(bad.any(axis), np.max(np.where(bad, x, -2), axis=axis), result)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the matrix product, exactly, by four products in float64."""
    a, b = a % PRIME, b % PRIME
    half = 1 << 16
    a_high, a_low, b_high, b_low = (
        x.astype(float) for x in (a // half, a % half, b // half, b % half)
    )

    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x @ y).astype(np.int64) % PRIME

    middle = (product(a_high, b_low) + product(a_low, b_high)) % PRIME
    high = product(a_high, b_high) * (half * half % PRIME)
    return (high + middle * half + product(a_low, b_low)) % PRIME


def ordered(x: np.ndarray) -> np.ndarray:
    """Return integers in an order of the elements with 0 in the middle.

    With 0 at an end, `max(x, 0)` would be the identity or constant.
    """
    centred = (x + PRIME // 2) % PRIME
    return np.where(x == NEGATIVE, -1, np.where(x >= PRIME, x, centred))


def unordered(key: np.ndarray) -> np.ndarray:
    """Return the elements of the integers that `ordered` gives."""
    return np.where(is_special(key), key, (key - PRIME // 2) % PRIME)


def small_integer(x: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where an element is a small integer, and this integer."""
    value = np.where(x > PRIME // 2, x - PRIME, x)
    return (np.abs(value) < limit) & ~is_special(x), value


def rounded(x: np.ndarray, dtype: str, source: str) -> np.ndarray:
    """Return an element in another item type of floats.

    Small integers are exact in a narrower type; the rest is an unknown function.
    """
    digits = _DIGITS.get(dtype, 24)
    if digits >= _DIGITS.get(source, 24):
        return x
    exact, _ = small_integer(x, 1 << digits)
    return np.where(exact | is_special(x), x, hashed(f"round {dtype}", x))
