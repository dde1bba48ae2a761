"""Predictions compared with the paper's measured values, and goals for their errors.

A goal limits the median and the largest error of a quantity in the tables with this goal. Errors of
bytes and seconds are in per cent of the measured value, errors of shares are in points. A value
that the paper does not determine has the reason instead of a goal.

For Tables 4 to 8 one measured column per table (anchor) replaces the facts that the paper does not
state about its steps: predictions of the other columns are scaled to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardalg.costs.hardware import Hardware, load
from shardalg.costs.topology import Topology
from shardalg.lab.evaluation.published import Column, column
from shardalg.tables import Table

PERCENT, POINTS = "%", "points"


@dataclass(frozen=True)
class Goal:
    """The limits for the errors of the predictions of one quantity.

    Attributes:
      median, most: limits of the median and the largest absolute error, in `unit`; None sets no
        limit.
      unit: "%" of the measured value, or "points" of a share.

    >>> print(Goal(5, 15), Goal(2, unit=POINTS), sep="; ")
    median 5 %, most 15 %; median 2 points
    """

    median: float | None = None
    most: float | None = None
    unit: str = PERCENT

    def __str__(self) -> str:
        limits = (("median", self.median), ("most", self.most))
        return ", ".join(f"{name} {value:g} {self.unit}" for name, value in limits if value)

    def met(self, median: float, most: float) -> bool:
        """Return True if this median and this largest error are within the limits."""
        pairs = ((median, self.median), (most, self.most))
        return all(limit is None or found <= limit for found, limit in pairs)


@dataclass(frozen=True)
class Undetermined:
    """A value that cannot be predicted, with the reason: a fact that the paper does not state."""

    reason: str

    def __str__(self) -> str:
        return f"not determined by the paper: {self.reason}"


PEAK, STEP, UTILISATION = "peak_memory_GB", "step_time_s", "flops_util_pct"
RAW, BUBBLES, RECOMPUTE = "raw_flops_util_pct", "bubbles_pct", "recompute_pct"
ALL_TO_ALL = "alltoall_pct"
UNITS = {
    PEAK: PERCENT, STEP: PERCENT, UTILISATION: POINTS, RAW: POINTS, BUBBLES: POINTS,
    RECOMPUTE: POINTS, ALL_TO_ALL: POINTS,
}  # fmt: skip
"""The unit of errors of each measured quantity."""

_TWO_D = {PEAK: Goal(5, 15), STEP: Goal(4, 10), UTILISATION: Goal(2, unit=POINTS)}
_SCHEDULE = {BUBBLES: Goal(most=1.5, unit=POINTS), RECOMPUTE: Goal(most=2, unit=POINTS)}
_ANCHORED = Goal(5, 12)
_RAW = Undetermined("which flops the profiler counts as valid is not stated")
_NO_SIZES = "{} are not stated, so that bytes and flops are not known"
_SPARSE, _HYBRID, _SPATIAL = (
    Undetermined(_NO_SIZES.format(what))
    for what in ("layers, widths and sequence length", "layers, M, D and S", "channel widths")
)
_ROUNDED = Undetermined("sizes are not stated, and the share is rounded to a per cent")
# Tables 5 to 8 do not state all sizes of their models, so bytes and flops cannot be predicted. For
# seconds, one measured column per table (the anchor) replaces the missing facts.
GOALS: Mapping[int, Mapping[str, Goal | Undetermined]] = {
    2: _TWO_D,
    3: _TWO_D,
    4: {PEAK: Goal(10), STEP: Goal(5, 10), RAW: _RAW, **_SCHEDULE},
    5: {PEAK: Goal(10), STEP: _ANCHORED, RAW: _RAW, **_SCHEDULE},
    6: {PEAK: _SPARSE, STEP: _ANCHORED, UTILISATION: _SPARSE, ALL_TO_ALL: _ROUNDED},
    7: {PEAK: _HYBRID, STEP: _ANCHORED, UTILISATION: _HYBRID},
    8: {PEAK: _SPATIAL, STEP: _ANCHORED, UTILISATION: _SPATIAL},
}
MISPRINTS = {
    ("conformer-pipe-bench.c4", RECOMPUTE): Undetermined(
        "29.9 is out of line with the other five (21.3 to 22.9), a suspected misprint of 22.9"
    )
}


def goal(column: Column, quantity: str) -> Goal | Undetermined:
    """Return the goal for a prediction of one measured value, or why there is none.

    >>> from shardalg.lab.evaluation.published import column
    >>> print(goal(column("narrow-bench.c1"), STEP))
    median 4 %, most 10 %
    >>> print(goal(column("sparse-bench.c1"), ALL_TO_ALL))
    not determined by the paper: sizes are not stated, and the share is rounded to a per cent
    """
    return MISPRINTS.get((column.id, quantity)) or GOALS[column.table][quantity]


KEYS = {PERCENT: "pct", POINTS: "points"}
"""The suffix of keys in plain data for each unit of errors."""
NO_CONSTANT, TRAINED, HELD_OUT, ANCHOR = "no constant", "trained", "held out", "anchor"


@dataclass(frozen=True)
class Prediction:
    """The predicted value of a measured quantity.

    Attributes:
      value: the prediction, in the unit of the measured value.
      how: the origin of the constants. "no constant": none was fitted. "trained": constants were
        fitted on this column. "held out": constants were fitted on other columns. "anchor": the
        other predictions of the table are scaled to this measured value.
    """

    value: float
    how: str = NO_CONSTANT


Predictor = Callable[[Column], Mapping[str, Prediction]]
"""A function from a column to predictions by quantity, without those that it cannot predict."""


@dataclass(frozen=True)
class Compared:
    """One measured value of the paper and its prediction; None if no model predicts it."""

    column: Column
    quantity: str
    prediction: Prediction | None

    @property
    def measured(self) -> float:
        """The value as printed in the paper."""
        return self.column.measured[self.quantity]

    @property
    def goal(self) -> Goal | Undetermined:
        """The goal of the prediction, or why there is none."""
        return goal(self.column, self.quantity)

    @property
    def error(self) -> float | None:
        """Predicted minus measured value in `unit`; None without a prediction."""
        if self.prediction is None:
            return None
        difference = self.prediction.value - self.measured
        return 100 * difference / self.measured if self.unit == PERCENT else difference

    @property
    def unit(self) -> str:
        """The unit of `error`: "%" or "points"."""
        return UNITS[self.quantity]

    @property
    def counts(self) -> bool:
        """True if the error of the prediction counts for a goal.

        It does not count if constants were fitted to the measured value.
        """
        fitted = self.prediction is None or self.prediction.how in (TRAINED, ANCHOR)
        return not fitted and isinstance(self.goal, Goal)

    def record(self) -> dict[str, Any]:
        """Return the value, its prediction, error and goal as plain data."""
        found = self.prediction
        return {
            "table": self.column.table,
            "column": self.column.id,
            "mesh": self.column.mesh_text,
            "quantity": self.quantity,
            "predicted": None if found is None else found.value,
            "measured": self.measured,
            "error": self.error,
            "unit": self.unit,
            "constants": None if found is None else found.how,
            "goal": str(self.goal),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the record with the unit of each number in its key."""
        found = self.record()
        del found["unit"]
        names = {name: f"{name}_{self.quantity}" for name in ("predicted", "measured")}
        names["error"] = f"error_{KEYS[self.unit]}"
        return {names.get(name, name): value for name, value in found.items()}


def compared(columns: Iterable[Column], predictors: Mapping[int, Predictor]) -> list[Compared]:
    """Return every measured value of some columns of the paper's tables, with its prediction.

    Args:
      predictors: by table number, a function from a column to its predictions by quantity. Columns
        of other tables have no predictions.
    """
    found: list[Compared] = []
    for each in columns:
        predictor = predictors.get(each.table)
        predictions = predictor(each) if predictor else {}
        found += (Compared(each, name, predictions.get(name)) for name in each.measured)
    return found


def summary(values: Iterable[Compared]) -> Table:
    """Return a row per quantity and goal: number of values, errors, and whether the goal is met.

    A goal is a largest error that predictions of the quantity should have.
    """
    names = ("quantity", "tables", "num_values", "median_error", "largest_error", "goal", "met")
    return Table(names, tuple(map(_row, summary_records(values))))


def _row(found: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a row of the table `summary` from a record of `summary_records`."""
    quantity, tables, count, median, most, limits, met = found.values()
    if met is None:
        return quantity, tables, 0, "", "", limits, "not modelled yet"
    shown = (f"{size:.1f} {UNITS[quantity]}" for size in (median, most))
    return quantity, tables, count, *shown, limits, "yes" if met else "NO"


def summary_records(values: Iterable[Compared]) -> list[dict[str, Any]]:
    """Return a dictionary per goal, such as "at most 5 % error of the step time".

    The entries are the number of predictions with this goal, their errors, and whether the goal is
    met. Keys name the units.
    """
    groups: dict[tuple[str, str], list[Compared]] = {}
    for value in values:
        if isinstance(value.goal, Goal):
            groups.setdefault((value.quantity, str(value.goal)), []).append(value)
    return [_judged(quantity, group) for (quantity, _), group in groups.items()]


def _judged(quantity: str, group: list[Compared]) -> dict[str, Any]:
    """Return a record of plain data: the median and the largest error of a group, and its goal.

    Args:
      quantity: the measured quantity of all values in the group.
      group: values with the same goal.
    """
    target = group[0].goal
    assert isinstance(target, Goal), "groups have goals"
    tables = ", ".join(map(str, sorted({value.column.table for value in group})))
    # A value to which constants were fitted says nothing about the predictions, so it does not
    # count.
    errors = [abs(value.error) for value in group if value.counts and value.error is not None]
    median, most = (statistics.median(errors), max(errors)) if errors else (None, None)
    unit = KEYS[target.unit]
    return {
        "quantity": quantity,
        "tables": tables,
        "num_values": len(errors),
        f"median_error_{unit}": median,
        f"largest_error_{unit}": most,
        "goal": str(target),
        "met": None if median is None or most is None else target.met(median, most),
    }


ANCHORS = {
    4: "narrow-pipe-bench.c2",
    5: "conformer-pipe-bench.c2",
    6: "sparse-bench.c2",
    7: "hybrid-bench.c2",
    8: "unet-bench.c2",
}
"""The id of the anchor column by table number."""
CHIP, CORES = "tpu_v3", 2


def slice_of(devices: int) -> Topology | Hardware:
    """Return the most nearly square slice of TPU v3 with `devices` cores, or a single core.

    >>> slice_of(64), slice_of(2048)
    (Topology(tpu_v3:4x8), Topology(tpu_v3:32x32))
    """
    if devices < CORES:
        return load(CHIP)
    chips = devices // CORES
    short = 1 << (chips.bit_length() - 1) // 2
    return Topology(CHIP, shape=(short, chips // short))


def anchored(
    here: Column, anchor: str, seconds: Callable[[Column], float], quantity: str = STEP
) -> Prediction:
    """Return a prediction for the column `here`, scaled by one measured column, the anchor.

    The prediction is `seconds(here)` times the ratio of the measured to the modelled value of the
    anchor.

    Args:
      anchor: the id of the anchor, a column of the same table. Its own prediction is the measured
        value, marked "anchor".
      seconds: returns the model's value for a column; only ratios of these values matter.
    """
    there = column(anchor)
    if here.id == anchor:
        return Prediction(there.measured[quantity], ANCHOR)
    return Prediction(seconds(here) * there.measured[quantity] / seconds(there), HELD_OUT)
