"""Figures that a notebook shows by themselves; imported where something is drawn."""

from __future__ import annotations

from matplotlib.figure import Figure

from shardalg.io.pictures import png


class Drawing(Figure):
    r"""A figure of matplotlib that needs no screen and keeps no state in `pyplot`.

    >>> Drawing(figsize=(1, 1))._repr_png_()[:4]
    b'\x89PNG'
    """

    def _repr_png_(self) -> bytes:
        return png(self)
