"""What a plan says of time and memory on a chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shardalg.costs.matrix_unit import check_products
from shardalg.costs.topology import OF_OPTIONS, machine, machine_text
from shardalg.errors import ShardalgError
from shardalg.plan.planned import Planned
from shardalg.planning.stages import planned_at, priced

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.memory import Liveness
    from shardalg.costs.topology import Topology
    from shardalg.report.timeline import Timeline


class CostAnswers(Planned):
    """Seconds, bytes held and flops."""

    def cost(
        self, hardware: str | Hardware | Topology | None = None, *, overlap: str = "none"
    ) -> Cost:
        """Step time, communication, peak memory and flops on a chip.

        On a chip alone each axis has links of its own; a `Topology`, or its text such as "v3:8x8",
        says what axes share. `overlap` of compute and collectives is "none", "dependences" (what
        the program allows) or "full". Numbers; of a plan with named sizes, sympy expressions.
        `cost(...).table(by="module")` says what each module takes.

        The peak of memory on CPU devices is estimated as on any chip. XLA's CPU compiler fuses,
        copies and orders operators in its own way: of 44 programs, the estimate was 0.37 to 2.19
        times the bytes that it allocates (median 0.93). `plan.lower().compiled.memory_analysis()`
        compiles the step and returns these bytes.

        Raises:
          HardwareError: an unknown chip, a mesh that does not tile the topology, or products of an
            item type for which the chip has no peak (what a plan prints takes its slowest one).
        """
        chip = machine(hardware)  # type: ignore[arg-type]  # None is named there
        check_products(self.graph, chip.chip)
        return self._cost(chip, overlap=overlap, text=self._machine_text(hardware))

    def _cost(
        self, chip: Hardware | Topology, *, overlap: str = "none", text: str | None = None
    ) -> Cost:
        """The same, where products of a type without a peak take the chip's slowest one.

        Args:
          text: names the machine and its source; None is the machine of the plan's options.
        """
        from shardalg.report.modules.module_costs import costs_by_module

        program = self._symbolised or self.program
        made = priced(self._traced, program, chip, overlap=overlap)
        from shardalg.costs.cost import Elsewhere

        elsewhere = Elsewhere(lambda point: self._fits(chip, point))
        by_module = partial(costs_by_module, self._stages, chip)
        text = self._machine_text(None) if text is None else text
        return replace(made, by_module=by_module, elsewhere=elsewhere, machine=text)

    def _fits(self, chip: Hardware | Topology, point: Mapping[str, int]) -> bool:
        """Whether a device holds the plan at other sizes; False where there is none."""
        try:
            here, _ = planned_at(self._stages, point, self.options)
            return bool(priced(here.traced, here.program, chip).fits)
        except ShardalgError:
            return False

    def timeline(self, hardware: str | Hardware | Topology | None = None) -> Timeline:
        """What the devices of each pipeline stage do when: a table, a figure, a Chrome trace.

        One instruction after the other, bubbles as what they are; of a plan with named sizes, at
        the hints. A row per stage; without a pipeline one row stands for every device.

        Args:
          hardware: the chip; None: the one of the plan's options. The timeline's text says which.

        Raises:
          HardwareError: as `cost` does.
        """
        from shardalg.costs.pipelines.events import events
        from shardalg.report.timeline import Timeline

        given = machine(self.options.hardware if hardware is None else hardware)
        check_products(self.graph, given.chip)
        of = f"predicted on {self._machine_text(hardware)}"
        return Timeline(events(self.program, self.graph, given), str(self.program.mesh), of)

    def _machine_text(self, hardware: object) -> str:
        """Return the chip, the number of devices, and where both come from."""
        if hardware is not None:
            return machine_text(hardware, self.mesh.size)  # type: ignore[arg-type]
        return machine_text(self.options.hardware, self.mesh.size, OF_OPTIONS)

    @property
    def memory(self) -> Liveness:
        """What a device holds at the peak, as `cost` has it on the chip of the plan's options.

        Chips whose compiler repeats cheap operators in the backward pass (`Hardware.rebuilds`; all
        that shardalg knows, not a CPU) keep of the forward pass only what those start from. Every
        peak that a plan states is this one. Of a plan with named sizes, at the hints.
        """
        return self._stages.cost.memory
