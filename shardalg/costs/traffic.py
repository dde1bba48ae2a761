"""The collectives of a program, and who makes and reads what they move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shardalg.algebra.digits import Digits
from shardalg.costs.collectives import moves, wire_bytes
from shardalg.costs.walk import Execution, sent_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.spmd.bound import node_of
from shardalg.spmd.instruction import Collective, Instruction
from shardalg.spmd.instructions import Apply, DynamicSlice, Resize, Slice
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

MOVES = (Collective, DynamicSlice, Slice, Resize)
"""What a chain from one layout to another is made of."""


@dataclass(frozen=True)
class MovedValue:
    """A collective of a program.

    Attributes:
      number: its row in the table of collectives.
      value: the graph value that it moves; of an intermediate, the one that it was made from.
      wire_bytes: per device and execution.
    """

    number: int
    step: Execution[Collective]
    value: int
    wire_bytes: int | float

    @property
    def attributes(self) -> Collective:
        """What it is."""
        return self.step.instruction.attributes

    @property
    def digits(self) -> Digits:
        """The digits along which it moves."""
        return self.attributes.digits

    @property
    def place(self) -> tuple[int | None, int]:
        """The node that it is for, and the value."""
        return self.step.instruction.node, self.value

    @property
    def alike(self) -> tuple[str, Digits]:
        """What it does, wherever it stands: kind and digits."""
        return self.attributes.sent_as, tuple(sorted(self.digits))


@dataclass(frozen=True, eq=False)
class Traffic:
    """The collectives of a program, and who makes and reads its local values."""

    program: SpmdProgram
    graph: Graph

    @cached_property
    def steps(self) -> tuple[Execution, ...]:
        """Every instruction in order of execution."""
        return tuple(walk(self.program))

    @cached_property
    def made_by(self) -> Mapping[int, Instruction]:
        """Per local value, the instruction that makes it."""
        return {r: step.instruction for step in self.steps for r in step.instruction.results}

    @cached_property
    def readers(self) -> Mapping[int, list[Instruction]]:
        """Per local value, the instructions that read it."""
        found: dict[int, list[Instruction]] = {}
        for step in self.steps:
            for operand in dict.fromkeys(step.instruction.operands):
                found.setdefault(operand, []).append(step.instruction)
        return found

    @cached_property
    def collectives(self) -> tuple[MovedValue, ...]:
        """Every collective, in the order of the table of collectives."""
        chosen = [step for step in self.steps if moves(step)]
        return tuple(self._moved(number, step) for number, step in enumerate(chosen))

    def _moved(self, number: int, step: Execution[Collective]) -> MovedValue:
        instruction = step.instruction
        sent = wire_bytes(instruction.attributes, sent_bytes(self.program, instruction))
        value = self._origin(instruction.operands[0])
        if value is None:
            value = node_of(self.graph, instruction).results[0]
        return MovedValue(number, step, value, sent)

    def _origin(self, local: int) -> int | None:
        """The graph value that a local value is a layout of, a part of, or was made from."""
        while self.program.locals[local].origin is None:
            made = self.made_by.get(local)
            if made is None or not made.operands:
                return None
            if self.program.locals[local].sharding.unreduced and type(made.attributes) is Apply:
                return node_of(self.graph, made).results[made.results.index(local)]
            local = made.operands[0]
        return self.program.locals[local].origin

    @cached_property
    def wire_bytes(self) -> int | float:
        """Bytes that a device sends in a step of the program."""
        return sum(moved.step.count * moved.wire_bytes for moved in self.collectives)

    def ends(self, moved: MovedValue) -> tuple[Local, Local]:
        """The first and the last local value of the chain of moves around a collective."""
        instruction = moved.step.instruction
        first, last = instruction.operands[0], instruction.results[0]
        while self._goes_on(instruction, self.made_by.get(first)):
            first = self.made_by[first].operands[0]
        readers = self.readers.get(last, ())
        while len(readers) == 1 and self._goes_on(instruction, readers[0]):
            last = readers[0].results[0]
            readers = self.readers.get(last, ())
        return self.program.locals[first], self.program.locals[last]

    def _goes_on(self, one: Instruction, other: Instruction | None) -> bool:
        return (
            other is not None
            and isinstance(other.attributes, MOVES)
            and other.node == one.node
            and other.why.is_chained(one.why)
        )
