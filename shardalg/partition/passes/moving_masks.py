"""Masks move to where their value is made, and are left out where its padding is filled already.

    x = f(..); a = mask(x); y = g(x); b = mask(y)      x = mask(f(..)); a = x; y = b = g(x)
where g makes the number of the mask of it. Two operators that make values to be masked of one value
that is not let the mask move to that one. `partition/choose/masks.py` says where they are needed.
GSPMD, arXiv:2105.04663, section 4.6.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from shardalg.costs.fusion import materialised
from shardalg.graph.ir import Graph
from shardalg.partition.passes.padding_values import FILLS, Fills, Known, filled_by
from shardalg.spmd.instruction import Block, Instruction, is_a
from shardalg.spmd.instructions import Apply, Control, Mask, kinds
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.why import UNSTATED

Wishes = dict[int, dict[Mask, int | None]]
"""Per local the masks that it is read behind, and the local that is it behind that mask, if any."""
Lifted = dict[int, Counter[Mask]]
"""Per local the masks that would serve results which are made of it, and how many each."""


def masks_moved(program: SpmdProgram, graph: Graph) -> SpmdProgram:
    """The same program with every value masked once, where it is made."""
    if not _has_masks(program.block):
        return program
    locals_ = list(program.locals)
    numbers = {local: Known(number=graph.numbers.get(value)) for local, value in program.constants}
    block = _Masking(graph, locals_, numbers).run(program.block)
    return replace(program, locals=tuple(locals_), block=block)


class _Masking:
    """One block: what is known of its locals, which masks are wanted, what stands for a local.

    Attributes:
      numbers: what is known of the program's constants, which bodies read too.
      stored: values that nothing fuses away.
    """

    def __init__(self, graph: Graph, locals_: list[Local], numbers: dict[int, Known]) -> None:
        self.graph, self.locals, self.numbers = graph, locals_, numbers
        self.fills = Fills(graph, locals_, dict(numbers))
        self.wishes: Wishes = defaultdict(dict)
        self.stored: frozenset[int] = frozenset()
        self.stands: dict[int, int] = {}
        self.kept: list[Instruction] = []

    def run(self, block: Block) -> Block:
        """The block with its masks moved."""
        self.wish(block)
        stands, known, wishes = self.stands.keys(), self.fills.known.keys(), self.wishes.keys()
        for instruction in block.instructions:
            operands = instruction.operands
            if type(instruction.attributes) in _PLACES or not (
                stands.isdisjoint(operands)
                and known.isdisjoint(operands)
                and wishes.isdisjoint(instruction.results)
            ):
                self.step(self.reading(instruction))
            else:
                self.kept.append(instruction)
        results = tuple([self.stands.get(local, local) for local in block.results])
        return replace(block, instructions=tuple(self.kept), results=results)

    def step(self, instruction: Instruction) -> None:
        """Keep an instruction, with the masks that its results are read behind."""
        mask, operands = instruction.attributes, instruction.operands
        if type(mask) is Mask and self.is_filled(operands[0], mask):
            self.stand(instruction.results[0], operands[0])
            return
        self.keep(instruction)
        for result in instruction.results:
            local = result
            for mask, made in self.wanted(result):
                if not self.is_filled(local, mask):  # also by a mask of another name
                    local = self.masked(instruction, mask, local, made)
            self.stand(result, local)

    def wanted(self, local: int) -> Iterator[tuple[Mask, int | None]]:
        """The masks to put behind a value, as long as they fill with one number."""
        dtype, fills = self.locals[local].dtype, set()
        for mask, made in self.wishes.get(local, {}).items():
            if made in self.stored and local not in self.stored:
                continue  # whoever fuses with what makes it would read it from memory
            number = filled_by(mask, dtype)[1]
            fills.add(number)
            if len(fills) == 1 and not math.isnan(number):
                yield mask, made

    def keep(self, instruction: Instruction) -> None:
        """Append an instruction, and note what it makes."""
        self.kept.append(instruction)
        self.fills.note(instruction)

    def stand(self, local: int, other: int) -> None:
        """Whoever reads `local` from here on reads `other`."""
        if local != other:
            self.stands[local] = other

    def is_filled(self, local: int, mask: Mask) -> bool:
        """Whether a mask would change nothing."""
        return self.fills.of(local).has(mask, self.locals[local].dtype)

    def masked(self, maker: Instruction, mask: Mask, local: int, made: int | None) -> int:
        """A value right after it was made, masked: `local`, and the one it becomes."""
        like = self.locals[local]
        if made is None:
            made = len(self.locals)
            self.locals.append(like)
        self.locals[made] = replace(like, index=made)
        self.keep(replace(maker, attributes=mask, operands=(local,), results=(made,), why=UNSTATED))
        return made

    def reading(self, instruction: Instruction) -> Instruction:
        """With what stands for its operands, and masks moved in its bodies."""
        operands = tuple([self.stands.get(local, local) for local in instruction.operands])
        blocks = instruction.attributes.bodies
        if blocks:
            made = [_Masking(self.graph, self.locals, self.numbers).run(b) for b in blocks]
            attributes = instruction.attributes.with_bodies(made)
            return replace(instruction, attributes=attributes, operands=operands)
        if operands == instruction.operands:
            return instruction
        return replace(instruction, operands=operands)

    def wish(self, block: Block) -> None:
        """Find the masks that every value is read behind, from the last instruction up."""
        self.stored = materialised(block, self.graph)
        lifted: Lifted = defaultdict(Counter)
        for instruction in reversed(block.instructions):
            results = instruction.results
            if is_a(instruction, Mask):
                (value,), (made,) = instruction.operands, results
                wished: dict[Mask, int | None] = {instruction.attributes: made}
                self.wishes[value] = wished | self.wishes[value]
            for result in results:
                for mask, count in lifted[result].items() if result in lifted else ():
                    if count > 1:
                        self.wishes[result].setdefault(mask)
            if is_a(instruction, Apply) and len(results) == 1 and results[0] in self.wishes:
                for mask in self.wishes[results[0]]:
                    for operand, above in self.fills.above(instruction, mask):
                        lifted[operand][above] += 1


_PLACES = frozenset({*FILLS, *kinds(Control)})
"""What fills padding, and what holds blocks in which something may."""


def _has_masks(block: Block) -> bool:
    for one in block.instructions:
        kind = type(one.attributes)
        if kind is Mask or (
            issubclass(kind, Control) and any(map(_has_masks, one.attributes.bodies))
        ):
            return True
    return False
