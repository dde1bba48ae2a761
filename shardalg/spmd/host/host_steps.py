"""Every kind of instruction but `Apply` and `Loop` in numpy, on the blocks of all positions.

Each function takes the instruction's attributes and one stack per operand, and gives one stack. It
shares nothing with the lowering: collectives are plain concatenations, sums and splits over the
groups of positions that differ in the collective's digits alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from math import prod

import numpy as np

from shardalg.algebra.digits import Digits, partition_id
from shardalg.errors import ProgramError
from shardalg.spmd import instructions as spmd
from shardalg.spmd.host.blocks import Stack, groups
from shardalg.spmd.host.host_boxes import extracted, inserted
from shardalg.spmd.identity import identity
from shardalg.spmd.instructions import Regroup

_UFUNCS = {
    "sum": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "pick": np.add,
    "logsumexp": np.logaddexp,
}


def _everywhere(function: Callable[..., np.ndarray], *stacks: Stack) -> Stack:
    """`function(position, *blocks)` at every position."""
    return [
        function(position, *blocks) for position, blocks in enumerate(zip(*stacks, strict=True))
    ]


def _exchange(digits: Digits, stack: Stack, function: Callable[[Stack], Stack]) -> Stack:
    """`function(blocks of a group)` gives the blocks that its members hold afterwards."""
    result: Stack = [stack[0]] * len(stack)
    for group in groups(digits, len(stack)):
        for position, block in zip(group, function([stack[p] for p in group]), strict=True):
            result[position] = block
    return result


def _all_gather(a: spmd.AllGather, x: Stack) -> Stack:
    return _exchange(a.digits, x, lambda blocks: [np.concatenate(blocks, a.dim)] * len(blocks))


def combined(blocks: Stack, combine: str) -> np.ndarray:
    """`blocks` joined elementwise; 2-byte floats are joined in f32 and rounded once."""
    if combine not in _UFUNCS:
        raise ProgramError(f"no collective joins by {combine!r}; known: {sorted(_UFUNCS)}.")
    with np.errstate(invalid="ignore", over="ignore"):  # of garbage
        return _combined(np.stack(blocks), combine)


def _combined(array: np.ndarray, combine: str) -> np.ndarray:
    if array.dtype == np.bool_ and combine in ("sum", "pick"):
        combine = "or"
    if array.dtype.itemsize == 2 and array.dtype.kind in "fV":
        return _UFUNCS[combine].reduce(array.astype(np.float32)).astype(array.dtype)
    if array.dtype.kind == "c" and combine == "logsumexp":
        return _complex_logsumexp(array)
    return _UFUNCS[combine].reduce(array, dtype=array.dtype)


def _complex_logsumexp(array: np.ndarray) -> np.ndarray:
    """As numpy's own, which has none of complex numbers."""
    highest = array.real.max(0)
    highest = np.where(np.isfinite(highest), highest, 0).astype(array.real.dtype)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(array - highest).sum(0)) + highest


def _all_reduce(a: spmd.AllReduce, x: Stack) -> Stack:
    return _exchange(a.digits, x, lambda blocks: [combined(blocks, a.combine)] * len(blocks))


def _reduce_scatter(a: spmd.ReduceScatter, x: Stack) -> Stack:
    def scattered(blocks: Stack) -> Stack:
        return _pieces(combined(blocks, a.combine), a.dim, len(blocks))

    return _exchange(a.digits, x, scattered)


def _pieces(block: np.ndarray, dim: int, n: int) -> Stack:
    if block.shape[dim] % n:
        raise ProgramError(
            f"{block.shape[dim]} elements of dimension {dim} cannot be split among {n} devices. "
            "Resize the dimension to a multiple first."
        )
    return np.split(block, n, dim)


def _all_to_all(a: spmd.AllToAll, x: Stack) -> Stack:
    result: Stack = [x[0]] * len(x)
    for group in groups(a.digits, len(x)):
        sent = [_pieces(x[source], a.split_dim, len(group)) for source in group]
        for position in group:
            number = partition_id(a.arriving or a.digits, position)
            result[position] = np.concatenate([pieces[number] for pieces in sent], a.concat_dim)
    return result


def _permute(a: spmd.CollectivePermute, x: Stack) -> Stack:
    result = [np.zeros_like(block) for block in x]
    for source, target in a.pairs:
        result[target] = x[source]
    return result


def fetched(a: spmd.Fetch, *stacks: Stack) -> list[Stack]:
    """Per reading its blocks. What is nobody's is garbage: the own one is as good as any."""
    return [_read(reading, stacks[reading.operand]) for reading in a.readings]


def _read(reading: spmd.Reading, x: Stack) -> Stack:
    result = list(x)
    for source, target in chain.from_iterable(reading.permutes):
        result[target] = x[source]
    return result


def _carry(a: spmd.Carry, x: Stack) -> Stack:
    """Block by block, from the first member of a group to the last, or the other way."""
    neutral = np.full_like(x[0], identity(a.combine, x[0].dtype.name))
    result = [neutral] * len(x)
    for group in groups(a.digits, len(x)):
        order = group[::-1] if a.reverse else group
        for before, position in pairwise(order):
            result[position] = combined([result[before], x[before]], a.combine)
    return result


def _best(a: spmd.Best, values: Stack, places: Stack) -> Stack:
    """numpy, too, takes the first of what is equally good, and a NaN before all numbers."""
    rank, result = getattr(np, a.combine), list(places)
    for group in groups(a.digits, len(values)):
        every = np.stack([places[p] + place * a.block for place, p in enumerate(group)])
        winner = rank(np.stack([values[p] for p in group]), axis=0)
        best = np.take_along_axis(every, winner[None], 0)[0].astype(places[0].dtype)
        for position in group:
            result[position] = best
    return result


def top(a: spmd.Top, values: Stack, places: Stack) -> list[Stack]:
    """By a stable sort: of what is equally good, what has the lower place stays first."""
    found = list(values), list(places)
    for group in groups(a.digits, len(values)):
        every = np.concatenate([values[p] for p in group], a.dim)
        moved = [places[p] + place * a.block for place, p in enumerate(group)]
        joined = np.concatenate(moved, a.dim).astype(places[0].dtype)
        order = np.argsort(~_in_total_order(every), axis=a.dim, kind="stable")
        order = order.take(range(values[0].shape[a.dim]), a.dim)
        for position in group:
            found[0][position] = np.take_along_axis(every, order, a.dim)
            found[1][position] = np.take_along_axis(joined, order, a.dim)
    return list(found)


def _in_total_order(x: np.ndarray) -> np.ndarray:
    """Integers that are ordered as the numbers: of floats their bits, mirrored below 0."""
    if x.dtype.kind in "iu":
        return x
    bits = x.view(f"int{8 * x.dtype.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def _value_at(a: spmd.ValueAt, places: Stack, x: Stack) -> Stack:
    def at(_: int, place: np.ndarray, block: np.ndarray) -> np.ndarray:
        index = np.expand_dims(place.astype(np.int64), a.dim)
        return np.take_along_axis(block, index, a.dim).squeeze(a.dim)

    return _everywhere(at, places, x)


def _dynamic_slice(a: spmd.DynamicSlice, x: Stack) -> Stack:
    def own(position: int, block: np.ndarray) -> np.ndarray:
        start = partition_id(a.digits, position) * a.block
        if start + a.block > block.shape[a.dim]:
            raise ProgramError(
                f"position {position} slices [{start}, {start + a.block}) of "
                f"{block.shape[a.dim]} elements. Resize dimension {a.dim} first."
            )
        return block.take(range(start, start + a.block), a.dim)

    return _everywhere(own, x)


def _slice(a: spmd.Slice, x: Stack) -> Stack:
    return _everywhere(lambda _, block: _cut(block, a.dim, a.start, a.size), x)


def _slice_at(a: spmd.SliceAt, x: Stack) -> Stack:
    def own(position: int, block: np.ndarray) -> np.ndarray:
        start = a.start.at(position)
        if start < 0 or start + a.size > block.shape[a.dim]:
            raise ProgramError(
                f"position {position} slices [{start}, {start + a.size}) of "
                f"{block.shape[a.dim]} elements of dimension {a.dim}."
            )
        return _cut(block, a.dim, start, a.size)

    return _everywhere(own, x)


def _cut(block: np.ndarray, dim: int, start: int, size: int) -> np.ndarray:
    return block.take(range(start, start + size), dim)


def _pick(a: spmd.Pick, x: Stack) -> Stack:
    def own(position: int, block: np.ndarray) -> np.ndarray:
        found = _cut(block, a.dim, a.place, 1)
        return found if partition_id(a.digits, position) == a.owner else np.zeros_like(found)

    return _everywhere(own, x)


def _regroup(a: Regroup, x: Stack) -> Stack:
    def regrouped(_: int, block: np.ndarray) -> np.ndarray:
        shape = a.shape(block.shape)
        if prod(shape) != block.size or sum(n for n, _ in a.groups) != block.ndim:
            raise ProgramError(f"blocks of {block.shape} are no {shape}. Name every dimension.")
        return block.reshape(shape)

    return _everywhere(regrouped, x)


def _concatenate(a: spmd.Concatenate, *stacks: Stack) -> Stack:
    return _everywhere(lambda _, *blocks: np.concatenate(blocks, a.dim), *stacks)


def _resize(a: spmd.Resize, x: Stack) -> Stack:
    def fit(_: int, block: np.ndarray) -> np.ndarray:
        grow = [(0, max(a.size - n, 0) if i == a.dim else 0) for i, n in enumerate(block.shape)]
        return np.pad(block, grow).take(range(a.size), a.dim)

    return _everywhere(fit, x)


def _dilate(a: spmd.Dilate, x: Stack, *fill: Stack) -> Stack:
    def spread(_: int, block: np.ndarray, *given: np.ndarray) -> np.ndarray:
        before = block.shape[a.dim]
        value = given[0] if a.fill is None else identity(a.fill, block.dtype.name)
        shape = [a.length(n) if i == a.dim else n for i, n in enumerate(block.shape)]
        result = np.full(shape, value, block.dtype)
        held = tuple(
            slice(a.low, a.low + (before - 1) * a.factor + 1, a.factor)
            if i == a.dim
            else slice(None)
            for i in range(block.ndim)
        )
        result[held] = block
        return result

    return _everywhere(spread, x, *fill)


def _mask(a: spmd.Mask, x: Stack) -> Stack:
    fill = identity(a.fill, x[0].dtype.name)

    def masked(position: int, block: np.ndarray) -> np.ndarray:
        place = partition_id(a.digits, position) * a.block + np.arange(block.shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(block.ndim)]
        return np.where((place < a.size).reshape(shape), block, np.asarray(fill, block.dtype))

    return _everywhere(masked, x)


def _mask_at(a: spmd.MaskAt, x: Stack, *fill: Stack) -> Stack:
    def masked(position: int, block: np.ndarray, *given: np.ndarray) -> np.ndarray:
        value = given[0] if a.fill is None else identity(a.fill, block.dtype.name)
        place = a.start.at(position) + np.arange(block.shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(block.ndim)]
        inside = ((place >= 0) & (place < a.size)).reshape(shape)
        return np.where(inside, block, np.asarray(value, block.dtype))

    return _everywhere(masked, x, *fill)


def _choose(a: spmd.Choose, *stacks: Stack) -> Stack:
    def chosen(position: int, *blocks: np.ndarray) -> np.ndarray:
        place = a.start.at(position) + np.arange(blocks[0].shape[a.dim])
        shape = [-1 if i == a.dim else 1 for i in range(blocks[0].ndim)]
        result = blocks[-1]
        for block, end in zip(blocks[-2::-1], a.ends[-2::-1], strict=True):
            result = np.where((place < end).reshape(shape), block, result)
        return result

    return _everywhere(chosen, *stacks)


def _join(a: spmd.Join, x: Stack, one: Stack) -> Stack:
    def joined(_: int, block: np.ndarray, single: np.ndarray) -> np.ndarray:
        return combined([block, np.broadcast_to(single, block.shape)], a.combine)

    return _everywhere(joined, x, one)


def _offset(a: spmd.Offset, x: Stack) -> Stack:
    def shifted(position: int, block: np.ndarray) -> np.ndarray:
        result = np.array(block)
        part = np.asarray(result if a.component is None else result[..., a.component], np.int64)
        if a.clamp is not None:
            part = np.clip(part, *a.clamp)
        low, high = a.within or (0, 0)
        missing = (a.within is not None) & ((part < low) | (part > high))
        part = part + partition_id(a.digits, position) * a.scale + a.more
        part = np.where(missing, -1, part).astype(block.dtype)
        if a.component is None:
            return np.asarray(part)
        result[..., a.component] = part
        return result

    return _everywhere(shifted, x)


def _mask_indexed(a: spmd.MaskIndexed, value: Stack, indices: Stack) -> Stack:
    def masked(position: int, block: np.ndarray, index: np.ndarray) -> np.ndarray:
        here = np.ones(index.shape[:-1], bool)
        outside = np.zeros(index.shape[:-1], bool)
        member = 0
        for (component, digits, size_here, size), margin in a.counted:
            p = partition_id(digits, position)
            member += p
            local = index[..., component].astype(np.int64)
            here &= (local >= 0) & (local < size_here + margin)
            start = local - margin + p * size_here
            outside |= (start < 0) | (start >= size)
        fill = a.fill if a.fill is not None and member == 0 else 0
        result = np.where(_spread(here & ~outside, a.batch_dims, block), block, block.dtype.type(0))
        return np.where(_spread(outside, a.batch_dims, block), block.dtype.type(fill), result)

    return _everywhere(masked, value, indices)


def _spread(array: np.ndarray, dims: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    """`array` with its dimensions at `dims` of a tensor of the rank of `like`."""
    shape = [1] * like.ndim
    for n, dim in zip(array.shape, dims, strict=True):
        shape[dim] = n
    return array.reshape(shape)


def _first_member(a: spmd.FirstMember, x: Stack) -> Stack:
    fill = identity(a.combine, x[0].dtype.name)

    def only(position: int, block: np.ndarray) -> np.ndarray:
        return np.full_like(block, fill) if partition_id(a.digits, position) else block

    return _everywhere(only, x)


def _extract(a: spmd.Extract, x: Stack, *starts: Stack) -> Stack:
    return _everywhere(partial(extracted, a), x, *starts)


def _insert(a: spmd.Insert, x: Stack, new: Stack, *starts: Stack) -> Stack:
    return _everywhere(partial(inserted, a), x, new, *starts)


HOST_STEPS: dict[type, Callable[..., Stack]] = {
    spmd.AllGather: _all_gather,
    spmd.AllReduce: _all_reduce,
    spmd.ReduceScatter: _reduce_scatter,
    spmd.AllToAll: _all_to_all,
    spmd.CollectivePermute: _permute,
    spmd.Carry: _carry,
    spmd.Best: _best,
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
