"""Drawings as static SVG and as text: grids of devices and stacked bars.

The SVG has no script, no style sheet and no reference, so it is displayed wherever HTML is, also in
notebooks that are not trusted. Its text has the colour of the page, for light and dark themes.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from shardalg.palette import AXES, CLASH, FAINT, GREY, INK, LINE, NEUTRAL, OK, PAPER, REFUSED
from shardalg.tables import Table, html_part

SIZE = 12
"""Height of letters in pixels."""
WIDTH = 560
"""Width of bars and tracks in pixels; narrower pages shrink them."""
MOST_CELLS, SHOWN_CELLS = 16, 8
"""Cells in a row or a column of a grid; a longer one shows fewer, the last one among them."""


def clip(text: object, letters: int = 24) -> str:
    """Return text on one line, cut off with an ellipsis after some letters.

    >>> clip("a name"), clip("a name", 4)
    ('a name', 'a n…')
    """
    line = " ".join(str(text).split())
    return line if len(line) <= letters else line[: letters - 1] + "…"


def text_width(text: str, size: float = SIZE) -> float:
    """Return the approximate width of text in pixels; letters outside of ASCII are wider."""
    return size * sum(0.6 if letter < "\u0250" else 1.0 for letter in text)


def places(count: int, also: Iterable[int] = ()) -> list[int | None]:
    """Return the numbers of the cells that a grid shows; None is an ellipsis.

    Args:
      also: numbers that are shown in any case.

    >>> places(3), places(20), places(20, [9])
    ([0, 1, 2], [0, 1, 2, 3, 4, 5, None, 19], [0, 1, 2, 3, 4, 5, None, 9, 19])
    """
    if count <= MOST_CELLS:
        return [*range(count)]
    first = range(SHOWN_CELLS - 2)
    return [*first, None, *sorted({count - 1, *also} - {*first})]


@dataclass
class Canvas:
    """An SVG image that grows with its contents; lengths are pixels."""

    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def _grow(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def rect(
        self, at: tuple[float, float], size: tuple[float, float], fill: str, *, edge: str = ""
    ) -> None:
        """Draw a rectangle with its upper left corner at a point; y grows downwards.

        Args:
          at: the corner. size: width and height.
          fill: colour of the inside. edge: colour of the frame; "" for none.
        """
        (x, y), (w, h) = at, size
        line = f' stroke="{edge}" stroke-width="{2 if edge == REFUSED else 1}"' if edge else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}"{line}/>'
        )
        self._grow(x + w + 1, y + h + 1)

    def line(
        self, start: tuple[float, float], end: tuple[float, float], color: str, width: float = 1
    ) -> None:
        """Draw a line between two points."""
        (x, y), (u, v) = start, end
        self.parts.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="{color}" '
            f'stroke-width="{width:g}"/>'
        )
        self._grow(max(x, u) + 1, max(y, v) + 1)

    def dot(self, at: tuple[float, float], radius: float, fill: str, *, edge: str = INK) -> None:
        """Draw a circle around a point."""
        x, y = at
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{edge}"/>'
        )
        self._grow(x + radius + 1, y + radius + 1)

    def text(
        self,
        at: tuple[float, float],
        text: str,
        *,
        anchor: str = "start",
        color: str = "currentColor",
        bold: bool = False,
    ) -> None:
        """Write one line of text; its baseline starts, has its middle, or ends at a point."""
        x, y = at
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"{weight}>'
            f"{html.escape(text)}</text>"
        )
        share = {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor]
        self._grow(x + share * text_width(text), y + 4)

    def to_svg(self, label: str) -> str:
        """Return the image as an SVG element; `label` describes it to readers who do not see it."""
        width, height = self.width + 2, self.height + 2
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(label)}" '
            f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
            'style="max-width:100%;height:auto" font-family="system-ui,sans-serif" '
            f'font-size="{SIZE}">{"".join(self.parts)}</svg>'
        )


@dataclass(frozen=True)
class Cell:
    """A cell of a grid: its text and its fill. A marked cell is drawn in red."""

    text: str
    fill: str = PAPER
    is_marked: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of cells with names of rows and columns.

    Attributes:
      rows, columns: names, from the top and from the left.
      row_title, column_title: pairs of a direction's name and its colour; "" for none.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    row_title: tuple[str, str] = ("", "")
    column_title: tuple[str, str] = ("", "")

    @property
    def cell_width(self) -> float:
        """Width of each cell in pixels."""
        texts = [*self.columns, *(cell.text for row in self.cells for cell in row)]
        return max(28, 12 + max(map(text_width, texts), default=0))

    def draw(self, canvas: Canvas, at: tuple[float, float] = (0, 0)) -> tuple[float, float]:
        """Draw the grid with its upper left corner at a point; return its right and bottom end.

        From the top: the title, the name of the columns' direction, the names of the columns, and
        the cells. Names of the rows are at the left of the cells.
        """
        left, y = at
        row_arrow = f"{self.row_title[0]} ↓" if self.row_title[0] else ""
        # The cells begin to the right of the longest name of a row.
        names_width = max(map(text_width, (*self.rows, row_arrow)), default=0) + 10
        width, height = self.cell_width, 26.0
        x = left + names_width
        # `y` is the upper end of the part that comes next; a missing title takes no room.
        if self.title:
            canvas.text((left, y + SIZE), self.title, bold=True)
            y += 22
        if self.column_title[0]:
            canvas.text((x, y + SIZE), f"{self.column_title[0]} →", bold=True)
            y += 18
        if row_arrow:
            canvas.text((x - 8, y + SIZE), row_arrow, anchor="end", bold=True)
        for number, name in enumerate(self.columns):
            canvas.text((x + (number + 0.5) * width, y + SIZE), name, anchor="middle")
        y += 20
        # A line in the colour of a direction is visible on light and on dark pages.
        ends = x + len(self.columns) * width, y + len(self.rows) * height
        if self.column_title[1]:
            canvas.line((x, y - 2), (ends[0], y - 2), self.column_title[1], 3)
        if self.row_title[1]:
            canvas.line((x - 2, y), (x - 2, ends[1]), self.row_title[1], 3)
        # Marked cells come last, so that no neighbour covers their frames.
        cells = [(i, j, cell) for i, row in enumerate(self.cells) for j, cell in enumerate(row)]
        for i, j, cell in sorted(cells, key=lambda each: each[2].is_marked):
            corner = (x + j * width, y + i * height)
            fill, edge = (CLASH, REFUSED) if cell.is_marked else (cell.fill, FAINT)
            canvas.rect(corner, (width, height), fill, edge=edge)
            middle = (corner[0] + width / 2, corner[1] + height / 2 + 4)
            canvas.text(middle, cell.text, anchor="middle", color=INK, bold=cell.is_marked)
        for number, name in enumerate(self.rows):
            canvas.text((x - 8, y + (number + 0.5) * height + 4), name, anchor="end")
        return ends

    def to_text(self, *, boxed: bool = True) -> str:
        """Return the grid as text; a marked cell is between exclamation marks.

        Args:
          boxed: whether the cells have frames.

        >>> cells = ((Cell("0"), Cell("1", is_marked=True)),)
        >>> print(Grid("", ("X=0",), ("a", "b"), cells).to_text())
             a   b
            ┌───┬───┐
        X=0 │ 0 │!1!│
            └───┴───┘
        """
        texts = [[f"!{c.text}!" if c.is_marked else f" {c.text} " for c in r] for r in self.cells]
        # All columns have the width of the longest text; a column's name is indented by a space.
        cell_lengths = [len(text) for row in texts for text in row]
        width = max([len(name) + 1 for name in self.columns] + cell_lengths)
        row_title = f"{self.row_title[0]} ↓" if self.row_title[0] else ""
        column_title = f"{self.column_title[0]} →" if self.column_title[0] else ""
        names_width = max(map(len, (*self.rows, row_title)), default=0)
        bar = "│" if boxed else ""
        gap = " " * len(bar)

        def rule(corners: str) -> list[str]:
            """Return a horizontal line with its left, inner and right corners; [] if not boxed."""
            line = corners[1].join(["─" * width] * len(self.columns))
            return [" " * (names_width + 1) + corners[0] + line + corners[2]] if boxed else []

        lines = [self.title] if self.title else []
        lines += [" " * (names_width + 2) + gap + column_title] if column_title else []
        heads = gap.join(f" {name}".ljust(width) for name in self.columns)
        lines.append(f"{row_title.ljust(names_width)} {gap}{heads}".rstrip())
        for number, (name, row) in enumerate(zip(self.rows, texts, strict=True)):
            cells = bar.join(text.center(width) for text in row)
            # The line above the first row is the frame's upper end.
            lines += rule("┌┬┐" if number == 0 else "├┼┤")
            lines.append(f"{name.ljust(names_width)} {bar}{cells}{bar}".rstrip())
        return "\n".join([*lines, *rule("└┴┘")])


def draw_grids(grids: Sequence[Grid]) -> Canvas:
    """Draw grids beside each other while they fit into the width, otherwise below each other."""
    canvas = Canvas()
    # (x, y) is the corner of the next grid, and `bottom` the lowest end so far.
    x = y = bottom = 0.0
    for grid in grids:
        # Drawn alone first to know its width: a long title may be wider than the cells.
        sample = Canvas()
        right, _ = grid.draw(sample)
        width = max(right, sample.width)
        # The first grid of a line stays there even if it is wider than the page.
        if x and x + width > WIDTH:
            x, y = 0.0, bottom + 18
        _, end = grid.draw(canvas, (x, y))
        x, bottom = x + width + 24, max(bottom, end)
    return canvas


@dataclass(frozen=True)
class Segment:
    """A part of a bar: its name, its length, its length as text, and its colour."""

    name: str
    value: float
    text: str
    color: str


@dataclass(frozen=True)
class Bar:
    """A bar of segments, with a name at its left end and a text at its right end."""

    name: str
    segments: tuple[Segment, ...]
    text: str = ""

    @property
    def total(self) -> float:
        """Sum of the segments."""
        return sum(segment.value for segment in self.segments)


def draw_bars(bars: Sequence[Bar], *, limit: float = 0, limit_text: str = "") -> Canvas:
    """Draw bars below each other on one scale, with a legend below.

    Args:
      limit: a value that is marked by a red line, such as the memory of a device. If it is more
        than twenty times the longest bar, only its text is shown.
    """
    canvas = Canvas()
    longest = max((bar.total for bar in bars), default=0)
    # On the scale of a limit that is far away, all bars would be too short to read.
    shows_limit = 0 < limit <= 20 * longest
    full_scale = max(longest, limit if shows_limit else 0) or 1
    # From the left: names, bars, and the texts at their right ends.
    left = max((text_width(bar.name) for bar in bars), default=0)
    left += 10 if left else 1
    texts_width = max((text_width(bar.text) for bar in bars), default=0)
    bars_width = WIDTH - left - texts_width - 12
    top = 20 if limit_text else 0
    for number, bar in enumerate(bars):
        x, y = left, top + 32 * number
        canvas.text((left - 8, y + 17), bar.name, anchor="end")
        for segment in bar.segments:
            width = bars_width * segment.value / full_scale
            # A part that is thinner than a line is left out, but its legend remains.
            canvas.rect((x, y), (width, 24), segment.color, edge=FAINT if width > 1 else "")
            if text_width(segment.text) + 8 < width:
                middle = (x + width / 2, y + 16)
                canvas.text(middle, segment.text, anchor="middle", color=INK)
            x += width
        canvas.text((x + 6, y + 17), bar.text)
    bottom = top + 32 * len(bars)
    if shows_limit:
        x = left + bars_width * limit / full_scale
        canvas.line((x, top - 4), (x, bottom - 4), REFUSED, 2)
        # The text is on the side of the line that has more room.
        canvas.text((x, SIZE), limit_text, anchor="end" if x > WIDTH / 2 else "start")
    elif limit_text:
        canvas.text((left, SIZE), f"far below {limit_text}")
    # A name has one colour in all bars. The legend of a single bar also has the lengths, because
    # thin segments have no text.
    entries = {s.name: s for bar in bars for s in bar.segments}
    texts = [f"{s.name} {s.text}" if len(bars) == 1 else s.name for s in entries.values()]
    draw_legend(canvas, [(s.color, t) for s, t in zip(entries.values(), texts, strict=True)])
    return canvas


def draw_legend(canvas: Canvas, entries: Iterable[tuple[str, str]]) -> None:
    """Draw pairs of a colour and a text below a drawing, in as many lines as they need."""
    x, y = 1.0, canvas.height + 10
    for color, text in entries:
        width = 18 + text_width(text) + 16
        # The first entry of a line stays there even if it is too wide.
        if x > 1 and x + width > WIDTH:
            x, y = 1.0, y + 20
        canvas.rect((x, y), (12, 12), color, edge=FAINT)
        canvas.text((x + 18, y + 11), text)
        x += width


def bar_text(value: float, most: float, cells: int = 24) -> str:
    """Return a bar of text whose full length is `most`.

    >>> bar_text(3, 4, 8), bar_text(0.001, 4, 8), bar_text(5, 4, 8)
    ('██████', '▏', '████████')
    """
    eighths = round(8 * cells * min(value / most, 1.0)) if most else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "") or ("▏" if value else "")


def scale_marks(most: float) -> list[float]:
    """Return round numbers from 0 to at most `most`, for the ticks of a scale.

    >>> scale_marks(1.0), scale_marks(0.7)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    """
    if not most > 0:
        return [0.0]
    unit = 10.0 ** int(f"{most:e}".partition("e")[2])
    step = next(unit * each for each in (0.1, 0.2, 0.5, 1.0) if most / (unit * each) <= 8)
    return [float(f"{step * number:.6g}") for number in range(int(most / step + 1e-9) + 1)]


def drawing_card(
    title: str, canvas: Canvas, *folded: str | Table, ok: bool | None = None, note: str = ""
) -> str:
    """Return HTML with a sentence, a drawing, and the tables below it, which open by a click.

    The left edge is green if `ok` is True, red if it is False, and grey if it is None.

    Args:
      title: the sentence, which also describes the drawing to readers who do not see it.
      folded: texts and tables that a click opens. note: a text below the drawing.
    """
    color = NEUTRAL if ok is None else OK if ok else REFUSED
    below = html_part(note) if note else ""
    tables = "".join(map(html_part, folded))
    opened = (
        f'<details><summary style="cursor:pointer">Table</summary>'
        f'<div style="overflow-x:auto">{tables}</div></details>'
    )
    return (
        f'<div style="border-left:4px solid {color};padding-left:10px">'
        f'<p style="white-space:pre-line">{html.escape(title)}</p>'
        f"{canvas.to_svg(title)}{below}{opened if tables else ''}</div>"
    )


def spans_by_pixel(
    spans: Iterable[tuple[float, float, str]], most: float, pixels: int
) -> list[tuple[float, float, str]]:
    """Return (start, end, key) in pixels for intervals of time, at most one per pixel.

    Each pixel gets the key with the longest time in it, and equal neighbours are joined. Pixels
    without an interval are left out.

    Args:
      spans: (start, seconds, key) of each interval.
      most: the seconds of the whole drawing, which is `pixels` wide.

    >>> spans_by_pixel([(0, 1, "a"), (1, 4, "b")], 4, 8)
    [(0, 2, 'a'), (2, 8, 'b')]
    """
    # Per pixel, the share of its width that the intervals of each key take.
    shares: list[dict[str, float]] = [{} for _ in range(pixels)]
    for start, seconds, key in spans:
        first, end = (pixels * time / most for time in (start, start + seconds))
        for pixel in range(int(first), min(pixels, int(end) + 1)):
            # The interval and the pixel [pixel, pixel + 1) overlap by this width.
            overlap = min(end, pixel + 1) - max(first, pixel)
            shares[pixel][key] = shares[pixel].get(key, 0) + max(overlap, 0)
    keys = [max(share, key=share.__getitem__, default="") for share in shares]
    # A run ends where the next pixel has another key. The key of empty pixels is "".
    ends = [0, *(i for i, (a, b) in enumerate(pairwise(keys), 1) if a != b), pixels]
    return [(a, b, keys[a]) for a, b in pairwise(ends) if keys[a]]


def draw_scale(canvas: Canvas, left: float, width: float, marks: dict[float, str]) -> None:
    """Draw a horizontal scale below a drawing.

    Args:
      marks: texts by their place, as a share of the width.
    """
    y = canvas.height + 4
    canvas.line((left, y), (left + width, y), LINE)
    for share, text in marks.items():
        x = left + share * width
        canvas.line((x, y), (x, y + 4), FAINT)
        canvas.text((x, y + 18), text, anchor="middle")


MOST_POINTS = 300
"""The most points of a drawing; the fastest candidates come first."""


class PlotPoint(NamedTuple):
    """A point of a drawing of two quantities; a point on the Pareto front is filled."""

    x: float
    y: float
    is_best: bool


def draw_points(
    points: Sequence[PlotPoint],
    names: tuple[str, str],
    texts: tuple[Callable[[float], str], Callable[[float], str]],
) -> Canvas:
    """Draw points of two quantities, both from 0, with a line through the Pareto front.

    Args:
      names: of the horizontal and the vertical quantity.
      texts: functions that return a number with its unit.
    """
    canvas, left, top, height = Canvas(), 72.0, 24.0, 220.0
    width = WIDTH - left - 30
    most = [max((point[k] for point in points), default=1.0) or 1.0 for k in (0, 1)]

    def at(point: PlotPoint) -> tuple[float, float]:
        """Return the place of a point in pixels; y grows downwards, so the second one is turned."""
        return left + width * point.x / most[0], top + height * (1 - point.y / most[1])

    # The vertical scale, with a line at each mark.
    canvas.text((0, SIZE), names[1], bold=True)
    for mark in scale_marks(most[1]):
        y = top + height * (1 - mark / most[1])
        canvas.line((left, y), (left + width, y), LINE)
        canvas.text((left - 8, y + 4), texts[1](mark), anchor="end")
    # The line joins the points of the Pareto front from left to right.
    front = sorted((at(point) for point in points if point.is_best), key=lambda place: place[0])
    for start, end in pairwise(front):
        canvas.line(start, end, AXES[0], 2)
    # Filled points come last, so that no other point covers them.
    for point in sorted(points, key=lambda point: point.is_best):
        canvas.dot(at(point), 5 if point.is_best else 4, AXES[0] if point.is_best else GREY)
    canvas.height = max(canvas.height, top + height)
    draw_scale(canvas, left, width, {m / most[0]: texts[0](m) for m in scale_marks(most[0])})
    canvas.text((left + width, canvas.height + 14), names[0], anchor="end", bold=True)
    draw_legend(canvas, [(AXES[0], "best in time or memory"), (GREY, "beaten in both")])
    return canvas
