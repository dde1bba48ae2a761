"""Figures as images, and the colours of their lines; nothing here starts matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardalg.errors import TableError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#22262b", "#8a9099"


def png(figure: Figure, *, dpi: int = 144) -> bytes:
    """The figure as a PNG image."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(out, format="png", dpi=dpi, facecolor="white")
    return out.getvalue()


def draw(things: Mapping[str, Any], **options: Any) -> Figure:
    """Plans, halos, exchanges or shardings in one figure, each under its title.

    What `.draw()` of one of them gives, for several of a kind; a notebook shows the figure, and
    `figure.savefig(path)` writes it.

    Args:
      things: title to a Plan, a Halo, an Exchange or a Sharding, all of one kind.
      options: as `.draw()` of that kind takes them.

    Raises:
      TableError: nothing to draw, things of several kinds, or one that has no drawing.

    >>> import shardalg as sa
    >>> mesh = sa.Mesh({"X": 2, "Y": 4})
    >>> texts = {"data parallel": "[X, None]", "model parallel": "[None, Y]"}
    >>> figure = sa.draw({name: sa.Sharding.parse(t, (64, 128), mesh) for name, t in texts.items()})
    >>> [axes.get_title().splitlines() for axes in figure.axes]
    [['data parallel', '[X, None]'], ['model parallel', '[None, Y]']]
    """
    if not isinstance(things, Mapping) or not things:
        raise TableError(
            f"drawn are things by title, as in sa.draw({{'ours': plan}}); got {things!r:.80}."
        )
    kinds = {type(thing)._drawn: name for name, thing in things.items() if _draws(name, thing)}
    if len(kinds) > 1:
        raise TableError(
            f"{' and '.join(map(repr, kinds.values()))} are of different kinds: draw plans, halos "
            "and exchanges, or shardings in a figure of their own."
        )
    return next(iter(kinds))(things, **options)


def _draws(name: str, thing: Any) -> bool:
    if not callable(getattr(type(thing), "_drawn", None)):
        raise TableError(
            f"{name!r} is {thing!r:.80}, which has no drawing: a Plan, a Halo, an Exchange or a "
            "Sharding has."
        )
    return True
