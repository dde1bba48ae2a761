"""The cheapest chain of moves between layouts of which a size does not divide, by search (A*).

A dimension of `D` elements is padded to a multiple of the parts that it goes through, so that its
blocks are cut and joined as even ones are: a *grid*. Every layout begins and ends in blocks of
`ceil(D/n)`; a *retile* goes from one grid to another (`exchanges.py`). Its parts stay where they
are,
and each device fetches what its new block has beyond its old one: no more places than the mesh has
devices, whatever `D` is. A dimension that is whole changes its grid for nothing.

What is searched does not depend on the ends, so a path by any other layout costs no less. Even
sizes have a normal form, and take `even.py` and `closed_forms.py` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import prod
from typing import Any, NamedTuple

from shardalg.costs.collectives import step_wire_bytes
from shardalg.planner.reshard.best_first import Cost, best_first
from shardalg.planner.reshard.closed_forms import replaced
from shardalg.planner.reshard.exchanges import margin

Labels = tuple[int, ...]
"""Digits of prime size by their numbers, major first."""
Rows = tuple[Labels, ...]
Layout = tuple[Rows, Labels]
"""Digits per dimension, and those along which sums are pending."""


@dataclass(frozen=True, eq=False, slots=True)
class BlockedDimension:
    """One dimension: its digits, the parts that they make and the size of a block.

    One object per content in a search: states are then compared as fast as can be.
    """

    digits: Labels
    count: int
    block: int


Dims = tuple[BlockedDimension, ...]
State = tuple[Dims, Labels]
"""All dimensions, and digits along which sums are pending."""


class GridMove(NamedTuple):
    """A move on some grid.

    Attributes:
      sent: elements that a device sends. after: where it leads.
      kind: of instruction, by its name in prices; or "slice", "retile".
      dims: the dimension that it works on; of an all-to-all the one that is cut, then the other.
      leaving, arriving: digits that it gathers, cuts by, adds along, or moves.
    """

    sent: Any
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
    start: Layout
    goal: Layout
    padded: bool = True


@lru_cache(maxsize=1 << 14)
def solve(puzzle: Puzzle, limit: Cost) -> tuple[tuple[State, GridMove], ...] | None:
    """The cheapest hops, each with the state before it; None where none are below the limit."""
    grids = _Grids(puzzle)
    found = best_first(grids, (grids.start,), limit=limit, latest=True)
    return None if found is None else tuple(found[1])


class _Grids:
    """Moves on all grids, bounded by what a device lacks of the goal."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.shape, self.sizes, self.overlaps = puzzle.shape, puzzle.sizes, puzzle.overlaps
        self.padded, self.kept = puzzle.padded, puzzle.goal[1]
        self.devices = prod(puzzle.sizes)
        self.known: dict[object, Any] = {}
        self.arrangements: dict[Labels, list[Rows]] = {}
        self.named = frozenset(digit for digits in puzzle.goal[0] for digit in digits)
        self.start, self.goal = (self.natural(*end) for end in (puzzle.start, puzzle.goal))
        wanted = zip(self.goal[0], self.shape, strict=True)
        self.wanted = [min(held.block, size) for held, size in wanted]
        self.needed = prod(self.wanted)
        self.shared: tuple[dict[BlockedDimension, int], ...] = tuple({} for _ in self.shape)

    def natural(self, dims: tuple[Labels, ...], pending: Labels) -> State:
        """The state of a layout, each dimension in blocks of `ceil(size / n)`."""
        counts = map(self.parts, dims)
        held = [
            self.held(digits, n, -(-size // n))
            for size, digits, n in zip(self.shape, dims, counts, strict=True)
        ]
        return tuple(held), pending

    def held(self, digits: Labels, n: int, block: int) -> BlockedDimension:
        """One object per digits and block, so that states compare by identity first."""
        found = self.known.get((digits, block))
        if found is None:
            found = self.known[digits, block] = BlockedDimension(digits, n, block)
        return found

    def parts(self, digits: Labels) -> int:
        """Number of partitions that the digits make."""
        return prod([self.sizes[digit] for digit in digits])

    def blocks(self, dim: int, n: int) -> tuple[int, ...]:
        """Blocks of a dimension in n parts: on the grid of n parts, and on finer ones."""
        found = self.known.get((dim, n))
        if found is None:
            size, last = self.shape[dim], self.devices if self.padded else n
            finer = [k for k in range(n, last + 1, n) if self.devices % k == 0]
            every = {-(-size // k) * (k // n) for k in finer}
            found = self.known[dim, n] = tuple(sorted(every))
        return found

    def lacking(self, dims: Dims) -> int:
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

    def _overlap(self, dim: int, held: BlockedDimension) -> int:
        first = 0
        for digit in held.digits:
            last = 0 if digit in self.named else self.sizes[digit] - 1
            first = first * self.sizes[digit] + last
        first *= held.block
        return max(0, min(self.wanted[dim], first + held.block) - first)

    def is_goal(self, state: State) -> bool:
        """Whether a path ends here."""
        return state == self.goal

    def least(self, state: State) -> Any:
        """Elements that are sent from a state at least."""
        return self.lacking(state[0])

    def onward(self, state: State, _: Cost) -> Iterator[tuple[Cost, State, GridMove]]:
        """Every move, with its price and the state that it leads to."""
        for hop in self.moves(*state):
            yield (hop.sent, hop.sent > 0), hop.after, hop

    def moves(self, dims: Dims, pending: Labels) -> Iterator[GridMove]:
        """The moves of even blocks, then every dimension on other grids."""
        local = prod([held.block for held in dims])
        yield from self.sums(dims, pending, local)
        for digit in self.free(dims, pending):
            for dim, held in enumerate(dims):
                for after in self.cut(dim, held, (digit,)):
                    yield GridMove(
                        0, (replaced(dims, dim, after), pending), "slice", (dim,), (digit,)
                    )
        # sums are added before anything else is sent, unless some stay pending
        if not pending or self.kept:
            yield from self.gathers(dims, pending, local)
            yield from self.swaps(dims, pending, local)
            yield from self.permutes(dims, local) if not pending else ()
        yield from self.retiles(dims, pending, local)

    def retiles(self, dims: Dims, pending: Labels, local: int) -> Iterator[GridMove]:
        """Every dimension on other grids."""
        for dim, held in enumerate(dims):
            for width, after in self.retiled(dim, held):
                state = replaced(dims, dim, after), pending
                yield GridMove(local // held.block * width, state, "retile", (dim,))

    def gathers(self, dims: Dims, pending: Labels, local: int) -> Iterator[GridMove]:
        """All-gathers."""
        for dim, held in enumerate(dims):
            for after, leaving in self.left(dim, held):
                sent, made = local * (held.count // after.count - 1), replaced(dims, dim, after)
                yield GridMove(sent, (made, pending), "all_gather", (dim,), leaving)

    def permutes(self, dims: Dims, local: int) -> Iterator[GridMove]:
        """Collective permutes."""
        for rows in self.arranged(tuple([held.count for held in dims])):
            pairs = zip(dims, rows, strict=True)
            made = tuple([self.held(row, held.count, held.block) for held, row in pairs])
            if made != dims:
                yield GridMove(local, (made, ()), "collective_permute")

    def sums(self, dims: Dims, pending: Labels, local: int) -> Iterator[GridMove]:
        """All-reduces and reduce-scatters of sums that the goal does not leave pending."""
        todo = tuple(d for d in pending if d not in self.kept)
        for digits in dict.fromkeys([todo, *((digit,) for digit in todo)]) if todo else ():
            rest = tuple(d for d in pending if d not in digits)
            sent = step_wire_bytes("all_reduce", group_size=self.parts(digits), local_bytes=local)
            yield GridMove(sent, (dims, rest), "all_reduce", (), digits)
        for digit in todo:
            n, rest = self.sizes[digit], tuple(d for d in pending if d != digit)
            for dim, held in enumerate(dims):
                for after in self.cut(dim, held, (digit,)):
                    padded, made = _grown(local, held, after), replaced(dims, dim, after)
                    sent = step_wire_bytes("reduce_scatter", group_size=n, local_bytes=padded)
                    yield GridMove(sent, (made, rest), "reduce_scatter", (dim,), (digit,))

    def swaps(self, dims: Dims, pending: Labels, local: int) -> Iterator[GridMove]:
        """All-to-alls."""
        for source, held in enumerate(dims):
            for stays, leaving in self.left(source, held):
                n, rest = held.count // stays.count, replaced(dims, source, stays)
                for dim, other in enumerate(dims):
                    for arriving in permutations(leaving) if dim != source else ():
                        for after in self.cut(dim, other, arriving):
                            sent = _grown(local, other, after) // n * (n - 1)
                            made, on = replaced(rest, dim, after), (dim, source)
                            yield GridMove(
                                sent, (made, pending), "all_to_all", on, leaving, arriving
                            )

    def free(self, dims: Dims, pending: Labels) -> Iterator[int]:
        """Digits that nothing uses; of those that the goal does not name, one of each size."""
        used = {other for digit in pending for other in self.overlaps[digit]}
        used.update(*[self.overlaps[digit] for held in dims for digit in held.digits])
        seen = set[int]()
        for digit, size in enumerate(self.sizes):
            if digit not in used and (digit in self.named or size not in seen):
                seen.update(() if digit in self.named else (size,))
                yield digit

    def arranged(self, counts: Labels) -> list[Rows]:
        """Every layout with so many parts in each dimension."""
        if counts not in self.arrangements:
            self.arrangements[counts] = list(self._arranged(counts, (), frozenset()))
        return self.arrangements[counts]

    def _arranged(self, counts: Labels, made: Rows, used: frozenset[int]) -> Iterator[Rows]:
        if len(made) == len(counts):
            yield made
            return
        for row in self._filled((), counts[len(made)], used):
            blocked = used.union(*[self.overlaps[digit] for digit in row])
            yield from self._arranged(counts, (*made, row), blocked)

    def _filled(self, head: Labels, n: int, used: frozenset[int]) -> Iterator[Labels]:
        """`head` and digits that make n parts more."""
        if n == 1:
            yield head
            return
        for digit, size in enumerate(self.sizes):
            if digit not in used and n % size == 0:
                blocked = used.union(self.overlaps[digit])
                yield from self._filled((*head, digit), n // size, blocked)

    def cut(self, dim: int, held: BlockedDimension, digits: Labels) -> list[BlockedDimension]:
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

    def left(self, dim: int, held: BlockedDimension) -> list[tuple[BlockedDimension, Labels]]:
        """What stays of a dimension on a grid that its last digits leave, and those digits."""
        found = self.known.get((dim, held))
        if found is None:
            found = self.known[dim, held] = []
            for keep in range(len(held.digits)):
                digits, leaving = held.digits[:keep], held.digits[keep:]
                n = self.parts(digits)
                block = held.block * (held.count // n) if keep else self.shape[dim]
                if not keep or block in self.blocks(dim, n):
                    found.append((self.held(digits, n, block), leaving))
        return found

    def retiled(self, dim: int, held: BlockedDimension) -> list[tuple[int, BlockedDimension]]:
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


def _grown(local: int, held: BlockedDimension, after: BlockedDimension) -> int:
    """Elements on a device with a dimension padded so that the cut comes out even."""
    return local // max(held.block, 1) * after.block * (after.count // held.count)
