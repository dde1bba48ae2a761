"""Exchanges as instructions: every device gets an interval of a dimension that is held in blocks.

The places of a block that a transfer sends, a fetch with a reading per piece of a round, the pieces
side by side, one slice at a start in closed form (`algebra.halos.exchange`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from shardalg.algebra.affine import Index
from shardalg.algebra.halos.classes import Classes, classes_of
from shardalg.algebra.halos.exchange import Exchange
from shardalg.algebra.halos.transfers import Piece, Reader, Round, Transfer, transfers
from shardalg.reshard.builder import ANY_PHASE, Cause, Listing
from shardalg.spmd.program import Attributes, Concatenate, Fetch, Reading, Slice, SliceAt, Start


def start_of(exchange: Exchange, index: Index, more: int = 0) -> Start:
    """A start of the program's language from one in the partition ids of an exchange.

    Its names are no loop's: equal starts are equal whichever operator asks.
    """
    ids = [(n, d) for n, d in exchange.ids if n in index.variables]
    names = {n: f"p{k}" for k, (n, _) in enumerate(ids)}
    terms = tuple(sorted((names[n], c) for n, c in index.terms))
    return Start(replace(index, terms=terms), tuple((names[n], d) for n, d in ids), more)


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


@dataclass(frozen=True)
class Along:
    """Emits instructions that change one dimension of a local value."""

    context: Listing
    dim: int
    cause: Cause

    def size(self, local: int) -> int:
        """Places of a local."""
        return self.context.locals[local].shape[self.dim]

    def emit(self, attributes: Attributes, size: int, *operands: int) -> int:
        """An instruction whose result has `size` places."""
        return self.results(attributes, (size,), *operands)[0]

    def results(
        self, attributes: Attributes, sizes: tuple[int, ...], *operands: int
    ) -> tuple[int, ...]:
        """An instruction with a result per size."""
        like, dim = self.context.locals[operands[0]], self.dim
        shapes = [(*like.shape[:dim], size, *like.shape[dim + 1 :]) for size in sizes]
        made = tuple(self.context.new_local(s, like.dtype, like.sharding) for s in shapes)
        self.context.emit(attributes, operands, made, self.cause)
        return made

    def places(self, local: int, lower: int, upper: int) -> int:
        """Places `[lower, upper)` of a local: itself, if these are all."""
        if (lower, upper) == (0, self.size(local)):
            return local
        return self.emit(Slice(self.dim, lower, upper - lower), upper - lower, local)

    def deliver(self, locals_: tuple[int, ...], exchanges: tuple[Exchange, ...]) -> tuple[int, ...]:
        """The interval of every exchange, each from blocks of its local; they share permutes."""
        tensors = tuple(locals_.index(local) for local in locals_)
        found = {
            piece: made
            for transfer in transfers_of(exchanges, tensors)
            for piece, made in self.sent(transfer, exchanges, locals_).items()
        }
        return tuple(
            self.cut(exchange, [made for piece, made in ordered(found) if piece.reader == nth])
            if exchange.want.length
            else self.places(local, 0, 0)
            for nth, (exchange, local) in enumerate(zip(exchanges, locals_, strict=True))
        )

    def sent(
        self, transfer: Transfer, exchanges: tuple[Exchange, ...], locals_: tuple[int, ...]
    ) -> dict[Piece, int]:
        """The pieces that a transfer brings."""
        slots, classes = transfer.slots, classes_of(exchanges)
        places = tuple((locals_[slot.tensor], slot.lower, slot.upper) for slot in slots)
        placed = [(k, slot, piece) for k, slot in enumerate(slots) for piece in slot.pieces]
        if not transfer.permutes and all(
            _is_own(exchanges[p.reader], p, classes) for _, _, p in placed
        ):
            return {piece: self.places(*places[k]) for k, _, piece in placed}
        readings = tuple(
            self.reading(exchanges[piece.reader], (k, piece), transfer, classes)
            for k, _, piece in placed
        )
        fetch = Fetch(self.dim, exchanges[0].held, readings)
        made = self.fetched(fetch, places)
        return {
            piece: self.places(block, piece.lower - slot.lower, piece.upper - slot.lower)
            for (_, slot, piece), block in zip(placed, made, strict=True)
        }

    def fetched(self, fetch: Fetch, places: tuple[Place, ...]) -> tuple[int, ...]:
        """The results of a fetch of some places of locals, which is made once.

        A margin outlives its phase: it is smaller than the blocks, which whoever reads it again
        needs anyway. What is as large as the blocks is a copy, and kept as copies are.
        """
        known, options = self.context.fetched, self.context.options
        sizes = (places[0][2] - places[0][1],) * len(fetch.readings)
        margin = sum(sizes) < sum(map(self.size, {local for local, _, _ in places}))
        keeps = margin or options.keep_gathers is True
        key = (fetch, places, ANY_PHASE if keeps else self.cause.phase)
        if key not in known or not options.share_gathers:
            known[key] = self.results(fetch, sizes, *(self.places(*place) for place in places))
        return known[key]

    def reading(
        self,
        exchange: Exchange,
        place: tuple[int, Piece],
        transfer: Transfer,
        classes: Classes | None,
    ) -> Reading:
        """How the block of a piece's round is read off the slot of a transfer."""
        number, piece = place
        first, start = transfer.slots[number].lower, exchange.want.start
        source = Index(start.terms, start.constant, start.div * exchange.block)
        permutes = transfer.bringing(number, piece)
        if classes is not None:
            permutes = tuple(classes.lifted(exchange, piece.number, each) for each in permutes)
        return Reading(
            number,
            start_of(exchange, source, piece.number),
            permutes,
            start_of(exchange, start),
            exchange.want.length,
            (piece.lower - first, piece.upper - first),
        )

    def cut(self, exchange: Exchange, pieces: list[int]) -> int:
        """The interval out of the pieces of its rounds, laid side by side."""
        width, length = sum(map(self.size, pieces)), exchange.want.length
        local = pieces[0]
        if len(pieces) > 1:
            local = self.emit(Concatenate(self.dim), width, *pieces)
        if len(exchange.rests) > 1:
            start = exchange.want.start % exchange.block
            at = start_of(exchange, start, -min(exchange.rests))
            return self.emit(SliceAt(self.dim, at, length), length, local)
        return self.places(local, 0, length)


Place = tuple[int, int, int]
"""A local, and places `[lower, upper)` of it."""


def ordered(found: dict[Piece, int]) -> list[tuple[Piece, int]]:
    """Pieces in the order in which they lie in the buffers of their readers."""
    return sorted(found.items(), key=lambda item: (item[0].reader, item[0].number, item[0].lower))


def _is_own(exchange: Exchange, piece: Piece, classes: Classes | None) -> bool:
    """Whether every device reads its own block in the round of a piece."""
    if classes is None:
        return exchange.stays(piece.number)
    return classes.stays(exchange, piece.number)
