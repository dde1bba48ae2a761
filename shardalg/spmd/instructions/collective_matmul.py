"""A product and the collective beside it as one ring: blocks go round while they are multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ProgramError
from shardalg.spmd.instruction import Block, Instruction, is_a
from shardalg.spmd.instructions.collectives import AllGather, ReduceScatter
from shardalg.spmd.instructions.control import Apply, Control
from shardalg.spmd.local import axes_text


@dataclass(frozen=True, slots=True)
class Direction:
    """Elements `[first, first + size)` of every block, which go round the ring one way.

    A permute brings the device of partition id `p` what that of `(p + hop) mod n` held. Product
    `t` of `[0, products)` is of block `(p + start + step*t) mod n`; between two lies a permute.
    """

    first: int
    size: int
    hop: int
    start: int
    step: int
    products: int

    def block(self, p: int, t: int, n: int) -> int:
        """The block that product `t` is of, on partition id `p` of `n`; any of them may be traced.

        >>> ring = Direction(0, 4, hop=-1, start=0, step=-1, products=3)
        >>> [ring.block(1, t, 3) for t in range(3)]
        [1, 0, 2]
        """
        return (p + self.start + self.step * t) % n


@dataclass(frozen=True, slots=True)
class CollectiveMatmul(Control):
    """An all-gather and the product that reads it, or a product and its reduce-scatter, as a ring.

    The body says what is computed, and is not run: in its place every device multiplies one block
    after the other, while the next one travels. Of an all-gather travel the blocks of the operand;
    products are written to their places of the result, or added up where the gathered dimension is
    contracted. Of a reduce-scatter travel sums of the result's blocks, to which every member adds
    its own product. As many bytes are sent, and no device holds what the two would hand to each
    other. Sums are taken in the order of the ring and rounded to their type at each step: floats
    may differ in their last bits, and an overflow from one order that another one has not.

    Attributes:
      body: the two instructions, on the operands and results of this one.
      along: the dimension that blocks cut: per operand of the product, then of its result; None
        where it has none of it.
      directions: of the ring; together the whole of every block.
    """

    body: Block
    along: tuple[int | None, ...]
    directions: tuple[Direction, ...]

    @property
    def gathers(self) -> bool:
        """Whether operands travel, rather than sums."""
        return is_a(self.body.instructions[0], AllGather)

    @property
    def product(self) -> Instruction[Apply]:
        """What multiplies.

        Raises:
          ProgramError: the body is not two instructions, of which the right one is a product.
        """
        return self._pair()[0]

    @property
    def collective(self) -> Instruction[AllGather | ReduceScatter]:
        """What moves.

        Raises:
          ProgramError: as of `product`.
        """
        return self._pair()[1]

    def _pair(self) -> tuple[Instruction[Apply], Instruction[AllGather | ReduceScatter]]:
        pair = self.body.instructions
        if len(pair) == 2:
            first, second = pair
            if is_a(first, AllGather) and is_a(second, Apply):
                return second, first
            if is_a(first, Apply) and is_a(second, ReduceScatter):
                return first, second
        raise ProgramError(
            "a collective matmul is an all_gather and a product, or a product and a "
            f"reduce_scatter, not {[type(one.attributes).__name__ for one in pair]}."
        )

    @property
    def ring(self) -> Digits:
        """The digits along which it goes round."""
        return self.collective.attributes.digits

    @property
    def members(self) -> int:
        """Devices of a ring, and blocks."""
        return parts(self.ring)

    def text(self, mesh: Mesh) -> str:
        ways = "one way" if len(self.directions) == 1 else f"{len(self.directions)} ways"
        return f"collective_matmul axes={axes_text(mesh, self.ring)} {ways}"

    @property
    def bodies(self) -> tuple[Block, ...]:
        return (self.body,)

    def with_bodies(self, blocks: Sequence[Block]) -> CollectiveMatmul:
        return replace(self, body=blocks[0])
