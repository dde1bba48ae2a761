"""Predicted beside measured steps, with the constants of every family, each row left out in turn.

`python -m benchmarks.calibration` fits the constants anew and writes them into the package.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.result import Result
from shardalg.costs.calibration.constants import CONSTANTS, FILES, Calibration
from shardalg.costs.calibration.fit import Fit
from shardalg.files import write_whole
from shardalg.lab.evaluation import tpu_v3_constants
from shardalg.lab.evaluation.comparison import compare
from shardalg.lab.evaluation.prediction import HELD_OUT
from shardalg.lab.evaluation.published import Column, columns
from shardalg.lab.evaluation.two_dimensional import CHIP, model
from shardalg.models.measured.measurements import PUBLISHED, MeasuredStep, calibrate, published
from shardalg.tables import Table

ABOUT = """Steps of dense Transformers that others measured, beside the calibrated cost of their
plans: MaxText on TPU v4, v5e and v5p, llm-foundry on A100 and H100 (`models/measured/`),
and the 13 two-dimensional columns of the paper on TPU v3. `left_out` is the error with constants
fitted on the other rows of the family; `one_utilisation` the error, left out too, of one share of
the peak for the whole family and its counted operations. calculon, with its own tables of
efficiencies, was run on the 13 columns and the five of Table 4: ours beside it are the errors left
out of the 13 and of those of Table 4 that nothing was fitted on."""
CALCULON = {"median error": 0.118, "largest error": 0.456}
"""As published for calculon (github.com/calculon-ai/calculon) on the columns of Tables 2 to 4."""


@dataclass(frozen=True)
class Family:
    """The constants to fit and the rows that they are fitted on.

    Attributes:
      chips: that share the constants; unmeasured ones too.
      fitted: constants; held: those that the compiler or the datasheet gives.
    """

    name: str
    chips: tuple[str, ...]
    rows: Callable[[], tuple[MeasuredStep, ...]]
    fitted: tuple[str, ...]
    held: Mapping[str, float]
    source: str


def _columns(found: Iterable[Column]) -> tuple[MeasuredStep, ...]:
    return tuple(
        MeasuredStep(c.id, model(c), c.mesh, "finalized", CHIP, c.measured["step_time_s"])
        for c in found
    )


def _all_columns() -> tuple[MeasuredStep, ...]:
    return _columns((*columns(2), *columns(3)))


# On TPU the compiler overlaps what products read and write with their arithmetic, and carries
# pointwise operators out with them; GPUs run one kernel per operator, whose bytes all count.
HIDDEN = {"traffic": 0.0}
FAMILIES = (
    Family(
        CHIP, (CHIP,), _all_columns, tpu_v3_constants.FITTED, tpu_v3_constants.HELD,
        "GSPMD (arXiv:2105.04663), Tables 2 and 3",
    ),
    Family(
        "tpu", ("tpu_v4", "tpu_v5e", "tpu_v5p"), lambda: published("tpu"),
        ("matrix_efficiency",), HIDDEN, json.loads(PUBLISHED.read_text())["tpu"]["source"],
    ),
    Family(
        "gpu", ("a100_40gb", "a100_80gb", "h100"), lambda: published("gpu"),
        ("reread_bytes", "kernel_bytes", "traffic"), {},
        json.loads(PUBLISHED.read_text())["gpu"]["source"],
    ),
)  # fmt: skip


def fitted(family: Family) -> Fit:
    """Return the constants of a family, with their provenance."""
    found = calibrate(family.rows(), family.fitted, name=family.name, given=family.held)
    provenance = {"source": family.source, **found.calibration.provenance}
    calibration = replace(found.calibration, chips=family.chips, provenance=provenance)
    return replace(found, calibration=calibration)


def one_utilisation(rows: Iterable[MeasuredStep]) -> dict[str, float]:
    """Errors, each left out, of one share of the peak: the median of the other rows."""
    rows = tuple(rows)
    shares = {row.name: utilisation(row) for row in rows}
    return {
        name: share / statistics.median(s for n, s in shares.items() if n != name) - 1
        for name, share in shares.items()
    }


def utilisation(row: MeasuredStep) -> float:
    """Return useful flops over the flops that the devices could do in the time."""
    cost = _cost(row)
    peak = cost.hardware.peak(row.model.dtype)
    return row.model.counted_flops / (row.step_time_s * cost.devices * peak)


def _cost(row: MeasuredStep) -> Any:
    return row.model.cost(row.mesh, row.chip, strategy=row.strategy)


def of_table_4() -> list[float]:
    """Errors of the pipelined columns that no constant was fitted on."""
    values = compare(columns(4))
    found = [v for v in values if v.quantity == "step_time_s" and v.prediction is not None]
    return [v.prediction.value / v.measured - 1 for v in found if v.prediction.how == HELD_OUT]


def spread(errors: Iterable[float]) -> dict[str, float]:
    """Median and largest of the absolute errors."""
    sizes = [abs(error) for error in errors]
    return {"median error": statistics.median(sizes), "largest error": max(sizes)}


def run(say: Callable[[str], None]) -> Result:
    records, summary = [], {}
    for family in FAMILIES:
        say(f"calibration: {family.name}\n")
        found, alone = fitted(family), one_utilisation(family.rows())
        for row in family.rows():
            cost = _cost(row)
            records.append(
                {
                    "family": family.name,
                    "row": row.name,
                    "measured_s": row.step_time_s,
                    "predicted_s": cost.step_time_s,
                    "error": found.errors[row.name],
                    "left_out": found.left_out[row.name],
                    "one_utilisation": alone[row.name],
                    "fits": cost.fits,
                }
            )
        beside = {"left out": spread(found.left_out.values())}
        if family.name == CHIP:
            ours = [*found.left_out.values(), *of_table_4()]
            beside[f"{len(ours)} columns of Tables 2 to 4"] = spread(ours)
            beside["18 columns of Tables 2 to 4, calculon's"] = CALCULON
        beside["one utilisation"] = spread(alone.values())
        for name, sizes in beside.items():
            summary |= {f"{family.name}, {name}, {what}": size for what, size in sizes.items()}
        for name, value in found.calibration.values.items():
            summary[f"{family.name}, {name} ({CONSTANTS[name].unit})"] = value
    return Result("calibration", ABOUT, Table.from_records(records), summary)


def record() -> None:
    """Fit every family and write its file; TPU v3 on five columns, so that eight are held out."""
    chosen = replace(
        FAMILIES[0],
        rows=lambda: _columns(tpu_v3_constants.training_columns()),
        source=tpu_v3_constants.PROVENANCE,
    )
    for family in (chosen, *FAMILIES[1:]):
        found = fitted(family).calibration
        if family.name == CHIP:
            found = tpu_v3_constants.with_pipelines(found)
        text = json.dumps(rounded(found), indent=1) + "\n"
        write_whole(FILES / f"{family.name}.json", text)
        print(found.name, found.values)


def rounded(calibration: Calibration) -> dict[str, Any]:
    """Plain data with six digits of every number."""

    def short(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: short(inner) for name, inner in value.items()}
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return {name: short(value) for name, value in calibration.to_json().items()}


if __name__ == "__main__":
    record()
