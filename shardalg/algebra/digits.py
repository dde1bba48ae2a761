"""Digits: a partition id written as a mixed-radix number over places of the device's position."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Digit:
    """`floor(position / stride) mod size`, where *position* is the device's place in the mesh.

    >>> [Digit(stride=2, size=3).at(position) for position in range(8)]
    [0, 0, 1, 1, 2, 2, 0, 0]
    """

    stride: int
    size: int

    def at(self, position: int) -> int:
        """Value of the digit on the device at `position`."""
        return position // self.stride % self.size


Digits = tuple[Digit, ...]


def parts(digits: Digits) -> int:
    """Number of values of the partition id that `digits` write, major first.

    >>> parts((Digit(4, 2), Digit(1, 4)))
    8
    """
    return math.prod(digit.size for digit in digits)


def partition_id(digits: Digits, position: int) -> int:
    """Partition id of the device at `position`: the mixed-radix value of `digits`, major first.

    >>> [partition_id((Digit(1, 2), Digit(2, 3)), position) for position in range(6)]
    [0, 3, 1, 4, 2, 5]
    """
    number = 0
    for digit in digits:
        number = number * digit.size + digit.at(position)
    return number


def canonical(digits: Digits) -> Digits:
    """The unique shortest tuple with the same partition id: size 1 dropped, neighbours fused.

    Two neighbours are one digit where `stride_major = stride_minor * size_minor`.

    >>> canonical((Digit(8, 2), Digit(4, 2), Digit(4, 1), Digit(1, 2)))
    (Digit(stride=4, size=4), Digit(stride=1, size=2))
    """
    fused: list[Digit] = []
    for digit in digits:
        if digit.size == 1:
            continue
        if fused and fused[-1].stride == digit.stride * digit.size:
            digit = Digit(digit.stride, fused.pop().size * digit.size)
        fused.append(digit)
    return tuple(fused)


def overlap(first: Digit, second: Digit) -> bool:
    """Whether two digits of one position share places, so that they cannot vary independently.

    Exact where the strides and sizes divide one another (digits of one mesh).

    >>> overlap(Digit(4, 2), Digit(1, 4)), overlap(Digit(2, 4), Digit(1, 4))
    (False, True)
    """
    return first.stride < second.stride * second.size and second.stride < first.stride * first.size
