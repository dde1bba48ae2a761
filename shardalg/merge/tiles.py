"""Grids of the shardings that a verdict is about, with the tiles of a refusal marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardalg.algebra.digits import partition_ids, parts
from shardalg.algebra.tile_grids import drawn_dims, listed, tile_grid
from shardalg.merge.places import digits_at
from shardalg.palette import BLOCKS, PAPER
from shardalg.svg import Cell, Grid, places

if TYPE_CHECKING:
    from shardalg.algebra.sharding import Sharding
    from shardalg.merge.verdict import Verdict

MOST_OPERANDS = 4
"""The most operands that are drawn; a refusal is drawn with its two operands."""


def verdict_grids(verdict: Verdict, owners: Sequence[Sharding]) -> tuple[Grid, ...]:
    """Return the blocks of each operand of a verdict as a grid, and of the merge.

    In a refusal, the blocks of the witness are marked: the two blocks of a device, or the tile that
    the merge would put on too few devices.

    Args:
      owners: for each dimension of a refusal, the sharding whose digits are at fault.
    """
    operands = verdict.pair if verdict.failure else verdict.operands[:MOST_OPERANDS]
    names = (
        ("first", "second") if len(operands) == 2 else tuple(map(str, range(1, len(operands) + 1)))
    )
    operand_grids = [
        tile_grid(sharding, title=f"{name} {sharding.text()}", marked=_witness(verdict, sharding))
        for name, sharding in zip(names, operands, strict=True)
    ]
    if verdict.failure is None:
        merged = verdict.sharding
        merge_grids = [] if merged is None else [tile_grid(merged, title=f"merged {merged.text()}")]
    else:
        merge_grids = _refused_merge(verdict, owners)
    return (*operand_grids, *merge_grids)


def _witness(verdict: Verdict, sharding: Sharding) -> tuple[tuple[int, int], ...]:
    """Return (row, column) of the block that the device of a refusal's witness holds.

    Return it as a tuple of one. The tuple is empty if the witness is a tile, or no dimension.
    """
    witness = verdict.witness
    if witness is None or witness.device is None or not isinstance(witness.dim, int):
        return ()
    row_and_column = [0, 0]
    # The last drawn dimension is the columns. A vector has only columns, so its row is 0.
    for place, dim in enumerate(reversed(drawn_dims(sharding))):
        row_and_column[1 - place] = sharding.partition_id(witness.device, dim)
    return ((row_and_column[0], row_and_column[1]),)


def _refused_merge(verdict: Verdict, of: Sequence[Sharding]) -> list[Grid]:
    """Return the grid of a merge that was refused for a tile of two dimensions, else no grid."""
    witness = verdict.witness
    assert witness is not None, "a refusal has a witness"
    dims = [dim for dim in witness.dims if isinstance(dim, int)]
    if len(dims) != 2 or len(witness.dims) != 2:
        return []
    digits = [digits_at(sharding, dim) for sharding, dim in zip(of, dims, strict=True)]
    positions = np.arange(of[0].mesh.size)
    ids = zip(*(partition_ids(row, positions).tolist() for row in digits), strict=True)
    # A tile is a pair of partition ids: a row and a column of the grid.
    devices_of_tile: dict[tuple[int, ...], list[int]] = {}
    for device, tile in zip(of[0].mesh.order, ids, strict=True):
        devices_of_tile.setdefault(tile, []).append(device)
    # The tile of the witness is shown, also if its row or column would be left out.
    tile = witness.tile
    shown_blocks = [places(parts(row), [n]) for row, n in zip(digits, tile, strict=True)]

    def cell(i: int | None, j: int | None) -> Cell:
        """Return the cell of the tile (i, j), with its devices; None means left-out tiles."""
        if i is None or j is None:
            return Cell("…")
        devices = devices_of_tile.get((i, j), [])
        fill = BLOCKS[(3 * i + j) % len(BLOCKS)] if devices else PAPER
        return Cell(listed(devices), fill, (i, j) == witness.tile)

    heads = [tuple("…" if n is None else f"{n}" for n in row) for row in shown_blocks]
    cells = tuple(tuple(cell(i, j) for j in shown_blocks[1]) for i in shown_blocks[0])
    titles = [(f"tile of dim {dim}", "") for dim in dims]
    return [Grid("merged, refused", heads[0], heads[1], cells, titles[0], titles[1])]
