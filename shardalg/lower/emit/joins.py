"""Joins of the devices' partial results along a sharded loop."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from shardalg.graph.evaluate import apply
from shardalg.lower.emit.collectives import OF_COMPLEX, all_gather, combine_blocks
from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.spmd.bound import bound, node_of
from shardalg.spmd.identity import identity
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import ArgReduce, ExclusiveScan, Fold, Join, Top, ValueAt


@emits(ExclusiveScan)
def _exclusive_scan(
    emitter: Emitter, instruction: Instruction[ExclusiveScan], x: Array
) -> list[Array]:
    """Return the combination of the blocks of all members before the device.

    All blocks are gathered on a new leading dimension. In reverse, the members after it count.
    """
    a = instruction.attributes
    every = lax.all_gather(x, emitter.axes.names(a.digits), axis=0, tiled=False)
    member, own = lax.broadcasted_iota(jnp.int32, every.shape, 0), emitter.partition_id(a.digits)
    before = member > own if a.reverse else member < own
    # Blocks of later members count as the identity, so that one fold serves all devices.
    neutral = jnp.asarray(identity(a.combine, x.dtype.name), x.dtype)
    return [combine_blocks(jnp.where(before, every, neutral), a.combine)]


@emits(ArgReduce)
def _arg_reduce(
    emitter: Emitter, instruction: Instruction[ArgReduce], value: Array, place: Array
) -> list[Array]:
    """Return the place of the largest or smallest element of a dimension, on every member.

    Each member gives the best element of its own block, and its place there.
    """
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    values, places = (lax.all_gather(x, names, axis=0, tiled=False) for x in (value, place))
    member = _RANKS[a.combine](values, axis=0, index_dtype=jnp.int32)
    best = jnp.take_along_axis(places, member[None], axis=0)[0]
    # Multiply in 32 bits: a block's size may not fit in the type of the places.
    return [best + (member * a.block).astype(place.dtype)]


_RANKS = {"argmax": lax.argmax, "argmin": lax.argmin}


@emits(Top)
def _top(
    emitter: Emitter, instruction: Instruction[Top], value: Array, place: Array
) -> list[Array]:
    """Return the largest values of a sharded dimension, with their indices in the whole dimension.

    Args:
      value, place: the k largest values of the device's block, and their indices in the block.
    """
    a = instruction.attributes
    names, count = emitter.axes.names(a.digits), value.shape[a.dim]
    # Indices in the whole dimension. The k largest of all values are among the k of each block.
    place = place + jnp.asarray(emitter.partition_id(a.digits) * a.block).astype(place.dtype)
    values, places = (all_gather(x, names, a.dim, tiled=emitter.tiled) for x in (value, place))
    # `lax.top_k` works along the last dimension.
    largest, order = lax.top_k(jnp.moveaxis(values, a.dim, -1), count)
    order = jnp.moveaxis(order, -1, a.dim)
    return [jnp.moveaxis(largest, -1, a.dim), jnp.take_along_axis(places, order, a.dim)]


@emits(Fold)
def _fold(emitter: Emitter, instruction: Instruction[Fold], *given: Array) -> list[Array]:
    """Gather the members' partial results, and apply the graph's own operator to them."""
    names, count = emitter.axes.names(instruction.attributes.digits), len(instruction.results)
    every = [lax.all_gather(x, names, axis=0, tiled=False) for x in given[:count]]
    binding, params = bound(emitter.graph, instruction)
    primitive = node_of(emitter.graph, instruction).primitive
    return apply(primitive, binding, params, (*every, *given[count:]))


@emits(ValueAt)
def _value_at(
    emitter: Emitter, instruction: Instruction[ValueAt], place: Array, x: Array
) -> list[Array]:
    """Return the values of `x` at the places that an argmax or argmin found along a dimension."""
    dim = instruction.attributes.dim
    index = jnp.expand_dims(place.astype(jnp.int32), dim)
    return [jnp.squeeze(jnp.take_along_axis(x, index, axis=dim), dim)]


_JOINS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": jnp.add,
    "product": jnp.multiply,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "logsumexp": jnp.logaddexp,
}


@emits(Join)
def _join(emitter: Emitter, instruction: Instruction[Join], x: Array, one: Array) -> list[Array]:
    """Combine the prefix inside of a block (`x`) with the total of all blocks before it (`one`)."""
    combine = instruction.attributes.combine
    of_kind = OF_COMPLEX if x.dtype.kind == "c" and combine in OF_COMPLEX else _JOINS
    return [of_kind[combine](x, one)]
