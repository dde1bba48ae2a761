"""Simulate instructions that take a part of a block, and boxes at run-time starts."""

from __future__ import annotations

from functools import partial

import numpy as np

from shardalg.algebra.digits import partition_id
from shardalg.errors import ProgramError
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import map_blocks, on_blocks
from shardalg.spmd.instructions import (
    DynamicSlice,
    Extract,
    Insert,
    OwnerSelect,
    Places,
    Slice,
    SliceAt,
)

Shape = tuple[int, ...]


@on_blocks(Extract)
def _extract(a: Extract, x: Stack, *starts: Stack) -> Stack:
    return map_blocks(partial(_extract_box, a), x, *starts)


@on_blocks(Insert)
def _insert(a: Insert, x: Stack, new: Stack, *starts: Stack) -> Stack:
    return map_blocks(partial(_insert_box, a), x, new, *starts)


def _extract_box(a: Extract, position: int, block: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    """Return the box on one device: elements of the device's block, and 0 for all other elements.

    The sum over the devices is the whole box, because each element is in one block.

    Args:
      starts: the first element of the box in each dimension of the tensor, as scalars.
    """
    result = block
    for dim, first in enumerate(_box_starts(a.places, starts, block.shape, a.sizes, position)):
        # `first` is the box's start, counted from the start of the block, and may be negative.
        block_indices = first + np.arange(a.sizes[dim])
        is_inside = (block_indices >= 0) & (block_indices < block.shape[dim])
        # Take any element outside of the block, then overwrite it with 0.
        result = result.take(np.where(is_inside, block_indices, 0), dim, mode="clip")
        result = np.where(_along(is_inside, dim, result), result, np.zeros((), block.dtype))
    return result


def _insert_box(
    a: Insert, position: int, block: np.ndarray, update: np.ndarray, *starts: np.ndarray
) -> np.ndarray:
    """Return the device's block, in which the elements of the box are replaced by `update`.

    Args:
      starts: the first element of the box in each dimension of the tensor, as scalars.
    """
    result, is_in_box = update, np.ones((), bool)
    for dim, first in enumerate(_box_starts(a.places, starts, block.shape, update.shape, position)):
        # For each element of the block, its index in the box, whose start is `first` in the block.
        box_indices = np.arange(block.shape[dim]) - first
        is_inside = (box_indices >= 0) & (box_indices < update.shape[dim])
        # A box that misses the block changes nothing.
        if not is_inside.any():
            return block
        # Stretch the update to the size of the block, so that `where` can choose elementwise.
        result = result.take(np.where(is_inside, box_indices, 0), dim)
        is_in_box = is_in_box & _along(is_inside, dim, block)
    return np.where(is_in_box, result, block)


def _box_starts(
    places: Places, starts: tuple[np.ndarray, ...], shape: Shape, sizes: Shape, position: int
) -> list[int]:
    """Return the first place of a box per dimension, counted from the own block's first place."""
    cut = {dim: (digits, high) for dim, digits, high in places}
    block_starts = []
    for dim, start in enumerate(starts):
        digits, high = cut.get(dim, ((), shape[dim] - sizes[dim]))
        # XLA clamps a start so that the box is inside the tensor.
        first = min(max(int(start), 0), high)
        block_starts.append(first - partition_id(digits, position) * shape[dim] * bool(digits))
    return block_starts


def _along(array: np.ndarray, dim: int, like: np.ndarray) -> np.ndarray:
    """Return a vector as one dimension of a tensor with the rank of `like`."""
    return array.reshape([-1 if d == dim else 1 for d in range(like.ndim)])


@on_blocks(DynamicSlice)
def _dynamic_slice(a: DynamicSlice, x: Stack) -> Stack:
    """Cut the block with the device's partition id out of a dimension.

    For example, partition id 2 with blocks of 4 elements takes the elements 8 to 11.
    """

    def own_part(position: int, block: np.ndarray) -> np.ndarray:
        """Return the part of the block that belongs to the partition id at this position."""
        # Without this check, the error of numpy would not name the position.
        start = partition_id(a.digits, position) * a.block
        if start + a.block > block.shape[a.dim]:
            raise ProgramError(
                f"position {position} slices [{start}, {start + a.block}) of "
                f"{block.shape[a.dim]} elements. Resize dimension {a.dim} first."
            )
        return block.take(range(start, start + a.block), a.dim)

    return map_blocks(own_part, x)


@on_blocks(Slice)
def _slice(a: Slice, x: Stack) -> Stack:
    return map_blocks(lambda _, block: _cut(block, a.dim, a.start, a.size), x)


@on_blocks(SliceAt)
def _slice_at(a: SliceAt, x: Stack) -> Stack:
    """Cut an interval of `a.size` elements out of a dimension, from the device's own start on."""

    def own_part(position: int, block: np.ndarray) -> np.ndarray:
        """Return the interval of `a.size` elements that begins at this position's own start."""
        start = a.start.at(position)
        # numpy would count a negative start from the end and return other elements.
        if start < 0 or start + a.size > block.shape[a.dim]:
            raise ProgramError(
                f"position {position} slices [{start}, {start + a.size}) of "
                f"{block.shape[a.dim]} elements of dimension {a.dim}."
            )
        return _cut(block, a.dim, start, a.size)

    return map_blocks(own_part, x)


def _cut(block: np.ndarray, dim: int, start: int, size: int) -> np.ndarray:
    return block.take(range(start, start + size), dim)


@on_blocks(OwnerSelect)
def _owner_select(a: OwnerSelect, x: Stack) -> Stack:
    """Select one place along a sharded dimension: its owner keeps the element, all others have 0.

    The result is a partial sum over the devices along the dimension.
    """

    def own_part(position: int, block: np.ndarray) -> np.ndarray:
        """Return the device's element at the place, or 0 if another partition is the owner."""
        element = _cut(block, a.dim, a.place, 1)
        return element if partition_id(a.digits, position) == a.owner else np.zeros_like(element)

    return map_blocks(own_part, x)
