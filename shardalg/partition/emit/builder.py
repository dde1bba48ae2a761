"""The program under construction as a list: locals and the instructions that make them.

With `context` this is all of the package that writes instructions; what they are is decided before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.propagate.options import Options
from shardalg.reshard.dim_program import DimProgram, DimStep
from shardalg.spmd.instruction import Attributes, Instruction
from shardalg.spmd.instructions import Slice
from shardalg.spmd.local import Local
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

    def made_along(
        self, dim: int, step: DimStep, operands: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """The results of a step on locals, as the first of them but along one dimension."""
        like = self.locals[operands[0]]
        shapes = [(*like.shape[:dim], size, *like.shape[dim + 1 :]) for size in step.sizes]
        made = tuple([self.new_local(s, like.dtype, like.sharding) for s in shapes])
        self.emit(step.attributes, operands, made, cause)
        return made

    def run_along(
        self, program: DimProgram, inputs: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """The results of a program along one dimension of locals."""
        values = list(inputs)
        for step in program.steps:
            operands = tuple([values[number] for number in step.operands])
            made = self._fetched if step.places else self.made_along
            values += made(program.dim, step, operands, cause)
        return tuple([values[number] for number in program.results])

    def _fetched(
        self, dim: int, step: DimStep, operands: tuple[int, ...], cause: Cause
    ) -> tuple[int, ...]:
        """The results of a fetch of some places of locals, which is made once.

        A margin outlives its phase: it is smaller than the blocks, which whoever reads it again
        needs anyway. What is as large as the blocks is a copy, and kept as copies are.
        """
        known, options = self.fetched, self.options
        sizes = {local: self.locals[local].shape[dim] for local in operands}
        keeps = sum(step.sizes) < sum(sizes.values()) or options.keep_gathers is True
        places = tuple(zip(operands, step.places, strict=True))
        key = (step.attributes, places, ANY_PHASE if keeps else cause.phase)
        if key not in known or not options.switches.share_gathers:
            cut = tuple([self._places(dim, *place, cause) for place in places])
            known[key] = self.made_along(dim, step, cut, cause)
        return known[key]

    def _places(self, dim: int, local: int, places: tuple[int, int], cause: Cause) -> int:
        """Places `[lower, upper)` of a local: itself, if these are all."""
        lower, upper = places
        if places == (0, self.locals[local].shape[dim]):
            return local
        cut = DimStep(Slice(dim, lower, upper - lower), (), (upper - lower,))
        return self.made_along(dim, cut, (local,), cause)[0]
