"""Fits of constants and rates to measured steps, by least squares of relative errors.

`fit` finds constants of chips, within their bounds, with leave-one-out errors.
`rate_amounts` counts a program's use of each figure of `OperatorRates`, and `core_fit` finds
the rates of one core from programs that ran on it.
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
    """An instruction, its executions, and the amounts of one execution by figure."""

    instruction: int
    times: int
    amounts: Mapping[str, float]


def rate_amounts(program: SpmdProgram, graph: Graph, *, finely: bool) -> tuple[CostSample, ...]:
    """Return the amounts of every instruction, by figure: flops, bytes or executions.

    Args:
      finely: whether to tell apart size classes of contractions and axes of collectives. Otherwise
        only products of bfloat16 and kinds of collectives are told apart.
    """
    # An amount is the seconds of an instruction on hardware on which one unit of the figure takes
    # a second and everything else takes no time. So the amounts are those that prices use.
    plain = timed(program, graph, Hardware("nothing takes time"))
    rates = dict.fromkeys(_rates(program, graph, plain, finely=finely), math.inf)
    sent = dict.fromkeys(
        f"{price.kind}.{','.join(price.axes)}" if finely else price.kind
        for price in plain
        if price.kind in RING_BYTES
    )
    free = {**rates, "operator_s": 0.0}
    free |= {f"collective_s.{detail}": 0.0 for detail in sent}
    free |= {f"collective_bytes_per_s.{detail}": math.inf for detail in sent}
    found: list[dict[str, float]] = [{} for _ in plain]
    for name in (*free, MEMORY):
        figures = {**free, name: 1.0} if name != MEMORY else free
        memory = 1.0 if name == MEMORY else math.inf
        unit = Hardware(
            "unit", hbm_bytes_per_s=memory, operators=OperatorRates((*figures.items(),))
        )
        for each, price in zip(found, timed(program, graph, unit), strict=True):
            if price.seconds:
                each[name] = price.seconds
    rows = zip(plain, found, strict=True)
    return tuple(CostSample(id(p.step.instruction), p.step.count, each) for p, each in rows)


def whole_step(taken: Iterable[CostSample]) -> dict[str, float]:
    """Return the amounts of a whole step on one device."""
    total: Counter[str] = Counter()
    for one in taken:
        for name, amount in one.amounts.items():
            total[name] += one.times * amount  # type: ignore[assignment]
    return dict(total)


def _rates(
    program: SpmdProgram, graph: Graph, prices: Sequence[Timed], *, finely: bool
) -> Iterable[str]:
    """Yield the names of the rates of all operator classes in a program."""
    held = program.locals
    for price in prices:
        instruction = price.step.instruction
        if type(instruction.attributes) is not Apply or instruction.node is None:
            continue
        signature = graph.nodes[instruction.node].signature
        operator, dtype = operator_class(signature), operand_type(signature)
        own = operator != POINTWISE if finely else (operator, dtype) == (MATMUL, "bfloat16")
        name = f"operator_flops_per_s.{operator}.{dtype if own else 'float32'}"
        if finely and operator != POINTWISE:
            values = (*instruction.operands, *instruction.results)
            flops = shaped_flops(signature, tuple(held[v].shape for v in values))
            name += f".{size_class(flops)}"
        yield name


@dataclass(frozen=True)
class CoreTime:
    """Measured core time of a program.

    Attributes:
      name: name of the program.
      amounts: flops, bytes or executions by figure, of all devices together.
      seconds: busy seconds of all cores together.
    """

    name: str
    amounts: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class CoreFit:
    """Result of a fit of core rates.

    Attributes:
      seconds: seconds per unit of each figure: the inverse of a rate.
      errors: `predicted / measured - 1` of each program.
      left_out: the same error, with rates that are fitted on all other programs.
    """

    seconds: Mapping[str, float]
    errors: Mapping[str, float]
    left_out: Mapping[str, float]


def core_fit(rows: Sequence[CoreTime]) -> CoreFit:
    """Return the non-negative seconds per unit of every figure with the least relative errors.

    >>> rows = [CoreTime("a", {"f": 2.0}, 4.0), CoreTime("b", {"f": 1.0, "g": 3.0}, 5.0)]
    >>> {name: round(s, 9) for name, s in core_fit(rows).seconds.items()}
    {'f': 2.0, 'g': 1.0}
    """
    names = sorted({name for row in rows for name, amount in row.amounts.items() if amount})
    weights = np.array([[row.amounts.get(n, 0.0) / row.seconds for n in names] for row in rows])
    found = _least(weights)
    errors = weights @ found - 1
    # Leave-one-out: each program is predicted by the rates of all others.
    left_out = []
    for place in range(len(rows)):
        others = np.delete(weights, place, axis=0)
        left_out.append(float(weights[place] @ _least(others) - 1))
    programs = [row.name for row in rows]
    return CoreFit(
        dict(zip(names, found.tolist(), strict=True)),
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
    """A measured step.

    Attributes:
      name: name of the step.
      chip: name of the chip that it ran on.
      amounts: amounts of its plan, on the machine that it ran on.
      step_time_s: measured seconds.
    """

    name: str
    chip: str
    amounts: ProgramAmounts
    step_time_s: float


class Free(NamedTuple):
    """Constants that have one value, to be fitted, and the chips that share it."""

    constants: tuple[str, ...]
    chips: tuple[str, ...]


@dataclass(frozen=True)
class Fit:
    """Fitted constants, and their errors.

    Attributes:
      calibrations: the constants of each chip.
      errors: `predicted / measured - 1` of each step.
      left_out: the same error, with constants that are fitted on all other steps.
    """

    calibrations: Mapping[str, Calibration]
    errors: Mapping[str, float]
    left_out: Mapping[str, float]

    def apply(self, hardware: str | Machine) -> Machine:
        """Return a chip or topology with the fitted constants of its chip.

        Raises:
          HardwareError: no step ran on that chip.
        """
        found = machine(hardware)
        chip = found.chip
        if chip.name not in self.calibrations:
            raise HardwareError(
                f"no measured step ran on {chip.name!r}, but on {', '.join(self.calibrations)}."
            )
        own = self.calibrations[chip.name]
        fitted = replace(chip, calibration=own)
        return replace(found, hardware=fitted) if isinstance(found, Topology) else fitted

    @property
    def median_left_out(self) -> float:
        """Median of the absolute leave-one-out errors."""
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
      base: the constants of each chip before the fit; those that are not fitted keep their values.
      free: the constants to fit.
      prior: weight of the constants' typical values (`TYPICAL`). A constant at twice its typical
        value costs as much as a step whose relative error is `prior`. So a constant that the
        steps determine hardly moves, and one that they do not determine stays typical.

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
    whole = problem.solved(measured)
    left = {
        one.name: _error(problem.solved([m for m in measured if m is not one]), one)
        for one in measured
    }
    return Fit(whole, errors_of(whole, measured), left)


def errors_of(
    calibrations: Mapping[str, Calibration], measured: Iterable[Measured]
) -> dict[str, float]:
    """Return `predicted / measured - 1` of each step, by its name."""
    return {one.name: _error(calibrations, one) for one in measured}


def _error(calibrations: Mapping[str, Calibration], one: Measured) -> float:
    return step_time_s(one.amounts, calibrations[one.chip]) / one.step_time_s - 1


@dataclass(frozen=True)
class _Problem:
    """A search for constants: the constants before it, those that are free, and the prior."""

    base: Mapping[str, Calibration]
    free: tuple[Free, ...]
    prior: float

    def calibrations(self, values: Any) -> dict[str, Calibration]:
        """Return the calibrations at a point of the search."""
        found = dict(self.base)
        for (constants, chips), value in zip(self.free, map(float, values), strict=True):
            for chip in chips:
                found[chip] = found[chip].changed(**dict.fromkeys(constants, value))
        return found

    def solved(self, measured: Sequence[Measured]) -> dict[str, Calibration]:
        """Return the least-squares constants, searched in units of their bounds."""
        from scipy.optimize import least_squares

        bounds = [(CONSTANTS[c[0]].least, CONSTANTS[c[0]].most) for c, _ in self.free]
        low, high = np.array(bounds).T
        typical = np.array([TYPICAL.get(c[0], CONSTANTS[c[0]].default) for c, _ in self.free])

        def errors(x: Any) -> list[float]:
            values = low + x * (high - low)
            at = self.calibrations(values)
            found = [_error(at, step) for step in measured]
            # Weight gathers and products take time together in most steps, so that few steps
            # hardly tell their constants apart. The prior decides among equally good values.
            away = values[typical > 0] / typical[typical > 0] - 1
            return [*found, *(self.prior * away)] if self.prior else found

        # The search starts inside of the bounds.
        start = np.clip((typical - low) / (high - low), 0.02, 0.98)
        found = least_squares(errors, start, bounds=(0.0, 1.0), xtol=1e-10, ftol=1e-10)
        return self.calibrations(low + found.x * (high - low))


# Values in the middle of what systems reach; all others are typically the data sheet's.
# At half exposure a collective is neither hidden nor in sequence.
TYPICAL = {
    "matrix_efficiency": 0.8,
    "kernel_efficiency": 0.4,
    "exposed_weights": 0.5,
    "exposed_data": 0.5,
    "exposed_per_slice": 0.3,
}
