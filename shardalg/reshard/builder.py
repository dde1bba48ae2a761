"""The program under construction as a list: locals and the instructions that make them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.propagate.strategy import Options
from shardalg.spmd.program import Attributes, Instruction, Local
from shardalg.spmd.why import UNSTATED, Why

ANY_PHASE = ""
"""Mark of a layout that every phase may use: the value's home, and as it was made."""


class Cause(NamedTuple):
    """Whom an instruction is for: node, phase, role of what moves, what for."""

    node: int | None
    phase: str = "forward"
    role: str = "unknown"
    why: Why = UNSTATED


@dataclass
class Listing:
    """Locals and instructions of the current block; what is built is a `PartitionContext`.

    Attributes:
      fetched: (instruction, what it was run on, phase) to what was fetched of neighbours' blocks.
      options: whether copies are shared, within a phase and beyond it.
    """

    graph: Graph
    roles: tuple[str, ...]
    options: Options = field(default_factory=Options)
    locals: list[Local] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    fetched: dict[object, tuple[int, ...]] = field(default_factory=dict)

    def new_local(
        self, shape: tuple[int, ...], dtype: str, sharding: Sharding, origin: int | None = None
    ) -> int:
        """Add a local value; its index."""
        index = len(self.locals)
        self.locals.append(Local(index, shape, dtype, sharding, origin))
        return index

    def emit(
        self,
        attributes: Attributes,
        operands: tuple[int, ...],
        results: tuple[int, ...],
        cause: Cause,
    ) -> None:
        """Append an instruction to the current block."""
        self.instructions.append(Instruction(attributes, operands, results, *cause))
