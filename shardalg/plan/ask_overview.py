"""What is asked first of a plan: all of it on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardalg.plan.ask_cost import CostAnswers
from shardalg.plan.ask_run import RunAnswers
from shardalg.plan.ask_why import WhyAnswers
from shardalg.plan.overview import Overview
from shardalg.report.program_view import ProgramView

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.spmd.instruction import Instruction

AT_THE_BORDER = "arguments and results"


class OverviewAnswers(WhyAnswers, CostAnswers, RunAnswers):
    """One screen, and the program behind it."""

    def overview(self, hardware: str | Hardware | None = None) -> Overview:
        """A sentence, bytes and seconds per axis, what the own `jax.jit` sends, and warnings.

        Args:
          hardware: the chip that is priced; None: the one that the plan was made for.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> print(plan.overview())
        1 operators on Mesh(X=2), layouts the paper's: a device sends 64 B a step, ...
        axes  devices  collectives  sent  time
        X           2            1  64 B  ...
        """
        chip = self.options.hardware if hardware is None else hardware
        return Overview(self, self.cost(chip))

    def _repr_html_(self) -> str:
        key = f"p{id(self):x}"
        view = ProgramView(self.program, self.graph, self.listing(), self._path, key)
        return f"{self.overview()._repr_html_()}\n{view.to_html()}"

    def _path(self, instruction: Instruction) -> tuple[str, ...]:
        """Where an instruction belongs: its phase, the modules, and the line that it is for."""
        if instruction.node is None:
            return (AT_THE_BORDER,)
        node = self.graph.nodes[instruction.node]
        return tuple(filter(None, (instruction.phase, *node.module.split("/"), node.source)))

    def __str__(self) -> str:
        own = self._own_jit
        return f"{self!r}\n{own}" if own.differs else repr(self)
