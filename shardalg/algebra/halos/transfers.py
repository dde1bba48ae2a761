"""Transfers: rounds of exchanges, sent in as few elements as permutes need.

A round sends runs of places, each by the permutes that it needs. Runs whose devices send and
receive at different times cost a permute each, of which most devices send nothing; as one transfer
they share it: a device then sends the run that is its turn, of whichever tensor. All runs of a
transfer are sent at the width of the widest, so joining pays where the permutes that are saved
outweigh the places that are sent in vain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TypeAlias

Pairs: TypeAlias = Collection[tuple[int, ...]]
"""(source, target) positions; or classes of them, with what tells two pairs of them apart."""


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
class Reader:
    """An exchange that reads blocks of a tensor.

    Attributes:
      rounds: of the exchange; block: places of a block.
      tensor: a number that tells which readers read the same blocks.
    """

    rounds: tuple[Round, ...]
    block: int
    tensor: int = 0


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
class Slot:
    """Places `[lower, upper)` of the blocks of a tensor, sent together for several pieces."""

    tensor: int
    block: int
    lower: int
    upper: int
    pieces: tuple[Piece, ...]

    @property
    def width(self) -> int:
        """Places."""
        return self.upper - self.lower

    @property
    def pairs(self) -> Pairs:
        """Who sends to whom for any piece."""
        return tuple(dict.fromkeys(pair for piece in self.pieces for pair in piece.pairs))

    def joined(self, other: Slot) -> Slot:
        """The places of both, and those between them."""
        lower, upper = min(self.lower, other.lower), max(self.upper, other.upper)
        return Slot(self.tensor, self.block, lower, upper, self.pieces + other.pieces)

    def widened(self, width: int) -> Slot:
        """As many places, and inside the block."""
        lower = min(self.lower, self.block - width)
        return Slot(self.tensor, self.block, lower, lower + width, self.pieces)


Slots = tuple[Slot, ...]
Edges = tuple[tuple[int, ...], ...]
"""Pairs, each with the number of its slot."""


@dataclass(frozen=True)
class Transfer:
    """Slots of one width, sent by the same permutes.

    Attributes:
      permutes: (source, target, number of the slot that is sent); in none of them a position sends
        twice or receives twice.
    """

    slots: Slots
    permutes: tuple[Edges, ...]

    @property
    def elements(self) -> int:
        """Elements that a device sends along the dimension: each permute sends a slot."""
        return self.slots[0].width * len(self.permutes)

    def bringing(self, slot: int, piece: Piece) -> tuple[Pairs, ...]:
        """Of each permute the pairs that bring a piece of a slot."""
        wanted = {(*pair, slot) for pair in piece.pairs}
        return tuple(tuple(e[:-1] for e in edges if e in wanted) for edges in self.permutes)


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


def transfers(readers: Sequence[Reader]) -> tuple[Transfer, ...]:
    """Everything that the rounds of some exchanges send.

    A piece joins the pieces before it with which it saves most, if it saves anything.

    >>> forth = Round(0, 2, 3, (Permute(((0, 1),), 2, 3),), True)
    >>> back = Round(1, 0, 1, (Permute(((1, 0),), 0, 1),), False)
    >>> found = transfers([Reader((forth, back), block=3)])
    >>> [(t.permutes, t.elements) for t in found]
    [((((0, 1, 0), (1, 0, 1)),), 1)]
    """
    groups: list[Slots] = []
    for number, reader in enumerate(readers):
        for piece in (p for round_ in reader.rounds for p in pieces(round_, number)):
            new = Slot(reader.tensor, reader.block, piece.lower, piece.upper, (piece,))
            _join(groups, new)
    return tuple(map(_transfer, groups))


def _join(groups: list[Slots], new: Slot) -> None:
    """Put a slot where it saves most: into a slot, beside others, or alone."""
    best: tuple[tuple[int, ...], int, Slots] = ((0, 0), len(groups), (new,))
    alone = _price((new,))
    for nth, group in enumerate(groups) if new.pairs else ():
        before = _price(group)
        for joint in _joints(group, new):
            after = _price(joint)
            saved = tuple(a + b - c for a, b, c in zip(alone, before, after, strict=True))
            if saved > best[0]:
                best = (saved, nth, joint)
    _, nth, joint = best
    groups[nth : nth + 1] = [joint]


def _joints(group: Slots, new: Slot) -> Iterator[Slots]:
    """The ways to add a slot; every block is as long as the widest slot."""
    into = (
        (*group[:k], slot.joined(new), *group[k + 1 :])
        for k, slot in enumerate(group)
        if slot.tensor == new.tensor and slot.pairs
    )
    for joint in (*into, (*group, new)):
        if _width(joint) <= min(slot.block for slot in joint):
            yield joint


def _price(group: Slots) -> tuple[int, int]:
    """(elements, permutes) of slots that are sent together."""
    permutes = _degree(_edges(group))
    return _width(group) * permutes, permutes


def _width(group: Slots) -> int:
    return max(slot.width for slot in group)


def _edges(group: Slots) -> Edges:
    return tuple((*pair, k) for k, slot in enumerate(group) for pair in slot.pairs)


def _degree(edges: Edges) -> int:
    """Permutes that pairs need: as many as the busiest position sends, or receives."""
    sides = (Counter(edge[0] for edge in edges), Counter(edge[1] for edge in edges))
    return max((most for side in sides for most in side.values()), default=0)


def _transfer(group: Slots) -> Transfer:
    slots = tuple(slot.widened(_width(group)) for slot in group)
    return Transfer(slots, in_permutes(_edges(group)))


Ends = defaultdict[int, dict[int, tuple[int, ...]]]
"""Per position and permute the edge."""


def in_permutes(edges: Edges) -> tuple[Edges, ...]:
    """Edges in as few permutes as can be: those of a bipartite graph, coloured.

    An edge takes a permute that is free at both ends. Where none is, a permute that is free at the
    source is freed at the target, by swapping it with one that is free there along the path of
    these two that leaves the target; it cannot end at the source (König 1916).

    >>> in_permutes(((0, 1, 0), (1, 0, 0), (0, 2, 0), (2, 1, 0)))
    (((0, 1, 0), (1, 0, 0)), ((0, 2, 0), (2, 1, 0)))
    """
    sent: Ends = defaultdict(dict)
    received: Ends = defaultdict(dict)
    most = _degree(edges)
    for edge in edges:
        source, target, *_ = edge
        permute = _free(sent[source], received[target])
        if permute >= most:
            permute, other = _free(sent[source]), _free(received[target])
            _swap((sent, received), target, (permute, other))
        sent[source][permute] = received[target][permute] = edge
    found: list[list[tuple[int, ...]]] = [[] for _ in range(most)]
    for ends in sent.values():
        for permute, edge in ends.items():
            found[permute].append(edge)
    return tuple(tuple(sorted(permute)) for permute in found)


def _free(*ends: dict[int, tuple[int, ...]]) -> int:
    return next(k for k in count() if not any(k in end for end in ends))


def _swap(sides: tuple[Ends, Ends], target: int, permutes: tuple[int, int]) -> None:
    """Swap two permutes on the path of edges of both that leaves a target by the first of them."""
    sent, received = sides
    first, second = permutes
    path: list[tuple[tuple[int, ...], int]] = []
    edge = received[target].get(first)
    while edge is not None:
        path.append((edge, first))
        edge = sent[edge[0]].get(second)
        if edge is not None:
            path.append((edge, second))
            edge = received[edge[1]].get(first)
    for edge, permute in path:
        del sent[edge[0]][permute], received[edge[1]][permute]
    for edge, permute in path:
        other = second if permute == first else first
        sent[edge[0]][other] = received[edge[1]][other] = edge
