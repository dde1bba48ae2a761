"""The figure and the page of a sweep: time against memory, a dot per point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from shardalg.drawing import Drawing
from shardalg.files import write_whole
from shardalg.pictures import png
from shardalg.show.html import Page, Picture, Section
from shardalg.tables import Table, bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class SweepDot(NamedTuple):
    """The quantities of a point of a sweep that its dot shows.

    Attributes:
      name: mesh, sizes and policy, as text. remat: the policy alone.
      order: seconds per step or per sample; infinite if the point has no figures.
      peak_bytes, capacity_bytes: peak memory of a device, and the bytes that a step may use.
      fits: whether the peak is within the capacity.
    """

    name: str
    remat: str
    order: float
    peak_bytes: float
    capacity_bytes: float
    fits: bool


# Colours that readers with any vision can tell apart (Okabe and Ito, 2008).
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
LEAST_LOGARITHMIC = 5
"""Amounts that differ by a larger factor have a logarithmic axis."""
MOST_NAMED = 3
"""More names in the figure would cover the dots."""


def draw_sweep(rows: Sequence[SweepDot], best: Sequence[SweepDot], unit: str) -> Figure:
    """Draw a dot per point: memory to the right, time upwards, a colour per policy.

    Points that do not fit in memory are hollow. A line joins those that no other one beats (the
    Pareto front), of which the fastest that fit are named.

    Args:
      rows: all points; those without figures are left out.
      best: the points that no other one beats in both.
      unit: "step" or "sample".
    """
    figure = Drawing(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    drawn = [row for row in rows if row.order < float("inf")]
    policies = list(dict.fromkeys(row.remat for row in drawn))
    for number, policy in enumerate(policies):
        color = COLORS[number % len(COLORS)]
        # Filled and hollow dots are two calls, because each needs an entry in the legend.
        for is_fitting in (True, False):
            dots = [row for row in drawn if row.remat == policy and row.fits is is_fitting]
            if dots:
                axes.scatter(
                    [row.peak_bytes for row in dots],
                    [row.order for row in dots],
                    s=22,
                    facecolors=color if is_fitting else "none",
                    edgecolors=color,
                    linewidths=0.8,
                    label=policy if is_fitting else f"{policy}, does not fit",
                )
    line = sorted(best, key=lambda row: row.peak_bytes)
    axes.plot(
        [row.peak_bytes for row in line],
        [row.order for row in line],
        color="#22262b",
        linewidth=0.8,
        label="not beaten in both",
    )
    # Words that all points have, such as the only mesh, tell no point from another one.
    words = [row.name.split(", ") for row in drawn]
    shared = set.intersection(*map(set, words)) if len(words) > 1 else set()
    for row in sorted((row for row in best if row.fits), key=lambda row: row.order)[:MOST_NAMED]:
        name = ", ".join(word for word in row.name.split(", ") if word not in shared)
        place = (row.peak_bytes, row.order)
        axes.annotate(name, place, (4, 4), textcoords="offset points", fontsize=7)
    if drawn:
        # The memory of a device is shown where points are near it.
        capacity = drawn[0].capacity_bytes
        if max(row.peak_bytes for row in drawn) > capacity / 3:
            usable = f"usable: {bytes_text(capacity)}"
            axes.axvline(capacity, color="#d55e00", linewidth=0.8, linestyle="--", label=usable)
        _scale(axes, "x", [row.peak_bytes for row in drawn], bytes_text)
        _scale(axes, "y", [row.order for row in drawn], seconds_text)
    axes.set(xlabel="peak memory of a device", ylabel=f"time per {unit}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _scale(axes: Axes, side: str, amounts: Sequence[float], text: Callable[[float], str]) -> None:
    """Write amounts with their units at the ticks of an axis, which is logarithmic if they differ.

    Args:
      side: "x" or "y".
      amounts: the amounts along the axis, all larger than 0.
      text: function that writes an amount.
    """
    axis = {"x": axes.xaxis, "y": axes.yaxis}[side]
    # Within a small factor, 1, 2 and 5 times powers of ten would be one tick or none.
    if max(amounts) > LEAST_LOGARITHMIC * min(amounts) > 0:
        axes.set(**{f"{side}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda amount, _: text(amount)))


def write_sweep(
    figure: Figure, conclusion: str, sections: Iterable[tuple[str, Table]], path: Path
) -> Path:
    """Write a sweep as one HTML file with its picture inside; return the path.

    Args:
      figure: the result of `draw_sweep`.
      conclusion: text below the title.
      sections: titles and tables below the picture.
    """
    picture = Picture("sweep", png(figure), "Time against memory, a dot per point.")
    parts = [Section("Time and memory", (picture,))]
    parts += [Section(title, (table,)) for title, table in sections if len(table)]
    write_whole(path, Page("Sweep", conclusion, tuple(parts)).to_html())
    return path
