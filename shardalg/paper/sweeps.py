"""Figures of formulas: what each cost is over a range of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardalg.paper.table1_costs import COLUMNS, Costs
from shardalg.sizes.formula import Formula

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#22262b"
COLORS = ("#c62828", "#ef6c00", "#1565c0", "#2e7d32", "#6a1b9a")
MARKERS = ("o", "s", "^", "D", "v")
POWERS = 2 ** np.arange(1, 9)


def scaling_curves(found: Mapping[str, Costs], axes: Sequence[str] = ("X", "Y")) -> Figure:
    """Bytes per device against the size of each mesh axis, the other sizes at their hints.

    A column per quantity, a row per axis, a line per strategy; both scales are logarithmic, so that
    a cost of order 1/X falls by one step per step. A line ends where the formula's conditions do.
    """
    from shardalg.io.drawing import Drawing

    figure = Drawing(figsize=(3.1 * len(COLUMNS), 2.7 * len(axes) + 0.4), layout="constrained")
    grid = figure.subplots(len(axes), len(COLUMNS), squeeze=False)
    for row, axis in zip(grid, axes, strict=True):
        for panel, quantity in zip(row, COLUMNS, strict=True):
            curves = {name: sweep(costs, quantity, axis) for name, costs in found.items()}
            _draw(panel, curves, axis)
            panel.set_title(quantity.replace("_", " ") if axis == axes[0] else "", fontsize=10)
        row[0].set_ylabel("bytes per device", fontsize=9)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, ncols=len(labels), loc="outside upper left", frameon=False, fontsize=9
    )
    return figure


def sweep(costs: Costs, quantity: str, axis: str) -> np.ndarray:
    """A cost at `POWERS` of one size, the others at their hints; NaN where a condition fails."""
    value = Formula.of(getattr(costs.scaling, quantity))
    swept = np.broadcast_to(value.lambdify()(**{**costs.hints, axis: POWERS}), POWERS.shape)
    points = ({**costs.hints, axis: int(size)} for size in POWERS)
    holds = [all(fact.holds(point) for fact in costs.facts) for point in points]
    return np.where(holds, swept, np.nan)


def _draw(panel: Axes, curves: Mapping[str, np.ndarray], axis: str) -> None:
    """One quantity of all strategies; a cost of 0 has no line and is said in words."""
    nothing = [name for name, values in curves.items() if not np.nansum(values)]
    for place, (name, values) in enumerate(curves.items()):
        # A wider line below a narrower one shows both where they coincide.
        panel.plot(
            POWERS, np.where(values > 0, values, np.nan), color=COLORS[place % len(COLORS)],
            lw=1.2 + 1.3 * (len(curves) - place - 1), alpha=0.85, label=name,
            marker=MARKERS[place % len(MARKERS)], ms=3.5,
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(POWERS, [str(n) for n in POWERS], fontsize=7)
    panel.tick_params(axis="y", labelsize=7)
    panel.grid(color="#e2e5e9", lw=0.6)
    said = f"   ({', '.join(nothing)}: 0)" if nothing else ""
    panel.set_xlabel(f"{axis}{said}", fontsize=9, color=INK)
    panel.spines[["top", "right"]].set_visible(False)
