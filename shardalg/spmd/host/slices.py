"""Parts of a block."""

from __future__ import annotations

import numpy as np

from shardalg.algebra.digits import partition_id
from shardalg.errors import ProgramError
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import everywhere, on_blocks
from shardalg.spmd.instructions import DynamicSlice, OwnerSelect, Slice, SliceAt


@on_blocks(DynamicSlice)
def _dynamic_slice(a: DynamicSlice, x: Stack) -> Stack:
    def own(position: int, block: np.ndarray) -> np.ndarray:
        start = partition_id(a.digits, position) * a.block
        if start + a.block > block.shape[a.dim]:
            raise ProgramError(
                f"position {position} slices [{start}, {start + a.block}) of "
                f"{block.shape[a.dim]} elements. Resize dimension {a.dim} first."
            )
        return block.take(range(start, start + a.block), a.dim)

    return everywhere(own, x)


@on_blocks(Slice)
def _slice(a: Slice, x: Stack) -> Stack:
    return everywhere(lambda _, block: _cut(block, a.dim, a.start, a.size), x)


@on_blocks(SliceAt)
def _slice_at(a: SliceAt, x: Stack) -> Stack:
    def own(position: int, block: np.ndarray) -> np.ndarray:
        start = a.start.at(position)
        if start < 0 or start + a.size > block.shape[a.dim]:
            raise ProgramError(
                f"position {position} slices [{start}, {start + a.size}) of "
                f"{block.shape[a.dim]} elements of dimension {a.dim}."
            )
        return _cut(block, a.dim, start, a.size)

    return everywhere(own, x)


def _cut(block: np.ndarray, dim: int, start: int, size: int) -> np.ndarray:
    return block.take(range(start, start + size), dim)


@on_blocks(OwnerSelect)
def _owner_select(a: OwnerSelect, x: Stack) -> Stack:
    def own(position: int, block: np.ndarray) -> np.ndarray:
        found = _cut(block, a.dim, a.place, 1)
        return found if partition_id(a.digits, position) == a.owner else np.zeros_like(found)

    return everywhere(own, x)
