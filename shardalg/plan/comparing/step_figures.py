"""Numbers of a priced plan, without the plan: another process can compute and return them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardalg.costs.analyses.limits import StepLimits
from shardalg.costs.link_bytes import link_bytes

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.costs.topology import Machine
    from shardalg.plan.plan import Plan


@dataclass(frozen=True)
class StepFigures:
    """Seconds and bytes of one step on a device. Named sizes have their hints.

    Attributes:
      step_s: seconds of the step.
      peak_bytes: most bytes alive at once.
      wire_bytes: bytes that the device sends.
    """

    step_s: float
    peak_bytes: float
    wire_bytes: float

    @staticmethod
    def of(cost: Cost) -> StepFigures:
        """Return the figures of a cost."""
        at = cost.at_hints
        amounts = (at.step_time_s, at.peak_memory_bytes, at.wire_bytes)
        return StepFigures(*map(float, amounts))


@dataclass(frozen=True)
class StrategyFigures:
    """The figures of a strategy in a comparison.

    Attributes:
      step: seconds and bytes of a step.
      memory_bytes: the memory of a device.
      mfu: share of the devices' peak that the flops of the mathematical step use.
      limits: seconds of each cause of the step's time.
      memory_by_class: bytes alive at the peak, by class of value.
      by_axis: for each set of mesh axes, sums over its collectives: executions, bytes, and seconds
        by network.
      by_link: for each set of mesh axes, bytes by kind of link (`costs.link_bytes`).
    """

    step: StepFigures
    memory_bytes: float
    mfu: float
    limits: StepLimits
    memory_by_class: Mapping[str, float]
    by_axis: Mapping[str, Mapping[str, float]]
    by_link: Mapping[str, Mapping[str, float]]

    @staticmethod
    def of(plan: Plan, on: Machine | None, *, overlap: str | None = None) -> StrategyFigures:
        """Return the figures of a plan on a machine; None is the machine of its options.

        Args:
          overlap: as of `plan.cost`: which collectives run during computation.
        """
        cost = plan.cost(on, overlap=overlap)
        # Sums over the collectives along each set of axes. Keys of seconds are their causes, such
        # as "link" or "latency".
        by_axis: dict[str, dict[str, float]] = {}
        for item in cost.at_hints.items:
            if item.is_communication:
                sums = by_axis.setdefault(",".join(item.axes), defaultdict(float))
                sums["executions"] += float(item.count)
                sums["wire_bytes"] += float(item.wire_bytes)
                for cause, seconds in item.seconds:
                    sums[cause] += float(seconds)
        # Which links each axis uses depends on how the mesh is laid on the machine.
        wiring = plan._stages.machine(on).wiring(plan.mesh)
        return StrategyFigures(
            StepFigures.of(cost),
            cost.hardware.hbm_bytes,
            cost.mfu,
            cost.limits,
            {name: float(size) for name, size in cost.hints.memory.by_class.items()},
            {axes: dict(sums) for axes, sums in by_axis.items()},
            {",".join(axes): sums for axes, sums in link_bytes(plan.program, wiring).items()},
        )
