"""A box in a tensor that is cut in blocks, at run-time starts."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Operator, Shape
from shardalg.spmd.local import axes_text

Places = tuple[tuple[int, Digits, int], ...]
"""(dimension, digits that cut it, largest start) of the dimensions in which a device has a block.

A start on such a dimension is clamped to `[0, largest]`, then counted from the own block's first
element, `p * block`, with the block's size read off the operand. On every other dimension it is
clamped to what is there, as XLA does.
"""


@dataclass(frozen=True, slots=True)
class Extract(Operator):
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

    def text(self, mesh: Mesh) -> str:
        return f"extract {_places_text(mesh, self.places)}"

    def arity(self, rank: int, count: int) -> int:
        return 1 + rank

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return None if any(more) else self.sizes


@dataclass(frozen=True, slots=True)
class Insert(Operator):
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

    def text(self, mesh: Mesh) -> str:
        return f"insert {_places_text(mesh, self.places)}"

    def arity(self, rank: int, count: int) -> int:
        return 2 + rank

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        written, *starts = more
        return first if not any(starts) and len(written) == len(first) else None


def _places_text(mesh: Mesh, places: Places) -> str:
    """`dim 0 at t-p(Y)*b`: where a box at start `t` begins in blocks of `b` places."""
    return ", ".join(f"dim {dim} at t-p({axes_text(mesh, digits)})*b" for dim, digits, _ in places)
