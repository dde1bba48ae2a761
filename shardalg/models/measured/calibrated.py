"""Constants of a family of chips from a table of measured steps of dense Transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardalg.costs.calibration.constants import Calibration
from shardalg.costs.calibration.fit import Fit, Measured, fit
from shardalg.costs.hardware import load
from shardalg.errors import ShardalgError
from shardalg.models.dense_cost import machine_for, priced
from shardalg.models.dense_strategies import mesh_of
from shardalg.models.measured.measurements import Measurement, read, told_apart


def calibrate(
    table: Any,
    constants: Sequence[str] = ("matrix_efficiency", "exposed"),
    *,
    name: str = "calibrated",
    given: Mapping[str, float] | None = None,
) -> Fit:
    """The constants that foretell measured steps best, and how well.

    Args:
      table: as `measurements.read` reads it: rows with the sizes of a `DenseTransformer`, a chip, a
        mesh and one of step_time_s, tokens_per_s and tflops_per_chip.
      constants: at most four, to be fitted (`costs.calibration.constants.CONSTANTS`).
      name: of the family; given: constants that are held.

    Raises:
      TableError: rows without a unit, with no number, or fewer than constants.
      HardwareError: an unknown chip or constant.
    """
    rows = told_apart(table if _is_read(table) else read(table))
    steps = [_measured(number, row) for number, row in enumerate(rows)]
    chips = tuple(dict.fromkeys(load(row.chip).name for row in rows))
    family = Calibration(name, chips, given or {}, {})
    found = fit(family, steps, constants)
    errors = {one: {"error": found.errors[one], "left_out": e} for one, e in found.left_out.items()}
    provenance = {"fitted": list(constants), "rows": errors}
    return replace(found, calibration=replace(found.calibration, provenance=provenance))


def _is_read(table: Any) -> bool:
    return isinstance(table, tuple) and all(isinstance(row, Measurement) for row in table)


def _measured(number: int, row: Measurement) -> Measured:
    """The same as `measured`, with the number of the row in what it raises."""
    try:
        return measured(row)
    except ShardalgError as error:
        raise type(error)(f"row {number}: {error}") from None


def measured(row: Measurement) -> Measured:
    """A measured step beside what its plan does."""
    mesh = mesh_of(row.mesh)
    on = machine_for(mesh, row.chip)
    plans = row.model.shallow_plans(mesh, row.strategy)
    done, _ = priced(row.model.layers, plans, on)
    return Measured(row.name, done, row.step_time_s)
