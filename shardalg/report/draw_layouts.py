"""Drawings of shardings: a tensor as a plane, cut into the blocks that its devices hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError
from shardalg.report.figures import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bounds = tuple[tuple[int, int], tuple[int, int]]
# Inches of one panel, and devices that are listed in a line of a tile.
PANEL, IN_LINE = 2.3, 4


def held(sharding: Sharding) -> dict[Bounds, tuple[int, ...]]:
    """The devices of each block that holds something: rows and columns as (start, end).

    A tensor of one dimension is a row.

    Raises:
      ShardingError: more than two dimensions.

    >>> from shardalg.algebra.mesh import Mesh
    >>> held(Sharding.from_axes([None, "y"], Mesh({"x": 2, "y": 2}), (4, 3)))
    {((0, 4), (0, 2)): (0, 2), ((0, 4), (2, 3)): (1, 3)}
    """
    if len(sharding.shape) not in (1, 2):
        raise ShardingError(f"{sharding!r} has {len(sharding.shape)} dimensions; 1 or 2 are drawn.")
    found: dict[Bounds, list[int]] = {}
    for device in sharding.mesh.order:
        spans = [(part.start, part.stop) for part in sharding.shard_slices(device)]
        rows, columns = spans if len(spans) == 2 else ((0, 1), *spans)
        if rows[0] < rows[1] and columns[0] < columns[1]:
            found.setdefault((rows, columns), []).append(device)
    return {bounds: tuple(devices) for bounds, devices in found.items()}


def draw_shardings(shardings: Mapping[str, Sharding]) -> Figure:
    """Shardings, each under its name; in every block the devices that hold it.

    Planes stand side by side, and tensors of one dimension below each other.
    """
    from matplotlib.figure import Figure

    rows = all(len(sharding.shape) == 1 for sharding in shardings.values())
    size = (3 * PANEL, 0.4 * PANEL * len(shardings)) if rows else (PANEL * len(shardings), PANEL)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(*((len(shardings), 1) if rows else (1, len(shardings))), squeeze=False)
    for axes, (name, sharding) in zip(panels.flat, shardings.items(), strict=True):
        _draw(axes, sharding)
        axes.set_title(f"{name}\n{sharding.text()}", fontsize=9, color=INK)
    return figure


def _draw(axes: Axes, sharding: Sharding) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    blocks = held(sharding)
    colors = colormaps["Pastel1"]
    for nth, (((top, bottom), (left, right)), devices) in enumerate(blocks.items()):
        size = right - left, bottom - top
        face = colors(nth % colors.N)
        axes.add_patch(Rectangle((left, top), *size, fc=face, ec=INK, lw=0.8))
        place = (left + right) / 2, (top + bottom) / 2
        axes.text(*place, _listed(devices), ha="center", va="center", fontsize=7, color=INK)
    height, width = (1, *sharding.shape)[-2:]
    ends = [0, height] if len(sharding.shape) == 2 else []
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[0, width], yticks=ends)
    axes.tick_params(labelsize=7, colors=FAINT, length=2)
    axes.spines[:].set_color(FAINT)


def _listed(devices: tuple[int, ...]) -> str:
    lines = [devices[i : i + IN_LINE] for i in range(0, len(devices), IN_LINE)]
    return "\n".join(" ".join(map(str, line)) for line in lines)
