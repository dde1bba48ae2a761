"""Drawings of halos: each partition's block, the elements that it reads, and their senders.

The counterparts of figures 5, 9 and 10 of GSPMD (arXiv:2105.04663). `Halo.picture` and
`Exchange.picture` return the data of a drawing, from their closed forms alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardalg.palette import BLOCKS, FAINT, INK, PAPER
from shardalg.svg import WIDTH, Canvas, draw_legend, places, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, RIGHT, WIDE, NARROW = 0.85, 1.35, 8.2, 6.6
"""Widths in inches: left texts, right texts, all positions (at most), the figure (at least)."""
CELL, TOP, LANE, GAP = 0.25, 0.17, 0.13, 0.13
"""Heights in inches: a cell, the text above it, a window, the gap below a row."""
HEAD, KEY = 0.52, 0.55
"""Heights in inches: the title and the closed forms above a panel, the key below all panels."""


@dataclass(frozen=True)
class PartitionRow:
    """The data of one row of a drawing: the elements and the windows that a partition reads.

    Attributes:
      partition: the partition's id.
      start, limit: it reads the elements `[start, limit)`.
      windows: position of the first tap of each output; an element k is at position `dilation*k`.
      outputs: number of outputs that exist; windows after these compute padding.
      zeros: taps of 0 before and after the kernel, if the window is equally long on every device.
    """

    partition: int
    start: int
    limit: int
    windows: tuple[int, ...] = ()
    outputs: int = 0
    zeros: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class DimensionDrawing:
    """The data of one panel of a drawing: a partitioned dimension, and a row per partition.

    Attributes:
      size: number of elements of the dimension.
      block: number of elements of a block.
      rows: the row of each partition.
      note: the closed forms, as text.
      dilation: positions between two elements.
      taps: positions of the taps of a window, from its first one.
      stride: positions between the windows of two outputs.
    """

    size: int
    block: int
    rows: tuple[PartitionRow, ...]
    note: str
    dilation: int = 1
    taps: tuple[int, ...] = ()
    stride: int = 1

    def sent(self, row: PartitionRow) -> Iterator[tuple[int, int, int]]:
        """Yield (first element, end, holder) for each block of which a partition reads elements.

        The holder is the partition with this block.

        >>> from shardalg.algebra.halos.halo import halo
        >>> from shardalg.algebra.halos.window import Window
        >>> shown = halo(Window(3, padding_low=2, padding_high=2), size=16, parts=4).picture()
        >>> list(shown.sent(shown.rows[1]))
        [(3, 4, 0), (4, 8, 1), (8, 10, 2)]
        """
        first = max(row.start, 0)
        while first < min(row.limit, self.size):
            holder = first // self.block
            end = min((holder + 1) * self.block, row.limit, self.size)
            yield first, end, holder
            first = end

    @property
    def span(self) -> int:
        """Number of positions from the first tap of a window to its last one; 0 without taps."""
        return self.taps[-1] + 1 if self.taps else 0

    @property
    def lanes(self) -> int:
        """Number of lines on which a partition's windows are drawn, so that none overlap."""
        # A window overlaps the following ones as long as they start before its end.
        longest = self.span + sum(self.rows[0].zeros)
        return min(-(-longest // self.stride), max(len(row.windows) for row in self.rows))

    @property
    def bounds(self) -> tuple[int, int]:
        """First position and end of all blocks, elements and windows that are drawn.

        Positions count the holes of a dilation: element k is at position k * dilation.
        """
        starts, ends = [0], [len(self.rows) * self.block * self.dilation]
        for row in self.rows:
            # A partition that reads nothing has no elements to draw.
            if row.start < row.limit:
                starts.append(row.start * self.dilation)
                ends.append((row.limit - 1) * self.dilation + 1)
            # A window may reach past the elements by taps that read zeros (`row.zeros`: before,
            # after).
            starts += [first - row.zeros[0] for first in row.windows]
            ends += [first + self.span + row.zeros[1] for first in row.windows]
        return min(starts), max(ends)


def halo_canvas(shown: DimensionDrawing) -> Canvas:
    """Return the drawing of a halo or an exchange for a notebook, a row per partition.

    The bar of a row has the elements that the partition reads, in the colors of their holders. The
    frame is the partition's own block. Elements that do not exist are white.
    """
    canvas, label_width = Canvas(), 44.0
    # The horizontal axis has all blocks, and elements that are read beyond them.
    low = min(0, *(row.start for row in shown.rows))
    high = max(len(shown.rows) * shown.block, *(row.limit for row in shown.rows))
    scale = (WIDTH - label_width - 110) / max(high - low, 1)

    shows_numbers = text_width(f"{shown.size - 1}") <= scale

    def x(element: float) -> float:
        """Return the horizontal coordinate of the start of an element."""
        return label_width + (element - low) * scale

    top = 0.0
    # `places` leaves out the middle of many partitions and has None there.
    for number in places(len(shown.rows)):
        if number is None:
            canvas.text((0, top + 16), "…")
            top += 24
            continue
        row, own_start = shown.rows[number], number * shown.block
        canvas.text((0, top + 16), f"p = {number}")
        # Reads before the first element, or after the last one, are masked: nothing is there.
        if row.start < row.limit:
            size = (row.limit - row.start) * scale, 22
            canvas.rect((x(row.start), top), size, PAPER, edge=FAINT)
        for first, end, holder in shown.sent(row):
            color = BLOCKS[holder % len(BLOCKS)]
            canvas.rect((x(first), top), ((end - first) * scale, 22), color, edge=FAINT)
            # One cell per element is drawn only if the cells have room for numbers.
            for element in range(first, end if shows_numbers else first):
                canvas.rect((x(element), top), (scale, 22), color, edge=FAINT)
            # Each element has its number if all numbers fit, otherwise the range is written once.
            names = {(k, k + 1): f"{k}" for k in range(first, end)} if shows_numbers else {}
            for (start, stop), name in (names or {(first, end): f"{first}:{end}"}).items():
                if text_width(name) <= (stop - start) * scale:
                    middle = (x((start + stop) / 2), top + 15)
                    canvas.text(middle, name, anchor="middle", color=INK)
        canvas.rect((x(own_start), top), (shown.block * scale, 22), "none", edge="currentColor")
        left, right = own_start - row.start, row.limit - own_start - shown.block
        canvas.text((x(high) + 8, top + 16), f"left {left}, right {right}")
        top += 32
    blocks = [b for b in places(len(shown.rows)) if b is not None][: len(BLOCKS)]
    entries = [(BLOCKS[block % len(BLOCKS)], f"held by p = {block}") for block in blocks]
    draw_legend(canvas, [*entries, (PAPER, "does not exist"), ("none", "frame: own block")])
    return canvas


def draw_halos(pictures: Mapping[str, DimensionDrawing]) -> Figure:
    """Draw the block of each partition and the elements that it reads.

    Each entry is a panel with one row per partition. A cell is an element, in the color of the
    partition that holds it. The frame is the partition's own block. A number above a cell names the
    partition that sends it. Hatched cells do not exist: they are padding of uneven blocks, or reads
    that are masked. The windows of the partition's outputs are below, with a dot per tap; taps of 0
    are rings.
    """
    from shardalg.drawing import Drawing

    # Panels differ in height, because overlapping windows need several lines per row.
    shown = list(pictures.values())
    head = HEAD + TOP + CELL + GAP
    heights = [head + _band(panel) * len(panel.rows) for panel in shown]
    total = top = sum(heights) + KEY
    # One figure holds all panels, so the widest panel determines its width.
    spans = [(panel.bounds[1] - panel.bounds[0]) * _scale(panel) for panel in shown]
    width = max([NARROW, *(LEFT + span + RIGHT for span in spans)])
    figure = Drawing(figsize=(width, total))
    for title, panel, height in zip(pictures, shown, heights, strict=True):
        top -= height
        axes = figure.add_axes((0, top / total, 1, height / total))
        axes.set(xlim=(0, width), ylim=(height, 0))
        _Panel(axes, panel).paint(title)
    _key(figure, shown)
    return figure


def _scale(shown: DimensionDrawing) -> float:
    """Return the width in inches at which a panel draws one position of its dimension."""
    low, high = shown.bounds
    return min(WIDE / (high - low), 0.36)


def _band(shown: DimensionDrawing) -> float:
    """Return the height in inches of one partition's row in a panel."""
    return TOP + CELL + LANE * shown.lanes + GAP


@dataclass(frozen=True)
class _Panel:
    """Painter of one panel; lengths are inches from its upper left corner."""

    axes: Axes
    shown: DimensionDrawing

    def x(self, position: float) -> float:
        """Return the horizontal coordinate, in inches, of a position of the dimension."""
        return LEFT + (position - self.shown.bounds[0]) * _scale(self.shown)

    def middle(self, first: int, end: int) -> float:
        """Return the horizontal coordinate, in inches, of the middle of elements `[first, end)`."""
        return self.x((first + end - 1) / 2 * self.shown.dilation + 0.5)

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write text at a point of the panel, in inches; `style` has options of matplotlib."""
        defaults: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": INK}
        self.axes.text(x, y, text, **defaults | style)

    def paint(self, title: str) -> None:
        """Draw the whole panel: the title, the blocks, and a row per partition.

        `HEAD`, `TOP`, `CELL` and `GAP` are heights in inches: of the title, of a label, of a cell,
        and between rows.
        """
        shown = self.shown
        self.axes.axis("off")
        self.text(0.15, 0.2, title, ha="left", fontsize=10, weight="bold")
        self.text(0.15, 0.42, shown.note, ha="left", color=FAINT)
        self.text(LEFT - 0.12, HEAD + TOP + CELL / 2, "held", ha="right")
        # The first row has all blocks, so that the colors of the rows below name their holders.
        for p in range(len(shown.rows)):
            first, end = p * shown.block, (p + 1) * shown.block
            self.cells(first, end, HEAD + TOP)
            self.frame(p, HEAD + TOP)
            self.text(self.middle(first, end), HEAD + TOP / 2, f"p = {p}", fontsize=7)
        for row in shown.rows:
            # All rows have the same height, so that the position follows from the partition.
            self.row(row, HEAD + TOP + CELL + GAP + _band(shown) * row.partition)

    def row(self, row: PartitionRow, top: float) -> None:
        """Draw one partition: the elements that it reads, their senders, and its windows.

        Args:
          top: the vertical coordinate of the row, in inches.
        """
        shown, cell_top, own_start = self.shown, top + TOP, row.partition * self.shown.block
        self.text(
            LEFT - 0.12, cell_top + CELL / 2, f"p = {row.partition}", ha="right", weight="bold"
        )
        # Unread parts of the own block are pale: the partition holds them, but no window needs one.
        self.cells(own_start, min(row.start, own_start + shown.block), cell_top, alpha=0.3)
        self.cells(max(row.limit, own_start), own_start + shown.block, cell_top, alpha=0.3)
        self.cells(row.start, row.limit, cell_top)
        self.frame(row.partition, cell_top)
        # Elements from another partition have its number above them.
        for first, end, holder in shown.sent(row):
            if holder != row.partition:
                self.text(self.middle(first, end), top + TOP / 2, f"{holder}", fontsize=7)
        left, right = own_start - row.start, row.limit - own_start - shown.block
        words = {"ha": "left", "color": FAINT}
        self.text(
            self.x(shown.bounds[1]) + 0.15,
            cell_top + CELL / 2,
            f"left {left}, right {right}",
            **words,
        )
        outputs = len(row.windows)
        # The windows are those of the outputs of this partition, which are numbered over all
        # partitions.
        if outputs:
            names = f"out {row.partition * outputs}…{(row.partition + 1) * outputs - 1}"
            small = {"ha": "right", "color": FAINT, "fontsize": 7}
            self.text(LEFT - 0.12, cell_top + CELL + LANE * 0.75, names, **small)
        # On one line, overlapping windows would hide each other.
        for nth, first in enumerate(row.windows):
            lane = cell_top + CELL + LANE * (nth % shown.lanes + 0.75)
            self.window(row, first, lane, exists=nth < row.outputs)

    def cells(self, start: int, limit: int, y: float, *, alpha: float = 1.0) -> None:
        """Draw the elements `[start, limit)` as cells, hatched if they do not exist.

        Args:
          y: the vertical coordinate, in inches.
          alpha: the opacity of the cells.
        """
        from matplotlib.patches import Rectangle

        scale = _scale(self.shown)
        for k in range(start, limit):
            # Elements before 0 or after the end are padding that a window reads.
            exists = 0 <= k < self.shown.size
            face = BLOCKS[k // self.shown.block % len(BLOCKS)] if exists else "white"
            style: dict[str, Any] = {"fc": face, "ec": FAINT, "lw": 0.5}
            style["hatch"] = None if exists else "/////"
            corner = (self.x(k * self.shown.dilation), y)
            self.axes.add_patch(Rectangle(corner, scale, CELL, alpha=alpha, **style))
            # A number may use the holes of a dilation; it is left out where it would not fit.
            width_per_element = scale * self.shown.dilation
            if exists and width_per_element > 0.12:
                number = {
                    "fontsize": min(8, 36 * width_per_element),
                    "color": INK if alpha == 1 else FAINT,
                }
                self.text(self.middle(k, k + 1), y + CELL / 2, f"{k}", **number)

    def frame(self, p: int, y: float) -> None:
        """Draw a frame around the block of partition `p`, at the vertical coordinate `y`."""
        from matplotlib.patches import Rectangle

        width = ((self.shown.block - 1) * self.shown.dilation + 1) * _scale(self.shown)
        at = (self.x(p * self.shown.block * self.shown.dilation), y)
        self.axes.add_patch(Rectangle(at, width, CELL, fc="none", ec=INK, lw=1.6))

    def window(self, row: PartitionRow, first: int, y: float, *, exists: bool) -> None:
        """Draw the window of one output as a line with a dot per tap and a ring per zero.

        A ring is a tap before the first element or after the last one, where the window reads 0.

        Args:
          first: the position of its first tap.
          y: the vertical coordinate, in inches.
          exists: whether the unpartitioned operator has this output; if not, the line is faint.
        """
        color, shown = INK if exists else FAINT, self.shown
        zeros_before, zeros_after = row.zeros
        end = first + shown.span
        # The line is a little shorter than its positions, so that neighbouring windows do not
        # touch.
        line_ends = self.x(first - zeros_before + 0.15), self.x(end + zeros_after - 0.15)
        self.axes.plot(line_ends, (y, y), color=color, lw=0.8, ls="-" if exists else ":")
        dots: dict[str, Any] = {"color": color, "ls": "none", "marker": "o", "ms": 3}
        # Dots and rings are in the middle of a position, hence the 0.5.
        taps = [self.x(first + tap + 0.5) for tap in shown.taps]
        zero_positions = [*range(first - zeros_before, first), *range(end, end + zeros_after)]
        rings = [self.x(place + 0.5) for place in zero_positions]
        self.axes.plot(taps, [y] * len(taps), **dots)
        self.axes.plot(rings, [y] * len(rings), **dots, mfc="white", mew=0.7)


def _key(figure: Figure, shown: Sequence[DimensionDrawing]) -> None:
    """Add the legend below the panels, with entries for the marks that occur in them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = [row for panel in shown for row in panel.rows]
    tap_style: dict[str, Any] = {"color": INK, "marker": "o", "ms": 3, "lw": 0.8}
    faint_style: dict[str, Any] = {"color": FAINT, "marker": "o", "ms": 3, "lw": 0.8, "ls": ":"}
    # Pairs of whether the mark occurs, and its entry: a mark without an example would confuse.
    entries = [
        (True, Patch(fc="none", ec=INK, lw=1.6, label="own block")),
        (
            True,
            Line2D([], [], color=INK, ls="none", marker="$2$", mew=0, ms=5, label="sent by p = 2"),
        ),
        (True, Patch(fc="white", ec=FAINT, lw=0.5, hatch="/////", label="does not exist")),
        (True, Patch(fc=BLOCKS[0], ec=FAINT, lw=0.5, alpha=0.3, label="held, not read")),
        (
            any(row.windows for row in rows),
            Line2D([], [], **tap_style, label="window and its taps"),
        ),
        (
            any(row.outputs < len(row.windows) for row in rows),
            Line2D([], [], **faint_style, label="of an output past the end"),
        ),
        (
            any(any(row.zeros) for row in rows),
            Line2D([], [], **tap_style, ls="none", mfc="white", label="tap of 0"),
        ),
    ]
    handles = [handle for needed, handle in entries if needed]
    figure.legend(
        handles=handles, loc="lower left", ncols=4, fontsize=8, frameon=False,
        handlelength=1.6, columnspacing=1.6, bbox_to_anchor=(0.005, 0),
    )  # fmt: skip
