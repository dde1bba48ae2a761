"""The pass that turns an all-reduce whose result is only cut into blocks into a reduce-scatter.

    dynamic_slice(all_reduce(x)) = reduce_scatter(x)
Sums are deferred until a sharding is required of them. Other reductions (a maximum, a product) run
at once. If the result is then only cut along the same axes, a device needs its block only, and
half of the bytes are saved.
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

# The results of a block are read, too. This number marks them among the readers' indices.
RESULT = -1


@dataclass(frozen=True)
class BlockUse:
    """The only reader of a local value, if it cuts out the device's block.

    Attributes:
      number: the index of the cut among the instructions of the block.
      slice: the cut.
      pad: the instruction that pads the value before the cut, or None.
    """

    number: int
    slice: Instruction[DynamicSlice]
    pad: Instruction[Resize] | None


def _is_other_than_sum(instruction: Instruction) -> TypeGuard[Instruction[AllReduce]]:
    """Return whether an instruction is an all-reduce of a maximum, a product and so on: no sum."""
    return is_a(instruction, AllReduce) and instruction.attributes.combine != "sum"


def _chain_of_cuts(
    instructions: Sequence[Instruction],
    readers: dict[int, list[int]],
    first: Instruction[AllReduce],
) -> Iterator[BlockUse]:
    """Yield the cuts that follow an all-reduce, one after the other, along axes that it reduces.

    Args:
      readers: the indices of the instructions that read each local value.
      first: the all-reduce.
    """
    left, local = first.attributes.digits, first.results[0]
    while cut := _next_cut(instructions, readers, local):
        # Devices that differ along another axis are not members of the reduction, so a scatter
        # could not give them different blocks.
        if not set(cut.slice.attributes.digits) <= set(left):
            return
        yield cut
        left = _without(left, cut.slice.attributes.digits)
        (local,) = cut.slice.results


def _next_cut(
    instructions: Sequence[Instruction], readers: dict[int, list[int]], local: int
) -> BlockUse | None:
    """Return the `DynamicSlice` that cuts a device's block out of a local value, or None.

    The slice must be the value's only reader. One `Resize`, which pads the value, may be between.
    """
    pad: Instruction[Resize] | None = None
    while len(readers[local]) == 1 and readers[local] != [RESULT]:
        (number,) = readers[local]
        reader = instructions[number]
        if is_a(reader, DynamicSlice):
            return BlockUse(number, reader, pad)
        after = instructions[number + 1 : number + 2]
        # A padding directly before the cut can be moved together with the cut. Any other reader
        # needs the whole reduced value.
        if pad or not is_a(reader, Resize) or not after:
            return None
        if after[0].operands != reader.results:
            return None
        pad, (local,) = reader, reader.results
    return None


def _without(digits: Digits, gone: Digits) -> Digits:
    return tuple(d for d in digits if d not in gone)


def _scatter_instructions(
    first: Instruction[Any], cuts: Sequence[BlockUse], locals_: list[Local]
) -> Iterator[Instruction]:
    """Yield the instructions that replace an all-reduce and its cuts.

    A cut is a slice by which each device keeps its block of the result. Each cut becomes a
    reduce-scatter. An all-reduce over the axes that no cut uses follows. Padding before a cut now
    runs on values that are not yet reduced.
    """
    # `left` has the axes along which the value `local` is still partial.
    combine, left = first.attributes.combine, first.attributes.digits
    (local,) = first.operands
    for cut in cuts:
        # A padding between reduction and cut is now computed on the partial value.
        if cut.pad:
            (padded,) = cut.pad.results
            layout = locals_[local].sharding
            locals_[padded] = replace(locals_[padded], sharding=layout, origin=None)
            yield replace(cut.pad, operands=(local,))
            local = padded
        left = _without(left, cut.slice.attributes.digits)
        (result,) = cut.slice.results
        # A value that is not yet reduced along all axes is a new, partial local value.
        if cut is not cuts[-1] or left:
            layout = replace(locals_[result].sharding, unreduced=left)
            result = len(locals_)
            (like,) = cut.slice.results
            locals_.append(replace(locals_[like], index=result, sharding=layout, origin=None))
        scatter = ReduceScatter(cut.slice.attributes.dim, cut.slice.attributes.digits, combine)
        yield replace(first, attributes=scatter, operands=(local,), results=(result,))
        local = result
    # The remaining axes are reduced last, on the smallest block.
    if left:
        last = cuts[-1].slice.results
        yield replace(first, attributes=AllReduce(left, combine), operands=(local,), results=last)


class ScatterReductions(Rewriter):
    """The rewriter that turns all-reduces whose results are only cut into reduce-scatters."""

    needs = (AllReduce,)

    def finish(self, block: Block) -> Block:
        """Return the block in which reduce-scatters replace all-reduces that are only cut.

        A cut is a slice by which each device keeps its block, possibly after a padding. The
        reduce-scatters are emitted at the position of the last cut.
        """
        instructions = block.instructions
        # Most programs have no reduction that is cut or padded, and need no table of readers.
        reduced = {v for one in instructions if _is_other_than_sum(one) for v in one.results}
        if not reduced or not any(
            type(one.attributes) in (DynamicSlice, Resize) and one.operands[0] in reduced
            for one in instructions
        ):
            return block
        # The numbers of the instructions that read each local value.
        readers: dict[int, list[int]] = defaultdict(list)
        for number, instruction in enumerate(instructions):
            for operand in instruction.operands:
                readers[operand].append(number)
        for local in block.results:
            readers[local].append(RESULT)
        # The instructions at each position of the block, which are removed and added below.
        placed = {number: [instruction] for number, instruction in enumerate(instructions)}
        for number, first in enumerate(instructions):
            cuts = (
                list(_chain_of_cuts(instructions, readers, first))
                if _is_other_than_sum(first)
                else []
            )
            if cuts:
                # The cuts are the only readers of the values in between, so the reduction may move
                # down to the last cut. A padding is directly before its cut, and moves with it.
                removed = [placed[number], *(placed[cut.number] for cut in cuts)]
                removed += [placed[cut.number - 1] for cut in cuts if cut.pad]
                for place in removed:
                    place.clear()
                placed[cuts[-1].number] += _scatter_instructions(first, cuts, self.locals)
        rewritten = tuple(instruction for place in placed.values() for instruction in place)
        return replace(block, instructions=rewritten)
