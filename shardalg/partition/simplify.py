"""Instructions whose results nobody reads are removed, in loop bodies too."""

from __future__ import annotations

from dataclasses import replace

from shardalg.spmd.program import Block, Instruction, Loop, SpmdProgram


def simplify(program: SpmdProgram) -> SpmdProgram:
    """The same program without the instructions that nobody reads."""
    return replace(program, block=_live(program.block))


def _live(block: Block) -> Block:
    needed = set(block.results)
    kept: list[Instruction] = []
    for instruction in reversed(block.instructions):
        if not needed.intersection(instruction.results):
            continue
        if isinstance(instruction.attributes, Loop):
            body = _live(instruction.attributes.body)
            instruction = replace(
                instruction, attributes=replace(instruction.attributes, body=body)
            )
            needed |= outside(body)
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
        if isinstance(instruction.attributes, Loop):
            read |= outside(instruction.attributes.body)
    return (read | set(block.results)) - made
