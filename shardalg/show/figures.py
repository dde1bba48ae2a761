"""Figures of partitioned programs, wire bytes per strategy, and measured times.

`Plan.draw` shows a small program as boxes, and the bytes of a large program as bars.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from textwrap import wrap
from typing import TYPE_CHECKING

from shardalg.errors import TableError
from shardalg.graph.ir import Graph
from shardalg.graph.modules import modules
from shardalg.palette import COLLECTIVES, FAINT, INK, PAPER, axis_color
from shardalg.show.diagram import SHORT_KINDS, Box, Token, boxes
from shardalg.show.tables import collectives as table_of
from shardalg.show.tables import collectives_by_module, strategies
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table, bytes_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KIND_COLORS = {
    **{kind: COLLECTIVES[kind] for kind in SHORT_KINDS},
    "einsum": "#e3e6ea",
    "local": PAPER,
}
COLUMN, LANE, WIDTH, HEIGHT = 1.42, 1.0, 0.86, 0.36
"""Width of a column, height of a lane, width and height of a box, all in inches.

Boxes therefore have one size in all figures.
"""
TITLE_LINE, TITLE_SIZE = 0.2, 11
"""Height of a title's line in inches, and size of its letters in points."""


@dataclass(frozen=True)
class Panel:
    """One program of a drawing.

    Attributes:
      nodes: the graph nodes to draw; None draws the top level of the program.
      dim_names: the letter of each size: `{64: "B"}` writes B for a dimension of 64 elements.
    """

    title: str
    program: SpmdProgram
    graph: Graph
    nodes: Collection[int] | None = None
    dim_names: Mapping[int, str] | None = None

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The program's instructions as boxes on a grid; see `diagram.boxes`."""
        return boxes(self.program, self.graph, nodes=self.nodes, dim_names=self.dim_names)


def draw_programs(panels: Sequence[Panel]) -> Figure:
    """Draw programs one below the other, each from left to right (as in GSPMD, figure 7).

    Dimensions are written as in the paper's figures. An unsharded dimension is a capital letter.
    A sharded dimension is a small letter with its mesh axes as subscript. `Σ` is a partial sum that
    is pending along axes. The bytes that each device sends are below a collective.
    """
    # Imported here, because matplotlib is slow to import and only figures need it.
    from shardalg.drawing import Drawing

    drawn = [panel.boxes for panel in panels]
    spans = []  # (lowest lane, highest lane) per program, because lane numbers can be negative
    columns = 0
    for found in drawn:
        columns = max(columns, max((box.column for box in found), default=0) + 1)
        lanes = [box.lane for box in found] or [0]
        spans.append((min(lanes), max(lanes)))
    width = max(columns * COLUMN + 0.3, 6.0)
    # The wrap needs the number of letters in a line. A bold letter is about 0.65 times as wide as
    # its size in points, and an inch has 72 points.
    letters = int((width - 0.3) * 72 / (0.65 * TITLE_SIZE))
    # Titles are wrapped before the heights, which depend on the number of lines.
    panels = [replace(panel, title="\n".join(wrap(panel.title, letters))) for panel in panels]
    heights = [
        (high - low + 1) * LANE + 0.25 + TITLE_LINE * (panel.title.count("\n") + 1)
        for panel, (low, high) in zip(panels, spans, strict=True)
    ]
    figure = Drawing(figsize=(width, sum(heights) + 0.5))
    total = figure.get_figheight()
    # The legend is above the first panel, and would cover the title there without this room.
    top = total - 0.35
    for panel, found, (low, high), height in zip(panels, drawn, spans, heights, strict=True):
        top -= height
        axes = figure.add_axes((0, top / total, 1, height / total))
        axes.set_ylim((low - 0.62) * LANE, (low - 0.62) * LANE + height)
        _paint(axes, panel, found, high)
    _legend(figure, panels, drawn)
    return figure


def _paint(axes: Axes, panel: Panel, found: Sequence[Box], high: int) -> None:
    """Draw the title, arrows and boxes of one program.

    Lengths are inches. A lane is a horizontal line of boxes, numbered upwards.

    Args:
      found: the boxes of the program.
      high: the number of its top lane, above which the title is.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes belong to a figure"
    axes.set_xlim(0, figure.get_figwidth())
    axes.axis("off")
    axes.text(
        0.15, (high + 0.38) * LANE + 0.14, panel.title, fontsize=TITLE_SIZE, weight="bold",
        color=INK, va="bottom",
    )  # fmt: skip
    colors = _axis_colors(panel)
    # Arrows first, so that boxes cover their ends.
    for box in found:
        for i in box.inputs:
            _arrow(axes, found[i], box)
    for box in found:
        _box(axes, box, colors)


def _place(box: Box) -> tuple[float, float]:
    return 0.62 + box.column * COLUMN, box.lane * LANE


def _box(axes: Axes, box: Box, colors: Mapping[str, str]) -> None:
    """Draw a box with its label and value; `colors` has the colour of each mesh axis."""
    from matplotlib.patches import FancyBboxPatch

    x, y = _place(box)
    if box.kind != "value":
        corner = (x - WIDTH / 2, y - HEIGHT / 2)
        face = KIND_COLORS[box.kind]
        style = "round,pad=0,rounding_size=0.08"
        axes.add_patch(
            FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, fc=face, ec=INK, lw=0.8, zorder=3)
        )
    # An incoming value has no frame: its name and shape are two lines around its centre. Otherwise
    # the label is inside of the frame, and the shape is below the frame.
    above, below, size = (0.11, 0.13, 8.5) if box.kind == "value" else (0, 0.33, 9.5)
    # A long label gets smaller letters, so that it stays inside of its box.
    fits = 105 / max(11, *(len(token.text) for token in box.label))
    _tokens(axes, (x, y + above), box.label, colors, size=min(size, fits))
    _tokens(axes, (x, y - below), box.value, colors, size=10)
    if box.wire_bytes:
        axes.text(x, y - 0.53, bytes_text(box.wire_bytes), fontsize=6.5, color=FAINT, ha="center")


def _tokens(
    axes: Axes,
    at: tuple[float, float],
    tokens: Sequence[Token],
    colors: Mapping[str, str],
    size: float,
) -> None:
    """Draw a line of tokens centred on a point, axis names as coloured subscripts.

    A token is the letter of a dimension, or the label of a box, with the mesh axes that shard it.

    Args:
      at: the point. colors: the colour of each mesh axis. size: of the letters, in points.
    """
    from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea

    from shardalg.drawing import Subscript

    pieces: list[Artist] = []
    for token in tokens:
        color = colors.get(token.axes[0], INK) if token.axes else INK
        # A dimension has the colour of its major axis, as the legend shows it.
        below = "".join(token.axes)
        properties = {"fontsize": size, "color": color}
        if token.axes:
            properties["weight"] = "bold"
        text: Artist = TextArea(token.text, textprops=properties)
        if below:
            lower = Subscript(below, textprops=properties | {"fontsize": 0.7 * size})
            text = HPacker(children=[text, lower], align="baseline", pad=0, sep=0)
        pieces.append(text)
    if pieces:
        line = HPacker(children=pieces, align="baseline", pad=0, sep=3)
        axes.add_artist(AnnotationBbox(line, at, frameon=False, pad=0, zorder=4))


def _arrow(axes: Axes, start: Box, end: Box) -> None:
    """Draw an arrow from one box to another, bent if it passes over boxes of the same lane."""
    (x0, y0), (x1, y1) = _place(start), _place(end)
    jumps = start.lane == end.lane and end.column - start.column > 1
    bend = f"arc3,rad={-0.18 if jumps else 0}"
    style = {"arrowstyle": "-|>,head_width=0.14,head_length=0.28", "color": FAINT, "lw": 0.9}
    style |= {"connectionstyle": bend, "shrinkA": 0, "shrinkB": 0}
    inset = WIDTH / 2 + 0.03
    # Arrows from above and from below would otherwise overlap at their heads.
    offset = 0.09 * ((start.lane > end.lane) - (start.lane < end.lane))
    axes.annotate("", (x1 - inset, y1 + offset), (x0 + inset, y0), arrowprops=style, zorder=1)


def _axis_colors(panel: Panel) -> dict[str, str]:
    names = panel.program.mesh.axis_names
    return {name: axis_color(i) for i, name in enumerate(names)}


def _legend(figure: Figure, panels: Sequence[Panel], drawn: Sequence[Sequence[Box]]) -> None:
    """Draw the legend: a colour per kind of box that is drawn, and per mesh axis.

    Args:
      drawn: the boxes of each program.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = {box.kind for found in drawn for box in found}
    # Local operators are white boxes with their names, so they need no legend.
    shown = [k for k in KIND_COLORS if k in kinds and k != "local"]
    handles: list[Artist] = [
        Patch(fc=KIND_COLORS[k], ec=INK, lw=0.6, label=k.replace("_", " ")) for k in shown
    ]
    axes = {name: color for panel in panels for name, color in _axis_colors(panel).items()}
    handles += [Line2D([], [], color=c, lw=3, label=f"mesh axis {n}") for n, c in axes.items()]
    figure.legend(
        handles=handles, loc="upper left", ncols=len(handles), fontsize=8, frameon=False,
        handlelength=1.2, columnspacing=1.4, bbox_to_anchor=(0.005, 1.0),
    )  # fmt: skip


def wire_bytes_bars(strategies: Table) -> Figure:
    """Draw the bytes that each device sends per step: a bar per strategy and phase.

    Bars are stacked by kind of collective.

    Args:
      strategies: the table of `show.tables.strategies`.
    """
    sums: dict[str, dict[str, float]] = {}
    for row in strategies:
        bar = sums.setdefault(f"{row['strategy']} · {row['phase']}", {})
        bar[row["kind"]] = bar.get(row["kind"], 0) + row["wire_bytes_per_step"]
    return kind_bars(sums)


def kind_bars(sums: Mapping[str, Mapping[str, float]], title: str = "") -> Figure:
    """Draw the bytes that each device sends per step: a bar per entry, stacked by kind.

    Args:
      sums: bytes by label of the bar and kind of collective.
    """
    from shardalg.drawing import Drawing

    figure = Drawing(
        figsize=(8.4, 0.42 * len(sums) + 1.3 + 0.3 * bool(title)), layout="constrained"
    )
    axes = figure.add_subplot()
    left = dict.fromkeys(sums, 0.0)
    # Negative places, because a y axis grows upwards and the first bar should be at the top.
    places = [-i for i in range(len(sums))]
    for kind in (k for k in KIND_COLORS if any(k in bar for bar in sums.values())):
        axes.barh(
            places, [bar.get(kind, 0) for bar in sums.values()], left=list(left.values()),
            height=0.66, color=KIND_COLORS[kind], ec=INK, lw=0.6, label=kind.replace("_", " "),
        )  # fmt: skip
        # `barh` does not stack bars, so each kind gets the end of the previous one as its start.
        left = {name: left[name] + bar.get(kind, 0) for name, bar in sums.items()}
    # After the last kind, `left` is the end of each bar, which is its total.
    for place, end in zip(places, left.values(), strict=True):
        axes.text(end, place, f" {bytes_text(end)}", va="center", fontsize=8, color=INK)
    axes.set_yticks(places, list(sums))
    axes.set_xlim(0, max(left.values(), default=1) * 1.14 or 1)
    axes.set_xlabel("bytes sent per device and step")
    axes.xaxis.set_major_formatter(lambda value, _: bytes_text(value))
    axes.spines[["top", "right"]].set_visible(False)
    _legend_above(axes)
    figure.suptitle(title, fontsize=10, weight="bold", color=INK)
    return figure


def _legend_above(axes: Axes) -> None:
    """Put a legend in one row above the axes; none if nothing has a label."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0)}
        axes.legend(handles, labels, fontsize=8, frameon=False, ncols=len(handles), **place)


def measured_times(measured: Mapping[str, Table]) -> Figure:
    """Draw median step times of shardalg and XLA, with the quartiles as error bars.

    Args:
      measured: tables of `Measurement` by label (columns executable, median_s, quartile_1_s,
        quartile_3_s).
    """
    from shardalg.drawing import Drawing

    figure = Drawing(figsize=(8.4, 0.62 * len(measured) + 1.3), layout="constrained")
    axes = figure.add_subplot()
    colors = {"shardalg": "#1565c0", "xla": "#b0b7bf"}
    # Executables whose entry is in the legend already.
    seen: set[str] = set()
    for i, table in enumerate(measured.values()):
        # The bars of one measurement are below each other, around the place -i.
        for k, row in enumerate(table):
            name, median = row["executable"], row["median_s"] * 1e3
            # Error bars are distances from the median: first below it, then above it.
            spread = [[median - row["quartile_1_s"] * 1e3], [row["quartile_3_s"] * 1e3 - median]]
            axes.barh(
                -i - 0.34 * k + 0.17, median, height=0.32, xerr=spread, ec=INK, lw=0.6,
                color=colors.get(name, "#ffd98a"), error_kw={"lw": 1.2, "capsize": 3},
                label=None if name in seen else name,
            )  # fmt: skip
            # matplotlib adds a legend entry for every label, so a repeated one must be None.
            seen.add(name)
    axes.set_yticks([-i for i in range(len(measured))], list(measured))
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds per step: median, and quartiles of the runs")
    axes.spines[["top", "right"]].set_visible(False)
    _legend_above(axes)
    return figure


MOST_BOXES, MOST_BARS = 48, 20
SHOWN = ("program", "bytes")


@dataclass(frozen=True)
class DrawnPlan:
    """The program, graph and note of a plan that is drawn.

    Attributes:
      note: text after the title of a single plan: the mesh, bytes and seconds.
    """

    program: SpmdProgram
    graph: Graph
    note: str

    @property
    def collectives(self) -> Table:
        """Table of the program's collectives, in numbers."""
        return table_of(self.program, self.graph)

    def nodes(self, module: str | None) -> frozenset[int] | None:
        """Return the operators of a module and of the modules inside it; None means all.

        The end of a module's path is enough.

        Raises:
          TableError: no operator belongs to the module.
        """
        if module is None:
            return None
        names = modules(self.graph)
        # Slashes on both sides: without them, "layer_1" would also match "layer_10".
        inside = (i for i, name in enumerate(names) if f"/{module}/" in f"/{name}/")
        found = frozenset(inside)
        if not found:
            known = sorted({name for name in names if name})
            near = get_close_matches(module, known, 3) or known[:5]
            there = f"it has {', '.join(near)}" if near else "no operator belongs to a module"
            raise TableError(f"the program has no module {module!r}; {there}.")
        return found


def draw_plans(
    plans: Mapping[str, DrawnPlan],
    *,
    show: str | None = None,
    module: str | None = None,
    letters: Mapping[str, int] | None = None,
) -> Figure:
    """Draw the programs of plans one below the other, or bars of the bytes that they send.

    Args:
      plans: the plans by title.
      show: "program" for boxes, "bytes" for bars; None for boxes if the program is small.
      module: the module to draw, such as "net/layers_0/mlp"; None for the whole program.
      letters: the size of each letter. `{"B": 64}` writes B for each dimension of 64 elements.

    Raises:
      TableError: `show` is another word, or the program has no such module.
    """
    if show not in (None, *SHOWN):
        raise TableError(f"show={show!r}: a plan is drawn as 'program' or as 'bytes'.")
    # A drawing looks up the letter of a size, so {"B": 64} is inverted to {64: "B"}.
    letter_of = {size: letter for letter, size in (letters or {}).items()}
    panels = [
        Panel(title, each.program, each.graph, each.nodes(module), dim_names=letter_of)
        for title, each in plans.items()
    ]
    # A figure with many boxes cannot be read, so a large program is drawn as bars of bytes.
    if show is None:
        small = max(len(panel.boxes) for panel in panels) <= MOST_BOXES
        show = "program" if small or module else "bytes"
    if show == "program":
        return draw_programs(panels)
    return _bytes(plans)


def _bytes(plans: Mapping[str, DrawnPlan]) -> Figure:
    """Draw a bar per module of a single plan, longest first, or a bar per plan and phase.

    Bars are the bytes that each device sends per step, stacked by kind of collective.
    """
    if len(plans) > 1:
        return wire_bytes_bars(strategies({name: each.collectives for name, each in plans.items()}))
    ((title, plan),) = plans.items()
    sums: dict[str, dict[str, float]] = {}
    for row in collectives_by_module(plan.collectives):
        bar = sums.setdefault(row["module"] or "in no module", {})
        bar[row["kind"]] = bar.get(row["kind"], 0) + row["wire_bytes_per_step"]
    ordered = sorted(sums, key=lambda name: -sum(sums[name].values()))
    # Many modules send little. One bar has their sum, so the figure stays readable and complete.
    shown = {name: sums[name] for name in ordered[:MOST_BARS]}
    for name in ordered[MOST_BARS:]:
        rest = shown.setdefault(f"{len(ordered) - MOST_BARS} other modules", {})
        for kind, sent in sums[name].items():
            rest[kind] = rest.get(kind, 0) + sent
    return kind_bars(shown, title)
