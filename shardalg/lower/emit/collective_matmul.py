"""Rings of products: a permute of the next block beside the product of the one that is here.

Products and permutes of a ring depend on one another from step to step alone, so that a compiler
whose permutes are asynchronous (a start and a done) runs both at once. They are written out, not
looped: XLA overlaps nothing across the trips of a loop.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax, named_scope

from shardalg.lower.emit.emitter import SCOPE, Array, Emitter, emits
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import CollectiveMatmul, Direction


@emits(CollectiveMatmul)
def _collective_matmul(
    emitter: Emitter, instruction: Instruction[CollectiveMatmul], *operands: Array
) -> list[Array]:
    """Return the device's block of a matrix product that runs as a ring.

    Each device multiplies one piece while the next piece (or partial sum) is sent to it. This
    replaces an all-gather and a product, or a product and a reduce-scatter.
    """
    a = instruction.attributes
    # The body of the instruction has the product and the collective that it replaces.
    ring = _LoweredRing(emitter, a, dict(zip(a.body.arguments, operands, strict=True)))
    return [ring.product_of_gathered() if a.gathers else ring.scattered_product()]


class _LoweredRing:
    """One ring of permutes and products, on the arrays that the body's instructions read.

    Args:
      a: attributes of the instruction. env: array of each local that the instruction reads.
    """

    def __init__(self, emitter: Emitter, a: CollectiveMatmul, env: dict[int, Array]) -> None:
        """Read the dimension, members and block size of the ring from the instruction.

        Args:
          a: the instruction's attributes.
          env: the device's blocks of the operands, by the number of the local value.
        """
        self.emitter, self.a, self.env = emitter, a, env
        self.product, self.collective = a.product, a.collective
        self.dim, self.n = self.collective.attributes.dim, a.members
        # The device's number in the ring, from which its pieces are counted.
        self.id = emitter.partition_id(a.ring)
        # One device's block is the operand of the gather, or the result of the reduce-scatter.
        blocks = self.collective.operands if a.gathers else self.collective.results
        self.block = emitter.program.locals[blocks[0]].shape[self.dim]

    def product_of_gathered(self) -> Array:
        """Return the product with an operand that would otherwise be gathered first.

        Each device starts with its own block of the operand. In each step it multiplies the block
        that it has now, and passes it on to its neighbour in the ring. After all steps it has
        multiplied every block.

        If the ring has two directions (`_ways`), the block is cut into two pieces, and each piece
        travels in its own direction. Otherwise the block is the only piece.
        """
        own_block = self.env[self.collective.operands[0]]
        # The dimension of the result along which products are put side by side; None: summed.
        result_dim = self.a.along[-1]
        pieces = [
            lax.slice_in_dim(own_block, way.first, way.first + way.size, 1, self.dim)
            for way in self._ways
        ]
        result: Array | None = None
        for step in range(max(way.products for way in self._ways)):
            products = [
                (way, self.multiply(way, step, piece))
                for way, piece in zip(self._ways, pieces, strict=True)
                if step < way.products
            ]
            # The permute of the next piece is emitted before the products are used, so that both
            # can overlap.
            pieces = [
                self.permute(piece, way.hop) if step + 1 < way.products else piece
                for way, piece in zip(self._ways, pieces, strict=True)
            ]
            for way, product in products:
                # If the gathered dimension is contracted, the result is the sum of all products;
                # otherwise each product is a block of the result.
                if result_dim is None:
                    result = product if result is None else result + product
                else:
                    shape = self.emitter.program.locals[self.product.results[0]].shape
                    result = jnp.zeros(shape, product.dtype) if result is None else result
                    start = self.start(way, step)
                    result = lax.dynamic_update_slice_in_dim(result, product, start, result_dim)
        return result

    def scattered_product(self) -> Array:
        """Return the device's block of the product, whose partial sums travel around the ring.

        A sum is permuted while the product that is added to it next is computed. After the last
        step, the device has the sum of all devices' products for its own block.
        """
        # One travelling sum for each direction of the ring, by the first element of its piece.
        sums: dict[int, Array] = {}
        for step in range(max(way.products for way in self._ways)):
            for way in self._ways:
                if step < way.products:
                    arrived = self.permute(sums[way.first], way.hop) if step else None
                    product = self.multiply(way, step, None)
                    sums[way.first] = product if arrived is None else arrived + product
        return jnp.concatenate([sums[first] for first in sorted(sums)], self.dim)

    @property
    def _ways(self) -> tuple[Direction, ...]:
        return self.a.directions

    def start(self, direction: Direction, t: int) -> Array:
        """Return the first element of the piece that product number `t` in one direction reads.

        It depends on the device that executes, so it is a traced number.
        """
        return direction.block(self.id, t, self.n) * self.block + direction.first

    def multiply(self, direction: Direction, t: int, travelling: Array | None) -> Array:
        """Return product number `t` in one direction of the ring.

        Each operand that is sharded in the ring is read at the piece that this product needs.

        Args:
          direction: one of the two directions, with its step and the size of its pieces.
          travelling: the piece of the gathered operand; None if sums travel instead.
        """
        operands = []
        # `along` has an entry per operand, and one more for the result, which is not read here.
        for local, dim in zip(self.product.operands, self.a.along, strict=False):
            # The gathered operand never exists as a whole: its present piece replaces it.
            if self.a.gathers and local == self.collective.results[0]:
                operands.append(travelling)
            # An operand that does not depend on the piece is read whole.
            elif dim is None:
                operands.append(self.env[local])
            # Of any other operand, the elements that meet the piece are read.
            else:
                start = self.start(direction, t)
                piece = lax.dynamic_slice_in_dim(self.env[local], start, direction.size, dim)
                operands.append(piece)
        emit = self.emitter.emit(self.product)
        # The name of the operation says which instruction it belongs to.
        with named_scope(f"{SCOPE}{self.product.results[0]}"):
            (product,) = emit(self.emitter, self.product, *operands)
        return product

    def permute(self, piece: Array, hop: int) -> Array:
        """Return the piece of the member that is `hop` places further in the ring."""
        with named_scope(f"{SCOPE}{self.collective.results[0]}"):
            return self.emitter.rotated(self.a.ring, piece, hop)
