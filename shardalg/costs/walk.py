"""The instructions of a program in order of execution, and the bytes alive while they run.

A loop's body comes with its trip count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple

from shardalg.sizes.recorded import first_largest, total
from shardalg.spmd.instruction import A_co, Block, Collective, Instruction
from shardalg.spmd.program import SpmdProgram

# An instruction's number in the program, then in that loop's body, and so on; () is the start.
ProgramPoint = tuple[int, ...]


class LiveValue(NamedTuple):
    """The bytes that a value takes, and the local values that these bytes belong to."""

    bytes: int = 0
    of: tuple[int, ...] = ()


NOTHING = LiveValue()


@dataclass
class AliveBytes:
    """The values alive in a block while it is scanned, and the total at each instruction."""

    alive: dict[int, LiveValue]
    total: int = 0
    inner: dict[int, LiveValue] = field(default_factory=dict)
    totals: list[tuple[int, ProgramPoint]] = field(default_factory=list)

    def add(self, value: int, held: LiveValue) -> None:
        """Count a value as alive from here on; replaces an earlier count of the value."""
        self.total += held.bytes - self.alive.get(value, NOTHING).bytes
        self.alive[value] = held

    @cached_property
    def peak(self) -> tuple[int, ProgramPoint]:
        """The first of the largest totals, and its place."""
        return self.totals[first_largest([total for total, _ in self.totals])]

    def drop(self, value: int) -> None:
        """Count a value as freed."""
        self.total -= self.alive.pop(value, NOTHING).bytes

    def reach(self, i: int, inner: AliveBytes | None) -> None:
        """Record the total while instruction `i` runs; `inner` is its loop body, if any."""
        inside, place = inner.peak if inner else (0, ())
        self.totals.append((self.total + inside, (i, *place)))


@dataclass(frozen=True, slots=True)
class Execution(Generic[A_co]):
    """An instruction, how often it runs per call of the program, and the loops around it.

    Attributes:
      loops: the instructions of the loops and branches around it, outermost first.
    """

    instruction: Instruction[A_co]
    count: Any
    loops: tuple[Instruction, ...] = ()


def walk(program: SpmdProgram) -> Iterator[Execution]:
    """Return an iterator over all instructions; a loop's body comes before the loop itself.

    The program caches the instructions, because a price reads them several times.
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
            # A body runs as often as its loop, times the trip count (1 for a branch).
            inside = (*loops, instruction)
            for body, runs in zip(bodies, attributes.executions_of_bodies, strict=True):
                yield from _walk(body, count * runs, inside)
        yield Execution(instruction, count, loops)


def local_bytes(program: SpmdProgram, values: Iterable[int]) -> Any:
    """Return the bytes of several local values together, on one device."""
    held = program.locals
    return total(held[value].bytes for value in values)


def sent_bytes(program: SpmdProgram, instruction: Instruction) -> Any:
    """Return the bytes that a device passes to a collective, without a fold's start value."""
    attributes = instruction.attributes
    moving = (
        attributes.moving(len(instruction.results)) if isinstance(attributes, Collective) else None
    )
    return local_bytes(program, instruction.operands[:moving])
