"""What one device at most has an element of is joined as bits, so that a zero keeps its sign.

    all_reduce(squeeze(owner_select(x)), "sum") = all_reduce(squeeze(owner_select(x)), "pick")
A box at run-time starts (`Extract`) and an element of its owner (`OwnerSelect`) are handed on as
partial sums where XLA gathers; a sum of floats would make -0 of its owner and +0 of the others +0.
Copies of such a value are such. What XLA sums, too (a lookup), is summed in the type as XLA does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardalg.ops.families.numbers import SAME
from shardalg.ops.rule import PICK, SUM
from shardalg.spmd.identity import is_float
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import (
    AllReduce,
    Apply,
    Control,
    Extract,
    OwnerSelect,
    ReduceScatter,
    Resize,
    Slice,
    SliceAt,
)
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

OWNERS = (Extract, OwnerSelect)
"""Instructions after which at most one device has the element."""
PARTS = (Slice, SliceAt, Resize)
"""Instructions that leave elements, or zeros, as they are."""
COPIES = SAME | {"rev", "slice"}
"""Operators that do."""


def joined_as_bits(program: SpmdProgram) -> SpmdProgram:
    """The same program, where what one device alone has is joined by "pick"."""
    if not _has_owners(program.block):
        return program
    block = _joined(program.block, program.locals)
    return program if block is program.block else replace(program, block=block)


def _has_owners(block: Block) -> bool:
    """Return whether after some instruction one device has an element that the others lack."""
    kinds = {type(instruction.attributes) for instruction in block.instructions}
    if not kinds.isdisjoint(OWNERS):
        return True
    holders = (
        [one for one in block.instructions if one.attributes.bodies]
        if (any(issubclass(kind, Control) for kind in kinds))
        else []
    )
    return any(_has_owners(body) for one in holders for body in one.attributes.bodies)


def _joined(block: Block, locals_: Sequence[Local]) -> Block:
    alone: set[int] = set()
    steps = [_step(instruction, locals_, alone) for instruction in block.instructions]
    if all(new is old for new, old in zip(steps, block.instructions, strict=True)):
        return block
    return replace(block, instructions=tuple(steps))


def _step(instruction: Instruction, locals_: Sequence[Local], alone: set[int]) -> Instruction:
    """The instruction; `alone` grows by what it makes, if one device at most has bits of it."""
    a = instruction.attributes
    if a.bodies:
        blocks = [_joined(body, locals_) for body in a.bodies]
        same = all(new is old for new, old in zip(blocks, a.bodies, strict=True))
        return instruction if same else replace(instruction, attributes=a.with_bodies(blocks))
    if not _is_alone(instruction, locals_, alone):
        return instruction
    if isinstance(a, AllReduce | ReduceScatter):
        (made,) = instruction.results
        if locals_[made].sharding.unreduced:
            alone.add(made)
        combine = PICK if is_float(locals_[made].dtype) else SUM
        return replace(instruction, attributes=replace(a, combine=combine))
    alone.update(instruction.results)
    return instruction


def _is_alone(instruction: Instruction, locals_: Sequence[Local], alone: set[int]) -> bool:
    """Whether it makes, or joins, what one device at most has."""
    a, given = instruction.attributes, instruction.operands
    if isinstance(a, OWNERS):
        return given[0] in alone or not locals_[given[0]].sharding.unreduced
    copies = isinstance(a, Apply) and a.primitive in COPIES and len(given) == 1
    sums = isinstance(a, AllReduce | ReduceScatter) and a.combine == SUM
    return (copies or sums or isinstance(a, PARTS)) and given[0] in alone
