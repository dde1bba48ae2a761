"""Rates of one core from programs that were run on it: least squares of relative errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


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
