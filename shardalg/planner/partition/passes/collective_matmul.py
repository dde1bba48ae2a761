"""The pass that replaces a product and its all-gather or reduce-scatter by a ring, if faster.

    dot_general(all_gather(x), w)        blocks of x travel; each device multiplies what it receives
    reduce_scatter(dot_general(x, w))    sums travel; each device adds its product to them
The value between the two instructions must have one reader: a gathered operand of several products
would travel several times. If a value is padded, cut or transposed between the two, they stay. A
product that can be in either ring joins the one that saves more time. Blocks of more than one
element travel in both directions, half each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardalg.algebra.digits import parts
from shardalg.graph.ir import Graph
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM
from shardalg.spmd.instruction import Block, Instruction, Purpose, is_a
from shardalg.spmd.instructions import (
    AllGather,
    Apply,
    CollectiveMatmul,
    Direction,
    Manual,
    ReduceScatter,
)
from shardalg.spmd.rewrite import Rewriter

if TYPE_CHECKING:
    from shardalg.costs.analyses.overlap import RingTimes

Pair = tuple[Instruction, Instruction]
Ring = Instruction[CollectiveMatmul]


@dataclass
class CollectiveMatmuls(Rewriter):
    """The rewriter that replaces pairs of a product and a collective by `CollectiveMatmul`s.

    Attributes:
      times: a function from a ring to its time and the time of the two instructions that it
        replaces.
    """

    # A manual region runs as the user wrote it.
    leaves = (Manual,)

    graph: Graph
    times: Callable[[Ring], RingTimes]

    def finish(self, block: Block) -> Block:
        """Return the block in which the rings that save most time replace their instructions.

        A ring is a collective matmul: a product and a collective (an all-gather before it, or a
        reduce-scatter after it) that run at the same time, piece by piece.
        """
        instructions = block.instructions
        producer = {local: one for one in instructions for local in one.results}
        num_reads = Counter(local for one in instructions for local in one.operands)
        num_reads.update(block.results)
        # By the `id` of an instruction, its replacement: None removes it. An instruction joins one
        # ring only: the one that saves most.
        replacements: dict[int, Ring | None] = {}
        rings = self.rings(instructions, producer, num_reads)
        for ring in sorted(rings, key=self.saved_s, reverse=True):
            first, second = ring.attributes.body.instructions
            if self.saved_s(ring) > 0 and not {id(first), id(second)} & replacements.keys():
                # The ring replaces the second instruction: only there all of its operands exist.
                replacements.update({id(first): None, id(second): ring})
        replaced = (replacements.get(id(one), one) for one in instructions)
        return replace(block, instructions=tuple(one for one in replaced if one is not None))

    def saved_s(self, ring: Ring) -> float:
        """Return the seconds that a ring saves per execution, compared with two instructions."""
        times = self.times(ring)
        return times.apart_s - times.ring_s

    def rings(
        self,
        instructions: Sequence[Instruction],
        made: dict[int, Instruction],
        reads: Counter[int],
    ) -> Iterator[Ring]:
        """Yield every ring that could replace two instructions of a block.

        Args:
          made: the instruction that computes each local value.
          reads: how often each local value is read.
        """
        for one in instructions:
            for local in dict.fromkeys(one.operands):
                # A ring never holds the value between its two instructions, so nothing else may
                # read it.
                before = made.get(local)
                if before is None or reads[local] != 1 or len(before.results) != 1:
                    continue
                gathers = is_a(before, AllGather) and is_a(one, Apply)
                scatters = is_a(before, Apply) and is_a(one, ReduceScatter)
                # `ring` returns None if the operator is no product, or cannot be cut in pieces.
                if (gathers or scatters) and (ring := self.ring((before, one))):
                    yield ring

    def ring(self, pair: Pair) -> Ring | None:
        """Return the ring that could replace two consecutive instructions, or None.

        None if the collective does not run along a single loop of the product. Also None if it
        combines by another operation than a sum, has one device only, or was written by the user.

        Args:
          pair: an all-gather and a product, or a product and a reduce-scatter.
        """
        first, second = pair
        gathers = is_a(first, AllGather)
        product, collective = (second, first) if gathers else (first, second)
        moves = collective.attributes
        assert isinstance(moves, AllGather | ReduceScatter), "one of the pair is the collective"
        sums = isinstance(moves, ReduceScatter) and moves.combine != SUM
        n = parts(moves.digits)
        # A ring can only add, needs two devices, and leaves collectives of the user alone.
        if sums or n < 2 or collective.why.purpose is Purpose.WRITTEN:
            return None
        number = product.operands.index(first.results[0]) if gathers else -1
        along = self.along(product, (number, moves.dim))
        if along is None:
            return None
        travels = collective.operands[0] if gathers else collective.results[0]
        block = self.locals[travels].shape[moves.dim]
        operands = (*first.operands, *(v for v in second.operands if v not in first.results))
        operands = tuple(dict.fromkeys(operands))
        body = Block(operands, pair, second.results)
        # Half of every block travels each way round, all of it if there is one neighbour only.
        half = block if n == 2 else -(-block // 2)
        # A gather begins with the device's own block. A scatter begins with the block whose sum has
        # the longest way to travel, n - 1 hops, and ends with the device's own block.
        ways = tuple(
            Direction(
                first=first,
                size=size,
                hop=hop,
                start=0 if gathers else -hop * (n - 1) % n,
                step=hop,
                products=n,
            )
            for first, size, hop in ((0, half, 1), (half, block - half, -1))
            if size
        )
        ring: Any = replace(second, operands=operands)
        return replace(ring, attributes=CollectiveMatmul(body, along, ways))

    def along(self, product: Instruction, where: tuple[int, int]) -> tuple[int | None, ...] | None:
        """Return the dimension that one loop of a product has in each operand and in the result.

        An entry is None if the loop does not index that tensor. The whole is None if there is no
        such loop, or if the instruction is no `dot_general`. For example, the loop k of the product
        [i, k] x [k, j] -> [i, j] has the dimensions (1, 0, None).

        Args:
          where: (operand number or -1 for the result, dimension): the dimension that determines the
            loop.
        """
        if not is_a(product, Apply) or product.node is None:
            return None
        if product.attributes.primitive != "dot_general":
            return None
        (rule,) = rules(self.graph.nodes[product.node].signature) or ()
        tensors = [*(rule.operands[k] for k in range(len(product.operands))), *rule.results]
        number, dim = where
        # The ring computes one block of this loop per step, so every tensor is cut along it.
        name = tensors[number][dim].loop
        # `lax.add` does not accept booleans, so a ring could not add up their products.
        is_bool = self.locals[product.results[0]].dtype == "bool"
        if name is None or name in rule.whole or is_bool:
            return None
        # A loop of a product indexes one dimension of a tensor at most.
        dims_of_loop = [
            [dim for dim, index in enumerate(indices) if index.loop == name] for indices in tensors
        ]
        return tuple(dims[0] if dims else None for dims in dims_of_loop)
