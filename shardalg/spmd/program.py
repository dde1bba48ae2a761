"""The single program that every device runs: local shapes, explicit collectives, masks."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import Block
from shardalg.spmd.local import Local
from shardalg.spmd.text import Printer


@dataclass(frozen=True, repr=False)
class SpmdProgram:
    """What every device of `mesh` runs; `print` shows it instruction by instruction.

    Attributes:
      locals: every local value, `locals[i].index == i`; those of loop bodies included.
      block: the whole program; its arguments are the function's flattened arguments.
      argument_shardings, result_shardings: the layout at the border, one per flattened argument
        and result.
    """

    mesh: Mesh
    locals: tuple[Local, ...]
    block: Block
    argument_shardings: tuple[Sharding, ...]
    result_shardings: tuple[Sharding, ...]
    constants: tuple[tuple[int, int], ...] = field(default=())
    """(local, graph value) of the constants that the program starts with."""

    def text(self, graph: Graph | None = None, *, comments: bool = True) -> str:
        """The whole program; with the graph, names of arguments and source lines stand behind.

        Args:
          comments: whether the reasons of collectives and source lines stand behind instructions.
        """
        printer = Printer(self.mesh, self.locals, graph, comments)
        return printer.program(self.block, self.constants)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return (
            f"SpmdProgram({len(self.block.arguments)} arguments, {len(self.block.instructions)} "
            f"instructions, {len(self.block.results)} results on {self.mesh!r})"
        )
