"""Transfers: rounds of exchanges over the same blocks, sent in as few elements as permutes need.

A round sends runs of places, each by the permutes that it needs. Runs whose devices send and
receive at different times cost a permute each, of which most devices send nothing; as one transfer
they share it. A device sends the same places of its block in all permutes of a transfer, so joining
runs pays where the permutes that are saved outweigh the places that are sent in vain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

Pairs = tuple[tuple[int, int], ...]
"""(source, target) positions."""


@dataclass(frozen=True)
class Permute:
    """One collective permute: sources send the elements `[lower, upper)` of their block.

    No position sends twice or receives twice.
    """

    pairs: Pairs
    lower: int
    upper: int

    @property
    def elements(self) -> int:
        """Elements that a device sends along the dimension."""
        return self.upper - self.lower


@dataclass(frozen=True)
class Round:
    """Block `floor(start / block) + number`: who sends it to whom.

    Attributes:
      lower, upper: what of the block can be part of an interval; the buffer holds so much of it.
      permutes: several where one block is wanted by several devices; together they reach every
        device that does not hold the block itself.
      own: whether some device uses its own block in this round.
    """

    number: int
    lower: int
    upper: int
    permutes: tuple[Permute, ...]
    own: bool


@dataclass(frozen=True)
class Piece:
    """Places `[lower, upper)` of the block of a round: a run that the same devices receive.

    Attributes:
      reader: which of several exchanges wants it; number: in which of its rounds.
      pairs: who sends to whom; every target is there once.
    """

    reader: int
    number: int
    lower: int
    upper: int
    pairs: Pairs


@dataclass(frozen=True)
class Transfer:
    """Places `[lower, upper)` of every block, sent by permutes that bring several pieces.

    Attributes:
      permutes: in none of them a position sends twice or receives twice.
    """

    lower: int
    upper: int
    pieces: tuple[Piece, ...]
    permutes: tuple[Pairs, ...]

    @property
    def elements(self) -> int:
        """Elements that a device sends along the dimension: each permute sends all places."""
        return (self.upper - self.lower) * len(self.permutes)

    def bringing(self, piece: Piece) -> tuple[Pairs, ...]:
        """Of each permute the pairs that bring a piece."""
        wanted = set(piece.pairs)
        return tuple(tuple(p for p in pairs if p in wanted) for pairs in self.permutes)


def pieces(round_: Round, reader: int = 0) -> Iterator[Piece]:
    """A round in runs of places: no permute sends more than what it is needed for."""
    borders = {round_.lower, round_.upper}
    for permute in round_.permutes:
        borders |= {permute.lower, permute.upper}
    runs: list[tuple[int, int, tuple[Permute, ...]]] = []
    for lower, upper in pairwise(sorted(borders)):
        by = tuple(p for p in round_.permutes if p.lower <= lower and upper <= p.upper)
        if runs and runs[-1][2] == by:
            lower = runs.pop()[0]
        runs.append((lower, upper, by))
    for lower, upper, by in runs:
        pairs = tuple(pair for permute in by for pair in permute.pairs)
        yield Piece(reader, round_.number, lower, upper, pairs)


def transfers(readers: Sequence[Sequence[Round]]) -> tuple[Transfer, ...]:
    """Everything that the rounds of some exchanges send.

    A piece joins the pieces before it with which it saves most, if it saves anything.

    >>> forth = Round(0, 2, 3, (Permute(((0, 1),), 2, 3),), True)
    >>> back = Round(1, 0, 3, (Permute(((1, 0),), 0, 3),), False)
    >>> [(t.lower, t.upper, t.permutes, t.elements) for t in transfers([(forth, back)])]
    [(0, 3, (((0, 1), (1, 0)),), 3)]
    """
    groups: list[tuple[Piece, ...]] = []
    for reader, rounds in enumerate(readers):
        for piece in (p for round_ in rounds for p in pieces(round_, reader)):
            saved = [(_saved(group, piece), -n) for n, group in enumerate(groups)]
            (most, fewer), nth = max(saved, default=((0, 0), 0))
            if most > 0 or (most == 0 and fewer > 0):
                groups[-nth] = (*groups[-nth], piece)
            else:
                groups.append((piece,))
    return tuple(map(_transfer, groups))


def _saved(group: tuple[Piece, ...], piece: Piece) -> tuple[int, int]:
    """(elements, permutes) that are not sent if a piece joins others."""
    (alone, k), (before, n), (after, m) = map(_price, ((piece,), group, (*group, piece)))
    return alone + before - after, k + n - m


def _price(group: tuple[Piece, ...]) -> tuple[int, int]:
    """(elements, permutes) of pieces that are sent together."""
    permutes = _degree(_edges(group))
    lower, upper = _places(group)
    return (upper - lower) * permutes, permutes


def _places(group: tuple[Piece, ...]) -> tuple[int, int]:
    """The places that all pieces have together; of those that nobody sends if none is sent."""
    sent = [piece for piece in group if piece.pairs] or group
    return min(p.lower for p in sent), max(p.upper for p in sent)


def _edges(group: tuple[Piece, ...]) -> Pairs:
    return tuple(dict.fromkeys(pair for piece in group for pair in piece.pairs))


def _degree(pairs: Pairs) -> int:
    """Permutes that pairs need: as many as the busiest position sends, or receives."""
    sides = (Counter(s for s, _ in pairs), Counter(t for _, t in pairs))
    return max((most for side in sides for most in side.values()), default=0)


def _transfer(group: tuple[Piece, ...]) -> Transfer:
    return Transfer(*_places(group), group, in_permutes(_edges(group)))


Ends = defaultdict[int, dict[int, int]]
"""Per position and permute the other end of the pair."""


def in_permutes(pairs: Pairs) -> tuple[Pairs, ...]:
    """Pairs in as few permutes as can be: the edges of a bipartite graph, coloured.

    An edge takes a permute that is free at both ends. Where none is, a permute that is free at the
    source is freed at the target, by swapping it with one that is free there along the path of
    these two that leaves the target; it cannot end at the source (König 1916).

    >>> in_permutes(((0, 1), (1, 0), (0, 2), (2, 1)))
    (((0, 1), (1, 0)), ((0, 2), (2, 1)))
    """
    sent: Ends = defaultdict(dict)
    received: Ends = defaultdict(dict)
    for source, target in pairs:
        permute = _free(sent[source], received[target])
        if permute >= _degree(pairs):
            permute, other = _free(sent[source]), _free(received[target])
            _swap((sent, received), target, (permute, other))
        sent[source][permute], received[target][permute] = target, source
    found: list[list[tuple[int, int]]] = [[] for _ in range(_degree(pairs))]
    for source, ends in sent.items():
        for permute, target in ends.items():
            found[permute].append((source, target))
    return tuple(tuple(sorted(permute)) for permute in found)


def _free(*ends: dict[int, int]) -> int:
    return next(k for k in count() if not any(k in end for end in ends))


def _swap(sides: tuple[Ends, Ends], target: int, permutes: tuple[int, int]) -> None:
    """Swap two permutes on the path of pairs of both that leaves a target by the first of them."""
    sent, received = sides
    first, second = permutes
    path: list[tuple[int, int, int]] = []
    here: int | None = target
    while here is not None and first in received[here]:
        source = received[here][first]
        path.append((source, here, first))
        here = sent[source].get(second)
        if here is not None:
            path.append((source, here, second))
    for source, end, permute in path:
        del sent[source][permute], received[end][permute]
    for source, end, permute in path:
        other = second if permute == first else first
        sent[source][other], received[end][other] = end, source
