"""A plan on one screen: time, memory and bytes, a row per axis, warnings; and its drawings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from shardalg.costs.cost import Cost
from shardalg.costs.topology import OF_OPTIONS, chip_text, machine
from shardalg.plan.named_sizes import PRICES, hints_text
from shardalg.plan.pricing import chip_of, cost_on
from shardalg.plan.running import verified_text
from shardalg.planner.trips import while_loops
from shardalg.sizes.amounts import number
from shardalg.tables import Answer, Parts, Table, bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.plan.plan import Plan
    from shardalg.show.figures import DrawnPlan
    from shardalg.spmd.instruction import Instruction

AXIS_COLUMNS = ("mesh_axes", "devices", "collectives", "wire_bytes_per_step", "sent", "time")
WARNED = ("op", "source", "warning", "remedy")


@dataclass(frozen=True, eq=False, repr=False)
class Overview(Answer):
    """The main figures of a plan, with its warnings.

    Named sizes have the numbers at which the plan was made.

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
        """Collectives, bytes that a device sends, and seconds, per set of mesh axes."""
        rows = ((axes, *self._figures(axes, *sums)) for axes, sums in self._sums.items())
        return Table(AXIS_COLUMNS, tuple(rows))

    @cached_property
    def _sums(self) -> dict[tuple[str, ...], tuple[int, Any, Any]]:
        """(executions, wire bytes, seconds) of all collectives, by the mesh axes that they use."""
        found: defaultdict[tuple[str, ...], list[Any]] = defaultdict(lambda: [0, 0, 0])
        for item in self.priced.hints.items:
            if item.is_communication:
                for column, amount in enumerate((item.count, item.wire_bytes, item.time_s)):
                    found[item.axes][column] += amount
        # A reader looks for the axes that send the most, so these come first.
        ordered = sorted(found.items(), key=lambda pair: -pair[1][1])
        return {axes: (sums[0], sums[1], sums[2]) for axes, sums in ordered}

    def _figures(
        self, axes: tuple[str, ...], count: int, sent: Any, time_s: Any
    ) -> tuple[Any, ...]:
        """Return the figures of all collectives along a set of axes, as numbers and as text.

        They are: devices per group, executions, bytes, bytes as text, and seconds as text.
        """
        devices = 1
        for axis in axes:
            devices *= self.plan.program.mesh.shape.get(axis, 1)
        return devices, number(count), number(sent), bytes_text(sent), seconds_text(time_s)

    @property
    def numbers(self) -> Table:
        """Executions, bytes and seconds per step, with a row per set of mesh axes."""
        names = ("mesh_axes", "devices", "executions", "wire_bytes_per_step", "communication_s")
        rows = (
            (",".join(axes), *self._figures(axes, *sums)[:3], number(sums[2]))
            for axes, sums in self._sums.items()
        )
        return Table(names, tuple(rows))

    @property
    def fits(self) -> bool:
        """True if the peak memory fits in a device, for the sizes at which the plan was made."""
        return bool(self.priced.at_hints.fits)

    @property
    def sentence(self) -> str:
        """Step time, peak memory, bytes sent, operators, mesh and policy, as text.

        Named sizes have their hints, the numbers at which the plan was made.
        """
        plan, cost = self.plan, self.priced.at_hints
        peak, chip = cost.peak_memory_bytes, cost.hardware
        fits = "" if cost.fits else ": does NOT fit"
        note = " Named sizes have their hints." if plan._stages.is_named else ""
        return (
            f"Step {seconds_text(cost.step_time_s)} on {self.machine}. "
            f"Peak memory {bytes_text(peak)} of {bytes_text(chip.hbm_bytes)}{fits}. "
            f"Sent {bytes_text(cost.wire_bytes)} per device and step. "
            f"{counted(len(plan.graph.nodes), 'operator')} on {plan.mesh!r}, shardings "
            f"{plan.options.followed}.{note}"
        )

    @property
    def counted_once(self) -> str:
        """A line per `while` loop of unknown length, which counts as one iteration."""
        # All totals count one iteration of such a loop, so the figures above need this line.
        rows = self.plan._warnings_table.where(op="while")
        return "\n".join(f"While loop at {row['source']}: {row['warning']}." for row in rows)

    @property
    def assumed(self) -> str:
        """A sentence about products of integers without a peak rate; "" if there are none."""
        products = ", ".join(self.priced.assumed)
        return products and f"Not calibrated: products of {products} at the slowest peak."

    @property
    def beside(self) -> str:
        """A sentence that compares the plan with `jax.jit` of the function; "" if they are similar.

        They are similar if bytes sent and peak memory differ by at most a tenth.
        """
        own = self.plan._own_jit
        return f"For comparison: {own}." if own.differs else ""

    @cached_property
    def cheaper(self) -> str:
        """A sentence about a policy that is more than a tenth cheaper; "" if there is none."""
        from shardalg.plan.explain.switches import cheaper_policy

        return cheaper_policy(self.plan._trials, self.hardware)

    @property
    def tried_on(self) -> str:
        """A sentence with the chip for which remedies of warnings are tried.

        It is "" if this is also the chip whose prices are shown.
        """
        asked, own = self.priced.hardware.name, machine(self.plan.options.hardware).chip.name
        if asked == own:
            return ""
        return f"Remedies are tried on {own}; Options(hardware={asked!r}) tries them on {asked}."

    @property
    def warned(self) -> Table:
        """The plan's warnings, without their columns of bytes, flops and executions."""
        return self.plan._warnings_table.select(*WARNED)

    def parts(self) -> Parts:
        """Return figures as a sentence, the comparison with `jax.jit`, bytes per axis, warnings."""
        # Properties that do not apply to this plan are "", which `filter` leaves out. `beside` is
        # the row about `jax.jit` as a sentence, so the table does not repeat it.
        comparisons = tuple(filter(None, (self.beside, self.cheaper)))
        per_axis = self.table.select("mesh_axes", "devices", "collectives", "sent", "time")
        axis_table = Table(per_axis.columns, tuple((",".join(r[0]), *r[1:]) for r in per_axis.rows))
        warned = self.warned.where(op="jax.jit").rows
        other_warnings = tuple(row for row in self.warned.rows if row not in warned)
        notes = tuple(filter(None, (self.counted_once, self.assumed)))
        tried = (self.tried_on,) if other_warnings and self.tried_on else ()
        return (
            self.sentence,
            *notes,
            *comparisons,
            axis_table,
            *tried,
            Table(WARNED, other_warnings),
        )


AT_THE_BORDER = "arguments and results"
"""Moves at the function's border belong to no operator, so the page shows them in this group."""


def overview(plan: Plan, hardware: str | Hardware | None) -> Overview:
    """Return the overview of a plan on a chip; None: the chip of the plan's options.

    A chip that is asked for must have a peak for the item types of the function's products.
    """
    text = chip_of(plan, hardware)
    # The default chip is not refused for a missing peak, so that every plan can be printed.
    if hardware is not None:
        return Overview(plan, plan.cost(hardware), hardware, text)
    chip = plan.options.hardware
    return Overview(plan, cost_on(plan, plan._stages.machine()), chip, text)


def headline(plan: Plan) -> str:
    """Return the plan in one line: mesh, chip, sizes, bytes sent, and how far it is verified."""
    from shardalg.show import tables

    # The program in numbers is used: the headline has numbers even if sizes have names.
    table = tables.collectives(plan.program, plan.graph)
    sent_bytes = sum(row["wire_bytes_per_step"] for row in table)
    hints = hints_text(plan, (n for n in plan.sizes if n not in plan.mesh.axis_names))
    notes = [f"at the hints {hints}"] if hints else []
    # A changed decision also changes prices. So rows of prices are counted only if no decision
    # changed, or one change would count twice.
    changed_decisions = [row for row in plan.changes if row["kind"] not in PRICES]
    if changed_decisions:
        notes += [f"{counted(len(changed_decisions), 'decision')} changed"]
    elif len(plan.changes):
        notes += [f"{counted(len(plan.changes), 'formula')} changed"]
    unknown = [loop for loop in while_loops(plan.graph) if loop.iterations is None]
    notes += [f"one iteration of {loop.text} ({loop.name})" for loop in unknown]
    sizes = ((len(plan.graph.nodes), "node"), (len(table), "collective"))
    counts = ", ".join(counted(n, what) for n, what in sizes)
    chip = chip_text(plan.options.hardware, plan.mesh.size, OF_OPTIONS)
    given = len(plan._annotations.values)
    followed = f"given for {counted(given, 'value')}" if given else plan.options.followed
    return (
        f"Plan on {plan.mesh!r} for {chip}, shardings {followed}: {counts}, "
        f"{bytes_text(sent_bytes)} sent per device and step, "
        f"{', '.join([verified_text(plan), *notes])}"
    )


def program_html(plan: Plan) -> str:
    """Return the program of a plan as HTML, in groups that open by click."""
    from shardalg.show.program_view import ProgramView

    # Several plans can be on one page: the key keeps their elements apart.
    key = f"p{id(plan):x}"
    path = partial(path_of, plan)
    return ProgramView(plan.program, plan.graph, plan.listing(), path, key).to_html()


def path_of(plan: Plan, instruction: Instruction) -> tuple[str, ...]:
    """Return the names of the groups around an instruction on `program_html`, outermost first.

    They are its phase, the modules of its operator, and its source line.
    """
    from shardalg.graph.modules import modules

    # Moves at the border of the function belong to no operator, hence to no module.
    if instruction.node is None:
        return (AT_THE_BORDER,)
    node = plan.graph.nodes[instruction.node]
    module = modules(plan.graph)[node.index]
    return tuple(filter(None, (instruction.phase, *module.split("/"), node.source)))


def draw(
    plan: Plan, show: str | None, module: str | None, letters: Mapping[str, int] | None
) -> Figure:
    """Return the program as a figure; see `Plan.draw`.

    Raises:
      TableError: `show` is unknown, or the program has no such module.
    """
    from shardalg.show.figures import draw_plans

    drawn = drawn_plan(plan)
    title = drawn.note if module is None else f"{module} of {drawn.note}"
    return draw_plans({title: drawn}, show=show, module=module, letters=letters)


def draw_several(plans: Mapping[str, Plan], **options: Any) -> Figure:
    """Return several plans in one figure, each under its title."""
    from shardalg.show.figures import draw_plans

    return draw_plans({name: drawn_plan(plan) for name, plan in plans.items()}, **options)


def drawn_plan(plan: Plan) -> DrawnPlan:
    """Return a plan's program for a figure, with a title: mesh, bytes sent and seconds."""
    from shardalg.show.figures import DrawnPlan

    cost = cost_on(plan, plan._stages.machine())
    numbers = cost.at_hints
    note = (
        f"{plan.mesh!r}: {bytes_text(numbers.wire_bytes)} sent per device and step, "
        f"{seconds_text(numbers.step_time_s)} on {cost.machine_text}"
    )
    return DrawnPlan(plan.program, plan.graph, note)
