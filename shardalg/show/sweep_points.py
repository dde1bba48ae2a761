"""The figure and the page of a sweep: time against memory, a dot per point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardalg.drawing import Drawing
from shardalg.files import write_whole
from shardalg.pictures import png
from shardalg.show.html import Page, Picture, Section
from shardalg.tables import Table

if TYPE_CHECKING:
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
MOST_NAMED = 3
"""More names in the figure would cover the dots."""


def draw_sweep(rows: Sequence[SweepDot], best: Sequence[SweepDot], unit: str) -> Figure:
    """Draw a dot per point: memory to the right, time upwards, a colour per policy.

    Points that do not fit are hollow. A line joins those that no other one beats, of which the
    fastest that fit are named.

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
        for is_fitting in (True, False):
            dots = [row for row in drawn if row.remat == policy and row.fits is is_fitting]
            if dots:
                axes.scatter(
                    [row.peak_bytes / 1e9 for row in dots],
                    [1e3 * row.order for row in dots],
                    s=22,
                    facecolors=color if is_fitting else "none",
                    edgecolors=color,
                    linewidths=0.8,
                    label=policy if is_fitting else f"{policy}, does not fit",
                )
    line = sorted(best, key=lambda row: row.peak_bytes)
    axes.plot(
        [row.peak_bytes / 1e9 for row in line],
        [1e3 * row.order for row in line],
        color="#22262b",
        linewidth=0.8,
        label="not beaten in both",
    )
    for row in sorted((row for row in best if row.fits), key=lambda row: row.order)[:MOST_NAMED]:
        place = (row.peak_bytes / 1e9, 1e3 * row.order)
        axes.annotate(row.name, place, (4, 4), textcoords="offset points", fontsize=7)
    if drawn:
        # The memory of a device is shown where points are near it.
        capacity = drawn[0].capacity_bytes
        if max(row.peak_bytes for row in drawn) > capacity / 3:
            axes.axvline(capacity / 1e9, color="#d55e00", linewidth=0.8, linestyle="--")
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel="GB at the peak of a device", ylabel=f"ms per {unit}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


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
