"""`sa.draw`, and PNG images of figures; matplotlib is imported only to draw."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardalg.errors import TableError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def png(figure: Figure, *, dpi: int = 144) -> bytes:
    """Return the figure as a PNG image."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    # A canvas of its own, so that no window system and no pyplot state is needed.
    FigureCanvasAgg(figure).print_figure(out, format="png", dpi=dpi, facecolor="white")
    return out.getvalue()


def draw(things: Mapping[str, Any], **options: Any) -> Figure:
    """Draw plans, halos, exchanges or shardings in one figure, each under its title.

    Each object is drawn as its own method `draw` draws it. A notebook shows the figure, and
    `figure.savefig(path)` writes it to a file.

    Args:
      things: plans, halos, exchanges or shardings by title; all of one kind.
      options: options of the method `draw` of that kind.

    Raises:
      TableError: there is nothing to draw, there are several kinds, or a value has no drawing.

    >>> import shardalg as sa
    >>> mesh = sa.Mesh({"X": 2, "Y": 4})
    >>> texts = {"data parallel": "[X, None]", "model parallel": "[None, Y]"}
    >>> figure = sa.draw({name: sa.Sharding.parse(t, (64, 128), mesh) for name, t in texts.items()})
    >>> [axes.get_title().splitlines() for axes in figure.axes]
    [['data parallel', '[X, None]'], ['model parallel', '[None, Y]']]
    """
    if not isinstance(things, Mapping) or not things:
        raise TableError(
            f"nothing to draw: give objects by title, as in sa.draw({{'ours': plan}}); got "
            f"{things!r:.80}."
        )
    # Objects whose classes share a drawing function `_drawn`, such as halos and exchanges, fit into
    # one figure. A dict from each function to a title finds the kinds in their order.
    kinds = {}
    for name, thing in things.items():
        if not callable(getattr(type(thing), "_drawn", None)):
            raise TableError(
                f"{name!r} is {thing!r:.80}, which has no drawing. Give a Plan, a Halo, "
                "an Exchange or a Sharding."
            )
        kinds[type(thing)._drawn] = name
    if len(kinds) > 1:
        raise TableError(
            f"{' and '.join(map(repr, kinds.values()))} are of different kinds. Draw plans, halos "
            "with exchanges, and shardings in separate figures."
        )
    return next(iter(kinds))(things, **options)
