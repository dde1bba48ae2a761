"""The pass that moves masks to where a value is computed, and drops masks that change nothing.

    before        after
    x = f(..)     x = mask(f(..))
    a = mask(x)   a = x
    y = g(x)      y = g(x)
    b = mask(y)   b = y

This requires that g maps the mask's number to itself, so that the padding of y has it already. If
two operators read one unmasked value and both results are masked, the mask moves to that value.
`planner/partition/choose/windows.py` places the masks. Source: GSPMD, arXiv:2105.04663, section
4.6.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardalg.costs.fusion import values_in_memory
from shardalg.graph.ir import Graph
from shardalg.planner.partition.passes.padding_values import FILLS, Fills, ValueFacts, filled_by
from shardalg.spmd.instruction import UNSTATED, Block, Instruction, is_a
from shardalg.spmd.instructions import Apply, Mask, kinds
from shardalg.spmd.rewrite import Rewriter

# Per local value, its masks. A mask that exists in the program has the local value that it
# computes, so that its readers need no change. A new one has None.
Wishes = dict[int, dict[Mask, int | None]]
Lifted = dict[int, Counter[Mask]]
"""Per local value, masks that could be moved to it, and how many masks of results each replaces."""


@dataclass
class MoveMasks(Rewriter):
    """The rewriter that masks every value once, right after it is computed.

    Attributes:
      numbers: the known numbers of the program's constants, which bodies read, too.
      fills: the known numbers in the padding of the block's local values.
      wishes: the masks that could be emitted directly after each local value is computed.
      stored: local values that are in memory because nothing fuses with them.
    """

    needs = (Mask,)

    graph: Graph
    numbers: dict[int, ValueFacts]
    fills: Fills = field(init=False)
    wishes: Wishes = field(default_factory=lambda: defaultdict(dict), init=False)
    stored: frozenset[int] = field(default=frozenset(), init=False)

    def drop_filled(self, instruction: Instruction[Mask]) -> Instruction | int:
        """Return the operand of a mask that would change nothing; otherwise the mask itself."""
        (operand,) = instruction.operands
        return operand if self.is_filled(operand, instruction.attributes) else instruction

    def mask_results(self, instruction: Instruction) -> Instruction | None:
        """Append an instruction, and then the masks of its results that `wanted` yields.

        Return the instruction itself if it needs no mask; its caller then appends it. Otherwise
        return None.
        """
        # A mask is left out where the padding has its number already. That can be so only behind an
        # operand with known padding, or an instruction that fills padding itself.
        is_unknown = self.fills.known.keys().isdisjoint(instruction.operands)
        is_fill = type(instruction.attributes) in FILLS
        if is_unknown and not is_fill and self.wishes.keys().isdisjoint(instruction.results):
            return instruction
        self.keep(instruction)
        for result in instruction.results:
            local = result
            for mask, made in self.wanted(result):
                # An earlier mask may have filled the same padding with the same number already.
                if not self.is_filled(local, mask):
                    local = self.masked(instruction, mask, local, made)
            if local != result:
                self.replaced[result] = local
        return None

    rules = (((Mask,), drop_filled), (kinds(), mask_results))

    def wanted(self, local: int) -> Iterator[tuple[Mask, int | None]]:
        """Yield the masks to emit directly after a local value, each with its result.

        Each entry is (mask, the local value of its result, or None). Only masks that fill with one
        number are yielded, because others would overwrite it.
        """
        dtype, fills = self.locals[local].dtype, set()
        for mask, made in self.wishes.get(local, {}).items():
            # A reader that fuses with the unmasked value would have to read memory.
            if made in self.stored and local not in self.stored:
                continue
            number = filled_by(mask, dtype)[1]
            fills.add(number)
            # Masks with different numbers would overwrite each other. NaN is not equal to itself.
            if len(fills) == 1 and not math.isnan(number):
                yield mask, made

    def keep(self, instruction: Instruction) -> None:
        """Append an instruction to the block, and record the numbers that its padding holds."""
        self.kept.append(instruction)
        self.fills.note(instruction)

    def is_filled(self, local: int, mask: Mask) -> bool:
        """Return whether a mask of `local` would change nothing."""
        return self.fills.of(local).has(mask, self.locals[local].dtype)

    def masked(self, maker: Instruction, mask: Mask, local: int, made: int | None) -> int:
        """Append a mask of `local` to the block and return the masked local value.

        Args:
          maker: the instruction that computes `local`, after which the mask is placed.
          made: the local value to reuse for the result; None for a new one.
        """
        like = self.locals[local]
        if made is None:
            made = len(self.locals)
            self.locals.append(like)
        self.locals[made] = replace(like, index=made)
        self.keep(replace(maker, attributes=mask, operands=(local,), results=(made,), why=UNSTATED))
        return made

    def begin(self, block: Block) -> None:
        """Fill `wishes`: the masks that can be applied to each value right after it is computed.

        A mask that the block applies to a value is a wish of this value. A mask of an operator's
        result can move to an operand instead, if the operator maps the mask's number to itself. It
        becomes a wish of the operand if it then replaces masks of at least two results.
        """
        # Tables for this block: the number that each value's padding has, and the values in memory.
        self.fills = Fills(self.graph, self.locals, dict(self.numbers))
        self.stored = values_in_memory(block, self.graph)
        # For each value, the masks that could move to it, and how many masks each would replace.
        lifted: Lifted = defaultdict(Counter)
        # Backwards, the masks of a result are known before its operands are reached.
        for instruction in reversed(block.instructions):
            results = instruction.results
            if is_a(instruction, Mask):
                # The wish stores the local value that the mask computes. The moved mask computes
                # this value, too, so that its readers need no change.
                (value,), (made,) = instruction.operands, results
                wished: dict[Mask, int | None] = {instruction.attributes: made}
                self.wishes[value] = wished | self.wishes[value]
            for result in results:
                for mask, count in lifted[result].items() if result in lifted else ():
                    # A mask that replaces a single one would only have another place, and save
                    # nothing. The wish stores None: no local value has the masked numbers yet.
                    if count > 1:
                        self.wishes[result].setdefault(mask)
            if is_a(instruction, Apply) and len(results) == 1 and results[0] in self.wishes:
                for mask in self.wishes[results[0]]:
                    for operand, above in self.fills.maskable_operand(instruction, mask):
                        lifted[operand][above] += 1
