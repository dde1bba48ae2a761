"""A predicted value beside its measured one, and where its constants are from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardalg.io.table import Table
from shardalg.paper.evaluation.goals import PERCENT, POINTS, UNITS, Goal, Undetermined, goal
from shardalg.paper.evaluation.published import Column

KEYS = {PERCENT: "pct", POINTS: "points"}
"""Per unit of an error, its suffix in the keys of plain data."""
NO_CONSTANT, TRAINED, HELD_OUT, ANCHOR = "no constant", "trained", "held out", "anchor"


@dataclass(frozen=True)
class Prediction:
    """What a model says of one measured value.

    Attributes:
      value: in the unit of the measured one.
      how: "no constant" was fitted for it; "trained": the value, or its column, is one that
        constants were fitted on; "held out": fitted constants, on other columns; "anchor": the one
        value of its table that stands for what the paper does not state.
    """

    value: float
    how: str = NO_CONSTANT


Predictor = Callable[[Column], Mapping[str, Prediction]]
"""Predictions of a column by quantity; a quantity that it leaves out is not predicted."""


@dataclass(frozen=True)
class Compared:
    """One measured value, and what is predicted of it; no prediction where nothing models it."""

    column: Column
    quantity: str
    prediction: Prediction | None

    @property
    def measured(self) -> float:
        """As printed in the paper."""
        return self.column.measured[self.quantity]

    @property
    def goal(self) -> Goal | Undetermined:
        """What is asked of the prediction, or why nothing is."""
        return goal(self.column, self.quantity)

    @property
    def error(self) -> float | None:
        """Predicted less measured: in per cent of the measured value, of a share in points."""
        if self.prediction is None:
            return None
        difference = self.prediction.value - self.measured
        return 100 * difference / self.measured if self.unit == PERCENT else difference

    @property
    def unit(self) -> str:
        """What `error` is in: "%" or "points"."""
        return UNITS[self.quantity]

    @property
    def counts(self) -> bool:
        """Whether its error is held against a goal: what was fitted to it proves nothing."""
        fitted = self.prediction is None or self.prediction.how in (TRAINED, ANCHOR)
        return not fitted and isinstance(self.goal, Goal)

    def record(self) -> dict[str, Any]:
        """Plain data, of numbers and texts."""
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
    """Every measured value of the columns with its prediction.

    Args:
      predictors: by table number; a table without one is not modelled.
    """
    found: list[Compared] = []
    for column in columns:
        predictor = predictors.get(column.table)
        made = predictor(column) if predictor else {}
        found += (Compared(column, name, made.get(name)) for name in column.measured)
    return found


def summary(values: Iterable[Compared]) -> Table:
    """Per goal: how many values count, the median and the largest of their errors, whether met."""
    names = ("quantity", "tables", "num_values", "median_error", "largest_error", "goal", "met")
    return Table(names, tuple(map(_row, summary_records(values))))


def _row(found: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a row of the summary as a table shows it."""
    quantity, tables, count, median, most, asked, met = found.values()
    if met is None:
        return quantity, tables, 0, "", "", asked, "not modelled yet"
    shown = (f"{size:.1f} {UNITS[quantity]}" for size in (median, most))
    return quantity, tables, count, *shown, asked, "yes" if met else "NO"


def summary_records(values: Iterable[Compared]) -> list[dict[str, Any]]:
    """Return one record of plain data per goal, with units in the keys."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for value in values:
        if isinstance(value.goal, Goal):
            groups.setdefault((value.quantity, str(value.goal)), []).append(value)
    return [_judged(quantity, group) for (quantity, _), group in groups.items()]


def _judged(quantity: str, group: list[Compared]) -> dict[str, Any]:
    asked = group[0].goal
    assert isinstance(asked, Goal), "groups have goals"
    tables = ", ".join(map(str, sorted({value.column.table for value in group})))
    errors = [abs(value.error) for value in group if value.counts and value.error is not None]
    median, most = (statistics.median(errors), max(errors)) if errors else (None, None)
    unit = KEYS[asked.unit]
    return {
        "quantity": quantity,
        "tables": tables,
        "num_values": len(errors),
        f"median_error_{unit}": median,
        f"largest_error_{unit}": most,
        "goal": str(asked),
        "met": None if median is None or most is None else asked.met(median, most),
    }
