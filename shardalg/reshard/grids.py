"""The cheapest chain of moves between layouts of which a size does not divide, by search (A*).

A dimension of `D` elements is padded to a multiple of the parts that it goes through, so that its
blocks are cut and joined as even ones are: a *grid*. Every layout begins and ends in blocks of
`ceil(D/n)`; a *retile* goes from one grid to another (`retile.py`). Its parts stay where they are,
and each device fetches what its new block has beyond its old one: no more places than the mesh has
devices, whatever `D` is. A dimension that is whole changes its grid for nothing.

Padding is little: moves are tried in the order of what they lose where blocks are even
(`shares.py`), which is known for all sizes at once, and most are never tried.

What is searched does not depend on the ends, so a path by any other layout costs no less. Even
sizes have a normal form, and take `even.py` and `closed_forms.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from shardalg.costs.collectives import step_wire_bytes
from shardalg.reshard.best_first import Cost, best_first
from shardalg.reshard.closed_forms import replaced
from shardalg.reshard.retile import margin
from shardalg.reshard.shares import Labels, Layout, ShareMove, Shares, shares
from shardalg.sizes.recorded import are_numbers


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


Dims = tuple[Held, ...]


class Hop(NamedTuple):
    """A move on some grid: elements that a device sends, where it leads, the move of even blocks.

    Of a change of the grid the move has the kind "retile".
    """

    sent: Any
    after: State
    move: ShareMove


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
def solve(puzzle: Puzzle, limit: Cost | None) -> tuple[tuple[State, Hop], ...] | None:
    """The cheapest hops, each with the state before it; None where none are below the limit."""
    table = shares(puzzle.sizes, puzzle.overlaps, puzzle.goal, puzzle.start[1])
    left = table.left(puzzle.start)
    if left is None:
        return None
    grids = _Grids(puzzle, table, ShareMove(0, left, puzzle.start, "start"))
    found = best_first(grids, (grids.start,), limit=limit, latest=True)
    return None if found is None else tuple(found[1])


class _Grids:
    """Moves on all grids, bounded by what a device lacks of the goal and what even blocks cost."""

    def __init__(self, puzzle: Puzzle, shares: Shares, first: ShareMove) -> None:
        self.shares, self.first = shares, first
        self.shape, self.sizes = puzzle.shape, puzzle.sizes
        self.padded, ends = puzzle.padded, (puzzle.start, puzzle.goal)
        self.devices, self.dims = prod(puzzle.sizes), range(len(puzzle.shape))
        self.known: dict[object, Any] = {}
        self.named = frozenset(digit for digits in puzzle.goal[0] for digit in digits)
        self.start, self.goal = (self.natural(*end) for end in ends)
        wanted = zip(self.goal[0], self.shape, strict=True)
        self.wanted = [min(held.block, size) for held, size in wanted]
        self.needed = prod(self.wanted)
        self.shared: tuple[dict[Held, int], ...] = tuple({} for _ in self.dims)
        # named sizes note what is asked of them: of those only what devices lack is compared
        self.elements = prod(puzzle.shape) if are_numbers(puzzle.shape) else 0

    def natural(self, dims: tuple[Labels, ...], pending: Labels) -> State:
        """The state of a layout, each dimension in blocks of `ceil(size / n)`."""
        counts = map(self.parts, dims)
        held = [
            self.held(digits, n, -(-size // n))
            for size, digits, n in zip(self.shape, dims, counts, strict=True)
        ]
        return tuple(held), pending

    def held(self, digits: Labels, n: int, block: int) -> Held:
        """One object per digits and block, so that states compare by identity first."""
        found = self.known.get((digits, block))
        if found is None:
            found = self.known[digits, block] = Held(digits, n, block)
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

    def _overlap(self, dim: int, held: Held) -> int:
        first = 0
        for digit in held.digits:
            last = 0 if digit in self.named else self.sizes[digit] - 1
            first = first * self.sizes[digit] + last
        first *= held.block
        return max(0, min(self.wanted[dim], first + held.block) - first)

    def is_goal(self, state: State) -> bool:
        """Whether a path ends here."""
        return state == self.goal

    def least(self, state: State, hop: Hop | None) -> Any:
        """Elements that are sent from a state at least."""
        units = (self.first if hop is None else hop.move).left
        return max(self.lacking(state[0]), self.even(state[1], units))

    def even(self, pending: Labels, units: int) -> int:
        """Elements that even blocks send from a layout, of so many units."""
        # what is sent for sums need not be whole
        above = units * self.elements
        return above // self.shares.unit if pending else -(-above // self.shares.unit)

    def onward(self, state: State, hop: Hop | None, _: Cost) -> Iterator[tuple[Any, Any]]:
        """Every dimension on other grids, then the moves of even blocks, best first."""
        dims, pending = state
        made = self.first if hop is None else hop.move
        units, layout = made.left, made.after
        yield 0, self.retiles(state, layout, units)
        lacking, local = self.lacking(dims), prod([held.block for held in dims])
        for move in self.shares.moves(layout):
            left = max(lacking, self.even(pending, units + move.beyond))
            yield left, self.made(move, dims, local)

    def made(self, move: ShareMove, dims: Dims, local: int) -> Iterator[tuple[Cost, State, Hop]]:
        """A move on every grid."""
        for price, after in _MADE[move.kind](self, move, dims, local):
            state = after, move.after[1]
            yield (price, price > 0), state, Hop(price, state, move)

    def retiles(self, state: State, layout: Layout, units: int) -> Iterator[Any]:
        """Every dimension on other grids."""
        dims, pending = state
        local = prod([held.block for held in dims])
        for dim, held in enumerate(dims):
            move = ShareMove(0, units, layout, "retile", (dim,))
            for width, after in self.retiled(dim, held):
                price, made = local // held.block * width, (replaced(dims, dim, after), pending)
                yield (price, price > 0), made, Hop(price, made, move)

    def gathered(self, move: ShareMove, dims: Dims, local: int) -> Iterator[Any]:
        """Elements sent, and layouts after an all-gather."""
        (dim,) = move.dims
        stays = self.stays(dim, dims[dim], move)
        if stays:
            yield local * (dims[dim].count // stays.count - 1), replaced(dims, dim, stays)

    def swapped(self, move: ShareMove, dims: Dims, local: int) -> Iterator[Any]:
        """Elements sent, and layouts after an all-to-all."""
        dim, source = move.dims
        stays = self.stays(source, dims[source], move)
        if stays:
            n, held, left = (
                dims[source].count // stays.count,
                dims[dim],
                replaced(dims, source, stays),
            )
            for after in self.cut(dim, held, move.arriving):
                yield _grown(local, held, after) // n * (n - 1), replaced(left, dim, after)

    def sliced(self, move: ShareMove, dims: Dims, _: int) -> Iterator[Any]:
        """Layouts after a local slice, which sends nothing."""
        (dim,) = move.dims
        for after in self.cut(dim, dims[dim], move.leaving):
            yield 0, replaced(dims, dim, after)

    def added(self, move: ShareMove, dims: Dims, local: int) -> Iterator[Any]:
        """Elements sent, and the layout after an all-reduce."""
        n = self.parts(move.leaving)
        yield step_wire_bytes(move.kind, group_size=n, local_bytes=local), dims

    def scattered(self, move: ShareMove, dims: Dims, local: int) -> Iterator[Any]:
        """Elements sent, and layouts after a reduce-scatter."""
        (dim,), n = move.dims, self.parts(move.leaving)
        for after in self.cut(dim, dims[dim], move.leaving):
            padded = _grown(local, dims[dim], after)
            sent = step_wire_bytes(move.kind, group_size=n, local_bytes=padded)
            yield sent, replaced(dims, dim, after)

    def permuted(self, move: ShareMove, dims: Dims, local: int) -> Iterator[Any]:
        """Elements sent, and the layout after a collective permute."""
        pairs = zip(dims, move.after[0], strict=True)
        yield local, tuple([self.held(row, held.count, held.block) for held, row in pairs])

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

    def stays(self, dim: int, held: Held, move: ShareMove) -> Held | None:
        """What stays of a dimension that digits leave; None where it is not on a grid."""
        keep = held.digits[: len(held.digits) - len(move.leaving)]
        n = self.parts(keep)
        block = held.block * (held.count // n) if keep else self.shape[dim]
        return self.held(keep, n, block) if not keep or block in self.blocks(dim, n) else None

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


_MADE: dict[str, Callable[..., Iterator[Any]]] = {
    "all_gather": _Grids.gathered,
    "all_reduce": _Grids.added,
    "all_to_all": _Grids.swapped,
    "collective_permute": _Grids.permuted,
    "reduce_scatter": _Grids.scattered,
    "slice": _Grids.sliced,
}


def _grown(local: int, held: Held, after: Held) -> int:
    """Elements on a device with a dimension padded so that the cut comes out even."""
    return local // max(held.block, 1) * after.block * (after.count // held.count)
