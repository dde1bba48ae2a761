"""Each kind of instruction as `jax.lax` calls inside a `shard_map`, one function per kind.

Collectives are emitted per backend. XLA's CPU collectives work on the leading dimension: tiled
along another one they are 4 to 9 times slower than untiled on a new leading dimension and moved,
and a reduce-scatter is slower than an all-reduce and a slice (4 MiB over 4 devices: 3.5 against
3.3 ms, over 2: 3.9 against 2.8; on the leading dimension 1.9). Elsewhere one tiled operation leaves
the transposes to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardalg.algebra.digits import partition_id, parts
from shardalg.errors import LoweringError
from shardalg.graph.evaluate import apply
from shardalg.graph.ir import Graph
from shardalg.lower.all_to_all import all_to_all, pieces, swapped
from shardalg.lower.around_xla import around_faults, refuse_kernel
from shardalg.lower.axes import Axes
from shardalg.lower.boxes import extracted, inserted
from shardalg.lower.extrema import EXTREMA, extremum
from shardalg.spmd import program as spmd
from shardalg.spmd.bound import bound
from shardalg.spmd.identity import identity
from shardalg.spmd.program import Instruction, SpmdProgram
from shardalg.spmd.regroup import Regroup

Array = Any
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
_JOINS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": jnp.add,
    "product": jnp.multiply,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "logsumexp": jnp.logaddexp,
}


@dataclass(frozen=True)
class Emitter:
    """What every instruction is emitted with.

    Attributes:
      tiled: whether collectives are tiled along any dimension (False on CPU).
    """

    program: SpmdProgram
    graph: Graph
    axes: Axes
    tiled: bool

    def partition_id(self, digits: spmd.Digits) -> Array:
        """Partition id of the device that executes."""
        names = self.axes.names(digits)
        return lax.axis_index(names) if names else 0

    def start(self, start: spmd.Start) -> Array:
        """The element number on the device that executes."""
        return start.of({name: self.partition_id(digits) for name, digits in start.digits})


def _apply(emitter: Emitter, instruction: Instruction, *operands: Array) -> list[Array]:
    binding, params = bound(emitter.graph, instruction)
    primitive = instruction.attributes.primitive
    if primitive == "transpose" and not emitter.tiled and _is_partial(emitter, instruction):
        # XLA would fold the transpose into the matmul that made the partial sums, in a form that
        # its fast CPU kernel does not take (1.3 times the whole gradient of a feed-forward layer).
        operands = tuple(map(lax.optimization_barrier, operands))
    if not emitter.tiled:
        refuse_kernel(emitter.graph, instruction)
    operands = around_faults(emitter.program, emitter.graph, instruction)(*operands)
    return apply(primitive, binding, params, operands)


def _is_partial(emitter: Emitter, instruction: Instruction) -> bool:
    return bool(emitter.program.locals[instruction.operands[0]].sharding.unreduced)


def _all_gather(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    return [_gathered(x, names, a.dim, tiled=emitter.tiled)] if names else [x]


def _gathered(x: Array, names: tuple[str, ...], dim: int, *, tiled: bool) -> Array:
    if not x.size:  # XLA gathers no empty arrays
        return jnp.concatenate([x] * lax.axis_size(names), dim)
    if tiled or dim == 0:
        return lax.all_gather(x, names, axis=dim, tiled=True)
    blocks = jnp.moveaxis(lax.all_gather(x, names, axis=0, tiled=False), 0, dim)
    merged = blocks.shape[dim] * blocks.shape[dim + 1]
    return blocks.reshape(*x.shape[:dim], merged, *x.shape[dim + 1 :])


def _all_reduce(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    return [_reduced(x, names, a.combine)] if names else [x]


def _reduced(x: Array, names: tuple[str, ...], combine: str) -> Array:
    if x.dtype == jnp.bool_ and combine in _OF_BOOL:
        return _OF_BOOL[combine](x.astype(jnp.uint8), names).astype(jnp.bool_)
    if combine in EXTREMA and jnp.issubdtype(x.dtype, jnp.floating):
        return extremum(x, names, combine)
    if combine in _DIRECT and (combine in ("sum", "pick") or x.dtype.kind != "c"):
        return _DIRECT[combine](x, names)  # XLA orders no complex numbers between devices
    return _folded(lax.all_gather(x, names, axis=0, tiled=False), combine)


_DIRECT = {"sum": lax.psum, "pick": lax.psum, "max": lax.pmax, "min": lax.pmin}
_OF_BOOL = {
    "and": lax.pmin, "min": lax.pmin, "or": lax.pmax, "max": lax.pmax, "sum": lax.pmax,
    "pick": lax.pmax,
}  # fmt: skip


def _folded(blocks: Array, combine: str) -> Array:
    if combine not in _FOLDS:
        raise LoweringError(f"no collective joins by {combine!r}; known: {sorted(_FOLDS)}.")
    if blocks.dtype == jnp.bool_:
        combine = {"sum": "or", "pick": "or", "max": "or", "min": "and"}.get(combine, combine)
    return _FOLDS[combine](blocks, axis=0).astype(blocks.dtype)


def _reduce_scatter(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    if not names:
        return [x]
    if a.combine not in ("sum", "pick") or x.dtype == jnp.bool_:
        # every member sends each other one its piece and folds what arrives: the same bytes
        return [_folded(swapped(pieces(x, a.dim, parts(a.digits)), names), a.combine)]
    if emitter.tiled or a.dim == 0:
        return [lax.psum_scatter(x, names, scatter_dimension=a.dim, tiled=True)]
    block = x.shape[a.dim] // parts(a.digits)
    start = emitter.partition_id(a.digits) * block
    return [lax.dynamic_slice_in_dim(lax.psum(x, names), start, block, a.dim)]


def _all_to_all(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    if not names:
        return [x]
    if emitter.tiled and not a.arriving:
        return [lax.all_to_all(x, names, a.split_dim, a.concat_dim, tiled=True)]
    return [all_to_all(x, names, a)]


def _permute(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    return [lax.ppermute(x, emitter.axes.all_names, instruction.attributes.pairs)]


def _fetch(emitter: Emitter, instruction: Instruction, *xs: Array) -> list[Array]:
    """What arrives is sent once; a reading takes it where it is served, and else its own block."""
    a, names = instruction.attributes, emitter.axes.all_names
    arrived = []
    for edges in a.permutes:
        sent = xs[edges[0][2]]
        for operand in {k for _, _, k in edges} - {edges[0][2]}:
            here = _at(emitter, [source for source, _, k in edges if k == operand])
            sent = jnp.where(here, xs[operand], sent)
        arrived.append(lax.ppermute(sent, names, [edge[:2] for edge in edges]))
    return [_read(emitter, (a, reading), xs[reading.operand], arrived) for reading in a.readings]


def _read(
    emitter: Emitter, which: tuple[spmd.Fetch, spmd.Reading], x: Array, arrived: list[Array]
) -> Array:
    """The block that a device wants; who is neither served nor wants its own wants nothing."""
    fetch, reading = which
    everyone = range(emitter.program.mesh.size)
    served = [[target for _, target in pairs] for pairs in reading.permutes]
    found = [(block, targets) for block, targets in zip(arrived, served, strict=True) if targets]
    own = [p for p in everyone if reading.source.at(p) == partition_id(fetch.digits, p)]
    if found and not set(own).difference(*served):
        (x, _), *found = found
    for block, targets in found:
        x = jnp.where(_at(emitter, targets), block, x)
    return x


def _at(emitter: Emitter, positions: list[int]) -> Array:
    """Whether the device that executes is at one of some positions."""
    chosen = np.isin(np.arange(emitter.program.mesh.size), positions)
    return jnp.asarray(chosen)[lax.axis_index(emitter.axes.all_names)]


def _carry(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    """All blocks' on a new leading dimension; those of the members before are folded."""
    a = instruction.attributes
    every = lax.all_gather(x, emitter.axes.names(a.digits), axis=0, tiled=False)
    member, own = lax.broadcasted_iota(jnp.int32, every.shape, 0), emitter.partition_id(a.digits)
    before = member > own if a.reverse else member < own
    neutral = jnp.asarray(identity(a.combine, x.dtype.name), x.dtype)
    return [_folded(jnp.where(before, every, neutral), a.combine)]


def _best(emitter: Emitter, instruction: Instruction, value: Array, place: Array) -> list[Array]:
    """The best of the members' best: what is best of a block, once more."""
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    values, places = (lax.all_gather(x, names, axis=0, tiled=False) for x in (value, place))
    member = _RANKS[a.combine](values, axis=0, index_dtype=place.dtype)
    best = jnp.take_along_axis(places, member[None].astype(jnp.int32), axis=0)[0]
    return [best + member * jnp.asarray(a.block, place.dtype)]


_RANKS = {"argmax": lax.argmax, "argmin": lax.argmin}


def _top(emitter: Emitter, instruction: Instruction, value: Array, place: Array) -> list[Array]:
    """The best of all members' best: what is best of a block, once more."""
    a = instruction.attributes
    names, count = emitter.axes.names(a.digits), value.shape[a.dim]
    place = place + jnp.asarray(emitter.partition_id(a.digits) * a.block).astype(place.dtype)
    values, places = (_gathered(x, names, a.dim, tiled=emitter.tiled) for x in (value, place))
    best, order = lax.top_k(jnp.moveaxis(values, a.dim, -1), count)
    order = jnp.moveaxis(order, -1, a.dim)
    return [jnp.moveaxis(best, -1, a.dim), jnp.take_along_axis(places, order, a.dim)]


def _fold(emitter: Emitter, instruction: Instruction, *given: Array) -> list[Array]:
    names, count = emitter.axes.names(instruction.attributes.digits), len(instruction.results)
    every = [lax.all_gather(x, names, axis=0, tiled=False) for x in given[:count]]
    binding, params = bound(emitter.graph, instruction)
    primitive = emitter.graph.nodes[instruction.node].primitive
    return apply(primitive, binding, params, (*every, *given[count:]))


def _value_at(emitter: Emitter, instruction: Instruction, place: Array, x: Array) -> list[Array]:
    dim = instruction.attributes.dim
    index = jnp.expand_dims(place.astype(jnp.int32), dim)
    return [jnp.squeeze(jnp.take_along_axis(x, index, axis=dim), dim)]


def _dynamic_slice(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
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


def _slice(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    return [lax.slice_in_dim(x, a.start, a.start + a.size, axis=a.dim)]


def _slice_at(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    return [lax.dynamic_slice_in_dim(x, emitter.start(a.start), a.size, a.dim)]


def _pick(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    found = lax.slice_in_dim(x, a.place, a.place + 1, axis=a.dim)
    return [jnp.where(emitter.partition_id(a.digits) == a.owner, found, jnp.zeros_like(found))]


def _regroup(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    return [x.reshape(instruction.attributes.shape(x.shape))]


def _concatenate(emitter: Emitter, instruction: Instruction, *operands: Array) -> list[Array]:
    return [lax.concatenate(operands, instruction.attributes.dim)]


def _resize(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    grow = a.size - x.shape[a.dim]
    if grow <= 0:
        return [lax.slice_in_dim(x, 0, a.size, axis=a.dim)]
    widths = [(0, grow if i == a.dim else 0, 0) for i in range(x.ndim)]
    return [lax.pad(x, jnp.zeros((), x.dtype), widths)]


def _dilate(emitter: Emitter, instruction: Instruction, x: Array, *fill: Array) -> list[Array]:
    a = instruction.attributes
    value = fill[0] if a.fill is None else jnp.asarray(identity(a.fill, x.dtype.name), x.dtype)
    widths = [(a.low, a.high, a.factor - 1) if i == a.dim else (0, 0, 0) for i in range(x.ndim)]
    return [lax.pad(x, value, widths)]


def _mask(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    place = lax.broadcasted_iota(jnp.int32, x.shape, a.dim)
    inside = place < a.size - emitter.partition_id(a.digits) * a.block
    return [jnp.where(inside, x, jnp.asarray(identity(a.fill, x.dtype.name), x.dtype))]


def _mask_at(emitter: Emitter, instruction: Instruction, x: Array, *fill: Array) -> list[Array]:
    a = instruction.attributes
    place = lax.broadcasted_iota(jnp.int32, x.shape, a.dim) + emitter.start(a.start)
    value = fill[0] if a.fill is None else jnp.asarray(identity(a.fill, x.dtype.name), x.dtype)
    return [jnp.where((place >= 0) & (place < a.size), x, value)]


def _choose(emitter: Emitter, instruction: Instruction, *pieces: Array) -> list[Array]:
    a = instruction.attributes
    place = lax.broadcasted_iota(jnp.int32, pieces[0].shape, a.dim) + emitter.start(a.start)
    result = pieces[-1]
    for piece, end in zip(pieces[-2::-1], a.ends[-2::-1], strict=True):
        result = jnp.where(place < end, piece, result)
    return [result]


def _join(emitter: Emitter, instruction: Instruction, x: Array, one: Array) -> list[Array]:
    return [_JOINS[instruction.attributes.combine](x, one)]


def _offset(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    shift = jnp.asarray(emitter.partition_id(a.digits) * a.scale + a.more).astype(x.dtype)
    part = x if a.component is None else x[..., a.component]
    if a.clamp is not None:
        part = jnp.clip(part, *a.clamp)
    low, high = a.within or (0, 0)
    missing = (a.within is not None) & ((part < low) | (part > high))
    part = jnp.where(missing, jnp.asarray(-1).astype(x.dtype), part + shift)
    return [part if a.component is None else x.at[..., a.component].set(part)]


def _mask_indexed(
    emitter: Emitter, instruction: Instruction, x: Array, indices: Array
) -> list[Array]:
    a = instruction.attributes
    here = jnp.ones(indices.shape[:-1], bool)
    outside = jnp.zeros(indices.shape[:-1], bool)
    member = 0
    for (component, digits, block, size), margin in a.counted:
        p = emitter.partition_id(digits)
        member = member + p
        index = indices[..., component].astype(jnp.int32)
        here &= (index >= 0) & (index < block + margin)
        start = index - margin + p * block
        outside |= (start < 0) | (start >= size)
    spread = lambda array: lax.broadcast_in_dim(array, x.shape, a.batch_dims)  # noqa: E731
    zero = jnp.zeros((), x.dtype)
    result = jnp.where(spread(here & ~outside), x, zero)
    if a.fill is None:
        return [result]
    fill = jnp.where(member == 0, jnp.asarray(a.fill, x.dtype), zero)
    return [jnp.where(spread(outside), fill, result)]


def _first_member(emitter: Emitter, instruction: Instruction, x: Array) -> list[Array]:
    a = instruction.attributes
    fill = jnp.asarray(identity(a.combine, x.dtype.name), x.dtype)
    return [jnp.where(emitter.partition_id(a.digits) == 0, x, fill)]


def _extract(emitter: Emitter, instruction: Instruction, x: Array, *starts: Array) -> list[Array]:
    return [extracted(instruction.attributes, emitter.partition_id, x, starts)]


def _insert(
    emitter: Emitter, instruction: Instruction, x: Array, new: Array, *starts: Array
) -> list[Array]:
    return [inserted(instruction.attributes, emitter.partition_id, x, new, starts)]


EMIT: dict[type, Callable[..., list[Array]]] = {
    spmd.Apply: _apply,
    spmd.AllGather: _all_gather,
    spmd.AllReduce: _all_reduce,
    spmd.ReduceScatter: _reduce_scatter,
    spmd.AllToAll: _all_to_all,
    spmd.CollectivePermute: _permute,
    spmd.Fetch: _fetch,
    spmd.Carry: _carry,
    spmd.Best: _best,
    spmd.Top: _top,
    spmd.Fold: _fold,
    spmd.ValueAt: _value_at,
    spmd.DynamicSlice: _dynamic_slice,
    spmd.Slice: _slice,
    spmd.SliceAt: _slice_at,
    spmd.Concatenate: _concatenate,
    Regroup: _regroup,
    spmd.Resize: _resize,
    spmd.Dilate: _dilate,
    spmd.Mask: _mask,
    spmd.MaskAt: _mask_at,
    spmd.Choose: _choose,
    spmd.Join: _join,
    spmd.Offset: _offset,
    spmd.MaskIndexed: _mask_indexed,
    spmd.FirstMember: _first_member,
    spmd.Extract: _extract,
    spmd.Insert: _insert,
    spmd.Pick: _pick,
}
