"""All-to-alls that bring one layout to another, for the fewest bytes, where sizes stay as they are.

Digits are single bits of a number. A dimension is a stack of *blocks*, major first, each a set of
digits in an order that is still open: what one all-to-all brings, or one slice cuts, can be had in
any order for the same bytes. The orders are settled backwards once all moves are known. An
all-to-all among `m` devices costs `1 - 1/m` of the local block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any, NamedTuple

Stack = tuple[int, ...]
Stacks = tuple[Stack, ...]
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hop:
    """One all-to-all: the blocks `moved` leave the minor end of `source` for that of `target`."""

    source: int
    target: int
    moved: Stack


class Swap(NamedTuple):
    """One all-to-all in settled orders: what leaves `source`, and the same as it arrives."""

    source: int
    target: int
    leaving: tuple[Any, ...]
    arriving: tuple[Any, ...]

    @property
    def reverse(self) -> Swap:
        """The way back."""
        return Swap(self.target, self.source, self.arriving, self.leaving)


def reached(stack: Stack, goal: Sequence[int]) -> int:
    """How many digits of the goal the stack begins with; `-1 - n` where others come after n.

    >>> reached((1, 6), (1, 4)), reached((1,), (1, 4)), reached((2,), (1, 4))
    (2, 1, -1)
    """
    at, end = 0, len(goal)
    for block in stack:
        while at < end and goal[at] & block:
            block ^= goal[at]
            at += 1
        if at == end:
            return at
        if block:
            return -1 - at
    return at


class Shuffle:
    """The cheapest hops from a layout to any that begins with the goal's digits.

    A depth-first search within a limit, what promises most first; the last hop is computed, not
    tried. A dimension that lacks m parts of the goal's costs `1 - 1/m` at least, since hops of m1
    and m2 parts cost no less than one of m1*m2; and each hop mends one dimension at most.

    Attributes:
      goal: per dimension its digits, single bits, major first.
      shape: places of each dimension, which the parts of a stack must divide.
      parts: devices along each set of digits, by its number.
      pieces: of a block, in which costs are counted; all devices that take part.
      lacking: per dimension, what it costs at least by the number of the goal's digits there.
      cost, hops: of the best chain so far; None where there is none below the limit.
    """

    def __init__(
        self, goal: tuple[Order, ...], *, shape: Sequence[int], parts: Sequence[int], pieces: int
    ) -> None:
        self.goal, self.shape, self.parts, self.pieces = goal, shape, parts, pieces
        self.dims = range(len(goal))
        self.lacking = [[self.price(order[at:]) for at in range(len(order) + 1)] for order in goal]

    def search(self, first: Stacks, limit: int) -> None:
        """The cheapest hops from `first`, if they cost less than the limit."""
        self.cost, self.hops = limit, None
        found = [reached(s, g) for s, g in zip(first, self.goal, strict=True)]
        self._search(first, found, (0, ()))

    def price(self, moved: Stack) -> int:
        """Pieces that a device sends: all but one of m."""
        return self.pieces - self.pieces // self.parts[sum(moved)]

    def least(self, found: list[int]) -> int:
        """Pieces that are sent at least."""
        rows = zip(self.lacking, found, strict=True)
        return sum([row[at if at >= 0 else -1 - at] for row, at in rows])

    def _search(self, stacks: Stacks, found: list[int], done: tuple[int, tuple[Hop, ...]]) -> None:
        cost, hops = done
        bad = [k for k in self.dims if found[k] != len(self.goal[k])]
        if not bad:
            self.cost, self.hops = cost, hops
        elif len(bad) == 1 and found[bad[0]] >= 0:
            self._finish(stacks, (bad[0], found[bad[0]]), done)
        # One more hop does not do, or just did: two, or one for each that is to be mended.
        if bad and 2 * cost + max(len(bad), 2) * self.pieces < 2 * self.cost:
            after = self._after(stacks, found, cost)
            for least, _, spent, hop, stacks_after, found_after in sorted(after):
                if least < self.cost:
                    self._search(stacks_after, found_after, (spent, (*hops, hop)))

    def _after(self, stacks: Stacks, found: list[int], cost: int) -> Iterator[tuple[Any, ...]]:
        """Every hop with what it makes of the layout, and what the whole then costs at least."""
        numbers = count()
        for source, rest, moved in self._pops(stacks):
            spent = cost + self.price(moved)
            for target in self.dims if 2 * spent + self.pieces < 2 * self.cost else ():
                after = self._pushed(stacks, (source, rest), (target, moved))
                if after is not None:
                    held = list(found)
                    held[source] = reached(rest, self.goal[source])
                    held[target] = reached(after[target], self.goal[target])
                    least = spent + self.least(held)
                    if least < self.cost:
                        yield least, next(numbers), spent, Hop(source, target, moved), after, held

    def _finish(
        self, stacks: Stacks, lacking: tuple[int, int], done: tuple[int, tuple[Hop, ...]]
    ) -> None:
        """The one hop that brings all that one dimension lacks, if there is one."""
        target, at = lacking
        wanted = sum(self.goal[target][at:])
        for source, stack in enumerate(stacks):
            if source == target or wanted & ~sum(stack):
                continue
            depth = next(i for i, block in enumerate(stack) if block & wanted)
            low = stack[depth] & wanted
            rest, moved = _cut(stack, depth, low)
            after = self._pushed(stacks, (source, rest), (target, moved))
            cost = done[0] + self.price(moved)
            stays = reached(rest, self.goal[source]) == len(self.goal[source])
            if stays and after is not None and cost < self.cost:
                self.cost, self.hops = cost, (*done[1], Hop(source, target, moved))

    def _pops(self, stacks: Stacks) -> Iterator[tuple[int, Stack, Stack]]:
        """Every (dimension, what stays, what leaves)."""
        for source, stack in enumerate(stacks):
            for depth in range(len(stack) - 1, -1, -1):
                part = block = stack[depth]
                while part:
                    yield source, *_cut(stack, depth, part)
                    part = (part - 1) & block

    def _pushed(
        self, stacks: Stacks, left: tuple[int, Stack], right: tuple[int, Stack]
    ) -> Stacks | None:
        """The stacks after a hop; None where the target cannot be cut like that."""
        (source, rest), (target, moved) = left, right
        stack = (*stacks[target], sum(moved))
        if source == target or self.shape[target] % prod([self.parts[b] for b in stack]):
            return None
        return tuple(
            rest if k == source else stack if k == target else old for k, old in enumerate(stacks)
        )


def _cut(stack: Stack, depth: int, part: int) -> tuple[Stack, Stack]:
    """What stays and what leaves where `part` of a block and all above it leave."""
    rest = stack[depth] ^ part
    return stack[:depth] + ((rest,) if rest else ()), (part, *stack[depth + 1 :])


def settled(
    first: Stacks, hops: Sequence[Hop], goal: Sequence[Order]
) -> tuple[tuple[Order, ...], tuple[Swap, ...], tuple[Order, ...]]:
    """The layout before the hops, the hops, and the layout after them, all digits in order.

    >>> settled(((1, 2), (4,)), [Hop(0, 1, (2,))], ((1,), (4, 2)))
    (((1, 2), (4,)), (Swap(source=0, target=1, leaving=(2,), arriving=(2,)),), ((1,), (4, 2)))
    """
    stacks = list(first)
    for hop in hops:
        stacks[hop.target] = (*stacks[hop.target], sum(hop.moved))
        stacks[hop.source], _ = _without(stacks[hop.source], hop.moved)
    orders = [_ordered(stack, wanted) for stack, wanted in zip(stacks, goal, strict=True)]
    last, swaps = tuple(orders), []
    for hop in reversed(hops):
        count = sum(hop.moved).bit_count()
        arriving = orders[hop.target][len(orders[hop.target]) - count :]
        leaving = tuple(d for block in hop.moved for d in arriving if d & block)
        orders[hop.target] = orders[hop.target][: len(orders[hop.target]) - count]
        orders[hop.source] += leaving
        swaps.append(Swap(hop.source, hop.target, leaving, arriving))
    return tuple(orders), tuple(reversed(swaps)), last


def _without(stack: Stack, moved: Stack) -> tuple[Stack, Stack]:
    return _cut(stack, len(stack) - len(moved), moved[0])


def _ordered(stack: Stack, goal: Order) -> Order:
    """The digits of a stack, those of the goal first, in its order."""
    blocks = [[d for d in goal if d & block] + _bits(block & ~sum(goal)) for block in stack]
    return tuple(d for block in blocks for d in block)


def _bits(block: int) -> list[int]:
    return [1 << i for i in range(block.bit_length()) if block >> i & 1]
