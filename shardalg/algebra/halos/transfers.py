"""Transfers: the permutes that deliver the rounds of exchanges, with few elements sent.

A round sends ranges of a block, each by the permutes that it needs. If two ranges are sent by
different devices, each costs a permute of its own, in which most devices send nothing. As slots of
one transfer they share a permute: each device sends the slot of its turn, of any tensor. All slots
of a transfer are as wide as the widest one. Sharing therefore pays if the saved permutes outweigh
the elements that are sent in vain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple, TypeAlias

Pairs: TypeAlias = Collection[tuple[int, ...]]
"""(source, target) positions, or (source, target, distance) of device classes (`classes.py`).

The functions of this file use only the first two entries, so they work for both.
"""


@dataclass(frozen=True)
class Permute:
    """One collective permute: each source sends the elements `[lower, upper)` of its block.

    No position sends twice or receives twice.
    """

    pairs: Pairs
    lower: int
    upper: int

    @property
    def elements(self) -> int:
        """Number of elements that each source sends, along the exchanged dimension."""
        return self.upper - self.lower


@dataclass(frozen=True)
class Round:
    """One round of an exchange, in which each device receives one block, or a part of it.

    A device needs an interval of a dimension, from `start` on. In round r it receives the block
    with number `floor(start / block) + r`, where `block` is the number of elements of a block.

    Attributes:
      number: the number r of the round.
      lower, upper: the range of elements of a block that some device needs in this round; the
        receiver's buffer has places for this range.
      permutes: more than one if several devices want one block. Together they reach every device
        that does not hold its block itself.
      own: whether some device uses its own block in this round.
    """

    number: int
    lower: int
    upper: int
    permutes: tuple[Permute, ...]
    own: bool


@dataclass(frozen=True)
class BlockReader:
    """The rounds of one exchange, and the tensor whose blocks it reads.

    Attributes:
      rounds: the rounds of the exchange.
      block: number of elements of a block.
      tensor: a number of the tensor. Exchanges with the same number read the same blocks, so that
        they can share messages.
    """

    rounds: tuple[Round, ...]
    block: int
    tensor: int = 0


@dataclass(frozen=True)
class Piece:
    """Elements `[lower, upper)` of the block of a round that are sent to the same devices.

    Attributes:
      reader: index of the exchange that reads them.
      number: the round of this exchange.
      lower, upper: the range of elements, counted from the start of the block.
      pairs: (source, target); each target occurs once.
    """

    reader: int
    number: int
    lower: int
    upper: int
    pairs: Pairs


@dataclass(frozen=True)
class Slot:
    """A range of elements that devices send of their blocks of a tensor, for one or more pieces.

    Attributes:
      tensor: the number of the tensor.
      block: number of elements of a block.
      lower, upper: the range of elements, counted from the start of the block.
      pieces: the pieces that the range contains.
    """

    tensor: int
    block: int
    lower: int
    upper: int
    pieces: tuple[Piece, ...]

    @property
    def width(self) -> int:
        """Number of elements of the range."""
        return self.upper - self.lower

    @property
    def pairs(self) -> Pairs:
        """The (source, target) positions between which pieces of the slot are sent."""
        return tuple(dict.fromkeys(pair for piece in self.pieces for pair in piece.pairs))

    def joined_width(self, other: Slot) -> int:
        """Return the width of the range that has the elements of both slots."""
        return max(self.upper, other.upper) - min(self.lower, other.lower)

    def joined(self, other: Slot) -> Slot:
        """Return one slot with the elements of both slots and of the gap between them."""
        lower, upper = min(self.lower, other.lower), max(self.upper, other.upper)
        return Slot(self.tensor, self.block, lower, upper, self.pieces + other.pieces)

    def widened(self, width: int) -> Slot:
        """Return this slot with more elements, `width` in all, which are all inside the block."""
        lower = min(self.lower, self.block - width)
        return Slot(self.tensor, self.block, lower, lower + width, self.pieces)


Slots = tuple[Slot, ...]
Edges = tuple[tuple[int, ...], ...]
"""Edges (source, target, ..., number of the slot) of a bipartite graph of sources and targets.

An edge colouring of this graph assigns the edges to permutes.
"""


@dataclass(frozen=True)
class Transfer:
    """The data that a sequence of permutes delivers: in each permute a device sends one slot.

    A slot is a range of elements of the device's block of one tensor.

    Attributes:
      slots: the slots, all of the same width.
      permutes: for each permute, triples (source, target, index in `slots` of the slot that the
        source sends). No position sends twice or receives twice in one permute.
    """

    slots: Slots
    permutes: tuple[Edges, ...]

    @property
    def elements(self) -> int:
        """Number of elements that a device sends along the dimension: each permute sends a slot."""
        return self.slots[0].width * len(self.permutes)

    def bringing(self, slot: int, piece: Piece) -> tuple[Pairs, ...]:
        """Return, for each permute, the (source, target) pairs that send a piece of a block.

        Args:
          slot: the number of the slot (a range of elements in the permutes) that contains the
            piece.
          piece: the piece, with the pairs that need it.
        """
        wanted_edges = {(*pair, slot) for pair in piece.pairs}
        return tuple(tuple(e[:-1] for e in edges if e in wanted_edges) for edges in self.permutes)


def pieces(round_: Round, reader: int = 0) -> Iterator[Piece]:
    """Yield the pieces of a round: maximal ranges of the block that the same permutes send.

    Args:
      reader: the number of the exchange, which the pieces store.
    """
    # Permutes of a round can send different ranges: cut at all their borders.
    borders = {round_.lower, round_.upper}
    for permute in round_.permutes:
        borders |= {permute.lower, permute.upper}
    runs: list[tuple[int, int, tuple[Permute, ...]]] = []
    for lower, upper in pairwise(sorted(borders)):
        permutes = tuple(p for p in round_.permutes if p.lower <= lower and upper <= p.upper)
        # Neighbouring ranges with the same permutes are one piece.
        if runs and runs[-1][2] == permutes:
            lower = runs.pop()[0]
        runs.append((lower, upper, permutes))
    # A piece has the (sender, receiver) pairs of all its permutes.
    for lower, upper, permutes in runs:
        pairs = tuple(pair for permute in permutes for pair in permute.pairs)
        yield Piece(reader, round_.number, lower, upper, pairs)


def transfers(readers: Sequence[BlockReader]) -> tuple[Transfer, ...]:
    """Return the transfers that deliver the blocks of all rounds of some exchanges.

    Exchanges can share messages: equal ranges of a block are sent once, and ranges of different
    devices share a permute. Each range joins an earlier one if this saves elements or, at equal
    elements, permutes. The choice is greedy, not optimal.

    >>> forth = Round(0, 2, 3, (Permute(((0, 1),), 2, 3),), True)
    >>> back = Round(1, 0, 1, (Permute(((1, 0),), 0, 1),), False)
    >>> found = transfers([BlockReader((forth, back), block=3)])
    >>> [(t.permutes, t.elements) for t in found]
    [((((0, 1, 0), (1, 0, 1)),), 1)]
    """
    groups: list[_Group] = []
    for number, reader in enumerate(readers):
        for piece in (p for round_ in reader.rounds for p in pieces(round_, number)):
            _join(groups, Slot(reader.tensor, reader.block, piece.lower, piece.upper, (piece,)))
    result = []
    for group in groups:
        # Shapes are static: every slot of a permute is as wide as the widest one.
        width = max(slot.width for slot in group.slots)
        edges = tuple((*pair, k) for k, slot in enumerate(group.slots) for pair in slot.pairs)
        slots = tuple(slot.widened(width) for slot in group.slots)
        result.append(Transfer(slots, in_permutes(edges)))
    return tuple(result)


class _New(NamedTuple):
    """A slot that is about to join a group, with the counts that determine its price.

    A slot is a range of elements that devices send. A group is a set of slots that one transfer
    sends.

    Attributes:
      pairs: the (source, target) pairs of the slot.
      ends: the number of pairs of each device. A key is (0, position) for a source and (1,
        position) for a target.
    """

    slot: Slot
    pairs: frozenset[tuple[int, ...]]
    ends: Counter[tuple[int, int]]

    @staticmethod
    def of(slot: Slot) -> _New:
        """Return the slot with its numbers of messages per source and per target."""
        return _New(slot, frozenset(slot.pairs), Counter(_ends(slot.pairs)))


class _Group:
    """Slots that one transfer sends, with the counts that give the price of one more slot.

    A slot is a range of elements that devices send of their blocks. Slots of one group share their
    permutes. With the counts, the price of one more slot takes time in proportion to its pairs.
    Without them, a concatenation of n pieces took a number of steps that grows with the cube of n.
    """

    def __init__(self, new: _New) -> None:
        """Start a group that has only the slot `new`."""
        self.slots: list[Slot] = []
        self.pairs: list[frozenset[tuple[int, ...]]] = []
        self.ends: Counter[tuple[int, int]] = Counter()
        self.same_tensor: defaultdict[int, list[int]] = defaultdict(list)
        self.permutes, self.width, self.block = 0, 0, new.slot.block
        self.add(0, new)

    @property
    def price(self) -> tuple[int, int]:
        """Price of the transfer: the number of elements that a device sends, and of permutes."""
        return self.width * self.permutes, self.permutes

    def joints(self, new: _New) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield (price of the changed group, k) for each way to add the slot `new` to the group.

        A price is (elements that a device sends, number of permutes).

        The new slot can be united with slot k if both send the same tensor. If k is the number of
        slots in the group, the new slot is appended instead. A union that would be wider than a
        block is left out, because no slice of the block has that width.
        """
        block, permutes = min(self.block, new.slot.block), self._permutes_with((), new)
        for k in self.same_tensor.get(new.slot.tensor, ()):
            width = max(self.width, self.slots[k].joined_width(new.slot))
            if width <= block:
                # Pairs of (source, target) that slot k already has are sent by its permutes, which
                # only become wider.
                known = self.pairs[k]
                n = permutes if known.isdisjoint(new.pairs) else self._permutes_with(known, new)
                yield (width * n, n), k
        width = max(self.width, new.slot.width)
        if width <= block:
            yield (width * permutes, permutes), len(self.slots)

    def add(self, k: int, new: _New) -> None:
        """Add the slot `new` to the group.

        It is joined with slot `k`: both are sent as one range. If there is no slot `k`, it is
        appended.
        """
        if k == len(self.slots):
            self.slots.append(new.slot)
            self.pairs.append(frozenset())
            # A slot without pairs sends nothing, so that joining it would save no permute.
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
        """Return the number of permutes that the group's transfer needs after `new` joins it.

        Args:
          new: the slot that joins the group.
          known: the pairs of `new` that the group sends already.
        """
        more = Counter(_ends(new.pairs.difference(known))) if known else new.ends
        # König: a bipartite graph needs as many colours as its largest degree.
        return max([self.permutes, *(n + self.ends[end] for end, n in more.items())])


def _ends(pairs: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Yield the two ends of each pair as vertices of a graph: (0, source) and (1, target)."""
    for source, target, *_ in pairs:
        yield 0, source
        yield 1, target


def _join(groups: list[_Group], slot: Slot) -> None:
    """Add a slot to the groups where it saves most elements.

    A group is a set of slots that one transfer sends; its price is (elements that a device sends,
    permutes). The slot joins a slot of a group, becomes another slot of a group, or becomes a new
    group. The saving is the price of both apart, minus the price of the group with the slot.
    """
    new = _New.of(slot)
    own_group = _Group(new)
    # (saving, group, number of the slot to join in it). The search starts with a group of its own,
    # which saves nothing, so that a slot joins another one only if this saves something.
    best: tuple[tuple[int, int], _Group | None, int] = ((0, 0), None, 0)
    # A slot without pairs sends nothing, so joining it, or joining to it, saves nothing.
    for group in groups if new.pairs else ():
        before = group.price
        for after, k in group.joints(new) if group.permutes else ():
            saved = (
                own_group.price[0] + before[0] - after[0],
                own_group.price[1] + before[1] - after[1],
            )
            if saved > best[0]:
                best = (saved, group, k)
        # No joint saves more than the price of the slot alone.
        if best[0] == own_group.price:
            break
    _, chosen, k = best
    if chosen is None:
        groups.append(own_group)
    else:
        chosen.add(k, new)


Ends = defaultdict[int, dict[int, tuple[int, ...]]]
"""By position and permute, the edge that the position sends (or receives) in the permute."""


def in_permutes(edges: Edges) -> tuple[Edges, ...]:
    """Return the edges (source, target, ...), divided into as few permutes as possible.

    This is an edge colouring of a bipartite graph.
    An edge takes a permute that is free at both ends. If there is none, take a permute that is free
    at the source and one that is free at the target. Swap the two along the alternating path from
    the target; the first is then free there, too. The path cannot end at the source (König 1916).

    >>> in_permutes(((0, 1, 0), (1, 0, 0), (0, 2, 0), (2, 1, 0)))
    (((0, 1, 0), (1, 0, 0)), ((0, 2, 0), (2, 1, 0)))
    """
    sent: Ends = defaultdict(dict)
    received: Ends = defaultdict(dict)
    # König: the largest degree, that is the most that a position sends or receives, is enough.
    num_permutes = max(Counter(_ends(edges)).values(), default=0)
    for edge in edges:
        source, target, *_ = edge
        permute = _free(sent[source], received[target])
        # No permute of the first `num_permutes` is free at both ends: make one free.
        if permute >= num_permutes:
            permute, other = _free(sent[source]), _free(received[target])
            _swap((sent, received), target, (permute, other))
        sent[source][permute] = received[target][permute] = edge
    permutes: list[list[tuple[int, ...]]] = [[] for _ in range(num_permutes)]
    for ends in sent.values():
        for permute, edge in ends.items():
            permutes[permute].append(edge)
    return tuple(tuple(sorted(permute)) for permute in permutes)


def _free(*ends: dict[int, tuple[int, ...]]) -> int:
    """Return the lowest number of a permute that is free at all given positions.

    A permute is a set of edges (source, target) with at most one edge per source and per target.

    Args:
      ends: for each position, a dictionary from the number of a permute to the position's edge
        in this permute.
    """
    return next(k for k in count() if not any(k in end for end in ends))


def _swap(sides: tuple[Ends, Ends], target: int, permutes: tuple[int, int]) -> None:
    """Exchange two permutes on a path of edges, so that a target gets free of the first permute.

    An edge is a message from a source to a target in one permute. The path starts with the target's
    edge in the first permute, goes on with that source's edge in the second permute, and so on. On
    the path, all edges of one permute go to the other. No device then sends or receives twice.

    Args:
      sides: for each source and for each target, its edge in each permute; changed in place.
      target: the target.
      permutes: the numbers of the first and of the second permute.
    """
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
    # Delete all before adding, because neighbours on the path exchange their permutes.
    for edge, permute in path:
        del sent[edge[0]][permute], received[edge[1]][permute]
    for edge, permute in path:
        other = second if permute == first else first
        sent[edge[0]][other] = received[edge[1]][other] = edge
