"""Emission of masks and selects by an element's place, and of shifts of indices."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.spmd.identity import identity
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Choose, FirstMember, Mask, MaskAt, MaskIndexed, Offset


@emits(Offset)
def _offset(emitter: Emitter, instruction: Instruction[Offset], x: Array) -> list[Array]:
    """Return indices shifted by a number that depends on the device; -1 if they are out of bounds.

    The operand of a gather is sharded, and its indices count from the start of the whole tensor.
    The result counts from the start of the device's block.
    """
    a = instruction.attributes
    # Bounds are those of the whole tensor, so indices are clamped and compared before the shift,
    # which makes them places in the device's block.
    shift = jnp.asarray(emitter.partition_id(a.digits) * a.scale + a.more).astype(x.dtype)
    # Indices of several dimensions have them as components; only one is shifted here.
    index = x if a.component is None else x[..., a.component]
    if a.clamp is not None:
        index = jnp.clip(index, *a.clamp)
    low, high = a.within or (0, 0)
    is_outside = (a.within is not None) & ((index < low) | (index > high))
    index = jnp.where(is_outside, jnp.asarray(-1).astype(x.dtype), index + shift)
    return [index if a.component is None else x.at[..., a.component].set(index)]


@emits(MaskIndexed)
def _mask_indexed(
    emitter: Emitter, instruction: Instruction[MaskIndexed], x: Array, indices: Array
) -> list[Array]:
    """Return gathered elements whose indices are in the device's block; others are 0 or the fill.

    The sum over all devices then has each element once, from the device that has it.

    Args:
      x: the elements that the device gathered from its block.
      indices: the indices, counted from the start of the block.
    """
    a = instruction.attributes
    # Two conditions are needed, because the last block may have padding. `here` is true for places
    # in the device's block, `outside` for indices beyond the tensor, where a gather has a fill
    # value.
    here = jnp.ones(indices.shape[:-1], bool)
    outside = jnp.zeros(indices.shape[:-1], bool)
    # The sum of the partition ids is 0 on the first member of the group only.
    member = 0
    for (component, digits, block, size), margin in a.counted:
        partition_id = emitter.partition_id(digits)
        member = member + partition_id
        index = indices[..., component].astype(jnp.int32)
        here &= (index >= 0) & (index < block + margin)
        # The index counted from the start of the whole tensor again.
        global_index = index - margin + partition_id * block
        outside |= (global_index < 0) | (global_index >= size)
    spread = lambda array: lax.broadcast_in_dim(array, x.shape, a.batch_dims)  # noqa: E731
    zero = jnp.zeros((), x.dtype)
    result = jnp.where(spread(here & ~outside), x, zero)
    if a.fill is None:
        return [result]
    # A sum over the members follows, so that only one of them may have the fill value.
    fill = jnp.where(member == 0, jnp.asarray(a.fill, x.dtype), zero)
    return [jnp.where(spread(outside), fill, result)]


@emits(Mask)
def _mask(emitter: Emitter, instruction: Instruction[Mask], x: Array) -> list[Array]:
    """Return the block with its padding overwritten by the identity of a combination.

    For example, a sum over 10 elements in blocks of 3: the last block has 2 zeros at its end.
    """
    a = instruction.attributes
    position = lax.broadcasted_iota(jnp.int32, x.shape, a.dim)
    # The number of true elements from the start of this block on; in most blocks all are true.
    is_true = position < a.size - emitter.partition_id(a.digits) * a.block
    return [jnp.where(is_true, x, jnp.asarray(identity(a.fill, x.dtype.name), x.dtype))]


@emits(MaskAt)
def _mask_at(
    emitter: Emitter, instruction: Instruction[MaskAt], x: Array, *fill: Array
) -> list[Array]:
    """Return a block in which the places outside of the tensor along a dimension are overwritten.

    They get the identity of a combination, such as 0, or the number in `fill`.
    """
    a = instruction.attributes
    # The place in the dimension, which may be negative: a block with a halo begins before it.
    place = lax.broadcasted_iota(jnp.int32, x.shape, a.dim) + emitter.start(a.start)
    value = fill[0] if a.fill is None else jnp.asarray(identity(a.fill, x.dtype.name), x.dtype)
    return [jnp.where((place >= 0) & (place < a.size), x, value)]


@emits(Choose)
def _choose(emitter: Emitter, instruction: Instruction[Choose], *pieces: Array) -> list[Array]:
    """Return the device's block of a concatenation, put together from one piece of each tensor.

    All pieces have the shape of the block. Each place of the block takes its element from the
    tensor that has this place of the concatenation. E.g. tensors of sizes 3 and 5 end at 3 and 8:
    places 0 to 2 are from the first tensor, and places 3 to 7 from the second.

    Args:
      pieces: per tensor, an array that has the tensor's elements at their places in the block. Its
        other places may hold anything.
    """
    a = instruction.attributes
    # The places that the block has in the concatenation: its start depends on the device.
    place = lax.broadcasted_iota(jnp.int32, pieces[0].shape, a.dim) + emitter.start(a.start)
    # A place belongs to the first tensor that ends behind it. The tensors are visited from the last
    # to the first, so that an earlier tensor replaces the elements of later ones.
    result = pieces[-1]
    for piece, end in zip(pieces[-2::-1], a.ends[-2::-1], strict=True):
        result = jnp.where(place < end, piece, result)
    return [result]


@emits(FirstMember)
def _first_member(emitter: Emitter, instruction: Instruction[FirstMember], x: Array) -> list[Array]:
    """Return the value on the first member of a group, and the identity on all others.

    The members combine to the value itself, although each of them had a copy of it.
    """
    a = instruction.attributes
    fill = jnp.asarray(identity(a.combine, x.dtype.name), x.dtype)
    return [jnp.where(emitter.partition_id(a.digits) == 0, x, fill)]
