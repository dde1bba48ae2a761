"""The map of the fastest strategies over one or two named sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from shardalg.drawing import Drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that readers with any vision can tell apart (Okabe and Ito, 2008).
COLORS = (
    "#56b4e9",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#f0e442",
    "#0072b2",
    "#d55e00",
    "#999999",
)
NONE = "#eeeeee"
HATCH: dict[str, Any] = {"facecolor": "none", "edgecolor": "#00000055", "hatch": "///", "lw": 0}


def draw_regions(
    sizes: Mapping[str, np.ndarray],
    winner: np.ndarray,
    names: Sequence[str],
    *,
    waits: np.ndarray,
    measured: Mapping[tuple[float, ...], int],
) -> Figure:
    """Draw a cell per point in the colour of its fastest strategy.

    Args:
      sizes: the values of one or two named sizes, by name; together they span a grid of points.
      winner: index in `names` of the fastest strategy at each point; -1 where none fits.
      names: names of the strategies.
      waits: whether the fastest strategy communicates for longer than it computes; these cells are
        hatched.
      measured: index of the strategy that was measured fastest, by the sizes of the point. A cross
        marks a point at which it is not the strategy of the nearest cell.
    """
    axes_names, grids = list(sizes), list(sizes.values())
    cells = winner.reshape(len(grids[0]), -1)
    figure = Drawing(figsize=(6.4, 1.8 if len(grids) == 1 else 4.6), layout="constrained")
    axes = figure.subplots()
    colors = [NONE, *(COLORS[n % len(COLORS)] for n in range(len(names)))]
    # A cell is -1 if no strategy fits there, but a colour map counts from 0: NONE is colour 0.
    axes.imshow(
        cells.T + 1,
        cmap=ListedColormap(colors),
        vmin=-0.5,
        vmax=len(colors) - 0.5,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_xticks(range(len(grids[0])), [f"{n:,}" for n in grids[0]], rotation=45, fontsize=8)
    axes.set_xlabel(axes_names[0])
    if len(grids) == 2:
        axes.set_yticks(range(len(grids[1])), [f"{n:,}" for n in grids[1]], fontsize=8)
        axes.set_ylabel(axes_names[1])
    else:
        axes.set_yticks(())
    shown = [n for n in range(-1, len(names)) if (winner == n).any()]
    handles: list[Any] = [
        Patch(color=colors[n + 1], label="none fits" if n < 0 else names[n]) for n in shown
    ]
    hatched = (waits & (winner >= 0)).reshape(cells.shape)
    for x, y in np.argwhere(hatched):
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **HATCH))
    if hatched.any():
        handles.append(Patch(label="communication-bound", **HATCH))
    # A measured point is a dot if the map has the same winner in the nearest cell, else a cross.
    for marker, label in (("o", "measured"), ("X", "measured, not as drawn")):
        points = [
            (place, n)
            for place, n in ((_place(point, grids), n) for point, n in measured.items())
            if (cells[tuple(np.rint(place).astype(int))] != n) == (marker == "X")
        ]
        if points:
            style: dict[str, Any] = {"marker": marker, "edgecolors": "black", "zorder": 3, "s": 70}
            xs, ys = zip(*(place for place, _ in points), strict=True)
            axes.scatter(xs, ys, c=[colors[n + 1] for _, n in points], **style)
            line: dict[str, Any] = {"marker": marker, "color": "none", "markeredgecolor": "black"}
            handles.append(Line2D([], [], label=label, **line))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def _place(point: Sequence[float], grids: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the position of a point in cells, between two of them on a logarithmic scale."""
    found = [
        float(np.interp(np.log(size), np.log(values), range(len(values))))
        for size, values in zip(point, grids, strict=True)
    ]
    return (found[0], found[1]) if len(found) == 2 else (found[0], 0.0)
