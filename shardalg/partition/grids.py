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

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count, permutations
from math import prod
from typing import Any, NamedTuple

from shardalg.costs.collectives import step_wire_bytes

Labels = tuple[int, ...]
"""Digits of prime size by their numbers, major first."""


@dataclass(frozen=True, eq=False, slots=True)
class Held:
    """One dimension: its digits, the parts that they make and the size of a block.

    One object per content in a search: states are then compared as fast as can be.
    """

    digits: Labels
    count: int
    block: int


State = tuple[tuple[Held, ...], Labels]
"""All dimensions, and digits along which sums are pending."""


Price = tuple[object, int]
"""Elements that a device sends, and moves that send."""


class Hop(NamedTuple):
    """One move.

    Attributes:
      sent: elements that a device sends. after: where it leads.
      kind: of instruction, by its name in prices; "slice" or "retile".
      dims: the dimension that it works on; of an all-to-all the one that is cut, then the other.
      leaving, arriving: digits that it gathers, cuts by, or moves.
    """

    sent: object
    after: State
    kind: str
    dims: tuple[int, ...] = ()
    leaving: Labels = ()
    arriving: Labels = ()


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

    >>> margin(1020, 4, 255, 256), margin(1020, 4, 256, 255), margin(5, 8, 2, 1)
    (3, 3, None)
    """
    if after < before:
        width = (parts - 1) * (before - after)
    else:
        k = min(size // after, parts)
        width = max(k * (after - before), size - (k + 1) * before, 0)
    return width if width <= before else None


@lru_cache(maxsize=1 << 14)
def solve(puzzle: Puzzle, limit: Price) -> tuple[tuple[State, Hop], ...] | None:
    """The cheapest hops, each with the state before it; None where none are below the limit."""
    hops = _Search(puzzle, limit).run()
    return None if hops is None else tuple(hops)


class _Search:
    """A* with what a device lacks of the goal at least."""

    def __init__(self, puzzle: Puzzle, limit: Price) -> None:
        self.limit = limit
        self.shape, self.sizes = puzzle.shape, puzzle.sizes
        self.overlaps, self.padded = puzzle.overlaps, puzzle.padded
        self.devices, self.dims = prod(puzzle.sizes), range(len(puzzle.shape))
        self.known: dict[object, Any] = {}
        self.named = frozenset(digit for digits in puzzle.goal[0] for digit in digits)
        self.start, self.goal = (self.natural(*end) for end in (puzzle.start, puzzle.goal))
        ends = zip(self.goal[0], self.shape, strict=True)
        self.wanted = [min(held.block, size) for held, size in ends]
        self.needed = prod(self.wanted)
        self.shared: tuple[dict[Held, int], ...] = tuple({} for _ in self.dims)

    def natural(self, dims: tuple[Labels, ...], pending: Labels) -> State:
        counts = map(self.parts, dims)
        held = [
            self.held(digits, n, -(-size // n))
            for size, digits, n in zip(self.shape, dims, counts, strict=True)
        ]
        return tuple(held), pending

    def held(self, digits: Labels, n: int, block: int) -> Held:
        found = self.known.get((digits, block))
        if found is None:
            found = self.known[digits, block] = Held(digits, n, block)
        return found

    def parts(self, digits: Labels) -> int:
        return prod([self.sizes[digit] for digit in digits])

    def blocks(self, dim: int, n: int) -> tuple[int, ...]:
        """Blocks of a dimension in n parts: on the grid of n parts, and on finer ones."""
        size, last = self.shape[dim], self.devices if self.padded else n
        finer = [k for k in range(n, last + 1, n) if self.devices % k == 0]
        return tuple(sorted({-(-size // k) * (k // n) for k in finer}))

    def lacking(self, dims: tuple[Held, ...]) -> object:
        """Elements that some device has to receive: it wants the first block of the goal.

        Of the digits that the goal does not name it has the last ones.
        """
        shared = 1
        for dim, held in enumerate(dims):
            found = self.shared[dim].get(held)
            if found is None:
                found = self.shared[dim][held] = self._overlap(dim, held)
            shared *= found
        return self.needed - shared

    def _overlap(self, dim: int, held: Held) -> int:
        first = 0
        for digit in held.digits:
            last = 0 if digit in self.named else self.sizes[digit] - 1
            first = first * self.sizes[digit] + last
        first *= held.block
        return max(0, min(self.wanted[dim], first + held.block) - first)

    def run(self) -> list[tuple[State, Hop]] | None:
        """Permutes have a turn of their own, late: they are many, and few are ever taken."""
        start, goal = self.start, self.goal
        best: dict[State, Price] = {start: (0, 0)}
        came: dict[State, tuple[State, tuple[Any, ...]]] = {}
        numbers = count(0, -1)
        heap = [(self.lacking(start[0]), 0, 0, 0, start, self.hops)]
        while heap:
            _, _, _, sent, state, moves = heappop(heap)
            if sent > best[state][0]:
                continue
            if state == goal:
                return self._chain(came)
            fewest = best[state][1]
            if moves == self.hops and not state[1]:
                turn = sent + self.permuted_least(state[0]), fewest + 1
                if turn < self.limit:
                    heappush(heap, (*turn, next(numbers), sent, state, self.permutes))
            for hop in moves(*state):
                total, after = sent + hop[0], hop[1]
                key = total, fewest + (hop[0] > 0)
                lacking = self.lacking(after[0])
                turn = total + lacking, key[1] + (lacking > 0)
                if turn < self.limit and (after not in best or key < best[after]):
                    best[after], came[after] = key, (state, hop)
                    heappush(heap, (*turn, next(numbers), total, after, self.hops))
        return None

    def _chain(self, came: dict[State, tuple[State, tuple[Any, ...]]]) -> list[tuple[State, Hop]]:
        chain, state = [], self.goal
        while state != self.start:
            before, hop = came[state]
            chain.append((before, Hop(*hop)))
            state = before
        return chain[::-1]

    def permuted_least(self, dims: tuple[Held, ...]) -> object:
        """Elements that are sent at least by a permute and what follows it."""
        kept = prod([min(held.block, n) for held, n in zip(dims, self.wanted, strict=True)])
        return prod([held.block for held in dims]) + self.needed - kept

    def hops(self, dims: tuple[Held, ...], pending: Labels) -> Iterator[tuple[Any, ...]]:
        """Every move but permutes, as the fields of a `Hop`."""
        local = prod([held.block for held in dims])
        todo = tuple([d for d in pending if d not in self.goal[1]])
        if todo:
            yield from self.sums((dims, pending), local, todo)
        yield from self.slices(dims, pending)
        if not pending or self.goal[1]:
            for dim, held in enumerate(dims):
                for width, after in self.retiled(dim, held):
                    sent = local // held.block * width
                    yield sent, (_with(dims, dim, after), pending), "retile", (dim,)
                for moved, n, stays in self.joined(dim, held):
                    left = _with(dims, dim, stays)
                    yield local * (n - 1), (left, pending), "all_gather", (dim,), moved
                    yield from self.exchanges((left, pending), local, (dim, moved))

    def sums(self, state: State, local: int, todo: Labels) -> Iterator[tuple[Any, ...]]:
        dims, pending = state
        for digits in dict.fromkeys([todo, *((digit,) for digit in todo)]):
            rest = tuple(d for d in pending if d not in digits)
            sent = step_wire_bytes("all_reduce", group_size=self.parts(digits), local_bytes=local)
            yield sent, (dims, rest), "all_reduce", (), digits
        for digit in todo:
            rest, n = tuple(d for d in pending if d != digit), self.sizes[digit]
            for dim, held in enumerate(dims):
                for after in self.cut(dim, held, (digit,)):
                    padded = _grown(local, held, after)
                    sent = step_wire_bytes("reduce_scatter", group_size=n, local_bytes=padded)
                    yield sent, (_with(dims, dim, after), rest), "reduce_scatter", (dim,), (digit,)

    def cut(self, dim: int, held: Held, digits: Labels) -> list[Held]:
        """A dimension with more digits: on its grid, or on any if it was whole."""
        found = self.known.get((dim, held, digits))
        if found is None:
            n, size = held.count * self.parts(digits), held.count * held.block
            found = self.known[dim, held, digits] = [
                self.held(held.digits + digits, n, block)
                for block in self.blocks(dim, n)
                if held.count == 1 or block * n == size
            ]
        return found

    def joined(self, dim: int, held: Held) -> list[tuple[Labels, int, Held]]:
        """What may leave a dimension, in how many parts, and what then stays of it."""
        found = self.known.get((dim, held))
        if found is None:
            found = self.known[dim, held] = []
            for keep in range(len(held.digits)):
                n = self.parts(held.digits[:keep])
                block = held.block * (held.count // n) if keep else self.shape[dim]
                if not keep or block in self.blocks(dim, n):
                    stays = self.held(held.digits[:keep], n, block)
                    found.append((held.digits[keep:], held.count // n, stays))
        return found

    def retiled(self, dim: int, held: Held) -> list[tuple[int, Held]]:
        """A dimension on other grids, and the places of it that are fetched for that."""
        found = self.known.get((held, dim))
        if found is None:
            found = self.known[held, dim] = []
            others = self.blocks(dim, held.count) if held.count > 1 else ()
            for block in others:
                width = held.block and margin(self.shape[dim], held.count, held.block, block)
                if block != held.block and width is not None:
                    found.append((width, self.held(held.digits, held.count, block)))
        return found

    def slices(self, dims: tuple[Held, ...], pending: Labels) -> Iterator[tuple[Any, ...]]:
        """Of digits that the goal does not name one of each size is as good as another."""
        blocked = {other for digit in pending for other in self.overlaps[digit]}
        blocked.update(*(self.overlaps[digit] for held in dims for digit in held.digits))
        seen: set[int] = set()
        for digit, size in enumerate(self.sizes):
            if digit in blocked or (digit not in self.named and size in seen):
                continue
            if digit not in self.named:
                seen.add(size)
            for dim, held in enumerate(dims):
                for after in self.cut(dim, held, (digit,)):
                    yield 0, (_with(dims, dim, after), pending), "slice", (dim,), (digit,)

    def exchanges(
        self, left: State, local: int, moved: tuple[int, Labels]
    ) -> Iterator[tuple[Any, ...]]:
        """All-to-alls of what leaves a dimension.

        Args:
          left: the state without what moves: the dimension that it leaves, and digits.
        """
        (dims, pending), (source, digits) = left, moved
        n = self.parts(digits)
        for dim, held in enumerate(dims):
            if dim == source:
                continue
            for arriving in permutations(digits):
                for after in self.cut(dim, held, arriving):
                    sent = _grown(local, held, after) // n * (n - 1)
                    made = _with(dims, dim, after), pending
                    yield sent, made, "all_to_all", (dim, source), digits, arriving

    def permutes(self, dims: tuple[Held, ...], pending: Labels) -> Iterator[tuple[Any, ...]]:
        local = prod([held.block for held in dims])
        counts = [held.count for held in dims]
        for digits in self.arranged(counts, (), frozenset()):
            pairs = zip(dims, digits, strict=True)
            made = tuple([self.held(row, held.count, held.block) for held, row in pairs])
            if made != dims:
                yield local, (made, pending), "collective_permute"

    def arranged(
        self, counts: list[int], made: tuple[Labels, ...], used: frozenset[int]
    ) -> Iterator[tuple[Labels, ...]]:
        """Digits for every dimension in so many parts."""
        if len(made) == len(counts):
            yield made
            return
        for row in self.filled((), counts[len(made)], used):
            blocked = used.union(*(self.overlaps[digit] for digit in row))
            yield from self.arranged(counts, (*made, row), blocked)

    def filled(self, head: Labels, n: int, used: frozenset[int]) -> Iterator[Labels]:
        """`head` and digits that make n parts more."""
        if n == 1:
            yield head
            return
        for digit, size in enumerate(self.sizes):
            if digit not in used and n % size == 0:
                blocked = used.union(self.overlaps[digit])
                yield from self.filled((*head, digit), n // size, blocked)


def _grown(local: int, held: Held, after: Held) -> int:
    """Elements on a device with a dimension padded so that the cut comes out even."""
    return local // max(held.block, 1) * after.block * (after.count // held.count)


def _with(dims: tuple[Held, ...], dim: int, held: Held) -> tuple[Held, ...]:
    return (*dims[:dim], held, *dims[dim + 1 :])
