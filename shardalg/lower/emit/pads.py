"""Emission of instructions that regroup, concatenate, resize or dilate dimensions."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.spmd.identity import identity
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Concatenate, Dilate, Regroup, Resize


@emits(Regroup)
def _regroup(emitter: Emitter, instruction: Instruction[Regroup], x: Array) -> list[Array]:
    return [x.reshape(instruction.attributes.shape(x.shape))]


@emits(Concatenate)
def _concatenate(
    emitter: Emitter, instruction: Instruction[Concatenate], *operands: Array
) -> list[Array]:
    return [lax.concatenate(operands, instruction.attributes.dim)]


@emits(Resize)
def _resize(emitter: Emitter, instruction: Instruction[Resize], x: Array) -> list[Array]:
    """Return the block with one dimension cut to a size, or padded to it with zeros at its end."""
    a = instruction.attributes
    added = a.size - x.shape[a.dim]
    if added <= 0:
        return [lax.slice_in_dim(x, 0, a.size, axis=a.dim)]
    # Per dimension, `lax.pad` takes (elements before, after, between).
    widths = [(0, added if dim == a.dim else 0, 0) for dim in range(x.ndim)]
    return [lax.pad(x, jnp.zeros((), x.dtype), widths)]


@emits(Dilate)
def _dilate(
    emitter: Emitter, instruction: Instruction[Dilate], x: Array, *fill: Array
) -> list[Array]:
    """Insert places between the elements of a dimension, and at its two ends.

    They have the identity of a combination, such as 0, or the number in `fill`.
    """
    a = instruction.attributes
    value = fill[0] if a.fill is None else jnp.asarray(identity(a.fill, x.dtype.name), x.dtype)
    widths = [(a.low, a.high, a.factor - 1) if i == a.dim else (0, 0, 0) for i in range(x.ndim)]
    return [lax.pad(x, value, widths)]
