"""A figure of all predictions: predicted against measured seconds, with bands of the errors."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardalg.lab.evaluation.prediction import ANCHOR, STEP, TRAINED, Compared
from shardalg.lab.evaluation.published_runs import published_runs
from shardalg.pictures import png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, BAND = "#22262b", "#8a9099", "#e3e6ea"
COLORS = (
    "#1565c0", "#c62828", "#2e7d32", "#ef6c00", "#6a1b9a", "#00838f", "#5d4037", "#c2185b",
    "#37474f",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "*")
BANDS = (0.05, 0.10)


@dataclass(frozen=True)
class Point:
    """The measured and predicted seconds of one configuration.

    Attributes:
      fitted: True if constants were fitted on the measured value.
    """

    measured: float
    predicted: float
    fitted: bool = False

    @property
    def error(self) -> float:
        """The error as a signed share of the measured value.

        >>> Point(2.0, 2.5).error
        0.25
        """
        return self.predicted / self.measured - 1


def step_times(values: Iterable[Compared]) -> dict[str, list[Point]]:
    """Return the measured and predicted step times of the paper's tables, as points of a figure.

    A key is the name of a table, such as "Table 2". A point is a column of this table; columns
    without a prediction are left out.
    """
    found: dict[str, list[Point]] = {}
    for value in values:
        predicted = value.prediction
        if value.quantity == STEP and predicted is not None:
            point = Point(value.measured, predicted.value, predicted.how in (TRAINED, ANCHOR))
            found.setdefault(f"Table {value.column.table}", []).append(point)
    return found


def published_rows() -> dict[str, list[Point]]:
    """Return a point per published training step on other chips, by chip and software.

    Each step is predicted with constants that were fitted on all other steps (leave one out).
    """
    found: dict[str, list[Point]] = {}
    for run in published_runs():
        if run.skip:
            continue
        chip = run.machine.on(run.software).chip
        # The error of a fit without this row, because a fit that has seen the measurement of a row
        # would look better than a true prediction.
        left_out = chip.calibration.provenance["rows"][run.name]["left_out"]
        point = Point(run.step_s, run.step_s * (1 + left_out))
        found.setdefault(f"{chip.name}, {run.software}", []).append(point)
    return found


def predicted_against_measured(
    found: Mapping[str, Sequence[Point]], *, title: str = "seconds per step"
) -> Figure:
    """Draw a point per configuration; errors of at most 5 % and of at most 10 % are shaded.

    `found` has the points of each series by its name. A point is hollow if constants were fitted
    on it. The lower panel shows the errors, because logarithmic scales hide small ones.
    """
    from shardalg.drawing import Drawing

    figure = Drawing(figsize=(6.4, 7.2), layout="constrained")
    times_panel, errors_panel = figure.subplots(2, 1, height_ratios=(3, 1.3), sharex=True)
    all_points = [p for points in found.values() for p in points]
    low, high = (f(p.measured for p in all_points) for f in (min, max))
    ends = [low / 1.25, high * 1.25]
    # The wider band first: the narrower one is drawn over it and gets the darker shade.
    for band in BANDS[::-1]:
        # A band is the area between `(1 - error) * measured` and `(1 + error) * measured`.
        edges = [[end * (1 + sign * band) for end in ends] for sign in (-1, 1)]
        times_panel.fill_between(ends, *edges, color=INK, alpha=0.08, lw=0)
        errors_panel.fill_between(
            ends, [-100 * band] * 2, [100 * band] * 2, color=INK, alpha=0.08, lw=0
        )
    times_panel.plot(ends, ends, color=FAINT, lw=0.8)
    errors_panel.axhline(0, color=FAINT, lw=0.8)
    for place, (name, points) in enumerate(found.items()):
        _draw(times_panel, errors_panel, place, name, points)
    times_panel.set(xscale="log", yscale="log", ylabel=f"predicted {title}", xlim=ends)
    errors_panel.set(xscale="log", xlabel=f"measured {title}", ylabel="error, %")
    for panel in (times_panel, errors_panel):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color=BAND, lw=0.5)
    times_panel.legend(
        frameon=False,
        fontsize=8,
        loc="upper left",
        title=_words(all_points),
        title_fontsize=8,
        alignment="left",
    )
    return figure


def figure_of(values: Iterable[Compared]) -> bytes:
    """Return a PNG image with the step times of the paper's columns and of the published runs."""
    return png(predicted_against_measured({**step_times(values), **published_rows()}))


def _draw(above: Axes, below: Axes, place: int, name: str, points: Sequence[Point]) -> None:
    """Draw the series number `place` in both panels: times above, errors below.

    Points on which constants were fitted are hollow, the others are filled.
    """
    # There are fewer colours than series may be: a repeated colour gets another marker.
    palette_round = place // len(COLORS)
    color, marker = COLORS[place % len(COLORS)], MARKERS[(place + 4 * palette_round) % len(MARKERS)]
    for is_fitted in (False, True):
        series_points = [p for p in points if p.fitted is is_fitted]
        style: dict[str, Any] = {"facecolors": "none" if is_fitted else color, "edgecolors": color}
        style |= {"marker": marker, "s": 30, "lw": 1.1}
        # The legend names a series once: at its plain points, or at hollow ones if it has no
        # others.
        legend_entry: dict[str, Any] = (
            {"label": name}
            if series_points and (not is_fitted or len(series_points) == len(points))
            else {}
        )
        measured = [p.measured for p in series_points]
        above.scatter(measured, [p.predicted for p in series_points], **style, **legend_entry)
        below.scatter(measured, [100 * p.error for p in series_points], **style)


def _words(points: Sequence[Point]) -> str:
    """Return a sentence with the errors of the points that no constant was fitted on."""
    errors = [abs(p.error) for p in points if not p.fitted]
    if not errors:
        return "hollow: constants fitted on it"
    median, most = (f"{100 * size:.1f} %" for size in (statistics.median(errors), max(errors)))
    return f"{len(errors)} held out: median {median}, most {most}\nhollow: constants fitted on it"
