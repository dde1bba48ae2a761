"""Collectives of whole blocks, over the positions of a group.

Blocks that go from one position to another.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from shardalg.algebra.digits import partition_id
from shardalg.errors import ProgramError
from shardalg.spmd.host.blocks import Stack, groups
from shardalg.spmd.host.run import HostRun, exchange, on_blocks, simulates
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    HaloExchange,
    Reading,
    ReduceScatter,
)


@on_blocks(AllGather)
def _all_gather(a: AllGather, x: Stack) -> Stack:
    return exchange(a.digits, x, lambda blocks: [np.concatenate(blocks, a.dim)] * len(blocks))


_UFUNCS = {
    "sum": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "logsumexp": np.logaddexp,
}
_PARTS_OF_BYTES = ("int4", "uint4", "int2", "uint2")
"""Integers of which numpy has no extrema."""


def combine_blocks(blocks: Stack, combine: str) -> np.ndarray:
    """`blocks` joined elementwise; 2-byte floats are joined in f32 and rounded once."""
    if combine == "pick":
        return _as_bits(np.stack(blocks))
    if combine not in _UFUNCS:
        known = sorted([*_UFUNCS, "pick"])
        raise ProgramError(f"no collective joins by {combine!r}; known: {known}.")
    with np.errstate(invalid="ignore", over="ignore"):  # of garbage
        return _reduce(np.stack(blocks), combine)


def _reduce(array: np.ndarray, combine: str) -> np.ndarray:
    if array.dtype == np.bool_ and combine == "sum":
        combine = "or"
    if array.dtype.itemsize == 2 and array.dtype.kind in "fV":
        return _UFUNCS[combine].reduce(array.astype(np.float32)).astype(array.dtype)
    if array.dtype.name in _PARTS_OF_BYTES:
        return _UFUNCS[combine].reduce(array.astype(np.int32)).astype(array.dtype)
    if array.dtype.kind == "c" and combine == "logsumexp":
        return _complex_logsumexp(array)
    return _UFUNCS[combine].reduce(array, dtype=array.dtype)


def _as_bits(array: np.ndarray) -> np.ndarray:
    """The bits of all rows, of which one at most has any in an element."""
    rows = array.reshape(len(array), array[0].size).view(np.uint8)
    return np.bitwise_or.reduce(rows).view(array.dtype).reshape(array.shape[1:])


def _complex_logsumexp(array: np.ndarray) -> np.ndarray:
    """As numpy's own, which has none of complex numbers."""
    highest = array.real.max(0)
    highest = np.where(np.isfinite(highest), highest, 0).astype(array.real.dtype)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(array - highest).sum(0)) + highest


@on_blocks(AllReduce)
def _all_reduce(a: AllReduce, x: Stack) -> Stack:
    return exchange(a.digits, x, lambda blocks: [combine_blocks(blocks, a.combine)] * len(blocks))


@on_blocks(ReduceScatter)
def _reduce_scatter(a: ReduceScatter, x: Stack) -> Stack:
    def scattered(blocks: Stack) -> Stack:
        return _pieces(combine_blocks(blocks, a.combine), a.dim, len(blocks))

    return exchange(a.digits, x, scattered)


def _pieces(block: np.ndarray, dim: int, n: int) -> Stack:
    if block.shape[dim] % n:
        raise ProgramError(
            f"{block.shape[dim]} elements of dimension {dim} cannot be split among {n} devices. "
            "Resize the dimension to a multiple first."
        )
    return np.split(block, n, dim)


@on_blocks(AllToAll)
def _all_to_all(a: AllToAll, x: Stack) -> Stack:
    result: Stack = [x[0]] * len(x)
    for group in groups(a.digits, len(x)):
        sent = [_pieces(x[source], a.split_dim, len(group)) for source in group]
        for position in group:
            number = partition_id(a.arriving or a.digits, position)
            result[position] = np.concatenate([pieces[number] for pieces in sent], a.concat_dim)
    return result


@on_blocks(AllToAlls)
def _all_to_alls(a: AllToAlls, x: Stack) -> Stack:
    for one in a.exchanges:
        x = _all_to_all(one, x)
    return x


@on_blocks(CollectivePermute)
def _permute(a: CollectivePermute, x: Stack) -> Stack:
    result = [np.zeros_like(block) for block in x]
    for source, target in a.pairs:
        result[target] = x[source]
    return result


@simulates(HaloExchange)
def _halo_exchange(
    run: HostRun, instruction: Instruction[HaloExchange], *stacks: Stack
) -> list[Stack]:
    """Per reading its blocks. What is nobody's is garbage: the own one is as good as any."""
    return [_read(reading, stacks[reading.operand]) for reading in instruction.attributes.readings]


def _read(reading: Reading, x: Stack) -> Stack:
    result = list(x)
    for source, target in chain.from_iterable(reading.permutes):
        result[target] = x[source]
    return result
