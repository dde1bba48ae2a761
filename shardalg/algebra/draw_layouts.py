"""Drawings of shardings: a tensor as a plane, divided into the blocks of its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardalg.errors import ShardingError
from shardalg.palette import BLOCKS, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from shardalg.algebra.sharding import Sharding

Bounds = tuple[tuple[int, int], tuple[int, int]]
PANEL, IN_LINE, LISTED = 2.3, 4, 16
"""Width of a panel in inches; the most devices in a line of a block's text, and in all."""


def plane(shardings: Mapping[str, Sharding]) -> tuple[int, ...]:
    """Return the dimensions to draw: at most two, dimensions that some sharding splits first.

    Raises:
      ShardingError: shardings of different ranks, scalars, or more than two split dimensions.
    """
    ranks = {name: len(sharding.shape) for name, sharding in shardings.items()}
    if len(set(ranks.values())) != 1 or not next(iter(ranks.values())):
        raise ShardingError(f"shardings of one rank, at least 1, are drawn together; got {ranks}.")
    rank = next(iter(ranks.values()))
    split = [dim for dim in range(rank) if any(s.dims[dim] for s in shardings.values())]
    if len(split) > 2:
        texts = " and ".join(sharding.text() for sharding in shardings.values())
        raise ShardingError(
            f"{texts} split {len(split)} dimensions; a drawing has two. Draw shardings that split "
            "fewer, or print sharding.shard_slices(device)."
        )
    # A picture has two dimensions, so dimensions that no sharding splits are added up to two.
    unsplit = [dim for dim in range(rank) if dim not in split]
    return tuple(sorted([*split, *unsplit[: max(0, 2 - len(split))]]))


def devices_by_block(sharding: Sharding, dims: tuple[int, ...]) -> dict[Bounds, tuple[int, ...]]:
    """Return the ids of the devices that hold each block, for blocks with elements.

    Keys are ((first row, end), (first column, end)), in elements of the drawn dimensions.

    Args:
      dims: the dimensions that are drawn; the elements of a single dimension are columns.

    >>> import shardalg as sa
    >>> layout = sa.Sharding.from_axes([None, "y"], sa.Mesh({"x": 2, "y": 2}), (4, 3))
    >>> devices_by_block(layout, (0, 1))
    {((0, 4), (0, 2)): (0, 2), ((0, 4), (2, 3)): (1, 3)}
    """
    devices_of_block: dict[Bounds, list[int]] = {}
    for device in sharding.mesh.order:
        parts = sharding.shard_slices(device)
        spans = [(parts[dim].start, parts[dim].stop) for dim in dims]
        rows, columns = spans if len(spans) == 2 else ((0, 1), *spans)
        # A block of padding alone has nothing to draw.
        if rows[0] < rows[1] and columns[0] < columns[1]:
            devices_of_block.setdefault((rows, columns), []).append(device)
    return {bounds: tuple(devices) for bounds, devices in devices_of_block.items()}


def draw_shardings(shardings: Mapping[str, Sharding]) -> Figure:
    """Draw shardings under their names; each block lists the devices that hold it.

    Planes are drawn side by side, and tensors of one dimension below each other.
    """
    from shardalg.drawing import Drawing

    dims = plane(shardings)
    # A single dimension needs width and little height, so its panels are below each other.
    rows, count = len(dims) == 1, len(shardings)
    size = (3 * PANEL, 0.45 * PANEL * count + 0.3) if rows else (PANEL * count + 0.4, PANEL + 0.5)
    figure = Drawing(figsize=size, layout="constrained")
    panels = figure.subplots(*((count, 1) if rows else (1, count)), squeeze=False)
    for axes, (name, sharding) in zip(panels.flat, shardings.items(), strict=True):
        _draw(axes, sharding, dims)
        axes.set_title(f"{name}\n{sharding.text()}", fontsize=9, color=INK)
    figure.supxlabel("in each block the devices that hold it", fontsize=7, color=FAINT)
    return figure


def _draw(axes: Axes, sharding: Sharding, dims: tuple[int, ...]) -> None:
    """Draw one sharding into a panel: a rectangle per block, with the devices that hold it.

    Args:
      axes: the panel.
      dims: the one or two dimensions that are drawn.
    """
    from matplotlib.patches import Rectangle

    blocks = devices_by_block(sharding, dims)
    for nth, (((top, bottom), (left, right)), devices) in enumerate(blocks.items()):
        size = right - left, bottom - top
        face = BLOCKS[nth % len(BLOCKS)]
        axes.add_patch(Rectangle((left, top), *size, fc=face, ec=INK, lw=0.8))
        place = (left + right) / 2, (top + bottom) / 2
        axes.text(*place, _listed(devices), ha="center", va="center", fontsize=7, color=INK)
    # A picture has two dimensions, so a single dimension becomes one row of elements.
    height, width = (1, *(sharding.shape[dim] for dim in dims))[-2:]
    row_ticks = [0, height] if len(dims) == 2 else []
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[0, width], yticks=row_ticks)
    small: dict[str, Any] = {"fontsize": 7, "color": FAINT}
    axes.set_xlabel(f"dimension {dims[-1]} (elements)", **small)
    if len(dims) == 2:
        axes.set_ylabel(f"dimension {dims[0]} (elements)", **small)
    axes.tick_params(labelsize=7, colors=FAINT, length=2)
    axes.spines[:].set_color(FAINT)


def _listed(devices: tuple[int, ...]) -> str:
    """Return the text in a block of a drawing: its devices, or their number if there are many."""
    if len(devices) > LISTED:
        return f"{len(devices)} devices\n{devices[0]}, {devices[1]}, …, {devices[-1]}"
    lines = [devices[i : i + IN_LINE] for i in range(0, len(devices), IN_LINE)]
    return "\n".join(" ".join(map(str, line)) for line in lines)
