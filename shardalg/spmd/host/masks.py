"""Simulate instructions whose effect depends on the place, and shifts of run-time indices."""

from __future__ import annotations

import numpy as np

from shardalg.algebra.digits import partition_id
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import map_blocks, on_blocks
from shardalg.spmd.identity import identity
from shardalg.spmd.instructions import Choose, FirstMember, Mask, MaskAt, MaskIndexed, Offset


@on_blocks(Offset)
def _offset(a: Offset, x: Stack) -> Stack:
    """Shift run-time indices, so that they count from the first element of the device's block.

    For example, with blocks of 4 elements, index 6 of the tensor is index 2 on the device with
    partition id 1. `x` has the indices on every device.
    """

    def shift(position: int, block: np.ndarray) -> np.ndarray:
        """Return one device's indices, shifted by its partition id; -1 for those outside.

        An index is clamped first. Then `p * scale + more` is added, for the partition id p. With
        `component`, only this component of each index vector is shifted.
        """
        result = np.array(block)
        indices = np.asarray(result if a.component is None else result[..., a.component], np.int64)
        if a.clamp is not None:
            indices = np.clip(indices, *a.clamp)
        low, high = a.within or (0, 0)
        # Checked before the shift: an index that misses the tensor must not hit another device's
        # block.
        missing = (a.within is not None) & ((indices < low) | (indices > high))
        indices = indices + partition_id(a.digits, position) * a.scale + a.more
        # An index outside of the tensor becomes -1, which is outside of every block.
        indices = np.where(missing, -1, indices).astype(block.dtype)
        if a.component is None:
            return np.asarray(indices)
        result[..., a.component] = indices
        return result

    return map_blocks(shift, x)


@on_blocks(MaskIndexed)
def _mask_indexed(a: MaskIndexed, value: Stack, indices: Stack) -> Stack:
    """Set gathered elements to 0 on devices whose block does not contain the indexed element."""

    def mask_block(position: int, block: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return one device's gathered values, with 0 in place of elements of other devices.

        An index outside of the whole tensor gives the fill on the first device of a group.

        Args:
          index: the index vectors, counted from the device's block.
        """
        # The last dimension has the components of an index, all of which must hit the block.
        is_in_block = np.ones(index.shape[:-1], bool)
        is_outside = np.zeros(index.shape[:-1], bool)
        member = 0
        for (component, digits, size_here, size), margin in a.counted:
            part = partition_id(digits, position)
            member += part
            local = index[..., component].astype(np.int64)
            is_in_block &= (local >= 0) & (local < size_here + margin)
            start = local - margin + part * size_here
            # An index outside of the whole dimension reads the fill on one member. One that is only
            # in another member's block reads 0 here, because that member has the element.
            is_outside |= (start < 0) | (start >= size)
        # Only the first member fills, because the members' values are summed afterwards.
        fill = a.fill if a.fill is not None and member == 0 else 0
        result = np.where(
            _spread(is_in_block & ~is_outside, a.batch_dims, block), block, block.dtype.type(0)
        )
        return np.where(_spread(is_outside, a.batch_dims, block), block.dtype.type(fill), result)

    return map_blocks(mask_block, value, indices)


def _spread(array: np.ndarray, dims: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    """Return `array` as dimensions `dims` of a tensor with the rank of `like`."""
    shape = [1] * like.ndim
    for n, dim in zip(array.shape, dims, strict=True):
        shape[dim] = n
    return array.reshape(shape)


@on_blocks(Mask)
def _mask(a: Mask, x: Stack) -> Stack:
    """Fill all places of a dimension that lie after its last element, on every device."""
    fill = identity(a.fill, x[0].dtype.name)

    def mask_block(position: int, block: np.ndarray) -> np.ndarray:
        # A block of a padded dimension reaches beyond the size only on the last devices, so the
        # comparison needs positions in the whole dimension.
        place = partition_id(a.digits, position) * a.block + np.arange(block.shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(block.ndim)]
        return np.where((place < a.size).reshape(shape), block, np.asarray(fill, block.dtype))

    return map_blocks(mask_block, x)


@on_blocks(MaskAt)
def _mask_at(a: MaskAt, x: Stack, *fill: Stack) -> Stack:
    """Fill all places of a dimension that have no element, before its start and after its end.

    `a.start.at(position)` is the tensor's index of the first place of a device's block, which may
    be negative. Elements are at the indices from 0 to `a.size` - 1.

    Args:
      x: the block of every device. fill: the number on every device, if it is an operand.
    """

    def mask_block(position: int, block: np.ndarray, *given: np.ndarray) -> np.ndarray:
        # `a.fill` names a combination, such as "add"; its identity does not change the result.
        """Return one device's block, with the fill at indices that have no element."""
        value = given[0] if a.fill is None else identity(a.fill, block.dtype.name)
        indices = a.start.at(position) + np.arange(block.shape[a.dim])
        # The sizes of 1 broadcast the flags of places along all other dimensions.
        shape = [-1 if i == a.dim else 1 for i in range(block.ndim)]
        is_element = ((indices >= 0) & (indices < a.size)).reshape(shape)
        return np.where(is_element, block, np.asarray(value, block.dtype))

    return map_blocks(mask_block, x, *fill)


@on_blocks(Choose)
def _choose(a: Choose, *stacks: Stack) -> Stack:
    """Take each place of the block from the operand whose tensor contains the element.

    The tensors are pieces of a dimension, one after the other: piece k ends at index `a.ends[k]`.
    All operands are blocks for the same range of indices, which begins at `a.start`.
    """

    def choose(position: int, *blocks: np.ndarray) -> np.ndarray:
        """Return one device's block, each place from the operand that contains its element."""
        indices = a.start.at(position) + np.arange(blocks[0].shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(blocks[0].ndim)]
        # From the last piece to the first, so that the first end behind a place wins.
        result = blocks[-1]
        for block, end in zip(blocks[-2::-1], a.ends[-2::-1], strict=True):
            result = np.where((indices < end).reshape(shape), block, result)
        return result

    return map_blocks(choose, *stacks)


@on_blocks(FirstMember)
def _first_member(a: FirstMember, x: Stack) -> Stack:
    """Keep the value on the first member of each group, so that a combination counts it once."""
    fill = identity(a.combine, x[0].dtype.name)

    def keep_first(position: int, block: np.ndarray) -> np.ndarray:
        return np.full_like(block, fill) if partition_id(a.digits, position) else block

    return map_blocks(keep_first, x)
