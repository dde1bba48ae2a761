"""Indices of gathers and scatters, counted from the own block on."""

from __future__ import annotations

import numpy as np

from shardalg.algebra.digits import partition_id
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import everywhere, on_blocks
from shardalg.spmd.instructions import MaskIndexed, Offset


@on_blocks(Offset)
def _offset(a: Offset, x: Stack) -> Stack:
    def shifted(position: int, block: np.ndarray) -> np.ndarray:
        result = np.array(block)
        part = np.asarray(result if a.component is None else result[..., a.component], np.int64)
        if a.clamp is not None:
            part = np.clip(part, *a.clamp)
        low, high = a.within or (0, 0)
        missing = (a.within is not None) & ((part < low) | (part > high))
        part = part + partition_id(a.digits, position) * a.scale + a.more
        part = np.where(missing, -1, part).astype(block.dtype)
        if a.component is None:
            return np.asarray(part)
        result[..., a.component] = part
        return result

    return everywhere(shifted, x)


@on_blocks(MaskIndexed)
def _mask_indexed(a: MaskIndexed, value: Stack, indices: Stack) -> Stack:
    def masked(position: int, block: np.ndarray, index: np.ndarray) -> np.ndarray:
        here = np.ones(index.shape[:-1], bool)
        outside = np.zeros(index.shape[:-1], bool)
        member = 0
        for (component, digits, size_here, size), margin in a.counted:
            p = partition_id(digits, position)
            member += p
            local = index[..., component].astype(np.int64)
            here &= (local >= 0) & (local < size_here + margin)
            start = local - margin + p * size_here
            outside |= (start < 0) | (start >= size)
        fill = a.fill if a.fill is not None and member == 0 else 0
        result = np.where(_spread(here & ~outside, a.batch_dims, block), block, block.dtype.type(0))
        return np.where(_spread(outside, a.batch_dims, block), block.dtype.type(fill), result)

    return everywhere(masked, value, indices)


def _spread(array: np.ndarray, dims: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    """`array` with its dimensions at `dims` of a tensor of the rank of `like`."""
    shape = [1] * like.ndim
    for n, dim in zip(array.shape, dims, strict=True):
        shape[dim] = n
    return array.reshape(shape)
