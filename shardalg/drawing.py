"""Figures that a notebook displays without pyplot; imported only to draw."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.offsetbox import TextArea
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, ScalarFormatter
from matplotlib.transforms import Bbox

from shardalg.pictures import png


class Drawing(Figure):
    r"""A figure of matplotlib that needs no screen and keeps no state in `pyplot`.

    All text is drawn as it is written: a `$` in a name starts no formula. Only numbers on axes may
    be formulas, such as powers of ten.

    >>> Drawing(figsize=(1, 1))._repr_png_()[:4]
    b'\x89PNG'
    >>> drawn = Drawing(figsize=(1, 1))
    >>> _ = drawn.suptitle("$\no_such_command$")
    >>> drawn._repr_png_()[:4]
    b'\x89PNG'
    """

    def _repr_png_(self) -> bytes:
        return png(self)

    def draw(self, renderer: Any) -> None:
        """Draw the figure; see `matplotlib.figure.Figure.draw`."""
        # A user's name with a `$` would start a formula, which may not even be valid.
        numbers = {id(text) for text in self._numbers()}
        for text in self.findobj(Text):
            if id(text) not in numbers:
                text.set_parse_math(False)
        super().draw(renderer)

    def _numbers(self) -> list[Text]:
        """Return the tick labels that matplotlib writes from numbers; only they may be formulas.

        The offset at the end of an axis, such as "1e6", is one of them.
        """
        # Other formatters print text of the caller, such as names of strategies.
        axes = [axis for each in self.axes for axis in (each.xaxis, each.yaxis)]
        kinds = (LogFormatter, ScalarFormatter)
        numbered = [axis for axis in axes if isinstance(axis.get_major_formatter(), kinds)]
        ticks = [t for a in numbered for t in (*a.get_major_ticks(), *a.get_minor_ticks())]
        labels = [text for tick in ticks for text in (tick.label1, tick.label2)]
        return labels + [axis.get_offset_text() for axis in numbered]


class Subscript(TextArea):
    """A subscript: text that is smaller and lower than the line that contains it.

    It replaces a formula `$_{...}$`, in which most characters of a name have a meaning.
    """

    DROP = 0.3
    """Distance of the baselines, as a share of the size of the letters."""

    def __init__(self, text: str, textprops: dict[str, Any]) -> None:
        super().__init__(text, textprops=textprops)
        self._points = self.DROP * textprops["fontsize"]
        self._drop = 0.0

    def get_bbox(self, renderer: Any) -> Bbox:
        """Return the box of the text, relative to the baseline of the line."""
        self._drop = renderer.points_to_pixels(self._points)
        return super().get_bbox(renderer).translated(0, -self._drop)

    def set_offset(self, xy: Any) -> None:
        """Set the place of the line's baseline, in pixels."""
        super().set_offset((xy[0], xy[1] - self._drop))
