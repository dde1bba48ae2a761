"""A plan on one screen: a sentence, bytes per axis, the peak, the time, what is to be looked at."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.costs.cost import Cost
from shardalg.costs.topology import machine
from shardalg.plan.explain.switches import cheaper_policy
from shardalg.sizes.amounts import number
from shardalg.tables import Answer, Parts, Table, bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.plan.plan import Plan

AXIS_COLUMNS = ("mesh_axes", "devices", "collectives", "wire_bytes_per_step", "sent", "time")
WARNED = ("op", "source", "warning", "remedy")


@dataclass(frozen=True, eq=False, repr=False)
class Overview(Answer):
    """What is asked first of a plan; `plan` answers the rest. With named sizes, at the hints.

    Attributes:
      priced: the plan's cost on `hardware`.
      machine: the chip, the number of devices, and where both come from.
    """

    plan: Plan
    priced: Cost
    hardware: str | Hardware | Topology
    machine: str

    @cached_property
    def table(self) -> Table:
        """Per axes that collectives run along: how many, the bytes a device sends, the seconds."""
        rows = ((axes, *self._along(axes, *sums)) for axes, sums in self._sums.items())
        return Table(AXIS_COLUMNS, tuple(rows))

    @cached_property
    def _sums(self) -> dict[tuple[str, ...], tuple[int, Any, Any]]:
        found: defaultdict[tuple[str, ...], list[Any]] = defaultdict(lambda: [0, 0, 0])
        for item in self.priced.hints.items:
            if item.is_communication:
                for at, amount in enumerate((item.count, item.wire_bytes, item.time_s)):
                    found[item.axes][at] += amount
        ordered = sorted(found.items(), key=lambda pair: -pair[1][1])
        return {axes: (sums[0], sums[1], sums[2]) for axes, sums in ordered}

    def _along(self, axes: tuple[str, ...], count: int, sent: Any, time_s: Any) -> tuple[Any, ...]:
        devices = 1
        for axis in axes:
            devices *= self.plan.program.mesh.shape.get(axis, 1)
        return devices, number(count), number(sent), bytes_text(sent), seconds_text(time_s)

    @property
    def numbers(self) -> Table:
        """A row per set of axes that collectives use: executions, bytes and seconds of a step."""
        names = ("mesh_axes", "devices", "executions", "wire_bytes_per_step", "communication_s")
        rows = (
            (",".join(axes), *self._along(axes, *sums)[:3], number(sums[2]))
            for axes, sums in self._sums.items()
        )
        return Table(names, tuple(rows))

    @property
    def fits(self) -> bool:
        """Whether the peak is within the memory of a device, at the hints."""
        return bool(Cost(self.priced.hardware, self.priced.hints, self.priced.hints).fits)

    @property
    def sentence(self) -> str:
        """What the plan is of, and what it takes."""
        plan, cost = self.plan, Cost(self.priced.hardware, self.priced.hints, self.priced.hints)
        held, chip = cost.peak_memory_bytes, cost.hardware
        room = "fits" if cost.fits else "does NOT fit"
        at = " (at the hints)" if plan._stages.is_named else ""
        return (
            f"{counted(len(plan.graph.nodes), 'operator')} on {plan.mesh!r}, layouts "
            f"{plan.options.followed}{at}: a device sends {bytes_text(cost.wire_bytes)} a step, "
            f"holds {bytes_text(held)} at the peak ({room} in {bytes_text(chip.hbm_bytes)}), and "
            f"takes {seconds_text(cost.step_time_s)} on {self.machine}."
        )

    @property
    def counted_once(self) -> str:
        """The share of one iteration of each loop of unknown length, with its symbol."""
        rows = self.plan._warnings_table.where(op="while")
        return "\n".join(f"While loop at {row['source']}: {row['warning']}." for row in rows)

    @property
    def beside(self) -> str:
        """What the user's own `jax.jit` sends and holds at least, where it is something else."""
        own = self.plan._own_jit
        return f"Beside it, {own}." if own.differs else ""

    @cached_property
    def cheaper(self) -> str:
        """The other policy that is more than a tenth cheaper, with an annotation; "" for none."""
        return cheaper_policy(self.plan._trials, self.hardware)

    @property
    def tried_on(self) -> str:
        """The chip on which remedies make a step cheaper; "" if it is the priced one."""
        asked, own = self.priced.hardware.name, machine(self.plan.options.hardware).chip.name
        if asked == own:
            return ""
        return f"Remedies are tried on {own}; Options(hardware={asked!r}) tries them on {asked}."

    @property
    def warned(self) -> Table:
        """What is done in a roundabout way, without the figures."""
        return self.plan._warnings_table.select(*WARNED)

    def parts(self) -> Parts:
        """The sentence, bytes per axis, the own `jax.jit`, warnings."""
        own = tuple(filter(None, (self.beside, self.cheaper)))
        per_axis = self.table.select("mesh_axes", "devices", "collectives", "sent", "time")
        shown = Table(per_axis.columns, tuple((",".join(r[0]), *r[1:]) for r in per_axis.rows))
        warned = self.warned.where(op="jax.jit").rows
        others = tuple(row for row in self.warned.rows if row not in warned)
        once = (self.counted_once,) if self.counted_once else ()
        tried = (self.tried_on,) if others and self.tried_on else ()
        return (self.sentence, *once, *own, shown, *tried, Table(WARNED, others))
