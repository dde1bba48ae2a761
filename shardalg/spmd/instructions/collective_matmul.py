"""A product and its neighbouring collective as one ring: blocks travel during products."""

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
    """Elements `[first, first + size)` of every block, which travel around the ring one way.

    A permute brings the device with partition id `p` the previous data of `(p + hop) mod n`.
    Product `t` in `[0, products)` uses block `(p + start + step*t) mod n`. Between two products is
    a permute.
    """

    first: int
    size: int
    hop: int
    start: int
    step: int
    products: int

    def block(self, p: int, t: int, n: int) -> int:
        """Return the block that product `t` uses, on partition id `p` of `n`; each may be traced.

        >>> ring = Direction(0, 4, hop=-1, start=0, step=-1, products=3)
        >>> [ring.block(1, t, 3) for t in range(3)]
        [1, 0, 2]
        """
        return (p + self.start + self.step * t) % n


@dataclass(frozen=True, slots=True)
class CollectiveMatmul(Control):
    """An all-gather and the product that reads it, or a product and its reduce-scatter, as a ring.

    The body defines the result, but it is not run. Instead every device multiplies one block after
    the other, while the next one travels. For an all-gather, the operand's blocks travel. Their
    products are written to their places in the result, or added up if the gathered dimension is
    contracted. For a reduce-scatter, sums of the result's blocks travel, and every member adds its
    own product. The bytes sent are the same, and no device holds the value between the two
    instructions. Sums are taken in the order of the ring and rounded to their type at each step. So
    floats may differ in their last bits, and one order may overflow where another does not.

    Attributes:
      body: the two instructions, on the operands and results of this one.
      along: the dimension that blocks shard, per operand of the product, then of its result; None
        for a tensor that has no such dimension.
      directions: directions of the ring; together they cover every block.
    """

    body: Block
    along: tuple[int | None, ...]
    directions: tuple[Direction, ...]

    @property
    def gathers(self) -> bool:
        """True for an all-gather, whose operand's blocks travel; False if partial sums travel."""
        return is_a(self.body.instructions[0], AllGather)

    @property
    def product(self) -> Instruction[Apply]:
        """The instruction that multiplies.

        Raises:
          ProgramError: the body is not two instructions, one of them a product of the right kind.
        """
        return self._pair()[0]

    @property
    def collective(self) -> Instruction[AllGather | ReduceScatter]:
        """The instruction that communicates.

        Raises:
          ProgramError: the same as for `product`.
        """
        return self._pair()[1]

    def _pair(self) -> tuple[Instruction[Apply], Instruction[AllGather | ReduceScatter]]:
        """Return the product and the collective of the body."""
        pair = self.body.instructions
        # A gather makes an operand of the product and a scatter uses its result, so the two
        # instructions have a fixed order.
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
        """The digits along which the devices of a ring differ."""
        return self.collective.attributes.digits

    @property
    def members(self) -> int:
        """Number of devices of a ring, and of blocks."""
        return parts(self.ring)

    def text(self, mesh: Mesh) -> str:
        ways = "one way" if len(self.directions) == 1 else f"{len(self.directions)} ways"
        return f"collective_matmul axes={axes_text(mesh, self.ring)} {ways}"

    @property
    def bodies(self) -> tuple[Block, ...]:
        return (self.body,)

    def with_bodies(self, blocks: Sequence[Block]) -> CollectiveMatmul:
        return replace(self, body=blocks[0])
