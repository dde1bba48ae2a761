"""Realignments: data formatting that moves the borders between blocks, as intervals.

A slice and a pad are windows (`window.slice_window`, `window.pad_window`), so their intervals are
halos. The others here give, for partition p of the result, intervals of what they read; element x
of an interval is element x of p's block of the result, unless stated otherwise. Source: GSPMD
(arXiv:2105.04663), section 4.3, "Halo exchange for data formatting", and section 4.5 (rotation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardalg.algebra.affine import Index
from shardalg.algebra.halos.interval import Interval
from shardalg.algebra.offset import block_size
from shardalg.algebra.quotient import Quotient
from shardalg.errors import ShardingError

_P = Index.of("p")


def reverse_interval(size: int, parts: int) -> Interval:
    """What a reversal reads: the interval is to be reversed locally.

    Output `o` is element `size - 1 - o`, so partition p reads the `block` elements before
    `size - p*block`: the block of partition `parts - 1 - p`, moved by the padding
    `parts*block - size`.

    >>> reverse_interval(10, 4)
    Interval([-3*p+7, +3))
    """
    block = _block(size, parts)
    return Interval(_P * -block + (size - block), block)


def concatenate(sizes: Sequence[int], parts: int) -> tuple[Interval, ...]:
    """What a concatenation reads of each operand; where element x exists, it is the output.

    >>> concatenate([6, 4], 2)
    (Interval([5*p, +5)), Interval([5*p-6, +5)))
    """
    block = _block(sum(sizes), parts)
    before = [sum(sizes[:nth]) for nth in range(len(sizes))]
    return tuple(Interval(_P * block - offset, block) for offset in before)


@dataclass(frozen=True)
class Reshape:
    """A row-major reshape between two shapes that are split on their major dimension.

    Blocks are counted in elements of the flat array, so that they are blocks of one dimension.

    Attributes:
      size: elements of the array.
      block, out_block: flat elements per partition: of the operand, of the result.
      left, right: elements that partition p reads before and after its own.
    """

    size: int
    block: int
    out_block: int

    @property
    def left(self) -> Quotient:
        """`(block - out_block) * p`."""
        return Quotient.of(self.block - self.out_block)

    @property
    def right(self) -> Quotient:
        """`(out_block - block) * (p + 1)`."""
        return Quotient.of(self.out_block - self.block).plus(0, self.out_block - self.block)

    @property
    def interval(self) -> Interval:
        """What partition p reads of the flat array: `[p*out_block, (p+1)*out_block)`."""
        return Interval(_P * self.out_block, self.out_block)


def reshape_interval(shape: Sequence[int], out_shape: Sequence[int], *, parts: int) -> Reshape:
    """The reshape of an array that is split on dimension 0, into one that is.

    Raises:
      ShardingError: the shapes hold different numbers of elements.

    >>> example = reshape_interval((3, 2), (6,), parts=2)
    >>> example, example.left, example.right
    (Reshape(size=6, block=4, out_block=3), p, -p - 1)
    """
    if math.prod(shape) != math.prod(out_shape) or not math.prod(shape):
        raise ShardingError(
            f"{tuple(shape)} has {math.prod(shape)} elements and {tuple(out_shape)} has "
            f"{math.prod(out_shape)}: a reshape keeps their number, which is at least 1."
        )
    blocks = [_block(s[0], parts) * math.prod(s[1:]) for s in (shape, out_shape)]
    return Reshape(math.prod(shape), *blocks)


def _block(size: int, parts: int) -> int:
    if size < 1 or parts < 1:
        raise ShardingError(
            f"size={size} in parts={parts}: a dimension has at least one element, and at least one "
            "partition."
        )
    return block_size(size, parts)
