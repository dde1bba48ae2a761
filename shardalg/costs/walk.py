"""The instructions of a program in order, loop bodies with their trip counts.

What is in memory while the instructions of a block run, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple

from shardalg.sizes.recorded import first_largest, total
from shardalg.spmd.instruction import A_co, Block, Collective, Instruction
from shardalg.spmd.program import SpmdProgram

ProgramPoint = tuple[int, ...]
"""An instruction: its number in the program, then in the body of that loop, ...; () the start."""


class LiveValue(NamedTuple):
    """Bytes that a value takes, and the local values whose bytes they are."""

    bytes: int = 0
    of: tuple[int, ...] = ()


NOTHING = LiveValue()


@dataclass
class AliveBytes:
    """What is alive in a block, instruction by instruction; the totals so far, and where."""

    alive: dict[int, LiveValue]
    total: int = 0
    inner: dict[int, LiveValue] = field(default_factory=dict)
    totals: list[tuple[int, ProgramPoint]] = field(default_factory=list)

    def add(self, value: int, held: LiveValue) -> None:
        """Count a value as held from here on, in place of what was counted for it."""
        self.total += held.bytes - self.alive.get(value, NOTHING).bytes
        self.alive[value] = held

    @cached_property
    def peak(self) -> tuple[int, ProgramPoint]:
        """The first of the largest totals, and where it is."""
        return self.totals[first_largest([total for total, _ in self.totals])]

    def drop(self, value: int) -> None:
        """Count a value as freed."""
        self.total -= self.alive.pop(value, NOTHING).bytes

    def reach(self, i: int, inner: AliveBytes | None) -> None:
        """Instruction `i` runs now; `inner` is the body of the loop that it is."""
        inside, place = inner.peak if inner else (0, ())
        self.totals.append((self.total + inside, (i, *place)))


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
