"""Two passes: drop unread instructions, and combine elements of one owner as bits.

    all_reduce(squeeze(owner_select(x)), "sum") = all_reduce(squeeze(owner_select(x)), "pick")
A box at run-time starts (`Extract`) and an element of its owner (`OwnerSelect`) are partial sums,
of which at most one device has an element other than 0. XLA gathers instead. A sum of floats would
turn -0 of the owner and +0 of the others into +0. Copies of such a value are combined so, too.
Values that XLA sums, too (a lookup), are summed in their type, as in XLA.
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
    ReduceScatters,
    Resize,
    Slice,
    SliceAt,
)
from shardalg.spmd.rewrite import Rewriter, blocks

OWNERS = (Extract, OwnerSelect)
"""After these, every device except one has 0 in place of the element."""
# These only drop elements or add zeros, so that still at most one device has each element.
PARTS = (Slice, SliceAt, Resize)
# These only move elements, so that still at most one device has each element.
COPIES = SAME | {"rev", "slice"}


@dataclass
class JoinAsBits(Rewriter):
    """The rewriter that replaces sums by "pick" where one device alone has each element.

    "pick" combines the bits of an element instead of adding numbers.

    Attributes:
      alone: local values of which at most one device has each element; all others have 0.
    """

    needs = OWNERS

    alone: set[int] = field(default_factory=set, init=False)

    def note_owned(self, instruction: Instruction) -> Instruction:
        """Record in `alone` that all devices of a group except one have 0 in place of each element.

        Nothing is recorded if the operand is a partial sum to which several devices contribute.
        Return the instruction unchanged.
        """
        (operand, *_) = instruction.operands
        if operand in self.alone or not self.locals[operand].sharding.unreduced:
            self.alone.update(instruction.results)
        return instruction

    def note_part(self, instruction: Instruction) -> Instruction:
        """Add the result of a slice to `alone` if the operand is in `alone`.

        Of a value in `alone`, at most one device has each element; all other devices have 0 there.
        """
        if instruction.operands[0] in self.alone:
            self.alone.update(instruction.results)
        return instruction

    def note_copy(self, instruction: Instruction[Apply]) -> Instruction:
        """Record that one device alone has each element of a copy, if this is true of its operand.

        Copies are operators in `COPIES` with one operand. Any other operator is returned
        unrecorded.
        """
        copies = instruction.attributes.primitive in COPIES and len(instruction.operands) == 1
        return self.note_part(instruction) if copies else instruction

    def combine_bits(
        self, instruction: Instruction[AllReduce | ReduceScatter | ReduceScatters]
    ) -> Instruction:
        """Return the collective with "pick" in place of "sum", if one device has each element.

        Any other collective is returned as it is. Integers are still summed: they have no -0.
        """
        a, (operand,), (made,) = instruction.attributes, instruction.operands, instruction.results
        # Of a value in `alone`, at most one device has each element, and the others have 0. A sum
        # would turn its -0 into 0; "pick" keeps the bits.
        if a.combine != SUM or operand not in self.alone:
            return instruction
        # If the collective combines only some of the members, the others' parts are still to be
        # added. At most one of these parts has each element, so that sum can be of bits, too.
        if self.locals[made].sharding.unreduced:
            self.alone.add(made)
        combine = PICK if is_float(self.locals[made].dtype) else SUM
        return replace(instruction, attributes=replace(a, combine=combine))

    rules = (
        (OWNERS, note_owned),
        (PARTS, note_part),
        ((Apply,), note_copy),
        ((AllReduce, ReduceScatter, ReduceScatters), combine_bits),
    )


class DropUnread(Rewriter):
    """The rewriter that removes instructions whose results nothing reads, also in bodies."""

    def finish(self, block: Block) -> Block:
        """Return the block without instructions whose results are neither read nor returned."""
        # Backwards, all readers of a value are seen before the instruction that computes it.
        needed = set(block.results)
        kept: list[Instruction] = []
        for instruction in reversed(block.instructions):
            # One needed result is enough: an instruction computes all of its results at once.
            if not needed.isdisjoint(instruction.results):
                needed.update(instruction.operands)
                # A body reads the program's constants without naming them as operands.
                for body in instruction.attributes.bodies:
                    for inner in blocks(body):
                        needed.update(inner.results, *(one.operands for one in inner.instructions))
                kept.append(instruction)
        return replace(block, instructions=tuple(kept[::-1]))
