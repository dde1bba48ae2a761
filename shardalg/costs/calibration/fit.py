"""Constants from measured steps: bounded least squares on relative errors, and leave-one-out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardalg.costs.calibration.by_cause import Amounts
from shardalg.costs.calibration.constants import CONSTANTS, MOST, Calibration
from shardalg.errors import HardwareError, TableError


@dataclass(frozen=True)
class Measured:
    """A step that was measured.

    Attributes:
      amounts: of its plan, on the machine that it ran on.
      step_time_s: seconds that it took.
    """

    name: str
    amounts: Amounts
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
