"""What even blocks cost on their way to a layout, as shares of the tensor.

Padding and margins only add to it: so it bounds the cost of every other grid (`grids.py`), for all
sizes at once. Digits have prime size and are known by their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import permutations
from math import inf, prod
from typing import NamedTuple

from shardalg.reshard.closed_forms import replaced

Labels = tuple[int, ...]
"""Digits of prime size by their numbers, major first."""
Rows = tuple[Labels, ...]
Layout = tuple[Rows, Labels]
"""Digits per dimension, and those along which sums are pending."""


class ShareMove(NamedTuple):
    """One move of even blocks.

    Attributes:
      beyond: what a way that begins with it costs more than the cheapest, in units.
      left: what the cheapest way from there sends. after: where it leads.
      kind: of instruction, by its name in prices; or "slice".
      dims: the dimension that it works on; of an all-to-all the one that is cut, then the other.
      leaving, arriving: digits that it gathers, cuts by, adds along, or moves.
    """

    beyond: int
    left: int
    after: Layout
    kind: str
    dims: tuple[int, ...] = ()
    leaving: Labels = ()
    arriving: Labels = ()


Hop = tuple[int, Layout, str, tuple[int, ...], Labels, Labels]
"""A move with its own price in place of what it costs beyond the cheapest way."""


@dataclass(frozen=True)
class Shares:
    """Ways to one layout.

    Attributes:
      sizes: devices along each digit.
      overlaps: of each digit the numbers of those that it shares devices with, itself among them.
      goal: the layout.
      pending: digits along which sums may be pending on the way.
    """

    sizes: Labels
    overlaps: tuple[Labels, ...]
    goal: Layout
    pending: Labels

    @cached_property
    def unit(self) -> int:
        """So many units are the whole tensor: what moves send is a whole number of them."""
        return prod(self.sizes) ** 2

    @cached_property
    def least(self) -> dict[Layout, int]:
        """What the cheapest way from each layout sends, in units (Dijkstra, from the goal back).

        Of layouts that differ by an order of dimensions that the goal does not split there is one.

        >>> goal = ((0,), ()), ()
        >>> shares = Shares((2, 2), ((0,), (1,)), goal, ())
        >>> shares.unit, shares.least[((), (0,)), ()], shares.least[((0, 1), ()), ()]
        (16, 4, 4)
        """
        best, heap = {self.goal: 0}, [(0, self.goal)]
        while heap:
            sent, layout = heappop(heap)
            if sent == best[layout]:
                for price, before in self._backward(layout):
                    before = self._sorted(before)
                    if sent + price < best.get(before, inf):
                        best[before] = sent + price
                        heappush(heap, (sent + price, before))
        return best

    def left(self, layout: Layout) -> int | None:
        """What the cheapest way from a layout sends; None where none leads to the goal."""
        return self.least.get(self._sorted(layout))

    def _sorted(self, layout: Layout) -> Layout:
        rows, pending = layout
        order = iter(sorted([rows[dim] for dim in self._whole]))
        pairs = zip(rows, self.goal[0], strict=True)
        return tuple([row if wanted else next(order) for row, wanted in pairs]), pending

    @cached_property
    def _whole(self) -> tuple[int, ...]:
        return tuple(dim for dim, row in enumerate(self.goal[0]) if not row)

    def moves(self, layout: Layout) -> tuple[ShareMove, ...]:
        """All moves from a layout, those that lose least first."""
        found = self._known.get(layout)
        if found is None:
            here = self.least[self._sorted(layout)]
            ways = [(hop, self.left(hop[1])) for hop in self._forward(*layout)]
            every = [
                ShareMove(hop[0] + left - here, left, *hop[1:])
                for hop, left in ways
                if left is not None
            ]
            found = self._known[layout] = tuple(sorted(every, key=lambda move: move.beyond))
        return found

    @cached_property
    def _known(self) -> dict[Layout, tuple[ShareMove, ...]]:
        return {}

    def _local(self, rows: Rows) -> int:
        """Units of a block; what a move sends of it is a whole number."""
        return self.unit // self.parts(digit for row in rows for digit in row)

    def parts(self, digits: Iterable[int]) -> int:
        """Devices along digits."""
        return prod([self.sizes[digit] for digit in digits])

    def _free(self, layout: Layout) -> list[int]:
        rows, pending = layout
        used = {other for digit in pending for other in self.overlaps[digit]}
        used.update(*[self.overlaps[digit] for row in rows for digit in row])
        return [digit for digit in range(len(self.sizes)) if digit not in used]

    def _may_send(self, pending: Labels) -> bool:
        """Sums are added before anything else is sent, unless some stay pending."""
        return not pending or bool(self.goal[1])

    def _forward(self, rows: Rows, pending: Labels) -> Iterator[Hop]:
        yield from self._sums(rows, pending)
        named, seen = {d for row in self.goal[0] for d in row}, set[int]()
        for digit in self._free((rows, pending)):
            # of digits that the goal does not name one of each size is as good as another
            if digit in named or self.sizes[digit] not in seen:
                seen.update(() if digit in named else (self.sizes[digit],))
                for dim, row in enumerate(rows):
                    after = replaced(rows, dim, (*row, digit)), pending
                    yield 0, after, "slice", (dim,), (digit,), ()
        if not self._may_send(pending):
            return
        local = self._local(rows)
        for dim, row in enumerate(rows):
            for keep in range(len(row)):
                moved, n = row[keep:], self.parts(row[keep:])
                left = replaced(rows, dim, row[:keep])
                yield local * (n - 1), (left, pending), "all_gather", (dim,), moved, ()
        for price, made, dims, moved, arriving in self._swaps(rows, local):
            yield price, (made, pending), "all_to_all", dims, moved, arriving
        for made in () if pending else self._arranged(rows):
            yield local, (made, pending), "collective_permute", (), (), ()

    def _sums(self, rows: Rows, pending: Labels) -> Iterator[Hop]:
        todo, local = tuple(d for d in pending if d not in self.goal[1]), self._local(rows)
        for digits in dict.fromkeys([todo, *((digit,) for digit in todo)]) if todo else ():
            n, rest = self.parts(digits), tuple(d for d in pending if d not in digits)
            yield local // n * 2 * (n - 1), (rows, rest), "all_reduce", (), digits, ()
        for digit in todo:
            n, rest = self.sizes[digit], tuple(d for d in pending if d != digit)
            for dim, row in enumerate(rows):
                after = replaced(rows, dim, (*row, digit)), rest
                yield local // n * (n - 1), after, "reduce_scatter", (dim,), (digit,), ()

    def _swaps(self, rows: Rows, local: int) -> Iterator[tuple[int, Rows, tuple, Labels, Labels]]:
        """All-to-alls; each is the way back of another that sends as much."""
        for source, row in enumerate(rows):
            for keep in range(len(row)):
                moved, n = row[keep:], self.parts(row[keep:])
                left = replaced(rows, source, row[:keep])
                for dim, held in enumerate(rows):
                    for arriving in permutations(moved) if dim != source else ():
                        after = replaced(left, dim, held + arriving)
                        yield local // n * (n - 1), after, (dim, source), moved, arriving

    def _arranged(self, rows: Rows) -> list[Rows]:
        """Other layouts with as many parts in each dimension."""
        counts = tuple(map(self.parts, rows))
        found = self._arrangements.get(counts)
        if found is None:
            found = self._arrangements[counts] = list(self._arrange(counts, (), frozenset()))
        return [after for after in found if after != rows]

    @cached_property
    def _arrangements(self) -> dict[Labels, list[Rows]]:
        return {}

    def _arrange(self, counts: Labels, made: Rows, used: frozenset[int]) -> Iterator[Rows]:
        if len(made) == len(counts):
            yield made
            return
        for row in self._filled((), counts[len(made)], used):
            blocked = used.union(*[self.overlaps[digit] for digit in row])
            yield from self._arrange(counts, (*made, row), blocked)

    def _filled(self, head: Labels, n: int, used: frozenset[int]) -> Iterator[Labels]:
        """`head` and digits that make n parts more."""
        if n == 1:
            yield head
            return
        for digit, size in enumerate(self.sizes):
            if digit not in used and n % size == 0:
                blocked = used.union(self.overlaps[digit])
                yield from self._filled((*head, digit), n // size, blocked)

    def _backward(self, layout: Layout) -> Iterator[tuple[int, Layout]]:
        """Every move that leads here, with what is before it.

        A gather or a slice of several digits costs what those of one each do.
        """
        rows, pending = layout
        local, free = self._local(rows), self._free(layout)
        for dim, row in enumerate(rows):
            if row:
                yield 0, (replaced(rows, dim, row[:-1]), pending)
            for digit in free if self._may_send(pending) else ():
                n = self.sizes[digit]
                yield local // n * (n - 1), (replaced(rows, dim, (*row, digit)), pending)
        yield from self._unsummed(layout, local, free)
        for price, before, *_ in self._swaps(rows, local) if self._may_send(pending) else ():
            yield price, (before, pending)
        for before in () if pending else self._arranged(rows):
            yield local, (before, pending)

    def _unsummed(
        self, layout: Layout, local: int, free: list[int]
    ) -> Iterator[tuple[int, Layout]]:
        """What is pending before sums along one digit, or along all that are added."""
        rows, pending = layout
        added = tuple(d for d in self.pending if d not in self.goal[1])
        for digits in dict.fromkeys([added, *((digit,) for digit in added)]):
            if digits and set(digits) <= set(free):
                n = self.parts(digits)
                before = tuple(d for d in self.pending if d in pending or d in digits)
                yield local // n * 2 * (n - 1), (rows, before)
        for dim, row in enumerate(rows):
            if row and row[-1] in added:
                n, held = self.sizes[row[-1]], {*pending, row[-1]}
                left = replaced(rows, dim, row[:-1])
                yield local * (n - 1), (left, tuple(d for d in self.pending if d in held))


@lru_cache(maxsize=1 << 10)
def shares(sizes: Labels, overlaps: tuple[Labels, ...], goal: Layout, pending: Labels) -> Shares:
    """One object for all tensors."""
    return Shares(sizes, overlaps, goal, pending)
