"""Exchanges as local programs: every device gets an interval of a dimension held in blocks.

The places of a block that a transfer sends, a fetch with a reading per piece of a round, the pieces
side by side, one slice at a start in closed form (`algebra.halos.exchange`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from shardalg.algebra.affine import Index
from shardalg.algebra.halos.classes import FEW, Classes, Runs, classes_of
from shardalg.algebra.halos.exchange import Exchange
from shardalg.algebra.halos.transfers import Piece, Reader, Round, Transfer, transfers
from shardalg.ops.rule import PICK
from shardalg.reshard.dim_program import DimBuilder, DimStep
from shardalg.spmd.instructions import Concatenate, Dilate, HaloExchange, Pairs, Reading, SliceAt
from shardalg.spmd.local import Start


def start_of(exchange: Exchange, index: Index, more: int = 0) -> Start:
    """A start of the program's language from one in the partition ids of an exchange.

    Its names are no loop's: equal starts are equal whichever operator asks.
    """
    ids = [(n, d) for n, d in exchange.ids if n in index.variables]
    names = {n: f"p{k}" for k, (n, _) in enumerate(ids)}
    terms = tuple(sorted((names[n], c) for n, c in index.terms))
    return Start(replace(index, terms=terms), tuple((names[n], d) for n, d in ids), more)


@lru_cache(maxsize=1 << 12)
def cheaper(exchange: Exchange) -> Exchange:
    """Return the exchange, with the numbering of rounds that sends fewer elements.

    On more than `FEW` devices, rounds always count from the start of the interval.
    """
    if exchange.devices > FEW or len(exchange.rests) < 2:
        return exchange
    sent = exchange.elements
    if exchange.hop_elements >= sent:
        return exchange
    other = exchange.by_neighbours()
    return other if other.elements < sent else exchange


@lru_cache(maxsize=1 << 12)
def transfers_of(exchanges: tuple[Exchange, ...], tensors: tuple[int, ...]) -> tuple[Transfer, ...]:
    """What devices send along one dimension for several exchanges.

    Args:
      tensors: per exchange a number that tells which ones are of the same blocks.
    """
    pairs = zip(exchanges, tensors, strict=True)
    classes = classes_of(exchanges)
    return transfers([Reader(_rounds(e, classes), e.block, t) for e, t in pairs])


def _rounds(exchange: Exchange, classes: Classes | None) -> tuple[Round, ...]:
    if not exchange.want.length:
        return ()
    return exchange.rounds if classes is None else classes.rounds(exchange)


def deliver(
    along: DimBuilder, blocks: tuple[int, ...], exchanges: tuple[Exchange, ...]
) -> tuple[int, ...]:
    """The interval of every exchange, each from blocks that are its value; they share permutes."""
    found: dict[Piece, int] = {}
    for transfer in transfers_of(exchanges, tuple(map(blocks.index, blocks))):
        found |= _sent(along, transfer, exchanges, blocks)
    ordered = sorted(found.items(), key=lambda item: (item[0].number, item[0].lower))
    return tuple(
        _cut(along, exchange, [(piece, made) for piece, made in ordered if piece.reader == nth])
        if exchange.want.length
        else along.places(block, 0, 0)
        for nth, (exchange, block) in enumerate(zip(exchanges, blocks, strict=True))
    )


def _sent(
    along: DimBuilder, transfer: Transfer, exchanges: tuple[Exchange, ...], blocks: tuple[int, ...]
) -> dict[Piece, int]:
    """The pieces that a transfer brings."""
    slots, classes = transfer.slots, classes_of(exchanges)
    sources = tuple(blocks[slot.tensor] for slot in slots)
    placed = [(k, slot, piece) for k, slot in enumerate(slots) for piece in slot.pieces]
    if not transfer.permutes and all(
        _is_own(exchanges[p.reader], p, classes) for _, _, p in placed
    ):
        return {p: along.places(sources[k], slot.lower, slot.upper) for k, slot, p in placed}
    readings = tuple(
        _reading(exchanges[piece.reader], k, piece, transfer, classes) for k, _, piece in placed
    )
    sizes = (slots[0].upper - slots[0].lower,) * len(readings)
    fetch = HaloExchange(along.dim, exchanges[0].held, readings)
    places = tuple((slot.lower, slot.upper) for slot in slots)
    made = along.results(DimStep(fetch, sources, sizes, places))
    return {
        piece: along.places(block, piece.lower - slot.lower, piece.upper - slot.lower)
        for (_, slot, piece), block in zip(placed, made, strict=True)
    }


def _reading(
    exchange: Exchange, number: int, piece: Piece, transfer: Transfer, classes: Classes | None
) -> Reading:
    """How the block of a piece's round is read off the slot of a transfer."""
    first, start = transfer.slots[number].lower, exchange.want.start
    # pairs of positions, as runs of classes on a large mesh
    permutes: tuple[Any, ...] = transfer.bringing(number, piece)
    if classes is not None:
        permutes = tuple(classes.lifted(exchange, piece.number, each) for each in permutes)
    return Reading(
        number,
        start_of(exchange, exchange.first, piece.number),
        tuple(map(positions, permutes)),
        start_of(exchange, start),
        exchange.want.length,
        (piece.lower - first, piece.upper - first),
    )


def positions(pairs: Iterable[tuple[int, ...]]) -> Pairs | Runs:
    """(source, target) positions as an instruction has them."""
    return pairs if isinstance(pairs, Runs) else tuple([(pair[0], pair[1]) for pair in pairs])


def _cut(along: DimBuilder, exchange: Exchange, pieces: list[tuple[Piece, int]]) -> int:
    """Return the interval: the pieces of its rounds side by side, cut at the device's start."""
    # Rounds that no device needs are not sent. Places of no meaning stand in for their blocks.
    starts = [exchange.place(piece.number, piece.lower) for piece, _ in pieces]
    ends = [0, *(at + p.upper - p.lower for at, (p, _) in zip(starts, pieces, strict=True))]
    gaps = [at - end for at, end in zip((*starts, exchange.buffer), ends, strict=True)]
    values = []
    for nth, (_, value) in enumerate(pieces):
        before, after = gaps[nth], gaps[-1] if nth == len(pieces) - 1 else 0
        width = before + along.sizes[value] + after
        if before or after:
            value = along.add(Dilate(along.dim, 1, before, after, PICK), width, value)
        values.append(value)
    value, length = values[0], exchange.want.length
    if len(values) > 1:
        width = sum([along.sizes[piece] for piece in values])
        value = along.add(Concatenate(along.dim), width, *values)
    if len(exchange.rests) > 1:
        at = start_of(exchange, exchange.offset, -min(exchange.rests))
        return along.add(SliceAt(along.dim, at, length), length, value)
    return along.places(value, 0, length)


def _is_own(exchange: Exchange, piece: Piece, classes: Classes | None) -> bool:
    """Whether every device reads its own block in the round of a piece."""
    if classes is None:
        return exchange.stays(piece.number)
    return classes.stays(exchange, piece.number)
