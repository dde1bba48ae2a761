"""Emission of instructions that read or update a part of a block.

A box is the part of a tensor that `Extract` reads or `Insert` writes, at starts known at run time.
Only the elements of the box are touched, never the whole block. If a box straddles blocks, each
device reads or writes a box at `clip(start, 0, block - box)`, which is inside its block. The
elements are then shifted by the difference from the true start, with zeros outside. The sum over
devices that follows a read gives +0 for -0; XLA, which gathers the whole operand, keeps the sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax

from shardalg.algebra.digits import Digits
from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import (
    DynamicSlice,
    Extract,
    Insert,
    OwnerSelect,
    Places,
    Slice,
    SliceAt,
)

Ids = Callable[[Digits], Array]
"""Returns the partition id along digits of the device that executes."""


def extracted(a: Extract, ids: Ids, x: Array, starts: Sequence[Array]) -> Array:
    """Return the elements of a box that are in this block; the box's other elements are 0.

    The box is the part of the tensor that an operator reads, with the sizes `a.sizes`.

    Args:
      ids: returns the device's partition id along digits.
      x: the device's block.
      starts: the box's first element per dimension of the tensor.
    """
    # A box may straddle two blocks, but a slice must be inside of one. So the part of the block
    # that is nearest to the box is read, and then shifted to its place in the box.
    first = _starts(a.places, ids, (x.shape, a.sizes), starts)
    shape = _intersection_shape(a.places, x.shape, a.sizes)
    result, at = _read(x, first, shape)
    for dim, _, _ in a.places:
        result = _shift(result, dim, first[dim] - at[dim], a.sizes[dim])
    return result


def inserted(a: Insert, ids: Ids, x: Array, new: Array, starts: Sequence[Array]) -> Array:
    """Return the block with the elements of a box that are in it overwritten.

    The box is the part of the tensor that an operator writes, with the shape of `new`.

    Args:
      ids: returns the device's partition id along digits.
      x: the device's block.
      new: the new elements of the box.
      starts: the box's first element per dimension of the tensor.
    """
    first = _starts(a.places, ids, (x.shape, new.shape), starts)
    shape = _intersection_shape(a.places, x.shape, new.shape)
    held, at = _read(x, first, shape)
    here = jnp.ones((), bool)
    for dim, _, _ in a.places:
        size, shift = new.shape[dim], at[dim] - first[dim]
        new = _shift(new, dim, shift, shape[dim])
        place = lax.broadcasted_iota(jnp.int32, shape, dim) + shift
        # Elements of the block that are outside of the box keep their values.
        here = here & (place >= 0) & (place < size)
    return lax.dynamic_update_slice(x, jnp.where(here, new, held), at)


def _intersection_shape(
    places: Places, block_shape: Sequence[int], box_shape: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape of the largest possible intersection of a device's block with a box.

    For example, blocks of 4 elements and a box of 6 elements have at most 4 elements in common.
    Along a dimension that is not sharded, the block contains the whole box.

    Args:
      places: (dimension, its digits, largest start) of each sharded dimension.
    """
    sharded_dims = {dim for dim, _, _ in places}
    return tuple(
        min(block, box) if dim in sharded_dims else box
        for dim, (block, box) in enumerate(zip(block_shape, box_shape, strict=True))
    )


def _starts(
    places: Places, ids: Ids, shapes: tuple[Sequence[int], Sequence[int]], starts: Sequence[Array]
) -> list[Array]:
    """Return the first element of a box per dimension, counted from the start of the block.

    Starts are clamped in their own type, which may not count to the end of a dimension. The result
    has 32 bits.

    Args:
      places: (dimension, its digits, largest start) of each sharded dimension.
      ids: returns the device's partition id along digits.
      shapes: the shape of the block, and of the box.
      starts: the box's first element per dimension of the tensor.
    """
    sharded_dims = {dim: (digits, largest) for dim, digits, largest in places}
    found = []
    for dim, (given, block, box) in enumerate(zip(starts, *shapes, strict=True)):
        # Along a dimension that is not sharded, the block is the whole dimension: no digits, and
        # the largest start leaves room for the box.
        digits, largest = sharded_dims.get(dim, ((), block - box))
        start = jnp.asarray(given)
        largest = min(largest, int(jnp.iinfo(start.dtype).max))
        # Clamp before the conversion: a 64-bit start may not fit in 32 bits.
        start = jnp.clip(start, 0, jnp.asarray(largest, start.dtype)).astype(jnp.int32)
        found.append(start - ids(digits) * block)
    return found


def _read(
    x: Array, first: Sequence[Array], shape: tuple[int, ...]
) -> tuple[Array, tuple[Array, ...]]:
    """Return the part of a block that is nearest to a box, and the first element of the part.

    Args:
      first: the box's first element per dimension, counted from the start of the block; it may be
        outside of the block.
      shape: shape of the part.
    """
    # The part must be inside of the block, so its start is at most size - part size.
    starts = tuple(
        jnp.clip(jnp.asarray(start), 0, size - part_size).astype(jnp.int32)
        for start, size, part_size in zip(first, x.shape, shape, strict=True)
    )
    return lax.dynamic_slice(x, starts, shape), starts


def _shift(x: Array, dim: int, shift: Array, size: int) -> Array:
    """Return the elements `[shift, shift + size)` of dimension `dim`; 0 where `x` has none.

    For example, `[1, 2, 3]` with the shift -1 and the size 3 becomes `[0, 1, 2]`.
    """
    # With `size` zeros on both sides, a slice of `size` elements is inside for every shift.
    widths = [(size, size, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
    padded = lax.pad(x, jnp.zeros((), x.dtype), widths)
    start = jnp.clip(shift, -size, x.shape[dim]) + size
    return lax.dynamic_slice_in_dim(padded, start, size, dim)


@emits(Extract)
def _extract(
    emitter: Emitter, instruction: Instruction[Extract], x: Array, *starts: Array
) -> list[Array]:
    return [extracted(instruction.attributes, emitter.partition_id, x, starts)]


@emits(Insert)
def _insert(
    emitter: Emitter, instruction: Instruction[Insert], x: Array, new: Array, *starts: Array
) -> list[Array]:
    return [inserted(instruction.attributes, emitter.partition_id, x, new, starts)]


@emits(DynamicSlice)
def _dynamic_slice(
    emitter: Emitter, instruction: Instruction[DynamicSlice], x: Array
) -> list[Array]:
    """Return the device's block of a dimension that every device has whole, padded to full blocks.

    For example, of 10 elements padded to 12, device 3 of 4 gets the elements 9 to 11.
    """
    a = instruction.attributes
    start = emitter.partition_id(a.digits) * a.block
    # The size without padding. Without padding, or for tiny sizes, one slice does it.
    size = emitter.program.locals[instruction.results[0]].sharding.shape[a.dim]
    if emitter.tiled or not a.block <= size < x.shape[a.dim]:
        return [lax.dynamic_slice_in_dim(x, start, a.block, a.dim)]
    # If a block has more than one reader, XLA's CPU compiler writes the whole padded array to
    # memory. Here only the block is padded, and its elements are shifted to their places.
    # The last block starts too late to be inside of the true elements, so it is read earlier.
    first = jnp.minimum(start, size - a.block)
    true_elements = lax.slice_in_dim(x, 0, size, axis=a.dim)
    block = lax.dynamic_slice_in_dim(true_elements, first, a.block, a.dim)
    widths = [(0, x.shape[a.dim] - size if dim == a.dim else 0, 0) for dim in range(x.ndim)]
    padded = lax.pad(block, jnp.zeros((), x.dtype), widths)
    return [lax.dynamic_slice_in_dim(padded, start - first, a.block, a.dim)]


@emits(Slice)
def _slice(emitter: Emitter, instruction: Instruction[Slice], x: Array) -> list[Array]:
    a = instruction.attributes
    return [lax.slice_in_dim(x, a.start, a.start + a.size, axis=a.dim)]


@emits(SliceAt)
def _slice_at(emitter: Emitter, instruction: Instruction[SliceAt], x: Array) -> list[Array]:
    a = instruction.attributes
    return [lax.dynamic_slice_in_dim(x, emitter.start(a.start), a.size, a.dim)]


@emits(OwnerSelect)
def _owner_select(emitter: Emitter, instruction: Instruction[OwnerSelect], x: Array) -> list[Array]:
    a = instruction.attributes
    found = lax.slice_in_dim(x, a.place, a.place + 1, axis=a.dim)
    return [jnp.where(emitter.partition_id(a.digits) == a.owner, found, jnp.zeros_like(found))]
