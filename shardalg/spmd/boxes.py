"""A box in a tensor that is cut in blocks: at run-time starts, or at a place that is known."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits

Places = tuple[tuple[int, Digits, int], ...]
"""(dimension, digits that cut it, largest start) of the dimensions in which a device has a block.

A start on such a dimension is clamped to `[0, largest]`, then counted from the own block's first
element, `p * block`, with the block's size read off the operand. On every other dimension it is
clamped to what is there, as XLA does.
"""


@dataclass(frozen=True, slots=True)
class Extract:
    """A box of the first operand at the starts that the others are: 0 where the block lacks it.

    Attributes:
      sizes: of the box on a device.
      places: dimensions that are cut.
      loops: the digits on each sharded loop of the node's rule.
    """

    sizes: tuple[int, ...]
    places: Places
    loops: tuple[tuple[str, Digits], ...] = ()

    @property
    def digits(self) -> Digits:
        """What its blocks are cut by."""
        return tuple(digit for _, digits, _ in self.places for digit in digits)


@dataclass(frozen=True, slots=True)
class Insert:
    """The first operand with the second in its box, as far as the block has a part of that.

    Operands are a block, what is written, and a start per dimension.

    Attributes:
      places: dimensions that are cut.
      loops: the digits on each sharded loop of the node's rule.
    """

    places: Places
    loops: tuple[tuple[str, Digits], ...] = ()

    @property
    def digits(self) -> Digits:
        """What its blocks are cut by."""
        return tuple(digit for _, digits, _ in self.places for digit in digits)


@dataclass(frozen=True, slots=True)
class Pick:
    """Element `index` of `dim` alone: on the device that has it, and 0 on the others.

    What a device makes is a partial sum over all that hold a block.

    Attributes:
      block: elements of a block; digits: what the dimension is cut by.
    """

    dim: int
    index: int
    block: int
    digits: Digits

    @property
    def owner(self) -> int:
        """The partition id, along the digits, that has the element."""
        return self.index // self.block

    @property
    def place(self) -> int:
        """Where it lies in the block."""
        return self.index % self.block
