"""Of what is combined over devices that each keep a block, only the blocks are combined.

    dynamic_slice(all_reduce(x)) = reduce_scatter(x)
Sums wait for the layout that is wanted of them. What else is combined (a maximum, a product) is
combined at once; where it is then cut along the same axes, and not read otherwise, a device need
not receive the rest: half of the bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from shardalg.algebra.digits import Digits
from shardalg.spmd.instruction import Block, Instruction, is_a
from shardalg.spmd.instructions import AllReduce, DynamicSlice, ReduceScatter, Resize
from shardalg.spmd.local import Local
from shardalg.spmd.rewrite import Rewriter

RESULT = -1
"""Stands for the reader of what a block hands on."""


@dataclass(frozen=True)
class BlockUse:
    """What reads a local alone and keeps a block of it, behind its padding if it needs any."""

    number: int
    slice: Instruction[DynamicSlice]
    pad: Instruction[Resize] | None


def _has_cuts(instructions: Sequence[Instruction]) -> bool:
    """Whether a reduction is cut or padded anywhere: most programs end here."""
    made = {local for one in instructions if _combines(one) for local in one.results}
    return bool(made) and any(
        type(one.attributes) in (DynamicSlice, Resize) and one.operands[0] in made
        for one in instructions
    )


def _combines(instruction: Instruction) -> TypeGuard[Instruction[AllReduce]]:
    """Whether it is a reduction, but for a sum, which went to the layout that was wanted of it."""
    return is_a(instruction, AllReduce) and instruction.attributes.combine != "sum"


def _cuts(
    instructions: Sequence[Instruction],
    readers: dict[int, list[int]],
    first: Instruction[AllReduce],
) -> Iterator[BlockUse]:
    """The cuts of a reduction along its own axes, one after the other."""
    left, local = first.attributes.digits, first.results[0]
    while (cut := _cut(instructions, readers, local)) and set(cut.slice.attributes.digits) <= set(
        left
    ):
        yield cut
        left = _without(left, cut.slice.attributes.digits)
        (local,) = cut.slice.results


def _cut(
    instructions: Sequence[Instruction], readers: dict[int, list[int]], local: int
) -> BlockUse | None:
    pad: Instruction[Resize] | None = None
    while len(readers[local]) == 1 and readers[local] != [RESULT]:
        (number,) = readers[local]
        reader = instructions[number]
        if is_a(reader, DynamicSlice):
            return BlockUse(number, reader, pad)
        after = instructions[number + 1 : number + 2]
        if pad or not is_a(reader, Resize) or not after:
            return None
        if after[0].operands != reader.results:
            return None
        pad, (local,) = reader, reader.results
    return None


def _without(digits: Digits, gone: Digits) -> Digits:
    return tuple(d for d in digits if d not in gone)


def _joined(
    first: Instruction[Any], cuts: Sequence[BlockUse], locals_: list[Local]
) -> Iterator[Instruction]:
    """The reduction with its cuts: scattered along each, and combined over the axes that are left.

    What is padded now is partial, and so is what is scattered before the last axes are joined.
    """
    combine, left = first.attributes.combine, first.attributes.digits
    (local,) = first.operands
    for cut in cuts:
        if cut.pad:
            (padded,) = cut.pad.results
            layout = locals_[local].sharding
            locals_[padded] = replace(locals_[padded], sharding=layout, origin=None)
            yield replace(cut.pad, operands=(local,))
            local = padded
        left = _without(left, cut.slice.attributes.digits)
        (made,) = cut.slice.results
        if cut is not cuts[-1] or left:
            layout = replace(locals_[made].sharding, unreduced=left)
            made = len(locals_)
            (like,) = cut.slice.results
            locals_.append(replace(locals_[like], index=made, sharding=layout, origin=None))
        scatter = ReduceScatter(cut.slice.attributes.dim, cut.slice.attributes.digits, combine)
        yield replace(first, attributes=scatter, operands=(local,), results=(made,))
        local = made
    if left:
        last = cuts[-1].slice.results
        yield replace(first, attributes=AllReduce(left, combine), operands=(local,), results=last)


class ScatterReductions(Rewriter):
    """A reduction that is only cut is a reduce-scatter."""

    needs = (AllReduce,)

    def finish(self, block: Block) -> Block:
        """Return the block in which every chain of cuts is at the place of its last cut."""
        instructions = block.instructions
        if not _has_cuts(instructions):
            return block
        readers: dict[int, list[int]] = defaultdict(list)
        for number, instruction in enumerate(instructions):
            for operand in instruction.operands:
                readers[operand].append(number)
        for local in block.results:
            readers[local].append(RESULT)
        placed = {number: [instruction] for number, instruction in enumerate(instructions)}
        for number, first in enumerate(instructions):
            cuts = list(_cuts(instructions, readers, first)) if _combines(first) else []
            if cuts:
                gone = [placed[number], *(placed[c.number] for c in cuts)]
                gone += [placed[c.number - 1] for c in cuts if c.pad]
                for place in gone:
                    place.clear()
                placed[cuts[-1].number] += _joined(first, cuts, self.locals)
        kept = tuple(instruction for place in placed.values() for instruction in place)
        return replace(block, instructions=kept)
