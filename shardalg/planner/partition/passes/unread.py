"""Instructions whose results nobody reads are removed.

What one device at most has an element of is joined as bits, so that a zero keeps its sign.

    all_reduce(squeeze(owner_select(x)), "sum") = all_reduce(squeeze(owner_select(x)), "pick")
A box at run-time starts (`Extract`) and an element of its owner (`OwnerSelect`) are handed on as
partial sums where XLA gathers; a sum of floats would make -0 of its owner and +0 of the others +0.
Copies of such a value are such. What XLA sums, too (a lookup), is summed in the type as XLA does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardalg.graph.ops.families.pointwise import SAME
from shardalg.graph.ops.rule import PICK, SUM
from shardalg.spmd.identity import is_float
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import (
    AllReduce,
    Apply,
    Extract,
    OwnerSelect,
    ReduceScatter,
    Resize,
    Slice,
    SliceAt,
)
from shardalg.spmd.rewrite import Rewriter, blocks

OWNERS = (Extract, OwnerSelect)
"""Instructions after which at most one device has the element."""
PARTS = (Slice, SliceAt, Resize)
"""Instructions that leave elements, or zeros, as they are."""
COPIES = SAME | {"rev", "slice"}
"""Operators that do."""


@dataclass
class JoinAsBits(Rewriter):
    """What one device alone has is joined by "pick".

    Attributes:
      alone: locals of which at most one device has each element.
    """

    needs = OWNERS

    alone: set[int] = field(default_factory=set, init=False)

    def own(self, instruction: Instruction) -> Instruction:
        """Note an element of its owner, unless partial sums of it are pending."""
        (operand, *_) = instruction.operands
        if operand in self.alone or not self.locals[operand].sharding.unreduced:
            self.alone.update(instruction.results)
        return instruction

    def follow(self, instruction: Instruction) -> Instruction:
        """Note a part of what one device has."""
        if instruction.operands[0] in self.alone:
            self.alone.update(instruction.results)
        return instruction

    def copy(self, instruction: Instruction[Apply]) -> Instruction:
        """Note a copy of what one device has."""
        copies = instruction.attributes.primitive in COPIES and len(instruction.operands) == 1
        return self.follow(instruction) if copies else instruction

    def join(self, instruction: Instruction[AllReduce | ReduceScatter]) -> Instruction:
        """Return the reduction of what one device has, with the way to combine that keeps bits."""
        a, (operand,), (made,) = instruction.attributes, instruction.operands, instruction.results
        if a.combine != SUM or operand not in self.alone:
            return instruction
        if self.locals[made].sharding.unreduced:
            self.alone.add(made)
        combine = PICK if is_float(self.locals[made].dtype) else SUM
        return replace(instruction, attributes=replace(a, combine=combine))

    rules = (
        (OWNERS, own),
        (PARTS, follow),
        ((Apply,), copy),
        ((AllReduce, ReduceScatter), join),
    )


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
