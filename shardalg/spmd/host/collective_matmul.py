"""Simulate rings of products: every position multiplies the arriving blocks in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardalg.algebra.digits import partition_id
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.collectives import combine_blocks
from shardalg.spmd.host.run import SIMULATE, HostRun, exchange, map_blocks, simulates
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import CollectiveMatmul, Direction


@simulates(CollectiveMatmul)
def _collective_matmul(
    run: HostRun, instruction: Instruction[CollectiveMatmul], *stacks: Stack
) -> list[Stack]:
    """Compute the product block by block, as the ring does, instead of running the body."""
    a = instruction.attributes
    env = dict(zip(a.body.arguments, stacks, strict=True))
    ring = _SimulatedRing(run, a, env)
    return [ring.gather() if a.gathers else ring.scatter()]


class _SimulatedRing:
    """The simulation of one ring.

    Attributes:
      run: the running program.
      a: the instruction.
      env: the blocks of all devices, per local value that the body reads.
      ids: the partition id of each device position along the ring.
    """

    def __init__(self, run: HostRun, a: CollectiveMatmul, env: dict[int, Stack]) -> None:
        self.run, self.a, self.env = run, a, env
        self.product, self.collective = a.product, a.collective
        self.ids = [partition_id(a.ring, position) for position in run.positions]

    def gather(self) -> Stack:
        """Multiply each operand block that arrives in the ring; return the combined products.

        The products are added up if the sharded loop is contracted. Otherwise each is written to
        its place in the result.
        """
        # The product reads the gathered value `gathered`, of which one block at a time is present.
        gathered, dim = self.collective.results[0], self.collective.attributes.dim
        blocks = self.env[self.collective.operands[0]]
        # The result's dimension with the sharded loop; None if the loop is contracted.
        result_dim, block = self.a.along[-1], blocks[0].shape[dim]
        result: Stack | None = None
        for direction in self.a.directions:
            piece = map_blocks(lambda _, x, d=direction: _cut(x, dim, d.first, d.size), blocks)
            for step in range(direction.products):
                # At step 0 each device has its own block; at each further step the next one
                # arrives.
                piece = self.permute(piece, direction.hop) if step else piece
                starts = self.starts(direction, step, block)
                product = self.multiply(direction, starts, {gathered: piece})
                if result_dim is None:
                    result = product if result is None else self.add(result, product)
                else:
                    result = result or self.zeros(product)
                    self.place(result, product, result_dim, starts)
        assert result is not None, "a ring has a direction"
        return result

    def scatter(self) -> Stack:
        """Return each device's block of the product, reduce-scattered around the ring.

        A partial sum of one block travels around the ring. Each member adds its own product for
        this block, and sends the sum on. After the last step every member has the complete sum of
        its own block.
        """
        dim = self.collective.attributes.dim
        (scattered,) = self.collective.results
        # The scattered result is one block of the product's result.
        block = self.run.program.locals[scattered].shape[dim]
        sum_of_direction: dict[int, Stack] = {}
        for direction in self.a.directions:
            for step in range(direction.products):
                piece = self.multiply(direction, self.starts(direction, step, block), {})
                # The sum that arrives has the products of the devices before this one in the ring.
                if step:
                    arrived = self.permute(sum_of_direction[direction.first], direction.hop)
                    piece = self.add(arrived, piece)
                sum_of_direction[direction.first] = piece
        # A direction has one part of each block; the parts are sorted by their first element.
        return map_blocks(
            lambda _, *x: np.concatenate(x, dim),
            *(sum_of_direction[first] for first in sorted(sum_of_direction)),
        )

    def starts(self, direction: Direction, t: int, block: int) -> list[int]:
        """Return, per position, the start of the block that product `t` uses."""
        n = self.a.members
        return [direction.block(p, t, n) * block + direction.first for p in self.ids]

    def multiply(self, direction: Direction, starts: list[int], given: dict[int, Stack]) -> Stack:
        """Return the product of one piece of each operand.

        Args:
          direction: the direction around the ring, which determines the size of a piece.
          starts: per position, where the pieces start. An operand without the partitioned loop is
            taken whole.
          given: the pieces of operands that are cut already, such as the one that travels around
            the ring. The key is the number of the operand's local value.
        """
        operands = [
            given[local] if local in given else self.cut(self.env[local], dim, direction, starts)
            for local, dim in zip(self.product.operands, self.a.along, strict=False)
        ]
        (made,) = SIMULATE[type(self.product.attributes)](self.run, self.product, *operands)
        return made

    def cut(self, stack: Stack, dim: int | None, direction: Direction, starts: list[int]) -> Stack:
        """Return each position's piece of an operand along `dim`; all of it if `dim` is None."""
        if dim is None:
            return stack
        return map_blocks(lambda p, x: _cut(x, dim, starts[p], direction.size), stack)

    def permute(self, stack: Stack, hop: int) -> Stack:
        """Return the data that each member gets from the member `hop` places further."""

        def sent(blocks: Stack) -> Stack:
            return [blocks[(p + hop) % len(blocks)] for p in range(len(blocks))]

        return exchange(self.a.ring, stack, sent)

    def add(self, first: Stack, second: Stack) -> Stack:
        """Return the elementwise sum, rounded to the item type of the stacks."""
        return map_blocks(lambda _, x, y: combine_blocks([x, y], "sum"), first, second)

    def zeros(self, like: Stack) -> Stack:
        """Return one array of zeros per position, in the shape of the product's result."""
        shape = self.run.program.locals[self.product.results[0]].shape
        return map_blocks(lambda _, x: np.zeros(shape, x.dtype), like)

    def place(self, whole: Stack, product: Stack, dim: int, starts: list[int]) -> None:
        """Write each position's product into `whole`, from the position's start along `dim` on."""
        for array, piece, start in zip(whole, product, starts, strict=True):
            array[_along(dim, start, piece.shape[dim])] = piece


def _cut(x: Any, dim: int, start: int, size: int) -> Any:
    return x[_along(dim, start, size)]


def _along(dim: int, start: int, size: int) -> tuple[slice, ...]:
    return (*(slice(None),) * dim, slice(start, start + size))
