"""Formatting is joined, and instructions whose results nobody reads are removed, in bodies too."""

from __future__ import annotations

from dataclasses import replace

from shardalg.graph.ir import Graph
from shardalg.partition.passes.alone import joined_as_bits
from shardalg.partition.passes.merge_formatting import joined
from shardalg.partition.passes.moving_masks import masks_moved
from shardalg.partition.passes.scattering import scattered
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import Control
from shardalg.spmd.program import SpmdProgram


def simplify(program: SpmdProgram, graph: Graph, *, join: bool = True) -> SpmdProgram:
    """The same program without the instructions that nobody reads.

    Args:
      join: whether masks move to where their value is made, formatting that repeats or undoes
        itself becomes one instruction, and a reduction that is only cut a reduce-scatter.
    What one device alone has is joined as bits, always.
    """
    if join:
        program = masks_moved(program, graph)
        program = replace(program, block=joined(program.block, program.locals))
    program = replace(program, block=_live(program.block))
    return joined_as_bits(scattered(program) if join else program)


def _live(block: Block) -> Block:
    needed = set(block.results)
    kept: list[Instruction] = []
    for instruction in reversed(block.instructions):
        if needed.isdisjoint(instruction.results):
            continue
        if isinstance(instruction.attributes, Control):
            blocks = [_live(body) for body in instruction.attributes.bodies]
            attributes = instruction.attributes.with_bodies(blocks)
            instruction = replace(instruction, attributes=attributes)
            needed.update(*map(outside, blocks))
        needed.update(instruction.operands)
        kept.append(instruction)
    return replace(block, instructions=tuple(kept[::-1]))


def outside(block: Block) -> set[int]:
    """Locals that a body reads and does not make: the program's constants."""
    made = set(block.arguments)
    read: set[int] = set()
    for instruction in block.instructions:
        read.update(instruction.operands)
        made.update(instruction.results)
        read.update(*map(outside, instruction.attributes.bodies))
    return (read | set(block.results)) - made
