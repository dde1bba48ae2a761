"""What depends on the place."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.spmd.identity import identity
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import (
    Choose,
    FirstMember,
    Mask,
    MaskAt,
)


@emits(Mask)
def _mask(emitter: Emitter, instruction: Instruction[Mask], x: Array) -> list[Array]:
    a = instruction.attributes
    place = lax.broadcasted_iota(jnp.int32, x.shape, a.dim)
    inside = place < a.size - emitter.partition_id(a.digits) * a.block
    return [jnp.where(inside, x, jnp.asarray(identity(a.fill, x.dtype.name), x.dtype))]


@emits(MaskAt)
def _mask_at(
    emitter: Emitter, instruction: Instruction[MaskAt], x: Array, *fill: Array
) -> list[Array]:
    a = instruction.attributes
    place = lax.broadcasted_iota(jnp.int32, x.shape, a.dim) + emitter.start(a.start)
    value = fill[0] if a.fill is None else jnp.asarray(identity(a.fill, x.dtype.name), x.dtype)
    return [jnp.where((place >= 0) & (place < a.size), x, value)]


@emits(Choose)
def _choose(emitter: Emitter, instruction: Instruction[Choose], *pieces: Array) -> list[Array]:
    a = instruction.attributes
    place = lax.broadcasted_iota(jnp.int32, pieces[0].shape, a.dim) + emitter.start(a.start)
    result = pieces[-1]
    for piece, end in zip(pieces[-2::-1], a.ends[-2::-1], strict=True):
        result = jnp.where(place < end, piece, result)
    return [result]


@emits(FirstMember)
def _first_member(emitter: Emitter, instruction: Instruction[FirstMember], x: Array) -> list[Array]:
    a = instruction.attributes
    fill = jnp.asarray(identity(a.combine, x.dtype.name), x.dtype)
    return [jnp.where(emitter.partition_id(a.digits) == 0, x, fill)]
