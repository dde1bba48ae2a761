"""The figure and the page of a comparison of strategies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.patches import Patch

from shardalg.costs.analyses.cause_bars import limit_color, place_of
from shardalg.drawing import Drawing
from shardalg.files import write_whole
from shardalg.show.pages.explorer_page import explorer_document
from shardalg.tables import Table, bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class StrategyBar(NamedTuple):
    """The quantities of a strategy that its bar shows.

    Attributes:
      name: the name in the comparison. mesh: the sizes of the mesh axes, as text.
      refused: the reason why the strategy has no plan; "" if it has one.
      fits: whether the peak memory is within the capacity of a device.
      step_s: seconds of a step. limits: seconds of each cause of the step's time.
      peak_bytes, capacity_bytes: peak memory of a device, and the bytes that a step may use.
    """

    name: str
    mesh: str
    refused: str
    fits: bool
    step_s: float
    limits: Mapping[str, float]
    peak_bytes: float
    capacity_bytes: float


MOST_TIMES = 5
"""The longest bar that is drawn whole, as a multiple of the shortest."""
LEAST_LABELLED = 0.07
"""Share of the longest bar; the name of an axis does not fit into a shorter part."""


def draw_comparison(rows: Sequence[StrategyBar]) -> Figure:
    """Draw a bar per strategy: the causes of its step time, and its peak memory as text.

    Bars of strategies that do not fit are pale and say so. Refused strategies have their reason. A
    bar that is more than `MOST_TIMES` as long as the shortest one is cut.
    """
    height = 0.9 + 0.46 * max(1, len(rows))
    figure = Drawing(figsize=(8.4, height + 0.5), layout="constrained")
    axes = figure.subplots()
    steps = [row.step_s for row in rows if not row.refused and row.step_s]
    # Bars of strategies that are many times slower are cut, so that the others stay readable.
    longest = min(max(steps, default=1.0), MOST_TIMES * min(steps, default=1.0))
    seen: dict[str, str] = {}
    for place, row in enumerate(rows):
        if row.refused:
            axes.text(0, place, f" refused: {row.refused[:90]}", va="center", fontsize=8)
            continue
        left = 0.0  # the end of the parts that are drawn already, in seconds
        # Bars can be compared part by part only if their causes have the same order.
        for cause, seconds in sorted(row.limits.items(), key=lambda part: place_of(part[0])):
            shown = min(seconds, longest - left)
            if shown <= 0:
                continue
            # A legend with a colour per mesh axis would be long. Communication therefore has one
            # colour, and the axis is written inside the bar.
            color = seen.setdefault(cause, limit_color(cause))
            axes.barh(
                place,
                1e3 * shown,
                left=1e3 * left,
                height=0.62,
                color=color,
                alpha=1.0 if row.fits else 0.35,
                edgecolor="white",
            )
            along = cause.partition(" along ")[2]
            if along and shown / longest > LEAST_LABELLED:
                axes.text(
                    1e3 * (left + shown / 2), place, along, ha="center", va="center", fontsize=7
                )
            left += seconds
        fits = "" if row.fits else ", does not fit"
        # A search may have no memory budget.
        room = f" of {bytes_text(row.capacity_bytes)}" if row.capacity_bytes < float("inf") else ""
        held = f"{bytes_text(row.peak_bytes)}{room}{fits}"
        is_cut = row.step_s > longest
        axes.text(
            1e3 * min(row.step_s, longest),
            place,
            f"  {'… ' if is_cut else ''}{seconds_text(row.step_s)}, {held}",
            va="center",
            fontsize=8,
        )
    names = [f"{row.name}\n{row.mesh}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set(xlabel="ms of a step", xlim=(0, 1e3 * longest * 1.4))
    axes.spines[["top", "right"]].set_visible(False)
    kinds = {cause.partition(" along ")[0]: color for cause, color in seen.items()}
    handles = [Patch(color=color, label=kind) for kind, color in kinds.items()]
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )
    return figure


def write_comparison(
    rows: Sequence[StrategyBar],
    conclusion: str,
    sections: Iterable[tuple[str, Table]],
    path: Path,
    *,
    title: str = "Strategies compared",
) -> Path:
    """Write the comparison as one interactive HTML file that loads nothing; return the path.

    Args:
      rows: the strategies, one point each.
      conclusion: text below the title.
      sections: titles and tables below the points; empty tables are left out.
      title: the title of the page.
    """
    write_whole(path, explorer_document(rows, conclusion, sections, title=title))
    return path
