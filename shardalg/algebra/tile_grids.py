"""Grids of a mesh's devices and of a sharding's blocks, for notebooks and terminals."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from shardalg.palette import BLOCKS, PAPER, axis_color
from shardalg.svg import Cell, Grid, clip, places

if TYPE_CHECKING:
    from shardalg.algebra.mesh import Mesh
    from shardalg.algebra.sharding import Sharding

LISTED = 4
"""The most devices that a cell lists; a cell with more has the first two and the last one."""
DEVICE = "#e8f1f8"
"""Fill of a device in the drawing of a mesh."""


def mesh_grid(mesh: Mesh) -> Grid:
    """Return the devices of a mesh as a grid: the last axis from left to right, the others down.

    >>> from shardalg.algebra.mesh import Mesh
    >>> print(mesh_grid(Mesh({"X": 2, "Y": 3})).to_text(boxed=False))
         Y →
    X ↓  0  1  2
    0    0  1  2
    1    3  4  5
    """
    *other_axes, last_axis = mesh.axes or (("", 1),)
    num_rows = math.prod(size for _, size in other_axes)

    def coordinates(number: int) -> str:
        """Return the coordinates of a row, with names of axes if there are several."""
        texts = []
        # The last of these axes is the most minor digit of the row's number.
        for name, size in reversed(other_axes):
            number, coordinate = divmod(number, size)
            texts.append(
                f"{clip(name, 12)}={coordinate}" if len(other_axes) > 1 else f"{coordinate}"
            )
        return " ".join(reversed(texts))

    rows = [
        None if number is None else (number, coordinates(number)) for number in places(num_rows)
    ]
    columns = places(last_axis[1])
    cells = tuple(
        tuple(
            Cell("…", PAPER)
            if row is None or column is None
            else Cell(f"{mesh.order[row[0] * last_axis[1] + column]}", DEVICE)
            for column in columns
        )
        for row in rows
    )
    column_names = tuple("…" if n is None else f"{n}" for n in columns)
    row_names = tuple("…" if row is None else row[1] for row in rows)
    position = len(mesh.axes) - 1
    down_label = (
        clip(other_axes[0][0], 12) if len(other_axes) == 1 else "",
        axis_color(position - 1),
    )
    right_label = clip(last_axis[0], 12), axis_color(position)
    return Grid(
        "",
        row_names if other_axes else ("",),
        column_names,
        cells,
        down_label if other_axes else ("", ""),
        right_label,
    )


def drawn_dims(sharding: Sharding) -> tuple[int, ...]:
    """Return the dimensions of a sharding that its grid shows: at most two, split ones first."""
    rank = range(len(sharding.shape))
    split = [dim for dim in rank if sharding.parts[dim] > 1][:2]
    free = [dim for dim in rank if dim not in split]
    return tuple(sorted([*split, *free[: 2 - len(split)]]))


def tile_grid(
    sharding: Sharding, *, title: str = "", marked: Collection[tuple[int, int]] = ()
) -> Grid:
    """Return the blocks of a tensor as a grid; each cell names the devices that hold the block.

    Args:
      marked: (row, column) of the blocks that are drawn in red.

    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.algebra.sharding import Sharding
    >>> print(tile_grid(Sharding.from_axes(["X"], Mesh({"X": 2, "Y": 2}), (4, 6))).to_text())
         0:6
        ┌──────┐
    0:2 │ 0, 1 │
        ├──────┤
    2:4 │ 2, 3 │
        └──────┘
    """
    dims = drawn_dims(sharding)
    # A dimension that does not exist has one block, so that scalars and vectors are grids as well.
    drawn = (None,) * (2 - len(dims)) + dims
    ids_of_devices = [_held(sharding, dim) for dim in drawn]
    counts = [1 if dim is None else sharding.parts[dim] for dim in drawn]
    # `places` leaves out the middle of many blocks, but not those that are marked.
    shown_blocks = [places(count, [m[k] for m in marked]) for k, count in enumerate(counts)]

    def elements(dim: int | None, block: int | None) -> str:
        """Return the elements of a block as `start:end`, "padding" if there are none."""
        if dim is None or block is None:
            return "" if dim is None else "…"
        size, step = sharding.shape[dim], sharding.shard_shape[dim]
        start = block * step
        return f"{start}:{min(start + step, size)}" if start < size or not size else "padding"

    names = [
        tuple(elements(dim, block) for block in blocks)
        for dim, blocks in zip(drawn, shown_blocks, strict=True)
    ]
    # One pass over the devices, because a mesh may have thousands of them.
    devices: dict[tuple[int, int], list[int]] = {}
    for device, *block in zip(sharding.mesh.order, *ids_of_devices, strict=True):
        devices.setdefault((block[0], block[1]), []).append(device)

    def tile(i: int | None, j: int | None) -> Cell:
        """Return the cell of a block, in a colour that differs from its neighbours' colours."""
        if i is None or j is None:
            return Cell("…", PAPER)
        block_devices = devices.get((i, j), [])
        fill = BLOCKS[(3 * i + j) % len(BLOCKS)] if block_devices else PAPER
        return Cell(listed(block_devices), fill, (i, j) in marked)

    cells = tuple(tuple(tile(i, j) for j in shown_blocks[1]) for i in shown_blocks[0])
    # The numbers of the dimensions are needed only if others exist.
    has_more_dims = len(sharding.shape) > 2
    first, second = (f"dim {dim}" if has_more_dims else "" for dim in drawn)
    return Grid(title, names[0], names[1], cells, (first, ""), (second, ""))


def _held(sharding: Sharding, dim: int | None) -> list[int]:
    """Return the number of the block along a dimension that the device at each position holds."""
    import numpy as np

    from shardalg.algebra.digits import partition_ids

    size = sharding.mesh.size
    if dim is None:
        return [0] * size
    return partition_ids(sharding.dims[dim], np.arange(size)).tolist()


def listed(devices: list[int]) -> str:
    """Return the text of a cell: its devices, abbreviated if there are many.

    >>> listed([0, 4]), listed([*range(8)]), listed([*range(0, 64, 8)]), listed([])
    ('0, 4', '0–7', '0, 8, … 56', 'none')
    """
    if len(devices) <= LISTED:
        return ", ".join(map(str, devices)) or "none"
    if devices == [*range(devices[0], devices[-1] + 1)]:
        return f"{devices[0]}–{devices[-1]}"
    return f"{devices[0]}, {devices[1]}, … {devices[-1]}"


def tile_notes(sharding: Sharding) -> str:
    """Return sentences about a sharding's grid: its cells, and parts that it does not show."""
    notes = ["Each cell is a block of the tensor, with the devices that hold it."]
    dims = drawn_dims(sharding)
    hidden_dims = [d for d, n in enumerate(sharding.parts) if n > 1 and d not in dims]
    if hidden_dims:
        names = " and ".join(f"dimension {dim}" for dim in hidden_dims)
        notes.append(f"A cell has all blocks along {names}.")
    elif len(sharding.shape) > 2:
        notes.append(f"Dimensions {dims[0]} and {dims[1]} are drawn; no other one is split.")
    if sharding.unreduced:
        axes = ", ".join(sharding.mesh.texts(sharding.unreduced))
        notes.append(f"The blocks are partial sums, pending over {axes}.")
    if any(sharding.parts[dim] > len(places(sharding.parts[dim])) for dim in dims):
        notes.append(f"… marks blocks that are left out; {math.prod(sharding.parts):,} exist.")
    return " ".join(notes)
