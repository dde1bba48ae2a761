"""The values of the paper's tables, predicted and measured: as text and as plain data.

`PREDICTORS` maps the number of a table to the function that predicts its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardalg.lab.evaluation import anchored_columns, pipelined_columns, two_dimensional
from shardalg.lab.evaluation.prediction import (
    Compared,
    Predictor,
    Undetermined,
    compared,
    summary,
    summary_records,
)
from shardalg.lab.evaluation.published import Column
from shardalg.tables import Table

PREDICTORS: Mapping[int, Predictor] = {
    2: two_dimensional.predict,
    3: two_dimensional.predict,
    4: pipelined_columns.predict,
    **dict.fromkeys(anchored_columns.PLANS, anchored_columns.predict),
}
"""The function that predicts a column, by the number of the column's table."""


TITLES = {
    2: "Table 2: dense Transformer, wide layers",
    3: "Table 3: dense Transformer, narrow layers",
    4: "Table 4: pipelined Transformer, narrow layers",
    5: "Table 5: pipelined Conformer",
    6: "Table 6: sparse mixture of experts",
    7: "Table 7: hybrid sparse and dense",
    8: "Table 8: 3D U-Net, spatial partitioning",
}
LEGEND = "Each cell: predicted / measured, error; - where nothing is predicted yet."


def compare(columns: Iterable[Column]) -> list[Compared]:
    """Return every measured value of some columns of the paper's tables, with its prediction."""
    return compared(columns, PREDICTORS)


def text(values: Sequence[Compared]) -> str:
    """Return text: errors against their goals, a comparison per table of the paper, open values.

    Open values cannot be predicted, because the paper leaves out a fact that they depend on.
    """
    parts = [str(summary(values)), LEGEND]
    for number, title in TITLES.items():
        chosen = [value for value in values if value.column.table == number]
        if chosen:
            unmodelled = "" if number in PREDICTORS else ": not modelled yet"
            parts.append(f"{title}{unmodelled}\n{side_by_side(chosen)}")
    return "\n\n".join([*parts, *open_values(values)])


def side_by_side(values: Sequence[Compared]) -> Table:
    """Return the values of one table of the paper as a table with its columns as rows.

    A cell has the predicted and the measured value of one quantity.
    """
    columns = {value.column.id: value.column for value in values}
    quantities = tuple(dict.fromkeys(value.quantity for value in values))
    value_of = {(value.column.id, value.quantity): value for value in values}
    rows = []
    for name, column in columns.items():
        # One value of a column may be fitted and another not: the row names the strongest use, and
        # an anchor is the strongest, because its whole table is scaled to it.
        uses = {v.prediction.how for v in values if v.column == column and v.prediction}
        strongest_use = next((how for how in ("anchor", "trained", "held out") if how in uses), "-")
        facts = column.facts
        cells = [_cell(value_of[name, quantity]) for quantity in quantities]
        rows.append(
            (name, facts["param_count"], column.mesh_text, facts["B"], strongest_use, *cells)
        )
    first_columns = ("column", "parameters", "mesh", "batch", "constants")
    return Table((*first_columns, *quantities), tuple(rows))


def _cell(value: Compared) -> str:
    """Return the text "predicted / measured error" of a value; "-" without a prediction."""
    if value.prediction is None or value.error is None:
        return f"- / {value.measured:g}"
    unit = "%" if value.unit == "%" else "pt"
    return f"{value.prediction.value:.4g} / {value.measured:g} {value.error:+.1f} {unit}"


def open_values(values: Iterable[Compared]) -> Iterator[str]:
    """Yield one text with the values that the paper does not determine, by reason, or nothing."""
    places_by_reason: dict[str, list[str]] = {}
    for value in values:
        if isinstance(value.goal, Undetermined):
            place = f"{value.column.id} {value.quantity}"
            places_by_reason.setdefault(value.goal.reason, []).append(place)
    if places_by_reason:
        yield "Not determined by the paper:\n" + "\n".join(
            f"- {_shortened(places)}: {reason}" for reason, places in places_by_reason.items()
        )


def _shortened(places: Sequence[str]) -> str:
    """Return texts "column quantity" as one text; columns of one table are joined.

    For example, "sparse-bench.c1 peak_memory_GB" and "sparse-bench.c2 peak_memory_GB" become
    "sparse-bench c1 c2 peak_memory_GB".
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for place in places:
        column, quantity = place.split()
        table, number = column.split(".")
        groups.setdefault((table, quantity), []).append(number)
    return "; ".join(f"{table} {' '.join(n)} {name}" for (table, name), n in groups.items())


def records(values: Sequence[Compared]) -> dict[str, Any]:
    """Return every measured value with its prediction, and the errors per goal, as plain data."""
    return {
        "source": "GSPMD (arXiv:2105.04663), section 5",
        "summary": summary_records(values),
        "values": [value.to_json() for value in values],
    }
