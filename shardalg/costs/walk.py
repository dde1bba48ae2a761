"""The instructions of a program in order, loop bodies with their trip counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic

from shardalg.sizes.sums import total
from shardalg.spmd.instruction import A_co, Block, Collective, Instruction
from shardalg.spmd.program import SpmdProgram


@dataclass(frozen=True, slots=True)
class Execution(Generic[A_co]):
    """An instruction, how often it runs per call of the program, and what it runs inside of.

    Attributes:
      loops: the instructions of the loops and branches around it, outermost first.
    """

    instruction: Instruction[A_co]
    count: Any
    loops: tuple[Instruction, ...] = ()


def walk(program: SpmdProgram) -> Iterator[Execution]:
    """Every instruction that runs; a loop's body comes before the loop itself.

    The program caches them, because a price reads them several times.
    """
    known = vars(program)
    if "_walk" not in known:
        known["_walk"] = tuple(_walk(program.block, 1, ()))
    return iter(known["_walk"])


def _walk(block: Block, count: Any, loops: tuple[Instruction, ...]) -> Iterator[Execution]:
    for instruction in block.instructions:
        attributes = instruction.attributes
        bodies = attributes.bodies
        if bodies:
            inside = (*loops, instruction)
            for body, runs in zip(bodies, attributes.executions_of_bodies, strict=True):
                yield from _walk(body, count * runs, inside)
        yield Execution(instruction, count, loops)


def local_bytes(program: SpmdProgram, values: Iterable[int]) -> Any:
    """Bytes on one device of several local values together."""
    held = program.locals
    return total(held[value].bytes for value in values)


def sent_bytes(program: SpmdProgram, instruction: Instruction) -> Any:
    """Bytes on one device of what a collective moves: numbers that a fold starts from stay."""
    attributes = instruction.attributes
    moving = (
        attributes.moving(len(instruction.results)) if isinstance(attributes, Collective) else None
    )
    return local_bytes(program, instruction.operands[:moving])
