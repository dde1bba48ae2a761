"""Walk over a program's instructions in order of execution, and counts of the bytes alive.

`walk` also enters the bodies of loops and branches. Every instruction comes with the number of
times that it runs, which is the product of the trip counts of the loops around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple

from shardalg.costs.kernels.expert_load import busiest_bytes
from shardalg.sizes.recorded import first_largest, total
from shardalg.spmd.instruction import A_co, Block, Collective, Instruction
from shardalg.spmd.instructions import RaggedAllToAll
from shardalg.spmd.program import SpmdProgram

ProgramPoint = tuple[int, ...]
"""An instruction's number in the program.

If that instruction is a loop or a branch, the number of an instruction in its body may follow, and
so on inwards. () is the start of the program.
"""


class LiveValue(NamedTuple):
    """Bytes in memory for one local value.

    Attributes:
      bytes: number of bytes on one device; 0 if the value takes no memory of its own.
      of: local values whose sizes add up to `bytes`: the value itself, or the operands of
        a broadcast that is never written.
    """

    bytes: int = 0
    of: tuple[int, ...] = ()


NOTHING = LiveValue()


@dataclass
class AliveBytes:
    """Count of the bytes alive on one device while a block of instructions is scanned in order.

    Attributes:
      alive: the bytes of each local value that is alive now.
      total: the sum of the bytes in `alive`.
      inner: the values alive in the loop body in which the scan stopped.
      totals: per instruction so far, the bytes alive while it ran, and its place.
    """

    alive: dict[int, LiveValue]
    total: int = 0
    inner: dict[int, LiveValue] = field(default_factory=dict)
    totals: list[tuple[int, ProgramPoint]] = field(default_factory=list)

    def add(self, value: int, held: LiveValue) -> None:
        """Count the bytes of a value as alive from now on, in place of its earlier bytes if any."""
        self.total += held.bytes - self.alive.get(value, NOTHING).bytes
        self.alive[value] = held

    @cached_property
    def peak(self) -> tuple[int, ProgramPoint]:
        """The most bytes alive at an instruction, and its place; the first one if several tie."""
        return self.totals[first_largest([total for total, _ in self.totals])]

    def drop(self, value: int) -> None:
        """Count the bytes of a value as freed."""
        self.total -= self.alive.pop(value, NOTHING).bytes

    def reach(self, i: int, inner: AliveBytes | None) -> None:
        """Record the bytes alive while instruction `i` runs.

        If the instruction has a body, `inner` has the bytes alive in the body; its peak is added.
        """
        inside, place = inner.peak if inner else (0, ())
        self.totals.append((self.total + inside, (i, *place)))


@dataclass(frozen=True, slots=True)
class Execution(Generic[A_co]):
    """An instruction of a program, and how often it runs.

    Attributes:
      instruction: the instruction.
      count: executions per call of the program, a number or a formula.
      loops: the instructions of the loops and branches around it, outermost first.
    """

    instruction: Instruction[A_co]
    count: Any
    loops: tuple[Instruction, ...] = ()


def walk(program: SpmdProgram) -> Iterator[Execution]:
    """Return an iterator over all instructions; a loop's body comes before the loop itself."""
    # A price walks the program several times, so the program object caches the instructions.
    cache = vars(program)
    if "_walk" not in cache:
        cache["_walk"] = tuple(_walk(program.block, 1, ()))
    return iter(cache["_walk"])


def _walk(block: Block, count: Any, loops: tuple[Instruction, ...]) -> Iterator[Execution]:
    """Yield the executions of a block that runs `count` times per call, inside of `loops`.

    The instructions of a body come before the loop or branch itself.
    """
    for instruction in block.instructions:
        attributes = instruction.attributes
        bodies = attributes.bodies
        if bodies:
            inside = (*loops, instruction)
            # Per execution of the loop or branch, a body runs `runs` times, e.g. once per trip.
            for body, runs in zip(bodies, attributes.executions_of_bodies, strict=True):
                yield from _walk(body, count * runs, inside)
        yield Execution(instruction, count, loops)


def local_bytes(program: SpmdProgram, values: Iterable[int]) -> Any:
    """Return the sum of the bytes of several local values on one device."""
    held = program.locals
    return total(held[value].bytes for value in values)


def sent_bytes(program: SpmdProgram, instruction: Instruction) -> Any:
    """Return the bytes of the operands that a device passes to a collective.

    An operand that the collective does not send, such as the start value of a fold, does not count.
    The bytes of a ragged all-to-all are those of the busiest device (`Options.expert_load`).
    """
    attributes = instruction.attributes
    if isinstance(attributes, RaggedAllToAll):
        rows, received_into = (local_bytes(program, [value]) for value in instruction.operands[:2])
        return busiest_bytes(attributes, rows, received_into)
    # The first operands are those that a collective moves.
    moved_count = (
        attributes.moving(len(instruction.results)) if isinstance(attributes, Collective) else None
    )
    return local_bytes(program, instruction.operands[:moved_count])
