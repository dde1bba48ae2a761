"""Prices of a plan: on a chip, per module, at other sizes, and as a timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.matrix_unit import check_products
from shardalg.costs.topology import OF_OPTIONS, machine, machine_text
from shardalg.errors import ShardalgError
from shardalg.plan.planning import refuse_fallbacks
from shardalg.planner.stages import planned_at, priced

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.plan.plan import Plan
    from shardalg.show.timeline import Timeline
    from shardalg.tables import DataFrame


def cost(
    plan: Plan,
    hardware: str | Hardware | Topology | None,
    overlap: str | None,
    software: str | None,
) -> Cost:
    """Return the cost of a plan on a chip; see `Plan.cost`.

    Raises:
      HardwareError: an unknown chip or topology, or a chip without a peak for a product's type.
    """
    if hardware is None:
        machine(hardware)  # type: ignore[arg-type]  # raises an error that names the chips
    chip = plan._stages.machine(hardware)
    chip = chip if software is None else chip.on(software)
    # The check is not in `cost_on`, because the overview prices such products at the slowest peak.
    check_products(plan.graph, chip.chip)
    return cost_on(plan, chip, overlap=overlap, text=chip_of(plan, hardware))


def cost_on(
    plan: Plan, chip: Hardware | Topology, *, overlap: str | None = None, text: str | None = None
) -> Cost:
    """Return the cost on a chip; products of a type without a peak run at the slowest peak.

    Args:
      text: names the machine and its source; None is the machine of the plan's options.
    """
    from shardalg.costs.analyses.limits import step_limits
    from shardalg.costs.cost import Elsewhere
    from shardalg.show.tables import costs_by_module

    # With named sizes the program has formulas, and so have all prices.
    program = plan._symbolised or plan.program
    made = priced(plan._traced, program, chip, overlap=overlap)
    return replace(
        made,
        by_module=partial(costs_by_module, plan._stages, chip),
        elsewhere=Elsewhere(partial(_fits, plan, chip)),
        analysis=partial(step_limits, plan.program, plan.graph, chip, steps=made.timed),
        machine=chip_of(plan, None) if text is None else text,
    )


def cost_at(
    plan: Plan,
    chip: Hardware | Topology,
    point: Mapping[str, int],
    *,
    overlap: str | None = None,
) -> Cost:
    """Return the cost of the plan that is made at other sizes, without its differences.

    `plan.at(...)` also finds the decisions that differ, which takes as long as planning.

    Args:
      point: the number for each named size.

    Raises:
      ShardalgError: the function cannot be planned there.
    """
    here, _ = planned_at(plan._stages, point, plan.options)
    refuse_fallbacks(here, plan.options)
    return priced(here.traced, here.program, chip, overlap=overlap)


def _fits(plan: Plan, chip: Hardware | Topology, point: Mapping[str, int]) -> bool:
    """Return whether a device holds the plan at other sizes; False where there is no plan."""
    try:
        return bool(cost_at(plan, chip, point).fits)
    # A size at which the function cannot be planned must not be reported as one that fits.
    except ShardalgError:
        return False


def chip_of(plan: Plan, hardware: object) -> str:
    """Return the chip, the number of devices, and where both come from, as text.

    Args:
      hardware: the chip that is asked for; None: the one of the plan's options.
    """
    mesh = None if plan._stages.has_own_links else plan.mesh
    if hardware is not None:
        return machine_text(hardware, plan.mesh.size, mesh=mesh)  # type: ignore[arg-type]
    return machine_text(plan.options.hardware, plan.mesh.size, OF_OPTIONS, mesh)


def timeline(plan: Plan, hardware: str | Hardware | Topology | None) -> Timeline:
    """Return the events of each pipeline stage on a chip; see `Plan.timeline`.

    Raises:
      HardwareError: as `cost` does.
    """
    from shardalg.costs.pipelines.events import events
    from shardalg.show.timeline import Timeline

    chip = plan._stages.machine(hardware)
    check_products(plan.graph, chip.chip)
    of = f"predicted on {chip_of(plan, hardware)}"
    alone = events(plan.program, plan.graph, chip, overlap=False)
    return Timeline(events(plan.program, plan.graph, chip), repr(plan.program.mesh), of, alone)


def exported_numbers(plan: Plan, hardware: str | Hardware | Topology | None) -> dict[str, float]:
    """Return the main figures of a plan by name; see `Plan.to_dict`."""
    from shardalg.show.exports import flat_numbers

    priced_on = cost_on(plan, plan._stages.machine(hardware))
    return flat_numbers(priced_on, plan.program, plan.graph)


def exported_graph(
    plan: Plan, hardware: str | Hardware | Topology | None, path: str | Path | None
) -> dict[str, Any]:
    """Return the program as a graph for Model Explorer; see `Plan.model_explorer`."""
    from shardalg.show.exports import model_explorer, write_model_explorer

    label = f"{plan.mesh!r} on {chip_of(plan, hardware)}"
    machine = plan._stages.machine(hardware)
    found = model_explorer(plan.program, plan.graph, machine, label=label)
    if path is not None:
        write_model_explorer(found, Path(path))
    return found


def collectives(plan: Plan, by: str | None) -> DataFrame:
    """Return a row per collective, or per module, kind and axes; see `Plan.collectives`.

    Raises:
      TableError: `by` is neither None nor "module".
    """
    from shardalg.show.formatting import with_borders
    from shardalg.show.tables import check_by, collectives_by_module

    if check_by(by):
        return collectives_by_module(plan._collectives_table).df
    found = plan._collectives_table
    # Bytes at the border depend on a prefix of axes that divides: they have no formula.
    made = found if plan._stages.is_named else with_borders(found, plan.program, plan.graph)
    return made.df


def formatting(plan: Plan, hardware: str | Hardware | None) -> DataFrame:
    """Return the bytes of slices, pads, masks and halos; see `Plan.formatting`."""
    from shardalg.show.formatting import formatting

    on_chip = None
    if hardware is not None:
        on_chip = priced(plan._traced, plan.program, plan._stages.machine(hardware))
    return formatting(plan.program, plan.graph, on_chip).df
