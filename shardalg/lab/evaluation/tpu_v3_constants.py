"""The constants of TPU v3: the five columns that they are fitted on, and the fit.

The choice of the columns uses no measured value. They are the five columns of Tables 2 and 3 that
determine the two fitted constants best: the information matrix of their relative errors at the
datasheet's seconds has the largest determinant (a D-optimal design). The memory traffic of matrix
products takes no time of its own, because it overlaps with their arithmetic. A third constant slows
pipelined steps, which the paper measured 1.1 to 1.7 times slower than the two constants predict.
One column of Table 4 gives it; the other four are held out. All five were known when it was decided
that the constant slows computation, not communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from shardalg.costs.calibration.by_cause import amounts, items, step_time_s
from shardalg.costs.calibration.constants import EXPOSED, PIPELINED, Calibration
from shardalg.costs.calibration.fit import Fit, Free, Measured, fit
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.lab.evaluation.pipelined_columns import planned
from shardalg.lab.evaluation.prediction import ANCHORS, STEP
from shardalg.lab.evaluation.published import Column, column, columns
from shardalg.lab.evaluation.two_dimensional import CHIP, plans, topology
from shardalg.models.deeper import work_of

if TYPE_CHECKING:
    from shardalg.costs.calibration.by_cause import ProgramAmounts

# The three exposed shares are fitted as one, because every column has tensor parallelism: no column
# shows the share of the other communication alone.
FITTED = (
    Free(("matrix_efficiency",), (CHIP,)),
    Free(("exposed_weights", "exposed_data", "exposed_tensor"), (CHIP,)),
)
HELD = Calibration("xla", (("traffic", 0.0),))
TRAINING = 5
PROVENANCE = "GSPMD (arXiv:2105.04663), step times of five columns of Tables 2 and 3"


@cache
def done(column: Column) -> ProgramAmounts:
    """Return the flops and bytes of the step of a column of GSPMD's Tables 2 and 3.

    The step runs on the slice of TPU v3 that the paper used.
    """
    return done_on(column, topology(column))


def done_on(column: Column, machine: Topology | Hardware) -> ProgramAmounts:
    """Return the flops and bytes of the step of a column of GSPMD's Tables 2 and 3 on a machine."""
    return work_of(column.facts["L"], plans(column), machine)


def measured(column: Column, machine: Hardware | None = None) -> Measured:
    """Return a column of the paper's tables as a measured step: seconds, flops and bytes.

    Args:
      machine: the machine whose flops and bytes are counted; None: the slice that the paper used.
    """
    amounts = done(column) if machine is None else done_on(column, machine)
    return Measured(column.id, CHIP, amounts, column.measured[STEP])


def training_columns(candidates: tuple[Column, ...] | None = None) -> tuple[Column, ...]:
    """Return five columns of GSPMD's Tables 2 and 3, on which the constants are fitted.

    They are the five that determine both constants best (D-optimal design).

    Args:
      candidates: the columns to choose from; None takes all columns of both tables.
    """
    given = candidates or (*columns(2), *columns(3))
    # The derivative of a step's relative error by a constant is the share of the step that this
    # constant multiplies, so the design needs no measured value.
    rows = {}
    for each in given:
        seconds = done(each).by_cause()
        shares = np.array([seconds["matrix"], seconds["link"]])
        rows[each] = shares / (shares.sum() + seconds["passes"] + seconds["latency"])

    def information(chosen: tuple[Column, ...]) -> float:
        matrix = np.array([rows[each] for each in chosen])
        # D-optimal design: M^T M is the information matrix of the least-squares fit. The larger its
        # determinant is, the smaller is the joint uncertainty of both constants.
        return float(np.linalg.det(matrix.T @ matrix))

    # The choice has columns of both tables, because the constants are used for both.
    mixed = (c for c in combinations(given, TRAINING) if len({one.table for one in c}) > 1)
    return max(mixed, key=information)


def fitted(steps: Sequence[Measured]) -> Fit:
    """Fit the constants of TPU v3 to measured steps of the paper's tables.

    Raises:
      TableError: there are fewer steps than constants.
    """
    return fit(steps, {CHIP: HELD}, FITTED)


def with_pipelines(constants: Calibration) -> Calibration:
    """Return `constants` with one more constant, which slows pipelined steps.

    One column of Table 4, the anchor, determines its value: with this value, the predicted time of
    the anchor's step equals the measured time.
    """
    anchor = column(ANCHORS[4])
    plan = planned(anchor)
    work = amounts(plan.program, plan.graph, topology(anchor))
    # The fitted shares of exposed communication are for steps without a pipeline. A pipelined step
    # has the data sheet's seconds, which is a share of 1 (`Calibration.pipelined`).
    exposed = constants.changed(**dict.fromkeys(EXPOSED, 1.0))
    sent = sum(i.time_s for i in items(work, exposed) if i.is_communication)
    computed = step_time_s(replace(work, pipelined=False), exposed) - sent
    # One measured step determines one constant: step = sent + value * computed, solved for `value`.
    value = (anchor.measured[STEP] - sent) / computed
    provenance = {**constants.provenance, PIPELINED: f"{anchor.id} of Table 4 alone, solved for"}
    return replace(constants.changed(**{PIPELINED: value}), provenance=provenance)


def shipped() -> Calibration:
    """Return the constants of TPU v3, fitted on six measured columns of the GSPMD paper.

    Five of them have no pipeline (Tables 2 and 3), and one has a pipeline (Table 4).
    """
    found = fitted([measured(each) for each in training_columns()])
    rows = {
        name: {"error": e, "left_out": found.left_out[name]} for name, e in found.errors.items()
    }
    names = {name: [CHIP] for free in FITTED for name in free.constants}
    provenance = {"source": PROVENANCE, "fitted": names, "held": "", "rows": rows}
    return with_pipelines(replace(found.calibrations[CHIP], provenance=provenance))
