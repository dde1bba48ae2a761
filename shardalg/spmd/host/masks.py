"""What depends on the place."""

from __future__ import annotations

import numpy as np

from shardalg.algebra.digits import partition_id
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import everywhere, on_blocks
from shardalg.spmd.identity import identity
from shardalg.spmd.instructions import Choose, FirstMember, Mask, MaskAt


@on_blocks(Mask)
def _mask(a: Mask, x: Stack) -> Stack:
    fill = identity(a.fill, x[0].dtype.name)

    def masked(position: int, block: np.ndarray) -> np.ndarray:
        place = partition_id(a.digits, position) * a.block + np.arange(block.shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(block.ndim)]
        return np.where((place < a.size).reshape(shape), block, np.asarray(fill, block.dtype))

    return everywhere(masked, x)


@on_blocks(MaskAt)
def _mask_at(a: MaskAt, x: Stack, *fill: Stack) -> Stack:
    def masked(position: int, block: np.ndarray, *given: np.ndarray) -> np.ndarray:
        value = given[0] if a.fill is None else identity(a.fill, block.dtype.name)
        place = a.start.at(position) + np.arange(block.shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(block.ndim)]
        inside = ((place >= 0) & (place < a.size)).reshape(shape)
        return np.where(inside, block, np.asarray(value, block.dtype))

    return everywhere(masked, x, *fill)


@on_blocks(Choose)
def _choose(a: Choose, *stacks: Stack) -> Stack:
    def chosen(position: int, *blocks: np.ndarray) -> np.ndarray:
        place = a.start.at(position) + np.arange(blocks[0].shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(blocks[0].ndim)]
        result = blocks[-1]
        for block, end in zip(blocks[-2::-1], a.ends[-2::-1], strict=True):
            result = np.where((place < end).reshape(shape), block, result)
        return result

    return everywhere(chosen, *stacks)


@on_blocks(FirstMember)
def _first_member(a: FirstMember, x: Stack) -> Stack:
    fill = identity(a.combine, x[0].dtype.name)

    def only(position: int, block: np.ndarray) -> np.ndarray:
        return np.full_like(block, fill) if partition_id(a.digits, position) else block

    return everywhere(only, x)
