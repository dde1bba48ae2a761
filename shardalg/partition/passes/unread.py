"""Instructions whose results nobody reads are removed."""

from __future__ import annotations

from dataclasses import replace

from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.rewrite import Rewriter, blocks


class DropUnread(Rewriter):
    """Only instructions remain whose results are read, in bodies too."""

    def finish(self, block: Block) -> Block:
        """Return the block without what neither its results nor later instructions read."""
        needed = set(block.results)
        kept: list[Instruction] = []
        for instruction in reversed(block.instructions):
            if not needed.isdisjoint(instruction.results):
                needed.update(instruction.operands)
                # a body reads the program's constants, too
                for body in instruction.attributes.bodies:
                    for inner in blocks(body):
                        needed.update(inner.results, *(one.operands for one in inner.instructions))
                kept.append(instruction)
        return replace(block, instructions=tuple(kept[::-1]))
