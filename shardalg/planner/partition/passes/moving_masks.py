"""Masks move to where their value is made, and are left out where its padding is filled already.

    x = f(..); a = mask(x); y = g(x); b = mask(y)      x = mask(f(..)); a = x; y = b = g(x)
where g makes the number of the mask of it. Two operators that make values to be masked of one value
that is not let the mask move to that one. `planner/partition/choose/windows.py` says where they
are needed.
GSPMD, arXiv:2105.04663, section 4.6.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardalg.costs.fusion import materialised
from shardalg.graph.ir import Graph
from shardalg.planner.partition.passes.padding_values import FILLS, Fills, ValueFacts, filled_by
from shardalg.spmd.instruction import UNSTATED, Block, Instruction, is_a
from shardalg.spmd.instructions import Apply, Mask, kinds
from shardalg.spmd.rewrite import Rewriter

Wishes = dict[int, dict[Mask, int | None]]
"""Per local the masks that it is read behind, and the local that is it behind that mask, if any."""
Lifted = dict[int, Counter[Mask]]
"""Per local the masks that would serve results which are made of it, and how many each."""


@dataclass
class MoveMasks(Rewriter):
    """Every value is masked once, where it is made.

    Attributes:
      numbers: what is known of the program's constants, which bodies read too.
      fills: what is known of the block's locals.
      wishes: which masks are wanted.
      stored: values that nothing fuses away.
    """

    needs = (Mask,)

    graph: Graph
    numbers: dict[int, ValueFacts]
    fills: Fills = field(init=False)
    wishes: Wishes = field(default_factory=lambda: defaultdict(dict), init=False)
    stored: frozenset[int] = field(default=frozenset(), init=False)

    def drop_filled(self, instruction: Instruction[Mask]) -> Instruction | int:
        """Return the operand of a mask that would change nothing."""
        (operand,) = instruction.operands
        return operand if self.is_filled(operand, instruction.attributes) else instruction

    def mask_results(self, instruction: Instruction) -> Instruction | None:
        """Keep an instruction, with the masks that its results are read behind."""
        is_unknown = self.fills.known.keys().isdisjoint(instruction.operands)
        is_fill = type(instruction.attributes) in FILLS
        if is_unknown and not is_fill and self.wishes.keys().isdisjoint(instruction.results):
            return instruction
        self.keep(instruction)
        for result in instruction.results:
            local = result
            for mask, made in self.wanted(result):
                if not self.is_filled(local, mask):  # also by a mask of another name
                    local = self.masked(instruction, mask, local, made)
            if local != result:
                self.replaced[result] = local
        return None

    rules = (((Mask,), drop_filled), (kinds(), mask_results))

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

    def begin(self, block: Block) -> None:
        """Find the masks that every value is read behind, from the last instruction up."""
        self.fills = Fills(self.graph, self.locals, dict(self.numbers))
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
