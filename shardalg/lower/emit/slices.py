"""Parts of a block."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import (
    DynamicSlice,
    OwnerSelect,
    Slice,
    SliceAt,
)


@emits(DynamicSlice)
def _dynamic_slice(
    emitter: Emitter, instruction: Instruction[DynamicSlice], x: Array
) -> list[Array]:
    a = instruction.attributes
    start = emitter.partition_id(a.digits) * a.block
    size = emitter.program.locals[instruction.results[0]].sharding.shape[a.dim]
    if emitter.tiled or not a.block <= size < x.shape[a.dim]:
        return [lax.dynamic_slice_in_dim(x, start, a.block, a.dim)]
    # XLA's CPU compiler writes the whole with its padding, where a block has more than one reader:
    # here the block alone is padded, and shifted to where its elements belong.
    first = jnp.minimum(start, size - a.block)
    whole = lax.slice_in_dim(x, 0, size, axis=a.dim)
    block = lax.dynamic_slice_in_dim(whole, first, a.block, a.dim)
    widths = [(0, x.shape[a.dim] - size if d == a.dim else 0, 0) for d in range(x.ndim)]
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
