"""Collectives that move or combine whole blocks.

Collectives are emitted per backend. XLA's CPU collectives work on the leading dimension: tiled
along another one they are 4 to 9 times slower than untiled on a new leading dimension and moved.
A reduce-scatter gets its pieces on a new leading dimension, too: it sends half the bytes of an
all-reduce, and takes 0.40 to 0.76 of the time of an all-reduce and a slice (4 to 16 MiB over 2, 4
and 8 devices, in pairs, jaxlib 0.10.2; 0.97 to 1.02 at 16 KiB). Tiled along its own dimension it
takes 2.4 to 5.8 times as long for the last dimension, 0.64 to 0.80 for another one that was tried.
Other backends get one tiled operation, whose transposes the compiler places.

An all-to-all concatenates the received blocks, and so does an all-gather. A reduction combines
blocks elementwise. The maximum and minimum of floats have an emission of their own, because XLA's
CPU collective loses a NaN. A halo exchange is a sequence of permutes; each device selects the
block that it needs from the received blocks and its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardalg.algebra.digits import Digits, partition_id, parts
from shardalg.errors import LoweringError
from shardalg.lower.emit.emitter import Array, Emitter, emits
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
    Reading,
    ReduceScatter,
    ReduceScatters,
)


def all_to_all(x: Array, names: tuple[str, ...], a: AllToAll) -> Array:
    """Split blocks along one dimension and concatenate the received pieces along another."""
    sent = pieces(x, a.split_dim, parts(a.digits))
    if a.concat_dim == 0 and not a.arriving and 1 not in sent.shape:
        # This form takes less memory. XLA keeps received pieces of 1 MiB or more in the result's
        # memory (openxla issue 15207): temporary memory is 0.219 of the tensor. The other form has
        # 0.250 and a table of pointers for each all-to-all.
        return lax.all_to_all(x, names, a.split_dim, 0, tiled=True)
    sent = _by_member(sent, a.digits, a.arriving or a.digits)
    senders = jnp.moveaxis(exchange_pieces(sent, names), 0, a.concat_dim)
    return lax.collapse(senders, a.concat_dim, a.concat_dim + 2)


def all_to_alls(x: Array, names: tuple[str, ...], a: AllToAlls) -> Array:
    """Return the block after several all-to-alls, which are sent as one exchange.

    Each split dimension is cut into one piece per member. The numbers of the pieces become leading
    dimensions, in the order of the exchanges, and together give the number of the receiver.

    For example, exchanges among 2 and 4 members of a block (6, 8, 5), split along 0 and 1: the
    pieces are (2, 4, 3, 2, 5), and are sent as 8 pieces (3, 2, 5).

    Args:
      x: one device's block.
      names: the mesh axes of all exchanges.
      a: the exchanges, each with its split and its concatenated dimension.
    """
    counts: list[int] = []
    sent = x
    # The last exchange is cut first, so that the first one's piece numbers are the major ones.
    for one in reversed(a.exchanges):
        count = parts(one.digits)
        # Each earlier cut has added a leading dimension.
        dim = one.split_dim + len(counts)
        cut = sent.reshape(
            *sent.shape[:dim], count, sent.shape[dim] // count, *sent.shape[dim + 1 :]
        )
        pieces_first = jnp.moveaxis(cut, dim, 0)
        # The arriving digits may have another order, in which the receivers are then numbered.
        sent = _by_member(pieces_first, one.digits, one.arriving or one.digits)
        counts.insert(0, count)
    # One leading dimension has a piece for every receiver; afterwards one from every sender.
    arrived = exchange_pieces(sent.reshape(-1, *sent.shape[len(counts) :]), names)
    blocks = arrived.reshape(*counts, *sent.shape[len(counts) :])
    return _side_by_side(blocks, [one.concat_dim for one in a.exchanges])


def _side_by_side(blocks: Array, dims: Sequence[int]) -> Array:
    """Return one block, concatenated from blocks that the leading dimensions number.

    Args:
      dims: for each leading dimension, the dimension of a block along which it is concatenated.
    """
    # The last leading dimension moves first, so that the others keep their places.
    for left, dim in reversed([*enumerate(dims)]):
        at = dim + left
        blocks = lax.collapse(jnp.moveaxis(blocks, left, at), at, at + 2)
    return blocks


def pieces(x: Array, dim: int, n: int) -> Array:
    """Return `x` split into `n` pieces along `dim`, stacked on a new leading dimension."""
    cut = x.reshape(*x.shape[:dim], n, x.shape[dim] // n, *x.shape[dim + 1 :])
    return jnp.moveaxis(cut, dim, 0)


def exchange_pieces(sent: Array, names: tuple[str, ...]) -> Array:
    """Send piece `k` to member `k`; return the received pieces in the order of their senders.

    Pieces with dimensions of size 1 are sent as flat arrays. XLA could give them different layouts
    before and after the exchange, which its verifier refuses (jaxlib 0.10.2, where one exchange
    reads another).
    """
    if 1 not in sent.shape:
        return lax.all_to_all(sent, names, 0, 0, tiled=True)
    return lax.all_to_all(sent.reshape(-1), names, 0, 0, tiled=True).reshape(sent.shape)


def _by_member(sent: Array, digits: Digits, cut: Digits) -> Array:
    """Return pieces, one for each device of a group, in the order of partition ids along `digits`.

    Args:
      sent: the pieces in the order of the ids along `cut`, stacked on the leading dimension.
      digits, cut: the same digits in two orders.
    """
    if cut == digits:
        return sent
    grid = sent.reshape(*(digit.size for digit in cut), *sent.shape[1:])
    order = [*map(cut.index, digits), *range(len(cut), grid.ndim)]
    return grid.transpose(order).reshape(sent.shape)


EXTREMA = {"max": (lax.pmax, "max"), "min": (lax.pmin, "min")}
"""Per combination, the collective, and the field of `jnp.iinfo` whose integer replaces a NaN."""


def extremum(x: Array, names: tuple[str, ...], combine: str) -> Array:
    """Return `pmax` or `pmin` over mesh axes, with NaN where any device has a NaN.

    XLA's collectives on CPU lose a NaN, because it never compares as larger or smaller (jaxlib
    0.10.2). So the collective compares integers in the order of the floats: their bits, with those
    of negative numbers mirrored. A NaN becomes the largest integer for `pmax`, and the smallest for
    `pmin`.
    """
    # Items of less than 8 bits have no integer type of their `itemsize`; float8 is exact for them.
    if jnp.finfo(x.dtype).bits < 8:
        return extremum(x.astype("float8_e4m3fn"), names, combine).astype(x.dtype)
    # Integers order as the floats do if the magnitude bits of negative numbers are flipped.
    collective, end = EXTREMA[combine]
    kind = jnp.iinfo(f"int{8 * x.dtype.itemsize}")

    def mirror_negatives(bits: Array) -> Array:
        return jnp.where(bits < 0, bits ^ kind.max, bits)  # its own inverse, so used twice

    order = mirror_negatives(lax.bitcast_convert_type(x, kind.dtype))
    # Integers have no NaN, so the integer that wins every comparison represents it.
    order = jnp.where(jnp.isnan(x), jnp.asarray(getattr(kind, end), kind.dtype), order)
    return lax.bitcast_convert_type(mirror_negatives(collective(order, names)), x.dtype)


@emits(CollectivePermute)
def _permute(
    emitter: Emitter, instruction: Instruction[CollectivePermute], x: Array
) -> list[Array]:
    return [lax.ppermute(x, emitter.axes.all_names, instruction.attributes.pairs)]


@emits(HaloExchange)
def _halo_exchange(
    emitter: Emitter, instruction: Instruction[HaloExchange], *xs: Array
) -> list[Array]:
    """Return the blocks that a device reads from its neighbours, one for each reading.

    Each permute is emitted once. Every result is then selected from the received blocks and the
    device's own block, because the source of a block depends on the device's position.

    Args:
      xs: the device's blocks of the operands.
    """
    a, names = instruction.attributes, emitter.axes.all_names
    arrived = []
    for edges in a.permutes:
        # An edge is (source, target, number of the operand). A permute has one buffer, but devices
        # may send blocks of different operands in it. So each device first selects the operand that
        # it sends, by its position.
        first = edges[0][2] if edges else 0
        sent = xs[first]
        for other in sorted({operand for _, _, operand in edges} - {first}):
            senders = [source for source, _, operand in edges if operand == other]
            sent = jnp.where(_is_on(emitter, senders), xs[other], sent)
        pairs = [(source, target) for source, target, _ in edges]
        arrived.append(lax.ppermute(sent, names, pairs))
    # A reading names, per position in the mesh, the permute whose block the device reads.
    return [
        _select_block(emitter, a.digits, reading, xs[reading.operand], arrived)
        for reading in a.readings
    ]


def _select_block(
    emitter: Emitter, digits: Digits, reading: Reading, x: Array, arrived: list[Array]
) -> Array:
    """Return one result of a halo exchange: on each device, the block that it needs.

    It is the device's own block, or one of the received blocks. A device that needs none may return
    any block.

    Args:
      reading: the description of the result, by the device from which each device needs a block.
      x: the device's own block of the operand.
      arrived: the received block of each permute.
    """
    # For each permute, the positions of the devices whose result is the block that it brings.
    receivers = [[target for _, target in pairs] for pairs in reading.permutes]
    received = [
        (block, targets) for block, targets in zip(arrived, receivers, strict=True) if targets
    ]
    positions = range(emitter.program.mesh.size)
    keep_own = [p for p in positions if reading.source.at(p) == partition_id(digits, p)]
    # A device that no select below names returns the start: its own block. If no device needs its
    # own block, the first received block can be the start, which saves a select.
    result = x
    if received and set(keep_own) <= {target for targets in receivers for target in targets}:
        (result, _), *received = received
    for block, targets in received:
        result = jnp.where(_is_on(emitter, targets), block, result)
    return result


def _is_on(emitter: Emitter, positions: list[int]) -> Array:
    """Return a boolean that is True on the devices at the given positions, and False on others."""
    chosen = np.isin(np.arange(emitter.program.mesh.size), positions)
    return jnp.asarray(chosen)[lax.axis_index(emitter.axes.all_names)]


@emits(AllGather)
def _all_gather(emitter: Emitter, instruction: Instruction[AllGather], x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    return [all_gather(x, names, a.dim, tiled=emitter.tiled)] if names else [x]


def all_gather(x: Array, names: tuple[str, ...], dim: int, *, tiled: bool) -> Array:
    """Return the blocks of all members of the group, concatenated along a dimension.

    For example, blocks (4, 3) of 2 members with `dim` 1 -> (4, 6).

    Args:
      names: mesh axes along which the members differ.
      tiled: whether XLA concatenates the blocks; False is faster on CPU.
    """
    if not x.size:  # XLA gathers no empty arrays
        return jnp.concatenate([x] * lax.axis_size(names), dim)
    if tiled or dim == 0:
        return lax.all_gather(x, names, axis=dim, tiled=True)
    # A leading dimension is fast on CPU; the transpose is local. The members' dimension moves to
    # the place before `dim`, and the reshape merges both.
    blocks = jnp.moveaxis(lax.all_gather(x, names, axis=0, tiled=False), 0, dim)
    merged = blocks.shape[dim] * blocks.shape[dim + 1]
    return blocks.reshape(*x.shape[:dim], merged, *x.shape[dim + 1 :])


@emits(AllGathers)
def _all_gathers(emitter: Emitter, instruction: Instruction[AllGathers], x: Array) -> list[Array]:
    """Gather the blocks of a group in one collective, and concatenate them along dimensions.

    The instruction has the dimensions, each with the digits (parts of mesh axes) that shard it.
    """
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    # A group of one device has nothing to gather.
    if not names:
        return [x]
    if not x.size:  # XLA gathers no empty arrays
        for dim, digits in a.along:
            x = jnp.concatenate([x] * parts(digits), dim)
        return [x]
    # The gather adds one leading dimension of members, the first digits major. It is split into one
    # dimension for each gathered dimension of the block.
    counts = [parts(digits) for _, digits in a.along]
    blocks = lax.all_gather(x, names, axis=0, tiled=False).reshape(*counts, *x.shape)
    return [_side_by_side(blocks, a.dims)]


@emits(AllReduce)
def _all_reduce(emitter: Emitter, instruction: Instruction[AllReduce], x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    return [_combine_over_devices(x, names, a.combine)] if names else [x]


def _combine_over_devices(x: Array, names: tuple[str, ...], combine: str) -> Array:
    """Return the elementwise combination of the blocks of all devices along the mesh axes.

    Args:
      x: one device's block.
      combine: "sum", "max", "min", "and", "or", ..., or "pick", in which only one device has the
        element and all others have 0.
    """
    # JAX's collectives take no booleans. As 0 and 1, "and" is a minimum and "or" a maximum.
    if x.dtype == jnp.bool_ and combine in _OF_BOOL:
        return _OF_BOOL[combine](x.astype(jnp.uint8), names).astype(jnp.bool_)
    # The sum of the bits with zeros is exact; a sum of numbers would turn -0 into 0.
    if combine == "pick":
        return as_bits(x, lambda bits: lax.psum(bits, names))
    # Between devices, the extremum of floating-point numbers needs care for nan and -0.
    if combine in EXTREMA and jnp.issubdtype(x.dtype, jnp.floating):
        return extremum(x, names, combine)
    # XLA has a collective for these, but it orders no complex numbers between devices.
    if combine in _DIRECT and (combine == "sum" or x.dtype.kind != "c"):
        return _DIRECT[combine](x, names)
    # Any other combination is computed on each device from all blocks.
    return combine_blocks(lax.all_gather(x, names, axis=0, tiled=False), combine)


def as_bits(x: Array, send: Callable[[Array], Array]) -> Array:
    """Return the result of a collective that sums, computed on the bits of `x` as integers.

    At most one device may have nonzero bits. A sum of floats would lose the sign of -0: it would
    start from +0 (CPU), or add the +0 of a device that has no value.

    Args:
      send: the collective, which sums integers.
    """
    if x.dtype.kind == "c":
        pairs = as_bits(jnp.stack([x.real, x.imag], -1), send)
        return lax.complex(pairs[..., 0], pairs[..., 1])
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return send(x)
    # All other devices have zero bits, so the integer sum is the value of one device, bit for bit.
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
    """Return `extreme`, changed to return NaN where its first operand is NaN.

    `lax` would return the second operand, which may be the identity from a device without elements.
    """
    return lambda x, y: jnp.where(x != x, x, extreme(x, y))


OF_COMPLEX = {"max": _keeps_nan(lax.max), "min": _keeps_nan(lax.min)}
"""Extremes of complex numbers, in the order of real and then imaginary parts."""


def combine_blocks(blocks: Array, combine: str) -> Array:
    """Return the elementwise combination of blocks that are stacked on the leading dimension.

    Raises:
      LoweringError: no collective combines blocks in this way.
    """
    if combine not in _FOLDS:
        raise LoweringError(f"no collective combines by {combine!r}; known: {sorted(_FOLDS)}.")
    if blocks.dtype.kind == "c" and combine in OF_COMPLEX:
        # `jnp.max` of complex numbers starts from `-inf + 0j`, which is larger than
        # `-inf - inf*1j`. A tree of pairs starts from the blocks alone.
        while len(blocks) > 1:
            half = len(blocks) // 2
            pairs = OF_COMPLEX[combine](blocks[:half], blocks[half : 2 * half])
            blocks = jnp.concatenate([pairs, blocks[2 * half :]])
        return blocks[0]
    if blocks.dtype == jnp.bool_:
        # A sum of booleans saturates: it is true if one of them is.
        combine = {"sum": "or", "pick": "or", "max": "or", "min": "and"}.get(combine, combine)
    return _FOLDS[combine](blocks, axis=0).astype(blocks.dtype)


@emits(ReduceScatter)
def _reduce_scatter(
    emitter: Emitter, instruction: Instruction[ReduceScatter], x: Array
) -> list[Array]:
    """Return a device's piece of the combination of all blocks of its group.

    The combination may be a sum or another one. The block is cut along the instruction's dimension
    into one piece for each member.
    """
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    # A group of one device has nothing to combine.
    if not names:
        return [x]
    if a.combine not in ("sum", "pick") or x.dtype == jnp.bool_:
        # `lax.psum_scatter` only sums. An all-to-all of the pieces sends the same bytes, and the
        # receiver combines them.
        return [
            combine_blocks(exchange_pieces(pieces(x, a.dim, parts(a.digits)), names), a.combine)
        ]

    def send(x: Array) -> Array:
        """Return the device's piece of the sum."""
        if emitter.tiled or a.dim == 0:
            return lax.psum_scatter(x, names, scatter_dimension=a.dim, tiled=True)
        # On CPU, a scatter along another dimension than the first is slow.
        return _send_and_add_pieces(pieces(x, a.dim, parts(a.digits)), names)

    # A pick adds bits, which keeps the sign of -0.
    return [as_bits(x, send) if a.combine == "pick" else send(x)]


@emits(ReduceScatters)
def _reduce_scatters(
    emitter: Emitter, instruction: Instruction[ReduceScatters], x: Array
) -> list[Array]:
    """Emit one reduce-scatter of several dimensions: each member gets its piece of all of them."""
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    if not names:
        return [x]

    def cut(x: Array) -> Array:
        # The first dimension is cut last, so that its piece numbers are the major ones.
        for leading, (dim, digits) in enumerate(reversed(a.along)):
            x = pieces(x, dim + leading, parts(digits))
        return x.reshape(-1, *x.shape[len(a.along) :])

    # `lax.psum_scatter` only adds numbers. For other combinations, an all-to-all sends the pieces,
    # and the receiver combines them. A pick adds bits, which keeps the sign of -0.
    if a.combine not in ("sum", "pick") or x.dtype == jnp.bool_:
        return [combine_blocks(exchange_pieces(cut(x), names), a.combine)]

    def send(x: Array) -> Array:
        return _send_and_add_pieces(cut(x), names)

    return [as_bits(x, send) if a.combine == "pick" else send(x)]


def _send_and_add_pieces(sent: Array, names: tuple[str, ...]) -> Array:
    """Return the device's piece of the sum over all members: piece k for member k.

    The leading dimension of `sent` numbers the pieces.
    """
    shape = sent.shape[1:]
    # XLA could give dimensions of size 1 two layouts, before and after (see `exchange_pieces`).
    if 1 in sent.shape:
        sent = sent.reshape(len(sent), -1)
    return lax.psum_scatter(sent, names, scatter_dimension=0, tiled=False).reshape(shape)


@emits(AllToAll)
def _all_to_all(emitter: Emitter, instruction: Instruction[AllToAll], x: Array) -> list[Array]:
    """Emit an all-to-all: as one tiled operation, or piece by piece where that is faster."""
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    if not names:
        return [x]
    # JAX's tiled form cannot change the order of the digits, and is slow on CPU.
    if emitter.tiled and not a.arriving:
        return [lax.all_to_all(x, names, a.split_dim, a.concat_dim, tiled=True)]
    return [all_to_all(x, names, a)]


@emits(RaggedAllToAll)
def _ragged_all_to_all(
    emitter: Emitter, instruction: Instruction[RaggedAllToAll], *operands: Array
) -> list[Array]:
    """Return the output rows after an exchange in which devices send slices of unequal lengths.

    The operands are those of `lax.ragged_all_to_all`: rows, output, and per receiver the start and
    the length of its slice and the row at which it is written; then the received lengths.
    """
    names = emitter.axes.names(instruction.attributes.digits)
    if names:
        return [lax.ragged_all_to_all(*operands, axis_name=names)]
    # A group of one device has no axis to name, so its slices are written without a collective.
    rows, output, starts, sizes, targets, _ = operands
    row_numbers = jnp.arange(len(output))
    for start, size, target in zip(starts, sizes, targets, strict=True):
        # Sizes are known at run time only, so a mask over all output rows replaces a slice. Output
        # row `target + i` receives row `start + i`; rows outside of the mask read any row.
        is_written = (row_numbers >= target) & (row_numbers < target + size)
        moved = rows.at[row_numbers - target + start].get(mode="clip")
        output = jnp.where(is_written.reshape(-1, *[1] * (output.ndim - 1)), moved, output)
    return [output]


@emits(AllToAlls)
def _all_to_alls(emitter: Emitter, instruction: Instruction[AllToAlls], x: Array) -> list[Array]:
    a = instruction.attributes
    names = emitter.axes.names(a.digits)
    return [all_to_alls(x, names, a) if names else x]
