"""The constants of TPU v3: on which five columns they are fitted, and how.

Which columns is decided before any measurement is read: those, of both tables, that tell the two
fitted constants apart best, by the largest determinant of the information matrix of relative errors
(a D-optimal design) at the datasheet's seconds. The memory traffic of matrix products is not
waited for: it goes along with the arithmetic, of which the paper's products have plenty.

One more constant is that of pipelined steps, for which the paper's own are 1.1 to 1.7 times slower
than the two foretell: one column of Table 4 gives it, the other four are held out. That it slows
computation, and not communication, was chosen with all five in sight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from shardalg.costs.calibration.by_cause import MOVED, amounts
from shardalg.costs.calibration.constants import PIPELINED, Calibration
from shardalg.costs.calibration.fit import Fit, Measured, fit
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.lab.evaluation.pipelined_columns import planned
from shardalg.lab.evaluation.prediction import ANCHORS, STEP
from shardalg.lab.evaluation.published import Column, column, columns
from shardalg.lab.evaluation.two_dimensional import CHIP, plans, topology
from shardalg.models.deeper import priced

if TYPE_CHECKING:
    from shardalg.costs.calibration.by_cause import ProgramAmounts

FITTED = ("matrix_efficiency", "exposed")
HELD = {"traffic": 0.0}
TRAINING = 5
PROVENANCE = "GSPMD (arXiv:2105.04663), step times of five columns of Tables 2 and 3"


@cache
def done(column: Column) -> ProgramAmounts:
    """What a step of a 2D column does, by cause, on the slice that it ran on."""
    return done_on(column, topology(column))


def done_on(column: Column, machine: Topology | Hardware) -> ProgramAmounts:
    """The same on another machine."""
    return priced(column.facts["L"], plans(column), machine)[0]


def measured(column: Column, machine: Hardware | None = None) -> Measured:
    """The column's step beside what it does, on its slice or on another machine."""
    amounts = done(column) if machine is None else done_on(column, machine)
    return Measured(column.id, amounts, column.measured[STEP])


def training_columns(candidates: tuple[Column, ...] | None = None) -> tuple[Column, ...]:
    """The columns that the constants are fitted on, of each table at least one."""
    given = candidates or (*columns(2), *columns(3))
    rows = {c: _sensitivity(done(c)) for c in given}
    mixed = (c for c in combinations(given, TRAINING) if len({one.table for one in c}) > 1)
    return max(mixed, key=lambda chosen: _information([rows[c] for c in chosen]))


def _sensitivity(amounts: ProgramAmounts) -> np.ndarray:
    """Shares of the datasheet's step that each fitted constant multiplies."""
    seconds = amounts.by_cause()
    shares = np.array([seconds["matrix"], seconds["link"]])
    whole = shares.sum() + seconds["passes"] + seconds["latency"]
    found: np.ndarray = shares / whole
    return found


def _information(rows: list[np.ndarray]) -> float:
    matrix = np.array(rows)
    return float(np.linalg.det(matrix.T @ matrix))


def fitted(steps: Sequence[Measured]) -> Fit:
    """The constants that foretell the step times of these columns best.

    Raises:
      TableError: fewer columns than constants.
    """
    return fit(Calibration(CHIP, (CHIP,), HELD, {}), steps, FITTED)


def with_pipelines(family: Calibration) -> Calibration:
    """The family with the constant of pipelined steps, by which the anchor is as measured."""
    anchor = column(ANCHORS[4])
    plan = planned(anchor)
    work = amounts(plan.program, plan.graph, topology(anchor))
    seconds, weights = work.by_cause(), family.weights(work)
    sent = sum(seconds[cause] for cause in MOVED)
    computed = sum(seconds[c] * weight for c, weight in weights.items() if c not in MOVED)
    values = {**family.values, PIPELINED: (anchor.measured[STEP] - sent) / computed}
    provenance = {**family.provenance, PIPELINED: f"{anchor.id} of Table 4 alone, solved for"}
    return replace(family, values=values, provenance=provenance)
