"""The single program that every device runs: local shapes, explicit collectives, masks.

A program as text, in the notation `f32[16@X,128@Y]`: local sizes with the axes that cut them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import SHORT, Graph
from shardalg.spmd.instruction import Attributes, Block, Collective, Instruction
from shardalg.spmd.instructions.control import Control
from shardalg.spmd.local import Local, axes_text


def local_text(local: Local) -> str:
    """`bf16[8@X,1024]`, with `{U:Y}` for sums that are pending along Y."""
    mesh = local.sharding.mesh
    sizes = [str(n) for n in local.shape]
    if len(local.sharding.dims) == len(sizes):
        sizes = [
            size + (f"@{axes_text(mesh, digits)}" if digits else "")
            for size, digits in zip(sizes, local.sharding.dims, strict=True)
        ]
    pending = local.sharding.unreduced
    mark = f"{{U:{axes_text(mesh, pending)}}}" if pending else ""
    return f"{SHORT.get(local.dtype, local.dtype)}[{','.join(sizes)}]{mark}"


@dataclass(frozen=True)
class Printer:
    """Lines of a program; with the graph, names of arguments and source lines stand behind them.

    Attributes:
      comments: whether the reasons of collectives and source lines stand behind them.
    """

    mesh: Mesh
    locals: Sequence[Local]
    graph: Graph | None = None
    comments: bool = True

    def program(self, block: Block, constants: Sequence[tuple[int, int]]) -> str:
        """The whole program, with the (local, graph value) of its constants."""
        head = [f"SpmdProgram on {self.mesh!r}, every device runs:"]
        for local in block.arguments:
            kind = local_text(self.locals[local])
            head.append(f"  %{local} = {kind} argument{self._name(local)}")
        for local, value in constants:
            head.append(
                f"  %{local} = {local_text(self.locals[local])} constant{self._number(value)}"
            )
        return "\n".join([*head, *self._lines(block, "  ")])

    def instruction(self, instruction: Instruction) -> str:
        """`%7 = f32[8@X,256@Y] dot_general [m@Y] %2 %5`."""
        results = ", ".join(f"%{r}" for r in instruction.results)
        types = ", ".join(local_text(self.locals[r]) for r in instruction.results)
        operands = " ".join(f"%{o}" for o in instruction.operands)
        return f"{results} = {types} {instruction.attributes.text(self.mesh)} {operands}"

    def _name(self, local: int) -> str:
        origin = self.locals[local].origin
        if self.graph is None or origin is None:
            return ""
        return f" {self.graph.values[origin].name}"

    def _number(self, value: int) -> str:
        """Of a constant; arrays and their values are the graph's."""
        name, _, kind = (
            self.graph.values[value].name.rpartition(":") if self.graph else ("", "", "")
        )
        return f" {name}" if name and not kind.isdecimal() else ""

    def _lines(self, block: Block, indent: str) -> Iterator[str]:
        for instruction in block.instructions:
            yield indent + self.instruction(instruction) + self._comment(instruction)
            for title, body in _titled(instruction.attributes):
                arguments = ", ".join(f"%{a}: {local_text(self.locals[a])}" for a in body.arguments)
                yield f"{indent}  {title}({arguments})"
                yield from self._lines(body, indent + "    ")
        yield indent + "return " + " ".join(f"%{r}" for r in block.results)

    def _comment(self, instruction: Instruction) -> str:
        words: list[str] = []
        if not self.comments:
            return ""
        if isinstance(instruction.attributes, Collective) and str(instruction.why):
            words.append(str(instruction.why))
        if self.graph is not None and instruction.node is not None:
            words += filter(None, (self.graph.nodes[instruction.node].source,))
        return f"  # {'; '.join(words)}" if words else ""


def _titled(attributes: Attributes) -> Iterator[tuple[str, Block]]:
    """The blocks inside an instruction, with what they are called."""
    if isinstance(attributes, Control):
        yield from zip(attributes.titles, attributes.bodies, strict=True)


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
