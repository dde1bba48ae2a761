"""The cheapest chain of moves between layouts of which a size does not divide, by search (A*).

A dimension of `D` elements is padded to a multiple of the parts that it goes through, so that its
blocks are cut and joined as even ones are: a *grid*. Every layout begins and ends in blocks of
`ceil(D/n)`; a *retile* goes from one grid to another (`retile.py`). Its parts stay where they are,
and each device fetches what its new block has beyond its old one: no more places than the mesh has
devices, whatever `D` is. A dimension that is whole changes its grid for nothing.

What is searched does not depend on the ends, so a path by any other layout costs no less. Even
sizes have a normal form, and take `search.py` and `route.py` instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, permutations
from math import prod
from typing import NamedTuple

from shardalg.costs.collectives import step_wire_bytes

Labels = tuple[int, ...]
"""Digits of prime size by their numbers, major first."""
EVERY_ORDER = 3
"""Of so many digits all orders are tried; of more those that the goal has."""


class Held(NamedTuple):
    """One dimension: its digits, the parts that they make and the size of a block."""

    digits: Labels
    count: int
    block: int


class State(NamedTuple):
    """All dimensions, and digits along which sums are pending."""

    dims: tuple[Held, ...]
    pending: Labels


class Hop(NamedTuple):
    """One move: its kind, where it leads, the elements that a device sends.

    Attributes:
      kind: of instruction, by its name in prices; "slice" or "retile".
      dims: the dimension that it works on; of an all-to-all the one that is cut, then the other.
      leaving, arriving: digits that it gathers, cuts by, or moves.
    """

    kind: str
    dims: tuple[int, ...]
    leaving: Labels
    arriving: Labels
    after: State
    sent: object


@dataclass(frozen=True)
class Puzzle:
    """Two layouts of one tensor, in digits that are numbered as they come.

    Attributes:
      sizes: devices along each digit.
      overlaps: of each digit the numbers of those that it shares devices with, itself among them.
      start, goal: digits per dimension, and the pending ones.
      padded: whether other grids than those of `ceil(D/n)` are used.
    """

    shape: tuple[int, ...]
    sizes: Labels
    overlaps: tuple[Labels, ...]
    start: tuple[tuple[Labels, ...], Labels]
    goal: tuple[tuple[Labels, ...], Labels]
    padded: bool = True


def margin(size: int, parts: int, before: int, after: int) -> int | None:
    """Places of its block that a device sends for a retile; None where one neighbour is too few.

    >>> margin(1020, 4, 255, 256), margin(1020, 4, 256, 255), margin(5, 4, 2, 4)
    (3, 3, None)
    """
    if after < before:
        width = (parts - 1) * (before - after)
    else:
        k = min(size // after, parts)
        width = max(k * (after - before), size - (k + 1) * before, 0)
    return width if width <= before else None


@lru_cache(maxsize=1 << 14)
def solve(puzzle: Puzzle) -> tuple[tuple[State, Hop], ...]:
    """Fewest elements sent, then fewest moves that send; with each the state before it."""
    return tuple(_Search(puzzle).run())


class _Search:
    """A* with what a device lacks of the goal at least."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.shape, self.sizes = puzzle.shape, puzzle.sizes
        self.overlaps, self.padded = puzzle.overlaps, puzzle.padded
        self.devices = prod(puzzle.sizes)
        self.known: dict[tuple[int, object], object] = {}
        self.goal_dims = puzzle.goal[0]
        self.wanted = {digit for digits in self.goal_dims for digit in digits}
        self.start, self.goal = (self.natural(*end) for end in (puzzle.start, puzzle.goal))
        self.rank = {d: k for digits in self.goal_dims for k, d in enumerate(digits)}

    def natural(self, dims: tuple[Labels, ...], pending: Labels) -> State:
        held = []
        for size, digits in zip(self.shape, dims, strict=True):
            n = self.parts(digits)
            held.append(Held(digits, n, -(-size // n)))
        return State(tuple(held), pending)

    def parts(self, digits: Labels) -> int:
        return prod([self.sizes[digit] for digit in digits])

    def blocks(self, dim: int, n: int) -> tuple[int, ...]:
        """Blocks of a dimension in n parts: on the grid of n parts, and on finer ones."""
        found = self.known.get((dim, n))
        if found is None:
            size = self.shape[dim]
            last = self.devices if self.padded else n
            finer = [k for k in range(n, last + 1, n) if self.devices % k == 0]
            found = tuple(sorted({-(-size // k) * (k // n) for k in finer}))
            self.known[dim, n] = found
        return found

    def lacking(self, state: State) -> object:
        """Elements that some device has to receive: it holds the first block of the goal.

        Of the digits that the goal does not name it has the last ones.
        """
        needed, shared = 1, 1
        for dim, held in enumerate(state.dims):
            found = self.known.get((dim, held))
            if found is None:
                found = self.known[dim, held] = self._overlap(dim, held)
            needed *= found[0]
            shared *= found[1]
        return needed - shared

    def _overlap(self, dim: int, held: Held) -> tuple[int, int]:
        wanted, first = min(self.goal.dims[dim].block, self.shape[dim]), 0
        for digit in held.digits:
            first = first * self.sizes[digit] + (
                0 if digit in self.wanted else self.sizes[digit] - 1
            )
        first *= held.block
        return wanted, max(0, min(wanted, first + held.block) - first)

    def run(self) -> list[tuple[State, Hop]]:
        """Permutes have a turn of their own, late: they are many, and few are ever taken."""
        start, goal = self.start, self.goal
        best = {start: (0, 0)}
        came: dict[State, tuple[State, Hop]] = {}
        numbers = count(1)
        heap = [(self.lacking(start), 0, 0, 0, start, self.hops)]
        while True:
            least, _, _, sent, state, moves = heapq.heappop(heap)
            if sent > best[state][0]:
                continue
            if state == goal:
                return self._chain(came)
            fewest = best[state][1]
            if moves == self.hops and not state.pending:
                later = sent + self.permuted_least(state)
                heapq.heappush(heap, (later, fewest + 1, next(numbers), sent, state, self.permutes))
            for hop in moves(state):
                key = (sent + hop.sent, fewest + (hop.sent > 0))
                after = hop.after
                if after not in best or key < best[after]:
                    best[after] = key
                    came[after] = (state, hop)
                    least = key[0] + self.lacking(after)
                    entry = (least, key[1], next(numbers), key[0], after, self.hops)
                    heapq.heappush(heap, entry)

    def permuted_least(self, state: State) -> object:
        """Elements that are sent at least by a permute and what follows it."""
        wanted = [min(held.block, n) for held, n in zip(self.goal.dims, self.shape, strict=True)]
        kept = [min(held.block, n) for held, n in zip(state.dims, wanted, strict=True)]
        return prod([held.block for held in state.dims]) + prod(wanted) - prod(kept)

    def _chain(self, came: dict[State, tuple[State, Hop]]) -> list[tuple[State, Hop]]:
        chain, state = [], self.goal
        while state != self.start:
            chain.append(came[state])
            state = came[state][0]
        return chain[::-1]

    def hops(self, state: State) -> Iterator[Hop]:
        """Every move."""
        local = prod([held.block for held in state.dims])
        todo = tuple(d for d in state.pending if d not in self.goal.pending)
        if todo:
            yield from self.sums(state, local, todo)
        yield from self.slices(state)
        if not state.pending or self.goal.pending:
            yield from self.retiles(state, local)
            yield from self.gathers(state, local)
            yield from self.exchanges(state, local)

    def sums(self, state: State, local: int, todo: Labels) -> Iterator[Hop]:
        for digits in dict.fromkeys([todo, *((digit,) for digit in todo)]):
            rest = tuple(d for d in state.pending if d not in digits)
            sent = _sent("all_reduce", self.parts(digits), local)
            yield Hop("all_reduce", (), digits, (), State(state.dims, rest), sent)
        for digit in todo:
            rest = tuple(d for d in state.pending if d != digit)
            for dim, held in enumerate(state.dims):
                for after in self.cut(dim, held, (digit,)):
                    padded = _grown(local, held, after)
                    sent = _sent("reduce_scatter", self.sizes[digit], padded)
                    dims = _with(state.dims, dim, after)
                    yield Hop("reduce_scatter", (dim,), (digit,), (), State(dims, rest), sent)

    def cut(self, dim: int, held: Held, digits: Labels) -> Iterator[Held]:
        """A dimension with more digits: on its grid, or on any if it was whole."""
        n = held.count * self.parts(digits)
        for block in self.blocks(dim, n):
            if held.count == 1 or block * n == held.block * held.count:
                yield Held(held.digits + digits, n, block)

    def joined(self, dim: int, held: Held) -> Iterator[tuple[Labels, Held]]:
        """What may leave a dimension, and what then stays: its major digits."""
        n = 1
        for keep, digit in enumerate(held.digits):
            block = held.block * (held.count // n) if keep else self.shape[dim]
            if not keep or block in self.blocks(dim, n):
                yield held.digits[keep:], Held(held.digits[:keep], n, block)
            n *= self.sizes[digit]

    def slices(self, state: State) -> Iterator[Hop]:
        """Of digits that the goal does not name one of each size is as good as another."""
        used = (*(d for held in state.dims for d in held.digits), *state.pending)
        blocked = {other for digit in used for other in self.overlaps[digit]}
        free, seen = [], set()
        for digit, size in enumerate(self.sizes):
            if digit not in blocked and (digit in self.wanted or size not in seen):
                free.append(digit)
                seen |= {size} - ({size} if digit in self.wanted else set())
        for dim, held in enumerate(state.dims):
            for digit in free:
                for after in self.cut(dim, held, (digit,)):
                    made = State(_with(state.dims, dim, after), state.pending)
                    yield Hop("slice", (dim,), (digit,), (), made, 0)

    def retiles(self, state: State, local: int) -> Iterator[Hop]:
        """A dimension on another grid."""
        for dim, held in enumerate(state.dims):
            others = {*self.blocks(dim, held.count)} - {held.block} if held.count > 1 else ()
            for block in sorted(others):
                width = margin(self.shape[dim], held.count, held.block, block)
                if width is not None:
                    after = _with(state.dims, dim, held._replace(block=block))
                    sent = local // held.block * width
                    yield Hop("retile", (dim,), (), (), State(after, state.pending), sent)

    def gathers(self, state: State, local: int) -> Iterator[Hop]:
        for dim, held in enumerate(state.dims):
            for gone, stays in self.joined(dim, held):
                sent = _sent("all_gather", self.parts(gone), local)
                after = _with(state.dims, dim, stays)
                yield Hop("all_gather", (dim,), gone, (), State(after, state.pending), sent)

    def exchanges(self, state: State, local: int) -> Iterator[Hop]:
        for source, held in enumerate(state.dims):
            for moved, stays in self.joined(source, held):
                left, n = _with(state.dims, source, stays), held.count // stays.count
                for target, other in enumerate(state.dims):
                    for cut in self.cut(target, other, moved) if target != source else ():
                        sent = _sent("all_to_all", n, _grown(local, other, cut))
                        for arriving in self.orders(moved):
                            made = Held(other.digits + arriving, cut.count, cut.block)
                            after = State(_with(left, target, made), state.pending)
                            yield Hop("all_to_all", (target, source), moved, arriving, after, sent)

    def orders(self, moved: Labels) -> Iterator[Labels]:
        if len(moved) <= EVERY_ORDER:
            return permutations(moved)
        wanted = tuple(sorted(moved, key=lambda d: self.rank.get(d, len(moved))))
        return iter(dict.fromkeys((moved, wanted)))

    def permutes(self, state: State) -> Iterator[Hop]:
        local = prod([held.block for held in state.dims])
        counts = [held.count for held in state.dims]
        for digits in self.arranged(counts, (), frozenset()):
            dims = tuple(
                held._replace(digits=row) for held, row in zip(state.dims, digits, strict=True)
            )
            if dims != state.dims:
                yield Hop("collective_permute", (), (), (), State(dims, ()), local)

    def arranged(
        self, counts: list[int], made: tuple[Labels, ...], used: frozenset[int]
    ) -> Iterator[tuple[Labels, ...]]:
        """Digits for every dimension in so many parts."""
        if len(made) == len(counts):
            yield made
            return
        for row in self.rows(len(made), counts[len(made)], used):
            blocked = used.union(*(self.overlaps[digit] for digit in row))
            yield from self.arranged(counts, (*made, row), blocked)

    def rows(self, dim: int, n: int, used: frozenset[int]) -> Iterator[Labels]:
        goal = self.goal_dims[dim]
        if len(self.sizes) <= EVERY_ORDER:
            yield from self.filled((), n, used)
            return
        for end in range(len(goal), -1, -1):
            head = goal[:end]
            if used.isdisjoint(head) and n % self.parts(head) == 0:
                blocked = used.union(*(self.overlaps[digit] for digit in head))
                row = next(self.filled(head, n // self.parts(head), blocked), None)
                if row is not None:
                    yield row

    def filled(self, head: Labels, n: int, used: frozenset[int]) -> Iterator[Labels]:
        """`head` and digits that make n parts more."""
        if n == 1:
            yield head
            return
        for digit, size in enumerate(self.sizes):
            if digit not in used and n % size == 0:
                blocked = used.union(self.overlaps[digit])
                yield from self.filled((*head, digit), n // size, blocked)


def _sent(kind: str, devices: int, local: int) -> object:
    return step_wire_bytes(kind, group_size=devices, local_bytes=local)


def _grown(local: int, held: Held, after: Held) -> int:
    """Elements on a device with a dimension padded so that the cut comes out even."""
    return local // max(held.block, 1) * after.block * (after.count // held.count)


def _with(dims: tuple[Held, ...], dim: int, held: Held) -> tuple[Held, ...]:
    return (*dims[:dim], held, *dims[dim + 1 :])
