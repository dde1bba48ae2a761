"""Simulate collectives of whole blocks: permute, exchange or combine them within a group."""

from __future__ import annotations

from itertools import chain, product

import numpy as np

from shardalg.algebra.digits import partition_id, parts
from shardalg.errors import ProgramError
from shardalg.spmd.host.blocks import Stack, groups
from shardalg.spmd.host.run import HostRun, exchange, on_blocks, simulates
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import (
    AllGather,
    AllGathers,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    HaloExchange,
    RaggedAllToAll,
    ReduceScatter,
    ReduceScatters,
)


@on_blocks(AllGather)
def _all_gather(a: AllGather, x: Stack) -> Stack:
    return exchange(a.digits, x, lambda blocks: [np.concatenate(blocks, a.dim)] * len(blocks))


@on_blocks(AllGathers)
def _all_gathers(a: AllGathers, x: Stack) -> Stack:
    for dim, digits in a.along:
        x = _all_gather(AllGather(dim, digits), x)
    return x


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
"""Integer types for which numpy has no maximum and minimum: they are combined as int32."""


def combine_blocks(blocks: Stack, combine: str) -> np.ndarray:
    """Return the blocks combined elementwise, as a collective does for a group of devices.

    The `combine` "pick" takes, per element, the only block that is not 0. 2-byte floats are
    combined in f32 and rounded once.
    """
    if combine == "pick":
        # At most one block has any bits in an element, so their bitwise or is that element.
        array = np.stack(blocks)
        bytes_of_block = array.reshape(len(array), array[0].size).view(np.uint8)
        bits = np.bitwise_or.reduce(bytes_of_block)
        return bits.view(array.dtype).reshape(array.shape[1:])
    if combine not in _UFUNCS:
        names = sorted([*_UFUNCS, "pick"])
        raise ProgramError(f"no collective combines by {combine!r}; known: {names}.")
    with np.errstate(invalid="ignore", over="ignore"):  # garbage may overflow
        return _reduce(np.stack(blocks), combine)


def _reduce(array: np.ndarray, combine: str) -> np.ndarray:
    """Return the combination of the members' blocks, which are stacked on the first dimension."""
    # The sum of booleans is their disjunction, as in XLA.
    if array.dtype == np.bool_ and combine == "sum":
        combine = "or"
    # Rounding after every addition would depend on the order of the members.
    if array.dtype.itemsize == 2 and array.dtype.kind in "fV":
        return _UFUNCS[combine].reduce(array.astype(np.float32)).astype(array.dtype)
    # numpy has no maximum and minimum of integers with fewer than eight bits.
    if array.dtype.name in _PARTS_OF_BYTES:
        return _UFUNCS[combine].reduce(array.astype(np.int32)).astype(array.dtype)
    if array.dtype.kind == "c" and combine == "logsumexp":
        # numpy's `logaddexp` takes no complex numbers. Subtracting the largest real part keeps the
        # exponentials finite.
        largest = array.real.max(0)
        largest = np.where(np.isfinite(largest), largest, 0).astype(array.real.dtype)
        with np.errstate(divide="ignore"):
            return np.log(np.exp(array - largest).sum(0)) + largest
    return _UFUNCS[combine].reduce(array, dtype=array.dtype)


@on_blocks(AllReduce)
def _all_reduce(a: AllReduce, x: Stack) -> Stack:
    return exchange(a.digits, x, lambda blocks: [combine_blocks(blocks, a.combine)] * len(blocks))


@on_blocks(ReduceScatter)
def _reduce_scatter(a: ReduceScatter, x: Stack) -> Stack:
    """Combine the blocks of each group; each member keeps its own piece of the result."""

    def scattered(blocks: Stack) -> Stack:
        """Return the pieces of the combined block, one per member."""
        return _pieces(combine_blocks(blocks, a.combine), a.dim, len(blocks))

    return exchange(a.digits, x, scattered)


@on_blocks(ReduceScatters)
def _reduce_scatters(a: ReduceScatters, x: Stack) -> Stack:
    """Combine the blocks of each group, and give every member its piece of the combination."""

    def scattered(blocks: Stack) -> Stack:
        """Return the piece of the combined blocks that each member of a group keeps."""
        # Member k gets piece k. The digits of the first pair are the major ones of a member's
        # number, so the first pair is cut first.
        found = [combine_blocks(blocks, a.combine)]
        for dim, digits in a.along:
            found = [piece for one in found for piece in _pieces(one, dim, parts(digits))]
        return found

    return exchange(a.digits, x, scattered)


def _pieces(block: np.ndarray, dim: int, n: int) -> Stack:
    """Return a block split into `n` equal pieces along one dimension.

    Raises:
      ProgramError: the dimension cannot be split evenly.
    """
    if block.shape[dim] % n:
        raise ProgramError(
            f"{block.shape[dim]} elements of dimension {dim} cannot be split among {n} devices. "
            "Resize the dimension to a multiple first."
        )
    return np.split(block, n, dim)


@on_blocks(AllToAll)
def _all_to_all(a: AllToAll, x: Stack) -> Stack:
    """Send piece number k of each member to the member with partition id k.

    Each member cuts its block along `split_dim` and joins the pieces that it receives along
    `concat_dim`.
    """
    result: Stack = [x[0]] * len(x)
    for group in groups(a.digits, len(x)):
        pieces_of_member = [_pieces(x[source], a.split_dim, len(group)) for source in group]
        for position in group:
            # A member receives the piece with the number of its own partition id.
            number = partition_id(a.arriving or a.digits, position)
            result[position] = np.concatenate(
                [pieces[number] for pieces in pieces_of_member], a.concat_dim
            )
    return result


@on_blocks(AllToAlls)
def _all_to_alls(a: AllToAlls, x: Stack) -> Stack:
    for one in a.exchanges:
        x = _all_to_all(one, x)
    return x


@on_blocks(CollectivePermute)
def _permute(a: CollectivePermute, x: Stack) -> Stack:
    """Send the block of each source to its target; a device that receives nothing gets zeros."""
    result = [np.zeros_like(block) for block in x]
    for source, target in a.pairs:
        result[target] = x[source]
    return result


@on_blocks(RaggedAllToAll)
def _ragged_all_to_all(a: RaggedAllToAll, rows: Stack, into: Stack, *vectors: Stack) -> Stack:
    """Write the slices of each member into the blocks of their receivers.

    Each member lists, per receiver, slices of its rows (`starts`, `sizes`), and the row of the
    receiver at which each one is written (`targets`). `into` has the blocks before.

    Raises:
      ProgramError: a member sends another number of rows than the receiver expects, or a slice is
        not inside its block. The result of JAX is then undefined.
    """
    starts, sizes, targets, expected = vectors
    result = [np.array(block) for block in into]
    for group in groups(a.digits, len(rows)):
        slices_per_member = len(sizes[0]) // len(group)
        for (sender, source), (receiver, target) in product(enumerate(group), repeat=2):
            for k in range(slices_per_member):
                # Slice k for this receiver; the receiver lists its senders in the same way.
                sent_slice = receiver * slices_per_member + k
                received_slice = sender * slices_per_member + k
                n, start, target_start = (
                    int(v[source][sent_slice]) for v in (sizes, starts, targets)
                )
                if n != (want := int(expected[target][received_slice])):
                    raise ProgramError(
                        f"device {source} sends {n} rows to device {target}, which expects {want}."
                    )
                ends = (start, len(rows[source])), (target_start, len(result[target]))
                if any(not 0 <= first <= first + n <= size for first, size in ends):
                    raise ProgramError(
                        f"{n} rows from row {start} of {len(rows[source])} on device {source} to "
                        f"row {target_start} of {len(result[target])} on device {target} are not "
                        "inside."
                    )
                result[target][target_start : target_start + n] = rows[source][start : start + n]
    return result


@simulates(HaloExchange)
def _halo_exchange(
    run: HostRun, instruction: Instruction[HaloExchange], *stacks: Stack
) -> list[Stack]:
    """Return, for each reading of the exchange, the block that each device position receives.

    A reading is one result of the exchange, with the pairs (source, target) of its permutes.
    """
    results = []
    for reading in instruction.attributes.readings:
        # A device without a sender has garbage, for which its own block is as good as any.
        blocks = stacks[reading.operand]
        result = list(blocks)
        for source, target in chain.from_iterable(reading.permutes):
            result[target] = blocks[source]
        results.append(result)
    return results
