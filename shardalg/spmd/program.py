"""The single program that every device runs: local shapes, explicit collectives, masks.

It prints in the notation `f32[16@X,128@Y]`: local sizes with the axes that shard them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import SHORT, Graph
from shardalg.spmd.instruction import Block, Collective, Instruction
from shardalg.spmd.instructions.control import Control
from shardalg.spmd.local import Local, axes_text


def local_text(local: Local) -> str:
    """Return a local's type as `bf16[8@X,1024]`, with `{U:Y}` for sums that are pending along Y."""
    mesh = local.sharding.mesh
    sizes = [str(n) for n in local.shape]
    # A local whose rank is not that of its sharding has no axes to show.
    if len(local.sharding.dims) == len(sizes):
        sizes = [
            size + (f"@{axes_text(mesh, digits)}" if digits else "")
            for size, digits in zip(sizes, local.sharding.dims, strict=True)
        ]
    # Braces, because a pending sum belongs to no dimension.
    pending = local.sharding.unreduced
    mark = f"{{U:{axes_text(mesh, pending)}}}" if pending else ""
    return f"{SHORT.get(local.dtype, local.dtype)}[{','.join(sizes)}]{mark}"


@dataclass(frozen=True)
class Printer:
    """The text of a program, made line by line.

    Attributes:
      graph: the graph that gives names of arguments and source lines; None leaves them out.
      comments: whether the reasons of collectives and source lines are added as comments.
    """

    mesh: Mesh
    locals: Sequence[Local]
    graph: Graph | None = None
    comments: bool = True

    def program(self, block: Block, constants: Sequence[tuple[int, int]]) -> str:
        """Return the text of the whole program: arguments, constants, instructions and results.

        Args:
          block: the program's block.
          constants: (local, graph value) of each constant.
        """
        head = [f"SpmdProgram on {self.mesh!r}, every device runs:"]
        for local in block.arguments:
            origin = self.locals[local].origin
            name = ""
            if self.graph is not None and origin is not None:
                name = f" {self.graph.values[origin].name}"
            head.append(f"  %{local} = {local_text(self.locals[local])} argument{name}")
        for local, value in constants:
            # Literals are named `number:dtype`. Arrays have a counter there, which says nothing.
            full_name = self.graph.values[value].name if self.graph else ""
            name, _, kind = full_name.rpartition(":")
            number = f" {name}" if name and not kind.isdecimal() else ""
            head.append(f"  %{local} = {local_text(self.locals[local])} constant{number}")
        return "\n".join([*head, *self._lines(block, "  ")])

    def instruction(self, instruction: Instruction) -> str:
        """Return one line, for example `%7 = f32[8@X,256@Y] dot_general [m@Y] %2 %5`."""
        results = ", ".join(f"%{r}" for r in instruction.results)
        types = ", ".join(local_text(self.locals[r]) for r in instruction.results)
        operands = " ".join(f"%{o}" for o in instruction.operands)
        return f"{results} = {types} {instruction.attributes.text(self.mesh)} {operands}"

    def _lines(self, block: Block, indent: str) -> Iterator[str]:
        """Yield the lines of a block, with bodies of instructions indented below them."""
        for instruction in block.instructions:
            yield indent + self.instruction(instruction) + self._comment(instruction)
            attributes = instruction.attributes
            titles = attributes.titles if isinstance(attributes, Control) else ()
            # A title names a body, such as "body" or "branch 0"; most instructions have none.
            for title, body in zip(titles, attributes.bodies, strict=True):
                arguments = ", ".join(f"%{a}: {local_text(self.locals[a])}" for a in body.arguments)
                yield f"{indent}  {title}({arguments})"
                yield from self._lines(body, indent + "    ")
        yield indent + "return " + " ".join(f"%{r}" for r in block.results)

    def _comment(self, instruction: Instruction) -> str:
        """Return the reason of a collective and the node's source line as a comment, or ""."""
        words: list[str] = []
        if not self.comments:
            return ""
        # A reason says why data are sent, so only collectives have one.
        if isinstance(instruction.attributes, Collective) and str(instruction.why):
            words.append(str(instruction.why))
        if self.graph is not None and instruction.node is not None:
            # A node made by normalisation may have no source line.
            words += filter(None, (self.graph.nodes[instruction.node].source,))
        return f"  # {'; '.join(words)}" if words else ""


@dataclass(frozen=True, repr=False)
class SpmdProgram:
    """The program that every device of `mesh` runs; `print` shows it instruction by instruction.

    Attributes:
      locals: every local value, `locals[i].index == i`; includes the locals of loop bodies.
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
        """Return the whole program; with the graph, argument names and source lines are added.

        Args:
          comments: whether the reasons of collectives and source lines are added as comments.
        """
        printer = Printer(self.mesh, self.locals, graph, comments)
        return printer.program(self.block, self.constants)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        """Return the numbers of arguments, instructions and results, and the mesh."""
        return (
            f"SpmdProgram({len(self.block.arguments)} arguments, {len(self.block.instructions)} "
            f"instructions, {len(self.block.results)} results on {self.mesh!r})"
        )
