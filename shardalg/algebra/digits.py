"""Digits: the coordinates of a device along mesh axes, which make up its partition ids.

The partition id of a tensor dimension is the number of a device's block of it. It is a mixed-radix
number, with a digit for each mesh axis that splits the dimension.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np

Position = TypeVar("Position", int, "np.ndarray")
"""The position of a device in its mesh, or an array of positions: the formulas work for both."""


class Digit(NamedTuple):
    """Coordinate of a device along a mesh axis, or along a part of an axis.

    It is `floor(position / stride) mod size`. The position is the device's place in the mesh,
    counted row by row.

    A named tuple, because planning often hashes and compares layouts, which are tuples of digits.

    >>> [Digit(stride=2, size=3).at(position) for position in range(8)]
    [0, 0, 1, 1, 2, 2, 0, 0]
    """

    stride: int
    size: int

    def at(self, position: Position) -> Position:
        """Return the value of the digit on the device at `position`."""
        return position // self.stride % self.size


Digits = tuple[Digit, ...]


def parts(digits: Digits) -> int:
    """Return the number of blocks into which these digits split a dimension.

    >>> parts((Digit(4, 2), Digit(1, 4)))
    8
    """
    count = 1
    for _, size in digits:
        count *= size
    return count


def partition_id(digits: Digits, position: Position) -> Position:
    """Return the partition id of the device at `position`: the value of `digits`, major first.

    >>> [partition_id((Digit(1, 2), Digit(2, 3)), position) for position in range(6)]
    [0, 3, 1, 4, 2, 5]
    """
    # Horner's scheme: a multiplication by each later size gives the first digit the weight of the
    # major one.
    number: Any = 0
    for digit in digits:
        number = number * digit.size + digit.at(position)
    return number


def partition_ids(digits: Digits, positions: np.ndarray) -> np.ndarray:
    """Return the partition id of the device at each position of an array.

    >>> import numpy as np
    >>> partition_ids((Digit(1, 2), Digit(2, 2)), np.arange(4))
    array([0, 2, 1, 3])
    """
    # Without digits the id is the number 0: the first term makes it an array.
    return positions * 0 + partition_id(digits, positions)


def canonical(digits: Digits) -> Digits:
    """Return the unique shortest tuple of digits with the same partition id.

    Digits of size 1 are dropped. Two neighbours are one digit if
    `stride_major = stride_minor * size_minor`.

    >>> canonical((Digit(8, 2), Digit(4, 2), Digit(4, 1), Digit(1, 2)))
    (Digit(stride=4, size=4), Digit(stride=1, size=2))
    """
    merged: list[Digit] = []
    for digit in digits:
        if digit.size == 1:
            continue
        # The two digits are one counter: together they count from 0 to the product of their sizes -
        # 1, at the minor stride.
        if merged and merged[-1].stride == digit.stride * digit.size:
            digit = Digit(digit.stride, merged.pop().size * digit.size)
        merged.append(digit)
    return tuple(merged)


def overlap(first: Digit, second: Digit) -> bool:
    """Return whether two digits cannot split two dimensions of one tensor.

    They overlap if they do not vary independently, such as an axis and a part of it. Let the digits
    have the strides s, t and the sizes n, m. Over the positions `0 .. N-1` of a mesh (`N` a
    multiple of both periods `s*n`, `t*m`) they take every pair of values equally often exactly if
    `g = gcd(s*n, t*m)` divides `s` or `t`. The reason: each digit depends on the other through
    `position mod g` alone, and there one of them is uniform. The rule is exact for digits of
    different meshes too, where neither period divides the other.

    >>> overlap(Digit(4, 2), Digit(1, 4)), overlap(Digit(2, 4), Digit(1, 4))
    (False, True)
    >>> overlap(Digit(1, 2), Digit(1, 3)), overlap(Digit(1, 4), Digit(1, 6))
    (False, True)
    """
    # A digit of size 1 is 0 on every device, so it overlaps none.
    if first == second:
        return first.size > 1
    if nested(first, second):
        return False
    common = math.gcd(first.stride * first.size, second.stride * second.size)
    return bool(first.stride % common and second.stride % common)


def nested(first: Digit, second: Digit) -> bool:
    """Return whether the stride of one digit is a multiple of the period of the other.

    The period of a digit is `stride * size`. Any two digits of one mesh that do not overlap are
    nested.

    >>> nested(Digit(4, 2), Digit(1, 4)), nested(Digit(1, 2), Digit(1, 3))
    (True, False)
    """
    above = second.stride % (first.stride * first.size) == 0
    return above or first.stride % (second.stride * second.size) == 0


def split_prefix(fine: Digits, coarse: Digits) -> Digits | None:
    """Return the rest of `fine` after its major part `coarse`; None if it has another major part.

    A digit of `fine` may be split: the sub-axis `x:(1)2` is the major part of `x`.

    >>> split_prefix((Digit(1, 8),), (Digit(4, 2),))
    (Digit(stride=1, size=4),)
    >>> split_prefix((Digit(1, 8),), (Digit(1, 2),)) is None
    True
    """
    fine_digits = list(canonical(fine))
    for digit in canonical(coarse):
        if not fine_digits:
            return None
        head = fine_digits.pop(0)
        # A digit of stride s splits at a multiple t of s into a major digit of stride t, with the
        # same period, and a minor one of stride s. The coarse digit must be such a major digit.
        if head.stride * head.size != digit.stride * digit.size or digit.stride % head.stride:
            return None
        if digit.stride > head.stride:
            fine_digits.insert(0, Digit(head.stride, digit.stride // head.stride))
    return tuple(fine_digits)


def is_major(part: Digit, whole: Digit) -> bool:
    """Return whether `part` is the major part of the digit `whole`, and not all of it.

    >>> is_major(Digit(4, 2), Digit(1, 8)), is_major(Digit(1, 2), Digit(1, 8))
    (True, False)
    """
    same_period = part.stride * part.size == whole.stride * whole.size
    return same_period and part.size < whole.size and whole.size % part.size == 0


def starts_with(fine: Digits, coarse: Digits) -> bool:
    """Return whether the digits `fine` begin with the digits `coarse`, or are equal to them.

    The last digit of `coarse` may be a part of a digit of `fine`. Both must be written axis by
    axis; `split_prefix` compares digits in any form.

    >>> starts_with((Digit(1, 8),), (Digit(4, 2),)), starts_with((Digit(4, 2),), (Digit(1, 8),))
    (True, False)
    """
    count = len(coarse)
    if fine[:count] == coarse:
        return True
    if len(fine) < count or fine[: count - 1] != coarse[:-1]:
        return False
    return is_major(coarse[-1], fine[count - 1])


def take(digits: Digits, size: int) -> tuple[Digits, Digits, int]:
    """Return (digits that divide `size` evenly, the other digits, the quotient).

    Digits are taken from the major one on. A digit is split if only a part of it divides the size.

    >>> take((Digit(1, 8),), 4)
    ((Digit(stride=2, size=4),), (Digit(stride=1, size=2),), 1)
    >>> take((Digit(4, 2), Digit(1, 4)), 6)
    ((Digit(stride=4, size=2),), (Digit(stride=1, size=4),), 3)
    """
    for count, head in enumerate(digits):
        if size % head.size:
            # The greatest common divisor. On a named size, each `%` records a guard; these guards
            # hold for more sizes than a guard on the value of the gcd.
            common = next(d for d in _divisors(head.size) if size % d == 0)
            if common == 1:
                return digits[:count], digits[count:], size
            num_left = head.size // common
            major, minor = Digit(head.stride * num_left, common), Digit(head.stride, num_left)
            return (*digits[:count], major), (minor, *digits[count + 1 :]), size // common
        size //= head.size
    return digits, (), size


@lru_cache
def _divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, the largest first."""
    return tuple(n for n in range(number, 0, -1) if number % n == 0)


def complement(used: Digits, size: int) -> Digits | None:
    """Return the digits of the mesh that are not in `used`, major first.

    Together with `used` they determine a device. None if the digits `used` overlap or belong to
    different meshes.

    Args:
      size: the number of devices of the mesh.

    >>> complement((Digit(4, 2),), 24)
    (Digit(stride=8, size=3), Digit(stride=1, size=4))
    """
    # From the smallest stride on: each gap between two used digits is a digit that is left.
    left, below = [], 1
    for digit in sorted(d for d in used if d.size > 1):
        if digit.stride % below:
            return None
        left.append(Digit(below, digit.stride // below))
        below = digit.stride * digit.size
    if size % below:
        return None
    return canonical((Digit(below, size // below), *reversed(left)))


@dataclass(frozen=True)
class PositionTable:
    """A table of partition ids, for device orders that digits of the mesh cannot express.

    Attributes:
      parts: for each dimension, the number of partitions.
      ids: for each dimension, the partition id at each position.

    >>> PositionTable.of(((Digit(1, 2),), (Digit(2, 2),)), 4)
    PositionTable(parts=(2, 2), ids=((0, 1, 0, 1), (0, 0, 1, 1)))
    """

    parts: tuple[int, ...]
    ids: Sequence[Sequence[int] | np.ndarray]

    @staticmethod
    def of(dims: tuple[Digits, ...], size: int) -> PositionTable:
        """Return the table of the partition ids with these digits at `size` positions."""
        ids = tuple(tuple(partition_id(d, p) for p in range(size)) for d in dims)
        return PositionTable(tuple(parts(d) for d in dims), ids)

    @property
    def is_balanced(self) -> bool:
        """True if every combination of blocks is on the same number of devices, at least one."""
        # A tile is a combination of partition ids. A tile without a device would be lost.
        tiles = Counter(zip(*self.ids, strict=True))
        return len(tiles) == math.prod(self.parts) and len(set(tiles.values())) == 1

    def recognize(self) -> tuple[Digits, ...] | None:
        """Return the digits of each dimension, or None if digits cannot express some dimension.

        >>> PositionTable((4,), ((0, 2, 1, 3),)).recognize()
        ((Digit(stride=1, size=2), Digit(stride=2, size=2)),)
        >>> PositionTable((4,), ((0, 1, 3, 2),)).recognize() is None
        True
        """
        pairs = zip(self.parts, self.ids, strict=True)
        digits_of_dims = [digits for n, ids in pairs if (digits := _recognize(n, ids)) is not None]
        return tuple(digits_of_dims) if len(digits_of_dims) == len(self.ids) else None


def _recognize(count: int, ids: Sequence[int] | np.ndarray) -> Digits | None:
    """Return the digits that give the device at position k the partition id `ids[k]`, or None.

    Args:
      count: the number of partitions.
    """
    import numpy as np

    # The id is a sum of weight * digit. Find the digits from the smallest stride on: the next one
    # has its first 1 at the first position that the known digits do not explain.
    actual, positions = np.asarray(ids), np.arange(len(ids))
    explained = np.zeros(len(ids), dtype=actual.dtype)
    weights: list[tuple[int, Digit]] = []
    while (unexplained := np.flatnonzero(actual != explained)).size:
        stride = int(unexplained[0])
        if not stride:  # every digit is 0 on the first device
            return None
        weight = int(actual[stride])
        # The ids at multiples of the stride grow by the weight until the digit returns to 0.
        multiples = actual[::stride]
        breaks = np.flatnonzero(multiples != weight * np.arange(len(multiples)))
        digit = Digit(stride, int(breaks[0]) if breaks.size else -(-len(ids) // stride))
        previous = weights[-1][1] if weights else Digit(1, 1)
        if digit.size < 2 or stride % (previous.stride * previous.size):
            return None
        weights.append((weight, digit))
        explained = explained + weight * (positions // digit.stride % digit.size)
    # Ordered by weight, the digits must be a mixed-radix number: each weight is the product of the
    # sizes below it.
    place, digits = 1, []
    for weight, digit in sorted(weights):
        if weight != place:
            return None
        place *= digit.size
        digits.append(digit)
    return canonical(tuple(reversed(digits))) if place == count else None
