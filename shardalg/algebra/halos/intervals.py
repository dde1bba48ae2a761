"""The elements of one dimension that a device reads: a start in closed form, a static length.

`extremes` and `residues` return the values that an index takes over all devices of a mesh, without
a loop over the devices.

The functions at the end return the intervals of data formatting that moves the borders of blocks.
A slice and a pad are windows (`window.slice_window`, `window.pad_window`), so their intervals are
halos. The others return, for partition p of the result, the interval of each operand. Element x of
an interval is element x of p's block of the result, unless stated otherwise. Source: GSPMD
(arXiv:2105.04663), section 4.3, "Halo exchange for data formatting", and section 4.5 (rotation).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from shardalg.algebra.affine import Index, Quotient
from shardalg.algebra.digits import Digits, canonical, overlap, partition_ids, parts
from shardalg.algebra.offset import block_size
from shardalg.errors import ShardingError


@dataclass(frozen=True)
class Interval:
    """The range `[start, start + length)`, with a start that is linear in partition ids.

    Shapes are static, so the length is one number for all devices. An interval may therefore reach
    over the ends of its dimension; elements outside the dimension are garbage until masked.

    Attributes:
      start: a function of partition ids: the `p` of one sharded dimension, or one id per sharded
        loop. It may be divided once, rounded down; `ceil(x/m)` is `floor((x + m - 1)/m)`.
      length: number of elements.

    Raises:
      ShardingError: the start has an exact division or a remainder; the length is negative.

    >>> Interval(Index.of("p") * 4 - 1, 6)
    Interval([4*p-1, +6))
    >>> Interval(Index.of("p") * 4 - 1, 6).at({"p": 2})
    (7, 13)
    """

    start: Index
    length: int

    def __post_init__(self) -> None:
        """Raise ShardingError if the start has another form, or if the length is negative."""
        if self.start.exact or self.start.mod or self.length < 0:
            raise ShardingError(
                f"{self!r}: the start is linear in partition ids, divided with rounding down if at "
                "all (write `//`), and the length is not negative."
            )

    def at(self, ids: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return (first element, end) of the interval on a device.

        Args:
          ids: the partition id that each variable of the start has, as a number or as an array.
        """
        start = self.start.at(ids)
        assert start is not None
        return start, start + self.length

    @property
    def quotient(self) -> Quotient:
        """The start as a `Quotient`, if it depends on at most one partition id.

        >>> Interval((Index.of("p") * 6 + 5) // 4, 2).quotient
        p + floor(p/2) + 1
        """
        assert len(self.start.terms) <= 1, f"{self.start} has several partition ids"
        slope = sum(coefficient for _, coefficient in self.start.terms)
        return Quotient.of(slope, self.start.constant, self.start.div)

    def __repr__(self) -> str:
        return f"Interval([{self.start}, +{self.length}))"


def touched(index: Index, *, blocks: Mapping[str, int], parts: Mapping[str, int]) -> Interval:
    """Return the interval of an operand that an index reads for one device's blocks of the loops.

    A partitioned loop runs over `[p*block, (p+1)*block)`; its partition id has the loop's name in
    the result. The interval is from the smallest to the largest value over whole blocks, so that
    the padding of uneven blocks is included.

    Args:
      blocks: iterations of one device, by loop of the index.
      parts: number of blocks, by partitioned loop. Each device runs all of any other loop.

    Raises:
      ShardingError: the index has a remainder.

    >>> conv = Index.of("o") * 2 + Index.of("r") - 1
    >>> touched(conv, blocks={"o": 4, "r": 3}, parts={"o": 8})
    Interval([8*o-1, +9))
    >>> touched(conv.over(3), blocks={"o": 4, "r": 3}, parts={"o": 8})
    Interval([(8*o+1)//3, +3))
    """
    if index.mod:
        raise ShardingError(
            f"{index} returns to 0 at every multiple of {index.mod}: it is no interval."
        )
    # From the first to the last iteration of a block, a term with a negative coefficient falls: it
    # lowers the start of the interval, and every term makes the interval longer.
    reach = [coefficient * (blocks[name] - 1) for name, coefficient in index.terms]
    low = index.constant + sum(min(0, part) for part in reach)
    span = sum(abs(part) for part in reach)
    terms = tuple((name, c * blocks[name]) for name, c in index.terms if name in parts)
    moved, m = Index(terms, low), index.div
    # The numerators run over [low(p), low(p) + span]. The number of different quotients depends on
    # low(p) mod m, so the length is the largest over the partitions.
    rests = _rests(moved, m, parts)
    if index.exact:
        length = (span - min(-remainder % m for remainder in rests)) // m + 1
        return Interval(_divided(Index(terms, low + m - 1), m), length)
    return Interval(_divided(moved, m), (span + max(rests)) // m + 1)


def _divided(start: Index, divisor: int) -> Index:
    """Return the index `start // divisor`, with common factors of both divided out."""
    common = math.gcd(divisor, *(coefficient for _, coefficient in start.terms))
    terms = tuple((name, coefficient // common) for name, coefficient in start.terms)
    return Index(terms, start.constant // common) // (divisor // common)


def _rests(start: Index, divisor: int, parts: Mapping[str, int]) -> set[int]:
    """Return all values that `start mod divisor` takes for any partition ids.

    Args:
      parts: the number of values of each partition id.
    """
    remainders = {start.constant % divisor}
    for name, coefficient in start.terms:
        # coefficient*p mod divisor repeats after `cycle` partition ids.
        cycle = divisor // math.gcd(coefficient, divisor)
        steps = range(min(parts[name], cycle))
        remainders = {(rest + coefficient * p) % divisor for rest in remainders for p in steps}
    return remainders


Ids = tuple[tuple[str, Digits], ...]
"""Pairs of a variable of an index and the digits of the partition id that the variable means.

With the digits, the values over all devices are computed without visiting each device.
"""


def extremes(index: Index, ids: Ids, devices: int) -> tuple[int, int]:
    """Return the smallest and the largest value that an index has on any device.

    The index must have no modulo.

    >>> from shardalg.algebra.digits import Digit
    >>> extremes(Index.of("p") * -3 + 1, (("p", (Digit(1, 4),)),), 4)
    (-8, 1)
    """
    terms = _independent(index, ids)
    if terms is None:
        values = _everywhere(index, ids, devices)
        return int(values.min()), int(values.max())
    # The ids vary independently, each from 0 to count - 1, so every term is extreme at an end.
    ends = [(0, coefficient * (count - 1)) for coefficient, count in terms]
    low, high = (index.constant + sum(pick(end) for end in ends) for pick in (min, max))
    return low // index.div, high // index.div


def residues(index: Index, modulus: int, ids: Ids, devices: int) -> frozenset[int]:
    """Return all values that an index modulo a number has on any device.

    >>> from shardalg.algebra.digits import Digit
    >>> sorted(residues(Index.of("p") * 6 + 1, 8, (("p", (Digit(1, 1024),)),), 1024))
    [1, 3, 5, 7]
    """
    terms = _independent(index, ids)
    if terms is None:
        return frozenset(np.unique(_everywhere(index, ids, devices) % modulus).tolist())
    # floor(x/div) modulo a number depends on x modulo div times the number. The terms vary
    # independently, so their residues are added one term at a time.
    period = index.div * math.lcm(modulus, index.mod or 1)
    remainders = np.array([index.constant % period])
    for coefficient, count in terms:
        # coefficient*p mod period repeats after `cycle` partition ids.
        cycle = period // math.gcd(coefficient, period)
        steps = coefficient * np.arange(min(count, cycle))
        remainders = np.unique((remainders[:, None] + steps) % period)
    numbers = remainders // index.div
    return frozenset(np.unique((numbers % index.mod if index.mod else numbers) % modulus).tolist())


def _independent(index: Index, ids: Ids) -> list[tuple[int, int]] | None:
    """Return (coefficient, number of values) of each partition id in an index.

    Ids with equal digits are one term: with ids p and q of equal digits, 2*p + 3*q is 5*p. None if
    two ids have overlapping digits, so that they do not vary independently.
    """
    digits, total = dict(ids), dict[Digits, int]()
    for name, coefficient in index.terms:
        key = canonical(digits[name])
        total[key] = total.get(key, 0) + coefficient
    for one, two in combinations(total, 2):
        if any(overlap(a, b) for a in one for b in two):
            return None
    return [(coefficient, parts(key)) for key, coefficient in total.items()]


def _everywhere(index: Index, ids: Ids, devices: int) -> np.ndarray:
    """Return the value of an index on every device, as an array."""
    positions = np.arange(devices)
    values = index.at({name: partition_ids(digits, positions) for name, digits in ids})
    return np.broadcast_to(values, (devices,))


_P = Index.of("p")


def reverse_interval(size: int, parts: int) -> Interval:
    """Return the interval that a device reads for a reversal, and then reverses locally.

    Output `o` is element `size - 1 - o`, so partition p reads the `block` elements before
    `size - p*block`: the block of partition `parts - 1 - p`, shifted by the padding
    `parts*block - size`.

    >>> reverse_interval(10, 4)
    Interval([-3*p+7, +3))
    """
    block = _block(size, parts)
    return Interval(_P * -block + (size - block), block)


def concatenate(sizes: Sequence[int], parts: int) -> tuple[Interval, ...]:
    """Return, for each operand of a concatenation, the interval that a device reads.

    `sizes` has the number of elements of each operand, and `parts` is the number of partitions.
    Output x of a block is element x of the one interval in which this element exists.

    >>> concatenate([6, 4], 2)
    (Interval([5*p, +5)), Interval([5*p-6, +5)))
    """
    block = _block(sum(sizes), parts)
    # Element x of an operand is element x + offset of the result.
    before = [sum(sizes[:nth]) for nth in range(len(sizes))]
    return tuple(Interval(_P * block - offset, block) for offset in before)


@dataclass(frozen=True)
class Reshape:
    """A row-major reshape between two shapes that are partitioned on their major dimension.

    Blocks are ranges of the flat array, so that they are blocks of one dimension.

    Attributes:
      size: elements of the array.
      block, out_block: elements per partition of the operand and of the result.
      left, right: elements that partition p reads before and after its own block.
    """

    size: int
    block: int
    out_block: int

    @property
    def left(self) -> Quotient:
        """Number of elements before its own block that partition p reads.

        It is `(block - out_block) * p`.
        """
        return Quotient.of(self.block - self.out_block)

    @property
    def right(self) -> Quotient:
        """Number of elements after its own block that partition p reads.

        It is `(out_block - block) * (p + 1)`.
        """
        return Quotient.of(self.out_block - self.block).plus(0, self.out_block - self.block)

    @property
    def interval(self) -> Interval:
        """The elements of the flat array that p reads: `[p*out_block, (p+1)*out_block)`."""
        return Interval(_P * self.out_block, self.out_block)


def reshape_interval(shape: Sequence[int], out_shape: Sequence[int], *, parts: int) -> Reshape:
    """Return the elements that each partition reads in a reshape.

    Operand and result are partitioned on dimension 0.

    Args:
      shape, out_shape: the shapes of the operand and of the result.
      parts: the number of partitions.

    Raises:
      ShardingError: the shapes have different numbers of elements.

    >>> example = reshape_interval((3, 2), (6,), parts=2)
    >>> example, example.left, example.right
    (Reshape(size=6, block=4, out_block=3), p, -p - 1)
    """
    # Row-major, a block of the major dimension is one range of the flat array.
    if math.prod(shape) != math.prod(out_shape) or not math.prod(shape):
        raise ShardingError(
            f"{tuple(shape)} has {math.prod(shape)} elements and {tuple(out_shape)} has "
            f"{math.prod(out_shape)}: a reshape keeps their number, which is at least 1."
        )
    blocks = [_block(s[0], parts) * math.prod(s[1:]) for s in (shape, out_shape)]
    return Reshape(math.prod(shape), *blocks)


def _block(size: int, parts: int) -> int:
    """Return `block_size(size, parts)`; raise ShardingError if one of the two is below 1."""
    if size < 1 or parts < 1:
        raise ShardingError(
            f"size={size} in parts={parts}: a dimension has at least one element, and at least one "
            "partition."
        )
    return block_size(size, parts)
