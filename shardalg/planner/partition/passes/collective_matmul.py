"""A product and the collective beside it become a ring, where prices say that it is faster.

    dot_general(all_gather(x), w)        the blocks of x go round, each multiplied as it comes by
    reduce_scatter(dot_general(x, w))    the sums go round, to each of which a product is added
What is handed from one to the other must be read by nobody else: a gathered operand of several
products would go round several times, and send more; what is padded, cut or transposed between the
two stays as it is. A product that could be either becomes what
saves more. Blocks of more than one element go both ways round, half each.
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
    """Products with their gathers and scatters are rings where that is faster.

    Attributes:
      times: of a ring, and of the two instructions that it replaces.
    """

    # a region by hand stays as it is
    leaves = (Manual,)

    graph: Graph
    times: Callable[[Ring], RingTimes]

    def finish(self, block: Block) -> Block:
        """Return the block with the rings that save most."""
        instructions = block.instructions
        made = {local: one for one in instructions for local in one.results}
        reads = Counter(local for one in instructions for local in one.operands)
        reads.update(block.results)
        taken: dict[int, Ring | None] = {}
        for ring in sorted(self.rings(instructions, made, reads), key=self.saved_s, reverse=True):
            first, second = ring.attributes.body.instructions
            if self.saved_s(ring) > 0 and not {id(first), id(second)} & taken.keys():
                taken.update({id(first): None, id(second): ring})
        kept = (taken.get(id(one), one) for one in instructions)
        return replace(block, instructions=tuple(one for one in kept if one is not None))

    def saved_s(self, ring: Ring) -> float:
        """Seconds of one execution that are saved."""
        times = self.times(ring)
        return times.apart_s - times.ring_s

    def rings(
        self,
        instructions: Sequence[Instruction],
        made: dict[int, Instruction],
        reads: Counter[int],
    ) -> Iterator[Ring]:
        """Every pair that could be one."""
        for one in instructions:
            for local in dict.fromkeys(one.operands):
                before = made.get(local)
                if before is None or reads[local] != 1 or len(before.results) != 1:
                    continue
                gathers = is_a(before, AllGather) and is_a(one, Apply)
                scatters = is_a(before, Apply) and is_a(one, ReduceScatter)
                if (gathers or scatters) and (ring := self.ring((before, one))):
                    yield ring

    def ring(self, pair: Pair) -> Ring | None:
        """A pair as a ring; None where the collective goes along no plain loop of the product."""
        first, second = pair
        gathers = is_a(first, AllGather)
        product, collective = (second, first) if gathers else (first, second)
        moves = collective.attributes
        assert isinstance(moves, AllGather | ReduceScatter), "the one that is no product"
        sums = isinstance(moves, ReduceScatter) and moves.combine != SUM
        n = parts(moves.digits)
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
        ways = tuple(_directions(block, n, gathers=gathers))
        ring: Any = replace(second, operands=operands)
        return replace(ring, attributes=CollectiveMatmul(body, along, ways))

    def along(self, product: Instruction, where: tuple[int, int]) -> tuple[int | None, ...] | None:
        """Per operand and result the dimension that is the loop of one of them."""
        if not is_a(product, Apply) or product.node is None:
            return None
        if product.attributes.primitive != "dot_general":
            return None
        (rule,) = rules(self.graph.nodes[product.node].signature) or ()
        tensors = [*(rule.operands[k] for k in range(len(product.operands))), *rule.results]
        number, dim = where
        name = tensors[number][dim].loop
        is_bool = self.locals[product.results[0]].dtype == "bool"
        if name is None or name in rule.whole or is_bool:
            return None
        dims = [[d for d, index in enumerate(indices) if index.loop == name] for indices in tensors]
        return tuple(found[0] if found else None for found in dims)


def _directions(block: int, n: int, *, gathers: bool) -> Iterator[Direction]:
    """Half of every block each way round; all of it one way where that is the only neighbour."""
    half = block if n == 2 else -(-block // 2)
    for first, size, hop in ((0, half, 1), (half, block - half, -1)):
        if size:
            start = 0 if gathers else -hop * (n - 1) % n
            yield Direction(first, size, hop, start, hop, n)
