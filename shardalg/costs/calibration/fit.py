"""Fits of constants and rates to measured steps, by least squares of relative errors.

`fit` finds the calibration constants of chips, with leave-one-out errors. For a machine of which
operators are measured, `rate_amounts` counts the flops, bytes and executions of a program for each
rate. `core_fit` then finds the rates of one core from programs that ran on it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from shardalg.costs.calibration.by_cause import ProgramAmounts, step_time_s
from shardalg.costs.calibration.constants import CONSTANTS, Calibration
from shardalg.costs.calibration.operator_rates import (
    MATMUL,
    POINTWISE,
    OperatorRates,
    operator_class,
    size_class,
)
from shardalg.costs.collectives import RING_BYTES
from shardalg.costs.compute import operand_type, shaped_flops
from shardalg.costs.hardware import Hardware
from shardalg.costs.step_time import Timed, timed
from shardalg.costs.topology import Machine, Topology, machine
from shardalg.errors import HardwareError, TableError
from shardalg.graph.ir import Graph
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram

MEMORY = "hbm_bytes_per_s"


class CostSample(NamedTuple):
    """Amounts of one instruction that determine its time by measured rates.

    Attributes:
      instruction: the `id` of the instruction.
      times: number of executions per step.
      amounts: for each figure, such as "operator_flops_per_s.matmul.float32", the flops, bytes or
        executions that it is for, in one execution of the instruction.
    """

    instruction: int
    times: int
    amounts: Mapping[str, float]


def rate_amounts(program: SpmdProgram, graph: Graph, *, finely: bool) -> tuple[CostSample, ...]:
    """Return the amounts of every instruction of a program, by the figures of `OperatorRates`.

    Args:
      finely: whether there is a figure for each operator class, item type, size class and mesh
        axis. Otherwise there is one for products of bfloat16, one per other operator class, and one
        per kind of collective.
    """
    # An amount is the seconds of an instruction on hardware on which one unit of the figure takes
    # a second and everything else takes no time. So the amounts are those that prices use.
    free_prices = timed(program, graph, Hardware("nothing takes time"))
    rates = dict.fromkeys(_rates(program, graph, free_prices, finely=finely), math.inf)
    collective_details = dict.fromkeys(
        f"{price.kind}.{','.join(price.axes)}" if finely else price.kind
        for price in free_prices
        if price.kind in RING_BYTES
    )
    # With infinite rates and no constant times, each figure takes no time until it is set to 1.
    free_figures = {**rates, "operator_s": 0.0}
    free_figures |= {f"collective_s.{detail}": 0.0 for detail in collective_details}
    free_figures |= {f"collective_bytes_per_s.{detail}": math.inf for detail in collective_details}
    amounts: list[dict[str, float]] = [{} for _ in free_prices]
    for name in (*free_figures, MEMORY):
        figures = {**free_figures, name: 1.0} if name != MEMORY else free_figures
        memory = 1.0 if name == MEMORY else math.inf
        unit = Hardware(
            "unit", hbm_bytes_per_s=memory, operators=OperatorRates((*figures.items(),))
        )
        for step_amounts, price in zip(amounts, timed(program, graph, unit), strict=True):
            if price.seconds:
                step_amounts[name] = price.seconds
    rows = zip(free_prices, amounts, strict=True)
    return tuple(
        CostSample(id(p.step.instruction), p.step.count, step_amounts) for p, step_amounts in rows
    )


def whole_step(taken: Iterable[CostSample]) -> dict[str, float]:
    """Return the amounts of a whole step on one device, by figure, over all instructions."""
    total: Counter[str] = Counter()
    for one in taken:
        for name, amount in one.amounts.items():
            total[name] += one.times * amount  # type: ignore[assignment]
    return dict(total)


def _rates(
    program: SpmdProgram, graph: Graph, prices: Sequence[Timed], *, finely: bool
) -> Iterable[str]:
    """Yield the name of the rate that prices each local operator of a program.

    A name is `operator_flops_per_s.CLASS.TYPE`, with the class of operators and the item type, and
    perhaps a size class.

    Args:
      finely: whether each class, type and size has a rate of its own (see `rate_amounts`).
    """
    planned_locals = program.locals
    for price in prices:
        instruction = price.step.instruction
        if type(instruction.attributes) is not Apply or instruction.node is None:
            continue
        signature = graph.nodes[instruction.node].signature
        operator, dtype = operator_class(signature), operand_type(signature)
        # Item types without a rate of their own share the rate of float32, as in `OperatorRates`.
        has_own_rate = (
            operator != POINTWISE if finely else (operator, dtype) == (MATMUL, "bfloat16")
        )
        name = f"operator_flops_per_s.{operator}.{dtype if has_own_rate else 'float32'}"
        if finely and operator != POINTWISE:
            values = (*instruction.operands, *instruction.results)
            flops = shaped_flops(signature, tuple(planned_locals[v].shape for v in values))
            name += f".{size_class(flops)}"
        yield name


@dataclass(frozen=True)
class CoreTime:
    """Measured time that all cores of a machine together spent on a program.

    Attributes:
      name: name of the program.
      amounts: for each rate in `OperatorRates` (by its name), the flops, bytes or executions that
        this rate prices, of all devices together.
      seconds: busy seconds of all cores together.
    """

    name: str
    amounts: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class CoreFit:
    """Fitted rates of one core, and their errors.

    Attributes:
      seconds: for each figure of `OperatorRates`, the seconds per flop, byte or execution.
      errors: for each program, `predicted / measured - 1`.
      left_out: for each program, this error if the rates are fitted on all other programs.
    """

    seconds: Mapping[str, float]
    errors: Mapping[str, float]
    left_out: Mapping[str, float]


def core_fit(rows: Sequence[CoreTime]) -> CoreFit:
    """Return the rates of one core that predict measured programs best.

    The method is least squares of the relative errors, with non-negative seconds per unit.

    >>> rows = [CoreTime("a", {"f": 2.0}, 4.0), CoreTime("b", {"f": 1.0, "g": 3.0}, 5.0)]
    >>> {name: round(s, 9) for name, s in core_fit(rows).seconds.items()}
    {'f': 2.0, 'g': 1.0}
    """
    names = sorted({name for row in rows for name, amount in row.amounts.items() if amount})
    # Divided by the measured seconds, a row of amounts times the seconds per unit is 1 without
    # error.
    weights = np.array([[row.amounts.get(n, 0.0) / row.seconds for n in names] for row in rows])
    seconds_per_unit = _least(weights)
    errors = weights @ seconds_per_unit - 1
    # Leave-one-out: the error of a program that the rates were fitted on says little about others.
    left_out = []
    for place in range(len(rows)):
        other_rows = np.delete(weights, place, axis=0)
        left_out.append(float(weights[place] @ _least(other_rows) - 1))
    programs = [row.name for row in rows]
    return CoreFit(
        dict(zip(names, seconds_per_unit.tolist(), strict=True)),
        dict(zip(programs, errors.tolist(), strict=True)),
        dict(zip(programs, left_out, strict=True)),
    )


def _least(weights: np.ndarray) -> np.ndarray:
    """Return the non-negative least-squares solution of `weights @ x = 1`."""
    from scipy.optimize import nnls

    # Columns differ by many orders of magnitude (flops and executions), so they are scaled first.
    scale = np.maximum(weights.max(axis=0, initial=0.0), np.finfo(float).tiny)
    return nnls(weights / scale, np.ones(len(weights)))[0] / scale


@dataclass(frozen=True)
class Measured:
    """A measured training step, for a fit of constants.

    Attributes:
      name: name of the step.
      chip: name of the chip that it ran on.
      amounts: work of its plan by cause, on the machine that it ran on.
      step_time_s: measured seconds of the step.
    """

    name: str
    chip: str
    amounts: ProgramAmounts
    step_time_s: float


class Free(NamedTuple):
    """One value that a fit may change.

    Attributes:
      constants: names of the constants that have this value.
      chips: names of the chips that share it.
    """

    constants: tuple[str, ...]
    chips: tuple[str, ...]


@dataclass(frozen=True)
class Fit:
    """Fitted constants of chips, and their errors.

    Attributes:
      calibrations: for each chip name, its constants.
      errors: for each measured step, `predicted / measured - 1` of its seconds.
      left_out: for each step, this error if the constants are fitted on all other steps.
    """

    calibrations: Mapping[str, Calibration]
    errors: Mapping[str, float]
    left_out: Mapping[str, float]

    def apply(self, hardware: str | Machine) -> Machine:
        """Return a chip or topology to which the fitted constants of its chip are given.

        Raises:
          HardwareError: no measured step ran on that chip.
        """
        machine_or_chip = machine(hardware)
        # A topology contains its chip; a chip is its own.
        chip = machine_or_chip.chip
        if chip.name not in self.calibrations:
            raise HardwareError(
                f"no measured step ran on {chip.name!r}, but on {', '.join(self.calibrations)}."
            )
        constants = self.calibrations[chip.name]
        fitted = replace(chip, calibration=constants)
        return (
            replace(machine_or_chip, hardware=fitted)
            if isinstance(machine_or_chip, Topology)
            else fitted
        )

    @property
    def median_left_out(self) -> float:
        """Median of the absolute leave-one-out errors, as a share of the measured seconds."""
        return statistics.median(map(abs, self.left_out.values()))


def fit(
    measured: Sequence[Measured],
    base: Mapping[str, Calibration],
    free: Sequence[Free],
    *,
    prior: float = 0.0,
) -> Fit:
    """Return the constants that predict the measured steps best.

    The method is least squares of relative errors, with each constant within its bounds (scipy's
    trust region).

    Args:
      base: the constants of each chip before the fit; constants that are not fitted do not change.
      free: the constants to fit.
      prior: weight of the constants' typical values (`TYPICAL`). A constant at twice its typical
        value costs as much as a step whose relative error is `prior`. A constant that the steps
        determine hardly changes through this; one that they do not determine stays typical.

    Raises:
      TableError: there are too few steps for the constants, or two steps have one name.
      HardwareError: there are no constants, or one is unknown or given twice.
    """
    names = [name for one in free for name in one.constants]
    places = [(name, chip) for one in free for chip in one.chips for name in one.constants]
    unknown = any(name not in CONSTANTS for name in names)
    if not free or unknown or len(set(places)) < len(places):
        raise HardwareError(
            f"constants {names!r}: give some of {', '.join(CONSTANTS)}, each once per chip, "
            'as in ["matrix_efficiency"].'
        )
    if len(measured) <= len(free):
        raise TableError(
            f"{len(measured)} measured steps cannot tell {len(free)} constants apart and "
            "leave one out: give more rows, or fewer constants."
        )
    twice = [name for name, times in Counter(m.name for m in measured).items() if times > 1]
    if twice:
        raise TableError(f"measured steps of one name, {twice[0]!r}: give each its own.")
    problem = _Problem(base, tuple(free), prior)
    fitted = problem.solved(measured)
    # Each step is predicted with constants from all others, because a step's own fit says little
    # about unseen steps.
    left_out_errors = {
        one.name: _error(problem.solved([m for m in measured if m is not one]), one)
        for one in measured
    }
    return Fit(fitted, errors_of(fitted, measured), left_out_errors)


def errors_of(
    calibrations: Mapping[str, Calibration], measured: Iterable[Measured]
) -> dict[str, float]:
    """Return, for the name of each step, `predicted / measured - 1` of its seconds.

    Args:
      calibrations: for each chip name, the constants that predict.
    """
    return {step.name: _error(calibrations, step) for step in measured}


def _error(calibrations: Mapping[str, Calibration], step: Measured) -> float:
    """Return `predicted / measured - 1` of the seconds of one step."""
    return step_time_s(step.amounts, calibrations[step.chip]) / step.step_time_s - 1


@dataclass(frozen=True)
class _Problem:
    """Search for the constants that predict measured steps best.

    Attributes:
      base: the constants of each chip before the search.
      free: the constants that the search may change.
      prior: weight of the constants' typical values.
    """

    base: Mapping[str, Calibration]
    free: tuple[Free, ...]
    prior: float

    def calibrations(self, values: Any) -> dict[str, Calibration]:
        """Return the constants of each chip, given a value for each entry of `free`."""
        found = dict(self.base)
        for (constants, chips), value in zip(self.free, map(float, values), strict=True):
            for chip in chips:
                found[chip] = found[chip].changed(**dict.fromkeys(constants, value))
        return found

    def solved(self, measured: Sequence[Measured]) -> dict[str, Calibration]:
        """Return the constants of each chip with the least squares of relative errors."""
        from scipy.optimize import least_squares

        # An entry of `free` is one value for several constants, which have the bounds of the first.
        firsts = [one.constants[0] for one in self.free]
        low = np.array([CONSTANTS[name].least for name in firsts])
        high = np.array([CONSTANTS[name].most for name in firsts])
        typical = np.array([TYPICAL.get(name, CONSTANTS[name].default) for name in firsts])

        # Constants have different units, so each x is a place between a constant's bounds, 0 to 1.
        def errors(x: Any) -> list[float]:
            """Return the residuals of the fit: the relative errors of the steps, then the prior's.

            A residual of the prior is `prior` times the relative distance of a constant from its
            typical value.

            Args:
              x: the position of each constant between its bounds, from 0 to 1.
            """
            values = low + x * (high - low)
            at = self.calibrations(values)
            found = [_error(at, step) for step in measured]
            # Weight gathers and products take time together in most steps, so that few steps
            # hardly tell their constants apart. The prior decides among equally good values.
            away = values[typical > 0] / typical[typical > 0] - 1
            return [*found, *(self.prior * away)] if self.prior else found

        # `least_squares` refuses a start outside of the bounds.
        start = np.clip((typical - low) / (high - low), 0.02, 0.98)
        found = least_squares(errors, start, bounds=(0.0, 1.0), xtol=1e-10, ftol=1e-10)
        return self.calibrations(low + found.x * (high - low))


TYPICAL = {
    "matrix_efficiency": 0.8,
    "kernel_efficiency": 0.4,
    "exposed_weights": 0.5,
    "exposed_data": 0.5,
    "exposed_per_slice": 0.3,
}
"""Values in the middle of what systems reach; all others are typically the data sheet's.

At half exposure a collective is neither hidden nor in sequence.
"""
