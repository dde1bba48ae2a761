"""Collectives that move or combine whole blocks.

Collectives are emitted per backend. XLA's CPU collectives work on the leading dimension: tiled
along another one they are 4 to 9 times slower than untiled on a new leading dimension and moved.
A reduce-scatter gets its pieces on a new leading dimension, too: it sends half the bytes of an
all-reduce, and takes 0.40 to 0.76 of the time of an all-reduce and a slice (4 to 16 MiB over 2, 4
and 8 devices, in pairs, jaxlib 0.10.2; 0.97 to 1.02 at 16 KiB). Tiled along its own dimension it
takes 2.4 to 5.8 times as long for the last dimension, 0.64 to 0.80 for another one that was tried.
Elsewhere one tiled operation leaves the transposes to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from shardalg.algebra.digits import parts
from shardalg.errors import LoweringError
from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.lower.emit.extrema import EXTREMA, extremum
from shardalg.lower.emit.pieces import all_to_all, all_to_alls, pieces, swapped
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToAlls,
    ReduceScatter,
)


@emits(AllGather)
def _all_gather(emitter: Emitter, instruction: Instruction[AllGather], x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    return [gathered(x, names, a.dim, tiled=emitter.tiled)] if names else [x]


def gathered(x: Array, names: tuple[str, ...], dim: int, *, tiled: bool) -> Array:
    """The blocks of all members along a dimension."""
    if not x.size:  # XLA gathers no empty arrays
        return jnp.concatenate([x] * lax.axis_size(names), dim)
    if tiled or dim == 0:
        return lax.all_gather(x, names, axis=dim, tiled=True)
    blocks = jnp.moveaxis(lax.all_gather(x, names, axis=0, tiled=False), 0, dim)
    merged = blocks.shape[dim] * blocks.shape[dim + 1]
    return blocks.reshape(*x.shape[:dim], merged, *x.shape[dim + 1 :])


@emits(AllReduce)
def _all_reduce(emitter: Emitter, instruction: Instruction[AllReduce], x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    return [_reduced(x, names, a.combine)] if names else [x]


def _reduced(x: Array, names: tuple[str, ...], combine: str) -> Array:
    if x.dtype == jnp.bool_ and combine in _OF_BOOL:
        return _OF_BOOL[combine](x.astype(jnp.uint8), names).astype(jnp.bool_)
    if combine == "pick":
        return as_bits(x, lambda bits: lax.psum(bits, names))
    if combine in EXTREMA and jnp.issubdtype(x.dtype, jnp.floating):
        return extremum(x, names, combine)
    if combine in _DIRECT and (combine == "sum" or x.dtype.kind != "c"):
        return _DIRECT[combine](x, names)  # XLA orders no complex numbers between devices
    return folded(lax.all_gather(x, names, axis=0, tiled=False), combine)


def as_bits(x: Array, send: Callable[[Array], Array]) -> Array:
    """What one device at most has bits of is sent as whole numbers: a zero keeps its sign.

    A sum of floats would start from +0 (CPU), or add that of a device which has nothing.
    """
    if x.dtype.kind == "c":
        pairs = as_bits(jnp.stack([x.real, x.imag], -1), send)
        return lax.complex(pairs[..., 0], pairs[..., 1])
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return send(x)
    whole = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    return lax.bitcast_convert_type(send(lax.bitcast_convert_type(x, whole)), x.dtype)


_DIRECT = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


_OF_BOOL = {
    "and": lax.pmin, "min": lax.pmin, "or": lax.pmax, "max": lax.pmax, "sum": lax.pmax,
    "pick": lax.pmax,
}  # fmt: skip


_FOLDS: dict[str, Callable[..., Array]] = {
    "sum": jnp.sum,
    "product": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
    "and": lambda x, axis: lax.reduce_and_p.bind(x, axes=(axis,)),
    "or": lambda x, axis: lax.reduce_or_p.bind(x, axes=(axis,)),
    "xor": lambda x, axis: lax.reduce_xor_p.bind(x, axes=(axis,)),
    "pick": jnp.sum,
    "logsumexp": jax.nn.logsumexp,
}


def _keeps_nan(extreme: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The same, but NaN where the first one is NaN, too.

    There `lax` takes the second one, which may be the neutral number of a device that has none.
    """
    return lambda x, y: jnp.where(x != x, x, extreme(x, y))


OF_COMPLEX = {"max": _keeps_nan(lax.max), "min": _keeps_nan(lax.min)}
"""Extremes of complex numbers, in the order of real and then imaginary parts."""


def _in_pairs(blocks: Array, join: Callable[[Array, Array], Array]) -> Array:
    """Blocks along the leading dimension joined two by two, from no number but their own.

    What JAX reduces complex numbers from, `-inf + 0j`, is larger than `-inf - inf*1j`.
    """
    while len(blocks) > 1:
        half = len(blocks) // 2
        joined = join(blocks[:half], blocks[half : 2 * half])
        blocks = jnp.concatenate([joined, blocks[2 * half :]])
    return blocks[0]


def folded(blocks: Array, combine: str) -> Array:
    """Blocks along the leading dimension as one.

    Raises:
      LoweringError: no collective joins so.
    """
    if combine not in _FOLDS:
        raise LoweringError(f"no collective joins by {combine!r}; known: {sorted(_FOLDS)}.")
    if blocks.dtype.kind == "c" and combine in OF_COMPLEX:
        return _in_pairs(blocks, OF_COMPLEX[combine])
    if blocks.dtype == jnp.bool_:
        combine = {"sum": "or", "pick": "or", "max": "or", "min": "and"}.get(combine, combine)
    return _FOLDS[combine](blocks, axis=0).astype(blocks.dtype)


@emits(ReduceScatter)
def _reduce_scatter(
    emitter: Emitter, instruction: Instruction[ReduceScatter], x: Array
) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    if not names:
        return [x]
    if a.combine not in ("sum", "pick") or x.dtype == jnp.bool_:
        # every member sends each other one its piece and folds what arrives: the same bytes
        return [folded(swapped(pieces(x, a.dim, parts(a.digits)), names), a.combine)]
    send = partial(_scattered, emitter, a)
    return [as_bits(x, send) if a.combine == "pick" else send(x)]


def _scattered(emitter: Emitter, a: ReduceScatter, x: Array) -> Array:
    names = emitter.axes.names(a.digits)
    if emitter.tiled or a.dim == 0:
        return lax.psum_scatter(x, names, scatter_dimension=a.dim, tiled=True)
    sent = pieces(x, a.dim, parts(a.digits))
    shape = sent.shape[1:]
    if 1 in sent.shape:  # XLA may give these dimensions other layouts on both sides (`swapped`)
        sent = sent.reshape(len(sent), -1)
    made = lax.psum_scatter(sent, names, scatter_dimension=0, tiled=False)
    return made.reshape(shape)


@emits(AllToAll)
def _all_to_all(emitter: Emitter, instruction: Instruction[AllToAll], x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    if not names:
        return [x]
    if emitter.tiled and not a.arriving:
        return [lax.all_to_all(x, names, a.split_dim, a.concat_dim, tiled=True)]
    return [all_to_all(x, names, a)]


@emits(AllToAlls)
def _all_to_alls(emitter: Emitter, instruction: Instruction[AllToAlls], x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    return [all_to_alls(x, names, a) if names else x]
