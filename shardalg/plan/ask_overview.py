"""What is asked first of a plan: all of it on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardalg.costs.topology import machine
from shardalg.io.units import bytes_text, seconds_text
from shardalg.plan.ask_run import RunAnswers
from shardalg.plan.ask_sweep import SweepAnswers
from shardalg.plan.ask_why import WhyAnswers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.costs.hardware import Hardware
    from shardalg.plan.overview import Overview
    from shardalg.report.draw_plans import DrawnPlan
    from shardalg.spmd.instruction import Instruction

AT_THE_BORDER = "arguments and results"


class OverviewAnswers(WhyAnswers, SweepAnswers, RunAnswers):
    """One screen, and the program behind it."""

    def overview(self, hardware: str | Hardware | None = None) -> Overview:
        """A sentence, bytes and seconds per axis, what the own `jax.jit` sends, and warnings.

        Another policy is named where it is more than a tenth cheaper. It is looked for in plans of
        at most 400 operators (by cost: 100), so that `overview` of a large model stays cheap.

        Args:
          hardware: the chip that is priced; None: the one that the plan was made for.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> print(plan.overview())
        1 operator on Mesh(X=2), layouts the paper's: a device sends 64 B a step, ...
        mesh_axes  devices  collectives  sent  time
        X                2            1  64 B  ...
        """
        from shardalg.plan.overview import Overview

        text = self._machine_text(hardware)
        if hardware is not None:
            return Overview(self, self.cost(hardware), hardware, text)
        chip = self.options.hardware
        return Overview(self, self._cost(machine(chip)), chip, text)

    def _repr_html_(self) -> str:
        from shardalg.report.program_view import ProgramView

        key = f"p{id(self):x}"
        view = ProgramView(self.program, self.graph, self.listing(), self._path, key)
        return f"{self.overview()._repr_html_()}\n{view.to_html()}"

    def draw(
        self,
        *,
        show: str | None = None,
        module: str | None = None,
        letters: Mapping[str, int] | None = None,
    ) -> Figure:
        """The program as boxes from left to right; of a large one the bytes that modules send.

        A dimension that is partitioned is written small, with its mesh axes below, `Σ` marks sums
        that are pending along axes; below a collective stand the bytes that each device sends.
        `sa.draw({"one": plan, "other": other})` draws several.

        Args:
          show: "program", or "bytes" for bars; None: the program where it fits on a page.
          module: only the operators of this module, such as "net/layers_0/mlp"; the end of the path
            will do.
          letters: a letter to the size that it stands for, such as `{"B": 64}`.

        Raises:
          TableError: `show` or `module` names nothing that there is.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> figure = plan.draw(letters={"B": 8})
        >>> print(figure.axes[0].texts[0].get_text())
        Mesh(X=2): 64 B sent per device and step, 1 µs on 2 x
        tpu_v3 (the default chip; ...
        """
        from shardalg.report.draw_plans import draw_plans

        drawn = self._drawn_plan()
        title = drawn.note if module is None else f"{module} of {drawn.note}"
        return draw_plans({title: drawn}, show=show, module=module, letters=letters)

    def _drawn_plan(self) -> DrawnPlan:
        from shardalg.report.draw_plans import DrawnPlan

        cost = self._cost(machine(self.options.hardware))
        numbers = cost.at_hints
        note = (
            f"{self.mesh!r}: {bytes_text(numbers.wire_bytes)} sent per device and step, "
            f"{seconds_text(numbers.step_time_s)} on {cost.machine_text}"
        )
        return DrawnPlan(self.program, self.graph, note)

    @staticmethod
    def _drawn(things: Mapping[str, OverviewAnswers], **options: Any) -> Figure:
        from shardalg.report.draw_plans import draw_plans

        return draw_plans({name: each._drawn_plan() for name, each in things.items()}, **options)

    def _path(self, instruction: Instruction) -> tuple[str, ...]:
        """Where an instruction belongs: its phase, the modules, and the line that it is for."""
        from shardalg.graph.modules.of_nodes import modules

        if instruction.node is None:
            return (AT_THE_BORDER,)
        node = self.graph.nodes[instruction.node]
        module = modules(self.graph)[node.index]
        return tuple(filter(None, (instruction.phase, *module.split("/"), node.source)))

    def __str__(self) -> str:
        own = self._own_jit
        return f"{self!r}\n{own}" if own.differs else repr(self)
