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
    """Shift run-time indices, so that they count from the first element of the device's block."""

    def shift(position: int, block: np.ndarray) -> np.ndarray:
        """Return one device's indices, shifted by its partition id; -1 for those outside.

        An index is clamped first. Then `p * scale + more` is added, for the partition id p. With
        `component`, only this component of each index vector is shifted.
        """
        result = np.array(block)
        part = np.asarray(result if a.component is None else result[..., a.component], np.int64)
        if a.clamp is not None:
            part = np.clip(part, *a.clamp)
        low, high = a.within or (0, 0)
        # Checked before the shift: an index that misses the tensor must not hit another device's
        # block.
        missing = (a.within is not None) & ((part < low) | (part > high))
        part = part + partition_id(a.digits, position) * a.scale + a.more
        part = np.where(missing, -1, part).astype(block.dtype)
        if a.component is None:
            return np.asarray(part)
        result[..., a.component] = part
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
        here = np.ones(index.shape[:-1], bool)
        outside = np.zeros(index.shape[:-1], bool)
        member = 0
        for (component, digits, size_here, size), margin in a.counted:
            p = partition_id(digits, position)
            member += p
            local = index[..., component].astype(np.int64)
            here &= (local >= 0) & (local < size_here + margin)
            start = local - margin + p * size_here
            # An index outside of the whole dimension reads the fill on one member. One that is only
            # in another member's block reads 0 here, because that member has the element.
            outside |= (start < 0) | (start >= size)
        # Only the first member fills, because the members' values are summed afterwards.
        fill = a.fill if a.fill is not None and member == 0 else 0
        result = np.where(_spread(here & ~outside, a.batch_dims, block), block, block.dtype.type(0))
        return np.where(_spread(outside, a.batch_dims, block), block.dtype.type(fill), result)

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

    Args:
      x: the block of every device. fill: the number on every device, if it is an operand.
    """

    def mask_block(position: int, block: np.ndarray, *given: np.ndarray) -> np.ndarray:
        value = given[0] if a.fill is None else identity(a.fill, block.dtype.name)
        place = a.start.at(position) + np.arange(block.shape[a.dim])
        # The sizes of 1 broadcast the flags of places along all other dimensions.
        shape = [-1 if i == a.dim else 1 for i in range(block.ndim)]
        inside = ((place >= 0) & (place < a.size)).reshape(shape)
        return np.where(inside, block, np.asarray(value, block.dtype))

    return map_blocks(mask_block, x, *fill)


@on_blocks(Choose)
def _choose(a: Choose, *stacks: Stack) -> Stack:
    """Take each place of the block from the operand whose tensor contains the element."""

    def choose(position: int, *blocks: np.ndarray) -> np.ndarray:
        """Return one device's block, each place from the operand that contains its element."""
        place = a.start.at(position) + np.arange(blocks[0].shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(blocks[0].ndim)]
        # From the last piece to the first, so that the first end behind a place wins.
        result = blocks[-1]
        for block, end in zip(blocks[-2::-1], a.ends[-2::-1], strict=True):
            result = np.where((place < end).reshape(shape), block, result)
        return result

    return map_blocks(choose, *stacks)


@on_blocks(FirstMember)
def _first_member(a: FirstMember, x: Stack) -> Stack:
    """Keep the value on the first member of each group, so that a combination counts it once."""
    fill = identity(a.combine, x[0].dtype.name)

    def keep_first(position: int, block: np.ndarray) -> np.ndarray:
        return np.full_like(block, fill) if partition_id(a.digits, position) else block

    return map_blocks(keep_first, x)
