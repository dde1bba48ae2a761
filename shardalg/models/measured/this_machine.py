"""Figures of this machine, to estimate runs on its devices; they are measured, not shipped."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from shardalg.costs.calibration.fit import (
    MEMORY,
    CoreFit,
    CoreTime,
    core_fit,
    rate_amounts,
    whole_step,
)
from shardalg.costs.calibration.operator_rates import MATMUL, OPERATOR_UNITS, OperatorRates
from shardalg.costs.hardware import UNITS, Hardware, Source, load, own_names
from shardalg.lower.measure import TimedRun, Timing, cores, measure_devices, run_once
from shardalg.lower.shard_map import Lowered
from shardalg.models.measured.calibration_programs import programs
from shardalg.plan.plan import Plan

REPEATS = 15
THIS_MACHINE = "this_machine"
"""The name under which `shardalg calibrate` saves figures if the user gives none."""
Say = Callable[[str], None]
Step = tuple[Lowered, Sequence[Any]]
"""A lowered plan and its arguments."""


def measure_hardware(
    devices: Sequence[jax.Device] | None = None,
    *,
    quick: bool = False,
    say: Say = lambda text: None,
) -> Hardware:
    """Measure this machine's devices with small planned programs.

    The figures are rates per class of operators and element type, a time per contraction, a time
    per execution and bytes per second of each kind of collective, and bytes per second of memory.
    They minimise the relative errors of the programs' times (least squares). `sources` give the
    error of each program when it is left out of the fit. The measurement takes about 25 seconds.
    All programs run in turns, so that a change of the machine's load changes all times alike.

    CPU devices share the machine's cores: their figures are those of one core. Their times are
    processor time, so that other processes on the machine do not change them.

    Args:
      devices: the devices that run each program together; None takes all CPU devices.
      quick: run five probes at the peak of each unit instead, in about a second.
      say: called with the name of each program before it is planned.
    """
    chosen = list(jax.devices("cpu") if devices is None else devices)
    if quick:
        return measure_devices(chosen)
    calibration = CalibrationRun.on(chosen, say)
    return calibration.hardware(in_turns(calibration.steps, REPEATS))


@dataclass(frozen=True)
class CalibrationRun:
    """The calibration programs, ready to run on devices.

    Attributes:
      devices: the devices that run each program together.
      names: name of each program.
      plans: plan of each program.
      steps: executable of each plan with its arguments.
    """

    devices: tuple[jax.Device, ...]
    names: tuple[str, ...]
    plans: tuple[Plan, ...]
    steps: tuple[Step, ...]

    @staticmethod
    def on(devices: Sequence[jax.Device], say: Say = lambda text: None) -> CalibrationRun:
        """Plan and lower all calibration programs.

        Args:
          say: called with the name of each program before it is planned.
        """
        names, plans, steps = [], [], []
        for program in programs(len(devices)):
            say(program.name)
            plan = program.plan(len(devices))
            names.append(program.name)
            plans.append(plan)
            steps.append((plan.lower(devices), program.arguments()))
        return CalibrationRun(tuple(devices), tuple(names), tuple(plans), tuple(steps))

    def hardware(self, timings: Sequence[Timing]) -> Hardware:
        """Return the hardware whose rates predict the measured programs best.

        Args:
          timings: the times of each program.
        """
        rows = [
            core_time(name, planned, timing)
            for name, planned, timing in zip(self.names, self.plans, timings, strict=True)
        ]
        return calibrated(measure_devices(self.devices), core_fit(rows))


def known_or_probed(devices: Sequence[jax.Device]) -> Hardware:
    """Return this machine's figures, saved by `shardalg calibrate` or measured by quick probes."""
    known = THIS_MACHINE in own_names() and devices[0].platform == "cpu"
    return load(THIS_MACHINE) if known else measure_hardware(devices, quick=True)


def core_time(name: str, planned: Plan, timing: Timing) -> CoreTime:
    """Return a program's amounts of work and its measured seconds, summed over all devices."""
    devices, shared = planned.mesh.size, len(timing.busy_s) > 0
    seconds = timing.step_s * (cores() if shared else devices)
    each = amounts(planned)
    return CoreTime(name, {n: a * devices for n, a in each.items()}, seconds)


def in_turns(steps: Sequence[Step], repeats: int) -> list[Timing]:
    """Return the timing of each lowered plan, all run once in each of `repeats` rounds.

    Each plan runs once before the first round, as a warm-up.

    Other work on the machine and the clock rate of its cores change from minute to minute. If the
    plans run in turns, these changes affect all of their times equally.
    """
    placed_steps = [(lowered, lowered.entering(*arguments)) for lowered, arguments in steps]
    warm_up_times = [run_once(lowered, arguments)[0].seconds for lowered, arguments in placed_steps]
    timings_by_plan: list[list[TimedRun]] = [[] for _ in placed_steps]
    for _ in range(repeats):
        for timings, (lowered, arguments) in zip(timings_by_plan, placed_steps, strict=True):
            timings.append(run_once(lowered, arguments)[0])
    # CPU devices share the cores of the machine, and the clock also counts the wait for a core:
    # processor time replaces it.
    return [
        Timing.of(
            timings,
            shared=lowered.run.mesh.devices.flat[0].platform == "cpu",
            warm_up_s=warm_up_s,
        )
        for timings, (lowered, _), warm_up_s in zip(
            timings_by_plan, placed_steps, warm_up_times, strict=True
        )
    ]


def amounts(planned: Plan) -> dict[str, float]:
    """Return a device's work in a step, per figure: flops, bytes, executions."""
    return whole_step(rate_amounts(planned.program, planned.graph, finely=False))


def calibrated(rough: Hardware, fit: CoreFit) -> Hardware:
    """Return `rough` with the rates of a fit to measurements in place of rates from short probes.

    Args:
      rough: this machine's hardware, with rates of short probe runs.
      fit: the seconds per unit of work that a least-squares fit found, and its errors.
    """
    errors = sorted(abs(error) for error in fit.left_out.values())
    source_text = (
        f"least squares on {len(errors)} measurements; each foretold by the others: median error "
        f"{statistics.median(errors):.1%}, worst {errors[-1]:.1%}"
    )
    # The fit gives seconds per unit, and hardware has rates: their inverse. A time per execution is
    # in seconds already.
    units = {**UNITS, **OPERATOR_UNITS}
    figures = {
        name: seconds_per_unit
        if units[name.partition(".")[0]] == "s"
        else 1 / max(seconds_per_unit, _NO_TIME)
        for name, seconds_per_unit in fit.seconds.items()
    }
    memory = figures.pop(MEMORY, math.inf)
    fitted = [Source(name, value, source_text) for name, value in figures.items()]
    fitted += [Source(MEMORY, memory, source_text)] if math.isfinite(memory) else []
    peaks = _peaks(figures)
    fitted += [
        Source(f"peak_flops_per_s.{dtype}", value, source_text) for dtype, value in peaks.items()
    ]
    kept_figures = ("link_bytes_per_s", "latency_s", "hbm_bytes", "cores")
    return replace(
        rough,
        peak_flops_per_s=tuple(peaks.items()) or rough.peak_flops_per_s,
        hbm_bytes_per_s=memory,
        operators=OperatorRates(tuple(figures.items())),
        sources=(*fitted, *(s for s in rough.sources if s.figure in kept_figures)),
    )


_NO_TIME = 1e-30
"""Seconds per unit of a figure that no program uses."""


def _peaks(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the rate of matrix products per item type, from their fastest size class."""
    found: dict[str, float] = {}
    # A name is, for example, "operator_flops_per_s.matmul.bfloat16.large". A rate of 1 / `_NO_TIME`
    # means that the fit found no time for the figure.
    for name, rate in figures.items():
        figure, _, detail = name.partition(".")
        operator, _, of = detail.partition(".")
        if figure == "operator_flops_per_s" and operator == MATMUL and rate < 1 / _NO_TIME:
            dtype = of.partition(".")[0]
            found[dtype] = max(rate, found.get(dtype, 0.0))
    return found
