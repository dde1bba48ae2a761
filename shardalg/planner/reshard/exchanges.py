"""Dimension programs: the instructions after which every device has an interval of a dimension.

The dimension is sharded in blocks. A program cuts the parts of a block that a transfer sends,
fetches them, concatenates the pieces, and slices at a start in closed form
(`algebra/halos/exchange.py`). Programs are values; `planner/partition/emit` emits them.

Retile: the blocks of a dimension change to another size, with a margin of a neighbour's block. Of
`n` parts, part `p` has `[p*a, p*a + a)` and needs `[p*b, p*b + b)`. If blocks grow, it lacks the
elements after its own, at most up to the end of the dimension of `D` elements. If they shrink, it
lacks the elements before:

    a < b:  max over k <= n of min(D, k*b) - k*a = max(k*(b-a), D - (k+1)*a), k = D // b
    a > b:  (n-1) * (a-b)

A margin wider than the neighbour's block is not fetched: such a dimension is gathered.

Source: GSPMD (arXiv:2105.04663), section 4.2, "Halo exchange"; XLA: `PadFromPartialReplicateShape`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.halos.classes import FEW, Classes, Runs, classes_of, neighbours
from shardalg.algebra.halos.exchange import Exchange
from shardalg.algebra.halos.transfers import BlockReader, Piece, Round, Transfer, transfers
from shardalg.graph.ops.rule import PICK
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import (
    Concatenate,
    Dilate,
    HaloExchange,
    Pairs,
    Reading,
    Resize,
    Slice,
    SliceAt,
)
from shardalg.spmd.local import Start


@dataclass(frozen=True, slots=True)
class DimStep:
    """One instruction of a `DimProgram`.

    Attributes:
      operands: numbers of values: the inputs first, then the results of each step.
      sizes: the size of the dimension in each result.
      places: for a fetch, the range `[lower, upper)` of every operand, so that equal fetches are
        made once; else ().
    """

    attributes: Attributes
    operands: tuple[int, ...]
    sizes: tuple[int, ...]
    places: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DimProgram:
    """Instructions on one dimension of some values, and the numbers of the results."""

    dim: int
    steps: tuple[DimStep, ...]
    results: tuple[int, ...]


class DimBuilder:
    """A `DimProgram` under construction.

    Attributes:
      sizes: the size of the dimension in every value, inputs first.
    """

    def __init__(self, dim: int, sizes: tuple[int, ...]) -> None:
        self.dim, self.sizes = dim, list(sizes)
        self.steps: list[DimStep] = []

    def add(self, attributes: Attributes, size: int, *operands: int) -> int:
        """Append an instruction with a result of this size; return the number of the result."""
        return self.results(DimStep(attributes, operands, (size,)))[0]

    def results(self, step: DimStep) -> tuple[int, ...]:
        """Append a step; return the numbers of its results."""
        first = len(self.sizes)
        self.steps.append(step)
        self.sizes += step.sizes
        return tuple(range(first, len(self.sizes)))

    def places(self, value: int, lower: int, upper: int) -> int:
        """Slice a value to its elements `[lower, upper)`, and return the number of the slice.

        No instruction is added if these are all elements: the number is then `value`.
        """
        if (lower, upper) == (0, self.sizes[value]):
            return value
        return self.add(Slice(self.dim, lower, upper - lower), upper - lower, value)

    def program(self, *results: int) -> DimProgram:
        """Return the finished program.

        Args:
          results: the numbers of the values that the program returns.
        """
        return DimProgram(self.dim, tuple(self.steps), results)


def start_of(exchange: Exchange, index: Index, more: int = 0) -> Start:
    """Return `index + more` as the place at which an instruction starts on each device.

    `more` is a number of elements behind the index.

    The variables of `index` are loops that stand for partition ids (`exchange.ids`). In the result
    they are numbered instead, so that equal starts of different operators are equal values.
    """
    ids = [(n, d) for n, d in exchange.ids if n in index.variables]
    names = {n: f"p{k}" for k, (n, _) in enumerate(ids)}
    terms = tuple(sorted((names[n], c) for n, c in index.terms))
    return Start(replace(index, terms=terms), tuple((names[n], d) for n, d in ids), more)


@lru_cache(maxsize=1 << 12)
def cheaper(exchange: Exchange) -> Exchange:
    """Return the exchange, with the numbering of rounds that sends fewer elements.

    In each round, every device receives one block. Round 0 brings the block in which the device's
    interval starts, or the block at a fixed distance from the device's own (`Exchange.lowest`). On
    more than `FEW` devices, rounds always count from the start of the interval.
    """
    # If all intervals start at one offset of a block, every device needs the same range of each
    # block that it receives. No other numbering sends less then.
    if exchange.devices > FEW or len(exchange.rests) < 2:
        return exchange
    sent = exchange.elements
    # `hop_elements` is what neighbours alone would have to send. It is faster to compute than the
    # other numbering, which is made only if this number is smaller.
    if exchange.hop_elements >= sent:
        return exchange
    other = exchange.by_neighbours()
    return other if other.elements < sent else exchange


@lru_cache(maxsize=1 << 12)
def transfers_of(exchanges: tuple[Exchange, ...], tensors: tuple[int, ...]) -> tuple[Transfer, ...]:
    """Return the transfers along one dimension for several exchanges.

    Args:
      tensors: per exchange, a number of the tensor whose blocks it reads. Equal numbers mean the
        same tensor, so that the blocks are sent once.
    """
    # On a large mesh, going through the devices one by one would take too long.
    classes, readers = classes_of(exchanges), []
    for exchange, tensor in zip(exchanges, tensors, strict=True):
        rounds: tuple[Round, ...] = ()
        if exchange.want.length:
            rounds = exchange.rounds if classes is None else classes.rounds(exchange)
        readers.append(BlockReader(rounds, exchange.block, tensor))
    return transfers(readers)


def deliver(
    along: DimBuilder, blocks: tuple[int, ...], exchanges: tuple[Exchange, ...]
) -> tuple[int, ...]:
    """Add the instructions of several exchanges, and return the value that each one delivers.

    Exchanges along one dimension share their permutes, so that equal messages are sent once.

    Args:
      blocks: per exchange, the value that it reads.
    """
    found: dict[Piece, int] = {}
    for transfer in transfers_of(exchanges, tuple(map(blocks.index, blocks))):
        found |= _fetched_pieces(along, transfer, exchanges, blocks)
    ordered = sorted(found.items(), key=lambda item: (item[0].number, item[0].lower))
    # One transfer may bring pieces of several exchanges; each interval consists of its own pieces.
    return tuple(
        _interval(
            along, exchange, [(piece, made) for piece, made in ordered if piece.reader == nth]
        )
        # An empty interval reads nothing.
        if exchange.want.length
        else along.places(block, 0, 0)
        for nth, (exchange, block) in enumerate(zip(exchanges, blocks, strict=True))
    )


def _fetched_pieces(
    along: DimBuilder, transfer: Transfer, exchanges: tuple[Exchange, ...], blocks: tuple[int, ...]
) -> dict[Piece, int]:
    """Add the instruction that fetches a transfer; return the value that has each of its pieces.

    A transfer sends slots, which are ranges of the elements of a block. A piece is the part of a
    slot that one round of one exchange needs.

    Args:
      along: the program under construction, along one dimension.
      exchanges: the exchanges that share the transfer.
      blocks: the number of the value with each tensor's block.
    """
    slots, classes = transfer.slots, classes_of(exchanges)
    sources = tuple(blocks[slot.tensor] for slot in slots)
    placed = [(k, slot, piece) for k, slot in enumerate(slots) for piece in slot.pieces]
    # If every device reads its own block, nothing is sent. On a large mesh the classes of devices
    # decide this, because listing all devices would take too long.
    if not transfer.permutes and all(
        exchanges[p.reader].stays(p.number)
        if classes is None
        else classes.stays(exchanges[p.reader], p.number)
        for _, _, p in placed
    ):
        return {p: along.places(sources[k], slot.lower, slot.upper) for k, slot, p in placed}
    readings = tuple(
        _reading(exchanges[piece.reader], k, piece, transfer, classes) for k, _, piece in placed
    )
    sizes = (slots[0].upper - slots[0].lower,) * len(readings)
    fetch = HaloExchange(along.dim, exchanges[0].held, readings)
    places = tuple((slot.lower, slot.upper) for slot in slots)
    arrived = along.results(DimStep(fetch, sources, sizes, places))
    # A slot may be wider than a piece, so each piece is cut out of the slot that arrives.
    return {
        piece: along.places(block, piece.lower - slot.lower, piece.upper - slot.lower)
        for (_, slot, piece), block in zip(placed, arrived, strict=True)
    }


def _reading(
    exchange: Exchange, number: int, piece: Piece, transfer: Transfer, classes: Classes | None
) -> Reading:
    """Return the `Reading` by which a halo exchange delivers one piece of an interval.

    A transfer is one exchange of several slots; a slot is a range of elements of the senders'
    blocks. A piece is the part of a slot that one round of `exchange` needs. The `Reading` tells
    from which device the piece comes, by which permutes, and which elements are needed.

    Args:
      number: the number of the slot. classes: classes of devices; None on a small mesh.
    """
    first, start = transfer.slots[number].lower, exchange.want.start
    # On a large mesh, runs of classes replace pairs of positions, whose list would be too long.
    permutes: tuple[Any, ...] = transfer.bringing(number, piece)
    if classes is not None:
        permutes = tuple(classes.device_runs(exchange, piece.number, each) for each in permutes)
    return Reading(
        operand=number,
        source=start_of(exchange, exchange.first, piece.number),
        permutes=tuple(map(positions, permutes)),
        wanted=start_of(exchange, start),
        length=exchange.want.length,
        places=(piece.lower - first, piece.upper - first),
    )


def positions(pairs: Iterable[tuple[int, ...]]) -> Pairs | Runs:
    """Return (source, target) positions in the form that instructions have: pairs, or runs."""
    return pairs if isinstance(pairs, Runs) else tuple([(pair[0], pair[1]) for pair in pairs])


def _interval(along: DimBuilder, exchange: Exchange, pieces: list[tuple[Piece, int]]) -> int:
    """Add the instructions that put the pieces of an interval together; return its number.

    The pieces are concatenated into a buffer in the order of their rounds. Gaps between pieces,
    from rounds that no device needs, are filled with arbitrary elements. The device's interval is
    then cut from the buffer, at a place that may depend on the device.

    Args:
      pieces: the pieces, each with the number of the value that has it.
    """
    # The place of each piece in the buffer. `gaps` has the free elements before each piece, and at
    # the end of the buffer.
    starts = [exchange.place(piece.number, piece.lower) for piece, _ in pieces]
    piece_ends = (
        start + piece.upper - piece.lower for start, (piece, _) in zip(starts, pieces, strict=True)
    )
    ends = [0, *piece_ends]
    gaps = [start - end for start, end in zip((*starts, exchange.buffer), ends, strict=True)]
    values = []
    for nth, (_, value) in enumerate(pieces):
        # A piece is padded by the gap before it, the last one also by the gap at the end.
        before, after = gaps[nth], gaps[-1] if nth == len(pieces) - 1 else 0
        width = before + along.sizes[value] + after
        if before or after:
            value = along.add(Dilate(along.dim, 1, before, after, PICK), width, value)
        values.append(value)
    value, length = values[0], exchange.want.length
    if len(values) > 1:
        width = sum([along.sizes[piece] for piece in values])
        value = along.add(Concatenate(along.dim), width, *values)
    # Intervals that start at different offsets of a block start at different places of the buffer.
    if len(exchange.rests) > 1:
        start = start_of(exchange, exchange.offset, -min(exchange.rests))
        return along.add(SliceAt(along.dim, start, length), length, value)
    return along.places(value, 0, length)


def margin(size: int, parts: int, before: int, after: int) -> int | None:
    """Return the width of the margin that a retile fetches; None if one neighbour is not enough.

    A retile changes the block size of a dimension from `before` to `after` elements. The margin are
    the elements of the new block that only the neighbour has.

    >>> margin(1020, 4, 255, 256), margin(1020, 4, 256, 255), margin(5, 8, 2, 1)
    (3, 3, None)
    """
    # Block k starts at k*before and then at k*after. The starts differ most in the last block, by
    # (parts - 1) * (before - after) elements, which the neighbour before it has.
    if after < before:
        width = (parts - 1) * (before - after)
    # Blocks become longer: block k needs elements up to (k + 1)*after, or up to the end of the
    # dimension. `num_full` blocks are full afterwards; only these and the next one matter.
    else:
        num_full = min(size // after, parts)
        width = max(num_full * (after - before), size - (num_full + 1) * before, 0)
    # One neighbour has `before` elements.
    return width if width <= before else None


@dataclass(frozen=True, slots=True)
class Retile:
    """A change of block size: a dimension of `size` elements goes from `before` to `after`.

    Its digits stay.
    """

    dim: int
    digits: Digits
    size: int
    before: int
    after: int
    sent_as: ClassVar[str] = "collective_permute"

    @property
    def margin(self) -> int:
        """The number of elements along the dimension that a device sends to its neighbour."""
        found = margin(self.size, parts(self.digits), self.before, self.after)
        assert found is not None, f"{self} reaches beyond the neighbour's block"
        return found

    def number(self, scale: int, more: int = 0) -> Start:
        """Return the element number `p*scale + more` for the device with partition id `p`."""
        return Start(Index.of("p") * scale, (("p", self.digits),), more)

    def fetch(self, devices: int) -> HaloExchange:
        """Return the exchange by which each device receives the elements that its new block lacks.

        They are elements of the next device if blocks become larger, otherwise of the previous
        device.
        """
        step = 1 if self.after > self.before else -1
        # On a large mesh these are runs, because a list of all pairs would be too long.
        pairs: Any = neighbours(self.digits, step, devices)
        wanted = self.number(self.after)
        places = (0, self.margin)
        reading = Reading(
            operand=0,
            source=self.number(1, step),
            permutes=(positions(pairs),),
            wanted=wanted,
            length=self.after,
            places=places,
        )
        return HaloExchange(self.dim, self.digits, (reading,))


def retile_program(retile: Retile, devices: int) -> DimProgram:
    """Return the program that changes the block size of a sharded dimension (a retile).

    Each device fetches a margin of its neighbour's block, concatenates it with its own block, and
    cuts out the new block.

    Args:
      devices: the number of devices of the mesh.
    """
    dim, before, after = retile.dim, retile.before, retile.after
    width, shift = retile.margin, after - before
    along = DimBuilder(dim, (before,))
    # No device lacks an element: its block is only padded or cut.
    if not width:
        return along.program(along.add(Resize(dim, after), after, 0))
    fetch = retile.fetch(devices)
    # If blocks shrink, a new block begins earlier, in the old block of the previous device.
    if shift < 0:
        margin = along.add(fetch, width, along.places(0, before - width, before))
        both = margin, along.places(0, 0, after)
        joined = along.add(Concatenate(dim), width + after, *both)
        at = SliceAt(dim, retile.number(shift, width), after)
        return along.program(along.add(at, after, joined))
    # If blocks grow, a new block ends later, in the old block of the next device.
    margin = along.add(fetch, width, along.places(0, 0, width))
    joined = along.add(Concatenate(dim), before + width, 0, margin)
    # The last device slices up to this place. Elements after the margin do not exist or are not
    # needed, so any padding is right.
    end = before + parts(retile.digits) * shift
    if end > before + width:
        joined = along.add(Resize(dim, end), end, joined)
    return along.program(along.add(SliceAt(dim, retile.number(shift), after), after, joined))
