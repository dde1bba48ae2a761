"""Constants from measured steps: bounded least squares on relative errors, and leave-one-out.

What a program takes of each figure of `OperatorRates`: measured seconds are fitted to it.

Rates of one core from programs that were run on it: least squares of relative errors.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from shardalg.costs.calibration.by_cause import ProgramAmounts
from shardalg.costs.calibration.constants import CONSTANTS, MOST, Calibration
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
from shardalg.errors import HardwareError, TableError
from shardalg.graph.ir import Graph
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram

MEMORY = "hbm_bytes_per_s"


class CostSample(NamedTuple):
    """An instruction, how often it runs, and what each time takes: flops, bytes, executions."""

    instruction: int
    times: int
    amounts: Mapping[str, float]


def rate_amounts(program: SpmdProgram, graph: Graph, *, finely: bool) -> tuple[CostSample, ...]:
    """Of every instruction, by the `id` that it has.

    The seconds that it takes where one unit of a figure takes a second, and of all others none.

    Args:
      finely: by size classes of all contractions, and by the axes of collectives; else products of
        bfloat16 stand apart, and kinds of collectives.
    """
    plain = timed(program, graph, Hardware("nothing takes time"))
    rates = dict.fromkeys(_rates(program, graph, plain, finely=finely), math.inf)
    sent = dict.fromkeys(_sent(plain, finely=finely))
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
    """What a device takes in a step."""
    total: Counter[str] = Counter()
    for one in taken:
        for name, amount in one.amounts.items():
            total[name] += one.times * amount  # type: ignore[assignment]
    return dict(total)


def _sent(prices: Sequence[Timed], *, finely: bool) -> Iterable[str]:
    """Kinds of collectives, and the axes that they go along."""
    for price in prices:
        if price.kind in RING_BYTES:
            yield f"{price.kind}.{','.join(price.axes)}" if finely else price.kind


def _rates(
    program: SpmdProgram, graph: Graph, prices: Sequence[Timed], *, finely: bool
) -> Iterable[str]:
    """Figures of the classes of operators that a program has."""
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
    """A program that was run.

    Attributes:
      amounts: per figure what it takes of it: flops, bytes, executions, on all devices together.
      seconds: that it kept cores busy, all together.
    """

    name: str
    amounts: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class CoreFit:
    """What came of a fit.

    Attributes:
      seconds: per unit of each figure's amount: the inverse of a rate.
      errors, left_out: per program, predicted over measured - 1; by the rates that all the others
        give.
    """

    seconds: Mapping[str, float]
    errors: Mapping[str, float]
    left_out: Mapping[str, float]


def core_fit(rows: Sequence[CoreTime]) -> CoreFit:
    """Seconds per unit of every figure, none negative, so that relative errors are least.

    >>> rows = [CoreTime("a", {"f": 2.0}, 4.0), CoreTime("b", {"f": 1.0, "g": 3.0}, 5.0)]
    >>> {name: round(s, 9) for name, s in core_fit(rows).seconds.items()}
    {'f': 2.0, 'g': 1.0}
    """
    names = sorted({name for row in rows for name, amount in row.amounts.items() if amount})
    weights = np.array([[row.amounts.get(n, 0.0) / row.seconds for n in names] for row in rows])
    found = _least(weights)
    errors = weights @ found - 1
    left_out = []
    for place in range(len(rows)):
        others = np.delete(weights, place, axis=0)
        left_out.append(float(weights[place] @ _least(others) - 1))
    told = [row.name for row in rows]
    return CoreFit(
        dict(zip(names, found.tolist(), strict=True)),
        dict(zip(told, errors.tolist(), strict=True)),
        dict(zip(told, left_out, strict=True)),
    )


def _least(weights: np.ndarray) -> np.ndarray:
    """What makes every row's sum as near to one as can be."""
    from scipy.optimize import nnls

    scale = np.maximum(weights.max(axis=0, initial=0.0), np.finfo(float).tiny)
    return nnls(weights / scale, np.ones(len(weights)))[0] / scale


@dataclass(frozen=True)
class Measured:
    """A step that was measured.

    Attributes:
      amounts: of its plan, on the machine that it ran on.
      step_time_s: seconds that it took.
    """

    name: str
    amounts: ProgramAmounts
    step_time_s: float


@dataclass(frozen=True)
class Fit:
    """A calibration, and its errors.

    Attributes:
      errors: per step, predicted over measured, less one; left_out: by constants that were fitted
        on all steps but that one.
    """

    calibration: Calibration
    errors: Mapping[str, float]
    left_out: Mapping[str, float]

    @property
    def median_left_out(self) -> float:
        """Median of the absolute leave-one-out errors."""
        return statistics.median(map(abs, self.left_out.values()))


def fit(family: Calibration, measured: Sequence[Measured], constants: Sequence[str]) -> Fit:
    """The named constants that foretell the measured steps best.

    Least squares of relative errors, each constant within its bounds (scipy's trust region).

    Args:
      family: name and chips; constants that it has and that are not fitted are held.

    Raises:
      TableError: fewer steps than constants, or two of one name. HardwareError: none or more than
        four constants, or one that there is not, or that stands twice.
    """
    listed = isinstance(constants, Sequence) and not isinstance(constants, str)
    unknown = not listed or any(c not in tuple(CONSTANTS) for c in constants)
    if unknown or not 1 <= len(constants) <= MOST or len({*constants}) < len(constants):
        raise HardwareError(
            f"constants {constants!r}: give one to {MOST} of {', '.join(CONSTANTS)}, each once, "
            'as in ["exposed"].'
        )
    if len(measured) <= len(constants):
        raise TableError(
            f"{len(measured)} measured steps cannot tell {len(constants)} constants apart and "
            "leave one out: give more rows, or fewer constants."
        )
    twice = [name for name, times in Counter(m.name for m in measured).items() if times > 1]
    if twice:
        raise TableError(f"measured steps of one name, {twice[0]!r}: give each its own.")
    problem = _Problem(family, tuple(constants))
    whole = problem.solved(measured)
    left = {
        one.name: _error(problem.solved([m for m in measured if m is not one]), one)
        for one in measured
    }
    return Fit(whole, {one.name: _error(whole, one) for one in measured}, left)


def _error(calibration: Calibration, one: Measured) -> float:
    return calibration.step_time_s(one.amounts) / one.step_time_s - 1


@dataclass(frozen=True)
class _Problem:
    family: Calibration
    constants: tuple[str, ...]

    def calibration(self, values: Any) -> Calibration:
        """The constants at a point of the search."""
        given = dict(zip(self.constants, map(float, values), strict=True))
        return replace(self.family, values={**self.family.values, **given}, provenance={})

    def solved(self, measured: Sequence[Measured]) -> Calibration:
        """The constants of the least squares, searched in units of their bounds."""
        from scipy.optimize import least_squares

        bounds = [(CONSTANTS[c].least, CONSTANTS[c].most) for c in self.constants]
        low, high = np.array(bounds).T

        def errors(x: Any) -> list[float]:
            one = self.calibration(low + x * (high - low))
            return [_error(one, step) for step in measured]

        start = np.full(len(self.constants), 0.5)
        found = least_squares(errors, start, bounds=(0.0, 1.0), xtol=1e-12, ftol=1e-12)
        return self.calibration(low + found.x * (high - low))
