"""Transfers: rounds of exchanges, sent in as few elements as permutes need.

A round sends runs of places, each by the permutes that it needs. Runs whose devices send and
receive at different times cost a permute each, of which most devices send nothing; as one transfer
they share it: a device then sends the run that is its turn, of whichever tensor. All runs of a
transfer are sent at the width of the widest, so joining pays where the permutes that are saved
outweigh the places that are sent in vain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple, TypeAlias

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
class BlockReader:
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

    def joined_width(self, other: Slot) -> int:
        """Return the places of both slots and of the gap between them."""
        return max(self.upper, other.upper) - min(self.lower, other.lower)

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


def transfers(readers: Sequence[BlockReader]) -> tuple[Transfer, ...]:
    """Everything that the rounds of some exchanges send.

    A piece joins the pieces before it with which it saves most, if it saves anything.

    >>> forth = Round(0, 2, 3, (Permute(((0, 1),), 2, 3),), True)
    >>> back = Round(1, 0, 1, (Permute(((1, 0),), 0, 1),), False)
    >>> found = transfers([Reader((forth, back), block=3)])
    >>> [(t.permutes, t.elements) for t in found]
    [((((0, 1, 0), (1, 0, 1)),), 1)]
    """
    groups: list[_Group] = []
    for number, reader in enumerate(readers):
        for piece in (p for round_ in reader.rounds for p in pieces(round_, number)):
            _join(groups, Slot(reader.tensor, reader.block, piece.lower, piece.upper, (piece,)))
    return tuple(_transfer(tuple(group.slots)) for group in groups)


class _New(NamedTuple):
    """A slot that is about to join a group, with the counts that its price needs."""

    slot: Slot
    pairs: frozenset[tuple[int, ...]]
    ends: Counter[tuple[int, int]]

    @staticmethod
    def of(slot: Slot) -> _New:
        """Count the ends of the pairs of a slot."""
        return _New(slot, frozenset(slot.pairs), Counter(_ends(slot.pairs)))


class _Group:
    """Slots that one transfer sends, with the counts that give the price of one more slot.

    The counts make the price of a joint cost as many steps as the new slot has pairs. Without them
    a concatenation of n pieces took a number of steps that grows with the cube of n.
    """

    def __init__(self, new: _New) -> None:
        self.slots: list[Slot] = []
        self.pairs: list[frozenset[tuple[int, ...]]] = []
        self.ends: Counter[tuple[int, int]] = Counter()
        self.same_tensor: defaultdict[int, list[int]] = defaultdict(list)
        self.permutes, self.width, self.block = 0, 0, new.slot.block
        self.add(0, new)

    @property
    def price(self) -> tuple[int, int]:
        """(elements, permutes) that the transfer sends."""
        return self.width * self.permutes, self.permutes

    def joints(self, new: _New) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the price after `new` joins each slot of its tensor, or becomes a slot itself.

        The number of the slot comes with it. Joints that are wider than a block are left out.
        """
        block, beside = min(self.block, new.slot.block), self._permutes_with((), new)
        for k in self.same_tensor.get(new.slot.tensor, ()):
            width = max(self.width, self.slots[k].joined_width(new.slot))
            if width <= block:
                known = self.pairs[k]
                some = beside if known.isdisjoint(new.pairs) else self._permutes_with(known, new)
                yield (width * some, some), k
        width = max(self.width, new.slot.width)
        if width <= block:
            yield (width * beside, beside), len(self.slots)

    def add(self, k: int, new: _New) -> None:
        """Join a slot into slot `k`, or append it where `k` is the number of slots."""
        if k == len(self.slots):
            self.slots.append(new.slot)
            self.pairs.append(frozenset())
            if new.pairs:
                self.same_tensor[new.slot.tensor].append(k)
        else:
            self.slots[k] = self.slots[k].joined(new.slot)
        self.permutes = self._permutes_with(self.pairs[k], new)
        self.ends.update(_ends(new.pairs - self.pairs[k]))
        self.pairs[k] |= new.pairs
        self.width = max(self.width, self.slots[k].width)
        self.block = min(self.block, new.slot.block)

    def _permutes_with(self, known: Collection[tuple[int, ...]], new: _New) -> int:
        """Return the permutes that the group needs with the pairs of `new` that are not known."""
        more = Counter(_ends(new.pairs.difference(known))) if known else new.ends
        return max([self.permutes, *(n + self.ends[end] for end, n in more.items())])


def _ends(pairs: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Yield (0, source) and (1, target) of each pair."""
    for source, target, *_ in pairs:
        yield 0, source
        yield 1, target


def _join(groups: list[_Group], slot: Slot) -> None:
    """Put a slot where it saves most: into a slot, beside others, or into a group of its own."""
    new = _New.of(slot)
    own = _Group(new)
    best: tuple[tuple[int, int], _Group | None, int] = ((0, 0), None, 0)
    # A slot without pairs sends nothing, so nothing is saved by joining it, or by joining to it.
    for group in groups if new.pairs else ():
        before = group.price
        for after, k in group.joints(new) if group.permutes else ():
            saved = own.price[0] + before[0] - after[0], own.price[1] + before[1] - after[1]
            if saved > best[0]:
                best = (saved, group, k)
        # No joint saves more than the price of the slot alone.
        if best[0] == own.price:
            break
    _, chosen, k = best
    if chosen is None:
        groups.append(own)
    else:
        chosen.add(k, new)


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
