"""What a step of a dense Transformer takes on a machine, from plans of two and of three layers.

Layers are alike: one more layer adds the same operators and the same bytes, so that what a program
does is linear in their number, and so is what is alive at each of its instructions
(`models.deeper`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.calibration.by_cause import LOCAL, MOVED, Amounts, amounts
from shardalg.costs.calibration.constants import Calibration, calibration_of
from shardalg.costs.cost import MATRIX, MEMORY, Cost, Item, Totals
from shardalg.costs.hardware import Hardware
from shardalg.costs.memory import Liveness
from shardalg.costs.topology import Topology, machine
from shardalg.errors import HardwareError, StrategyError
from shardalg.models.deeper import Shallow, deeper
from shardalg.models.dense_strategies import SLICE
from shardalg.plan.plan import Plan

OVERLAPS = ("measured", "none", "full")
_BOOKED = {
    **dict.fromkeys(("matrix", "rereads", "kernel", "kernel_rereads"), MATRIX),
    **dict.fromkeys(("traffic", "passes"), MEMORY),
}
SHALLOW = (2, 3)
"""Layers of the plans that are made."""


def machine_for(mesh: Mesh, hardware: str | Hardware | Topology) -> Topology | Hardware:
    """Return the machine that a mesh of these models is on.

    A chip alone becomes as many chips as the mesh has devices for, in the shape that the vendor
    gives so many; the model's axis `slice` counts the slices and crosses their network. A chip of
    which nothing is known but its links is itself. A topology keeps its own `network_axes`.

    >>> machine_for(Mesh({"slice": 2, "fsdp": 256}), "v5e")
    Topology(tpu_v5e:16x16, slices=2, network_axes=slice)

    Raises:
      HardwareError: an unknown chip, or no slice of so many chips.
    """
    found = machine(hardware)
    slices = mesh.shape.get(SLICE, 1)
    crossing = (SLICE,) if slices > 1 else ()
    if isinstance(found, Topology):
        told = found.network_axes or found.order or found.slices == 1
        return found if told or not crossing else replace(found, network_axes=crossing)
    if not (found.interconnect.dimensions or found.interconnect.island):
        return found
    cores = found.interconnect.cores_per_chip
    chips = mesh.size // slices // cores
    try:
        return Topology(found, chips=chips, slices=slices, network_axes=crossing)
    except HardwareError as error:
        devices = f"{mesh.size} devices" + (f", {cores} to a chip" if cores > 1 else "")
        raise HardwareError(f"{mesh!r} has {devices}: {error}") from None


def chip_of(on: Topology | Hardware) -> Hardware:
    """The chip of a machine."""
    return on.hardware if isinstance(on, Topology) else on


def priced(
    depth: int, plans: Mapping[int, Plan], on: Topology | Hardware
) -> tuple[Amounts, Totals]:
    """What a model of so many layers does, and its totals without seconds.

    Args:
      plans: by layers: of `depth`, or of two numbers of layers.
    """
    done = {n: amounts(plan.program, plan.graph, on) for n, plan in plans.items()}
    totals = {n: plan.cost(on).totals for n, plan in plans.items()}
    if depth in plans:
        return done[depth], totals[depth]
    low, high = sorted(plans)
    share = (depth - low) // (high - low)
    memory = _memory(plans[low], plans[high], share, on)
    return between(done[low], done[high], share), _totals(totals[low], totals[high], share, memory)


def between(low: Amounts, high: Amounts, share: float) -> Amounts:
    """On the line through two programs; what neither has is not there."""
    return low * (1 - share) + high * share


def _memory(low: Plan, high: Plan, share: int, on: Topology | Hardware) -> Liveness:
    """What a device holds at the peak of the deeper model."""
    chip = chip_of(on)
    traced = [(plan.program, plan.graph, plan._traced) for plan in (low, high)]
    one, other = (Shallow(p, g, t.roles, t.donated, chip.rebuilds) for p, g, t in traced)
    return deeper(one, other, share)


def _totals(low: Totals, high: Totals, share: int, memory: Liveness) -> Totals:
    def line(one: Any, other: Any) -> Any:
        return one + (other - one) * share

    return Totals(
        (),
        line(low.useful_flops, high.useful_flops),
        line(low.useful_s, high.useful_s),
        low.devices,
        memory,
    )


def calibrated(done: Amounts, totals: Totals, calibration: Calibration, overlap: str) -> Totals:
    """The totals with seconds by cause, calibrated.

    Raises:
      StrategyError: an unknown overlap.
    """
    if overlap not in OVERLAPS:
        raise StrategyError(f"overlap {overlap!r}: write one of {', '.join(OVERLAPS)}.")
    weights = calibration.weights(done, overlap)
    items = []
    for key, row in done.rows.items():
        seconds: dict[str, float] = {}
        for cause in (*LOCAL, *MOVED):
            if row.get(cause):
                name = _BOOKED.get(cause, cause)
                seconds[name] = seconds.get(name, 0.0) + weights[cause] * row[cause]
        count, flops, sent = (row.get(name, 0) for name in ("count", "flops", "wire_bytes"))
        items.append(Item(*key, count, flops, sent, tuple(seconds.items())))
    return replace(totals, items=tuple(items))


def cost_on(
    depth: int, plans: Mapping[int, Plan], on: Topology | Hardware, overlap: str = "measured"
) -> Cost:
    """The calibrated cost of a model of so many layers; see `priced`."""
    done, totals = priced(depth, plans, on)
    chip = chip_of(on.shared(totals.devices))
    found = calibrated(done, totals, calibration_of(chip.name), overlap)
    return Cost(chip, found, found)
