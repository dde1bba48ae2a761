"""The cheapest chain of moves between shardings in which a size does not divide, by search (A*).

A dimension of `D` elements is padded to a multiple of the numbers of parts that it goes through, so
that its blocks are cut and concatenated like even ones. Such a padding is a *grid*. Every sharding
begins and ends with blocks of `ceil(D/n)`; a *retile* goes from one grid to another
(`exchanges.py`). A retile keeps the digits, and each device fetches the elements of its new block
that its old one lacks: no more elements than the mesh has devices, for every `D`. A whole dimension
changes its grid for free.

The moves do not depend on the ends, so a path through any other sharding costs no less. Even sizes
have a normal form, for which `even.py` and `closed_forms.py` are used instead.
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
from shardalg.planner.reshard.closed_forms import with_row
from shardalg.planner.reshard.exchanges import margin

Labels = tuple[int, ...]
"""Numbers of digits of prime size, major first."""
Rows = tuple[Labels, ...]
"""The digits of each dimension."""
Layout = tuple[Rows, Labels]
"""Digits per dimension, and the digits along which sums are pending."""


@dataclass(frozen=True, eq=False, slots=True)
class BlockedDimension:
    """One dimension: its digits, the number of parts, and the size of a block.

    A search has one object per content, so that states are compared by identity first.
    """

    digits: Labels
    count: int
    block: int


Dims = tuple[BlockedDimension, ...]
State = tuple[Dims, Labels]
"""All dimensions, and the digits along which sums are pending."""


class GridMove(NamedTuple):
    """A move of the search on padded sizes ("grids").

    Attributes:
      sent: elements that a device sends.
      after: the state after the move.
      kind: the kind of collective as prices name it, or "slice", or "retile".
      dims: the dimension of the move; for an all-to-all the one that is cut, then the other.
      leaving: the digits that the move gathers, cuts by, reduces along, or moves.
      arriving: the digits that an all-to-all moves, in the order in which they arrive.
    """

    sent: Any
    after: State
    kind: str
    dims: tuple[int, ...] = ()
    leaving: Labels = ()
    arriving: Labels = ()


@dataclass(frozen=True)
class GridProblem:
    """The problem of a search: a reshard of one tensor, with digits replaced by numbers.

    Attributes:
      shape: the global shape.
      sizes: number of devices along each digit.
      overlaps: per digit, the numbers of the digits that overlap it, itself included.
      start, goal: the digits of each dimension, and the digits of pending sums, at both ends.
      padded: whether blocks of other sizes than `ceil(D/n)` may be used.
    """

    shape: tuple[int, ...]
    sizes: Labels
    overlaps: tuple[Labels, ...]
    start: Layout
    goal: Layout
    padded: bool = True


@lru_cache(maxsize=1 << 14)
def solve(problem: GridProblem, limit: Cost) -> tuple[tuple[State, GridMove], ...] | None:
    """Return the cheapest path of moves, each with the state before it.

    None if no path costs less than the limit.
    """
    grids = _Grids(problem)
    # Many paths have equal bounds. The search continues the latest one: it goes deep, not wide.
    found = best_first(grids, (grids.start,), limit=limit, latest=True)
    return None if found is None else tuple(found[1])


class _Grids:
    """The search problem: moves between shardings whose sizes may be padded in several ways.

    The bound of the remaining cost is the number of goal elements that a device lacks.
    """

    def __init__(self, problem: GridProblem) -> None:
        """Set both ends of the search as states, and the tables of its bound.

        `wanted` and `needed` are the elements of the first device's block of the goal, per
        dimension and in all. `named` has the goal's digits. The rest are caches: `shared` has, per
        dimension, the elements that a block has in common with the goal's block; `arrangements`
        has, by numbers of parts, all ways to give digits to the dimensions; `known` has the results
        of all other methods.
        """
        self.shape, self.sizes, self.overlaps = problem.shape, problem.sizes, problem.overlaps
        self.padded, self.kept = problem.padded, problem.goal[1]
        self.devices = prod(problem.sizes)
        # All caches share one dictionary. Their keys have different types or lengths.
        self.known: dict[object, Any] = {}
        self.arrangements: dict[Labels, list[Rows]] = {}
        self.named = frozenset(digit for digits in problem.goal[0] for digit in digits)
        self.start, self.goal = (self.natural(*end) for end in (problem.start, problem.goal))
        # Elements of the first device's block of the goal. If the tensor is shorter than a block,
        # the rest of the block is padding, which nobody sends.
        wanted = zip(self.goal[0], self.shape, strict=True)
        self.wanted = [min(held.block, size) for held, size in wanted]
        self.needed = prod(self.wanted)
        self.shared: tuple[dict[BlockedDimension, int], ...] = tuple({} for _ in self.shape)

    def natural(self, dims: tuple[Labels, ...], pending: Labels) -> State:
        """Return the state of a sharding with blocks of `ceil(size / n)` in each dimension."""
        counts = map(self.parts, dims)
        held = [
            self.held(digits, n, -(-size // n))
            for size, digits, n in zip(self.shape, dims, counts, strict=True)
        ]
        return tuple(held), pending

    def held(self, digits: Labels, n: int, block: int) -> BlockedDimension:
        """Return the one object for these digits and this block, so that states compare fast."""
        found = self.known.get((digits, block))
        if found is None:
            found = self.known[digits, block] = BlockedDimension(digits, n, block)
        return found

    def parts(self, digits: Labels) -> int:
        """Return the number of parts along these digits."""
        return prod([self.sizes[digit] for digit in digits])

    def blocks(self, dim: int, n: int) -> tuple[int, ...]:
        """Return the block sizes that dimension `dim` may have if it is split into `n` parts.

        Without padding of other sizes, the only one is `ceil(size/n)`. With it, the dimension may
        also be padded as for k parts, where k is a multiple of n. A block then has `k/n` blocks of
        `ceil(size/k)` elements, and can be split into these without moving elements. For example,
        10 elements in 2 parts on 8 devices -> 5 (k=2), 6 (k=4, two times 3), 8 (k=8, four times 2).
        """
        found = self.known.get((dim, n))
        if found is None:
            # The search asks for the same sizes many times, so they are remembered in `known`.
            size, most_parts = self.shape[dim], self.devices if self.padded else n
            finer = [k for k in range(n, most_parts + 1, n) if self.devices % k == 0]
            sizes = {-(-size // k) * (k // n) for k in finer}
            found = self.known[dim, n] = tuple(sorted(sizes))
        return found

    def lacking(self, dims: Dims) -> int:
        """Return a lower bound of the elements that a device still has to receive.

        It is the number for one device: the one that needs the first block of the goal, and is last
        along all digits that the goal does not name, so that it has as little of that block as
        possible.

        Args:
          dims: the digits, parts and block size of each dimension now.
        """
        # The elements that the device has of its goal block form a block, too: their number is the
        # product of the overlaps of all dimensions.
        shared = 1
        for dim, blocked in enumerate(dims):
            overlap = self.shared[dim].get(blocked)
            if overlap is None:
                overlap = self.shared[dim][blocked] = self._overlap(dim, blocked)
            shared *= overlap
        return self.needed - shared

    def _overlap(self, dim: int, held: BlockedDimension) -> int:
        """Return how many of the needed elements along a dimension a device has already.

        The bound of the search counts them for one device. Its block of the goal starts at 0, and
        its present block is as far from there as possible.

        Args:
          held: the present digits and block size of the dimension.
        """
        # The device of `lacking` has coordinate 0 along digits of the goal, so its block of the
        # goal is [0, wanted). Its block now begins at its partition id times the block size.
        first = 0
        for digit in held.digits:
            last = 0 if digit in self.named else self.sizes[digit] - 1
            first = first * self.sizes[digit] + last
        first *= held.block
        return max(0, min(self.wanted[dim], first + held.block) - first)

    def is_goal(self, state: State) -> bool:
        """Return whether a state is the goal."""
        return state == self.goal

    def least(self, state: State) -> Any:
        """Return a lower bound of the elements that a device sends on a path to the goal."""
        return self.lacking(state[0])

    def onward(self, state: State, _: Cost) -> Iterator[tuple[Cost, State, GridMove]]:
        """Yield every move, with its price and the state after it."""
        for hop in self.moves(*state):
            yield (hop.sent, hop.sent > 0), hop.after, hop

    def moves(self, dims: Dims, pending: Labels) -> Iterator[GridMove]:
        """Yield every move from a state, retiles (changes of a block size) last.

        Args:
          dims: the digits and blocks of each dimension.
          pending: the digits along which sums are pending.
        """
        local = prod([held.block for held in dims])
        yield from self.sums(dims, pending, local)
        for digit in self.free(dims, pending):
            for dim, held in enumerate(dims):
                for after in self.cut(dim, held, (digit,)):
                    yield GridMove(
                        0, (with_row(dims, dim, after), pending), "slice", (dim,), (digit,)
                    )
        # Reducing sums before anything else is sent keeps the search small. If some sums stay
        # pending to the end, `pending` is never empty, and the other moves must be possible, too.
        if not pending or self.kept:
            yield from self.gathers(dims, pending, local)
            yield from self.swaps(dims, pending, local)
            # A permute would move partial sums out of the groups that add them.
            yield from self.permutes(dims, local) if not pending else ()
        yield from self.retiles(dims, pending, local)

    def retiles(self, dims: Dims, pending: Labels, local: int) -> Iterator[GridMove]:
        """Yield the changes of block size (retiles) of every dimension.

        Args:
          local: the number of elements that a device has before.
        """
        for dim, held in enumerate(dims):
            for width, after in self.retile_options(dim, held):
                state = with_row(dims, dim, after), pending
                yield GridMove(local // held.block * width, state, "retile", (dim,))

    def gathers(self, dims: Dims, pending: Labels, local: int) -> Iterator[GridMove]:
        """Yield the all-gathers; a device has `local` elements before."""
        for dim, held in enumerate(dims):
            for after, leaving in self.without_minor_digits(dim, held):
                sent, made = local * (held.count // after.count - 1), with_row(dims, dim, after)
                yield GridMove(sent, (made, pending), "all_gather", (dim,), leaving)

    def permutes(self, dims: Dims, local: int) -> Iterator[GridMove]:
        """Yield the permutes that are possible from a state.

        After a permute, each dimension has as many parts as before, along other digits.

        Args:
          dims: the digits of each dimension, and its number of parts and block size.
          local: the number of elements in the block that a device sends.
        """
        for rows in self.arranged(tuple([blocked.count for blocked in dims])):
            pairs = zip(dims, rows, strict=True)
            new_dims = tuple([self.held(row, old.count, old.block) for old, row in pairs])
            # With the same digits, every device would keep its block.
            if new_dims != dims:
                yield GridMove(local, (new_dims, ()), "collective_permute")

    def sums(self, dims: Dims, pending: Labels, local: int) -> Iterator[GridMove]:
        """Yield all-reduces and reduce-scatters of sums that are not pending in the goal.

        Args:
          dims: the digits and blocks of each dimension.
          pending: the digits along which sums are pending.
          local: the number of elements of a device's block.
        """
        to_reduce = tuple(d for d in pending if d not in self.kept)
        # One all-reduce along all digits sends least, and one digit alone can be reduced early. A
        # single digit gives the same move twice, which the dictionary has once.
        single_digits = [(digit,) for digit in to_reduce]
        for digits in dict.fromkeys([to_reduce, *single_digits]) if to_reduce else ():
            rest = tuple(d for d in pending if d not in digits)
            sent = step_wire_bytes("all_reduce", group_size=self.parts(digits), local_bytes=local)
            yield GridMove(sent, (dims, rest), "all_reduce", (), digits)
        # A reduce-scatter shards one dimension further. Padding of an uneven block is sent, too.
        for digit in to_reduce:
            n, rest = self.sizes[digit], tuple(d for d in pending if d != digit)
            for dim, before in enumerate(dims):
                for after in self.cut(dim, before, (digit,)):
                    padded = _padded_elements(local, before, after)
                    new_dims = with_row(dims, dim, after)
                    sent = step_wire_bytes("reduce_scatter", group_size=n, local_bytes=padded)
                    yield GridMove(sent, (new_dims, rest), "reduce_scatter", (dim,), (digit,))

    def swaps(self, dims: Dims, pending: Labels, local: int) -> Iterator[GridMove]:
        """Yield the all-to-alls that are possible from a state.

        An all-to-all moves minor digits of one dimension to the minor end of another dimension.

        Args:
          dims: the digits and blocks of each dimension.
          pending: the digits along which sums are pending; they stay pending.
          local: the number of elements of a device's block before the all-to-all.
        """
        for source, held in enumerate(dims):
            for stays, leaving in self.without_minor_digits(source, held):
                n, rest = held.count // stays.count, with_row(dims, source, stays)
                for dim, other in enumerate(dims):
                    # An all-to-all delivers its digits in any order for the same bytes.
                    for arriving in permutations(leaving) if dim != source else ():
                        # There is one result per padded size that the dimension may have.
                        for after in self.cut(dim, other, arriving):
                            # Of the n pieces of its block, a device keeps one.
                            sent = _padded_elements(local, other, after) // n * (n - 1)
                            made, on = with_row(rest, dim, after), (dim, source)
                            yield GridMove(
                                sent, (made, pending), "all_to_all", on, leaving, arriving
                            )

    def free(self, dims: Dims, pending: Labels) -> Iterator[int]:
        """Yield the digits that no dimension and no partial sum uses.

        Digits that the goal does not name are interchangeable if their sizes are equal, so only one
        of each size is yielded.
        """
        # A digit that overlaps a used one is in use as well; each digit overlaps itself.
        used = {other for digit in pending for other in self.overlaps[digit]}
        used.update(*[self.overlaps[digit] for blocked in dims for digit in blocked.digits])
        yielded_sizes = set[int]()
        for digit, size in enumerate(self.sizes):
            if digit not in used and (digit in self.named or size not in yielded_sizes):
                # Digits of the goal (`named`) are all different, so their sizes do not count.
                yielded_sizes.update(() if digit in self.named else (size,))
                yield digit

    def arranged(self, counts: Labels) -> list[Rows]:
        """Return every way to shard the dimensions into the given numbers of parts.

        A way has one row per dimension: the numbers of its digits, major first.

        Args:
          counts: the number of parts of each dimension.
        """
        if counts not in self.arrangements:
            self.arrangements[counts] = list(self._completions(counts, (), frozenset()))
        return self.arrangements[counts]

    def _completions(self, counts: Labels, made: Rows, used: frozenset[int]) -> Iterator[Rows]:
        """Yield every completion of `made` to one row of digits per dimension.

        Args:
          counts: the number of parts of each dimension; the digits of a row must have this product.
          made: the rows of the first dimensions.
          used: digits that may not be used any more, because a row has or overlaps them.
        """
        # Every dimension has its row.
        if len(made) == len(counts):
            yield made
            return
        # Try each row of the next dimension. Later dimensions must not use its digits again.
        for row in self._rows((), counts[len(made)], used):
            blocked = used.union(*[self.overlaps[digit] for digit in row])
            yield from self._completions(counts, (*made, row), blocked)

    def _rows(self, head: Labels, n: int, used: frozenset[int]) -> Iterator[Labels]:
        """Yield `head` extended by unused digits, in each way that gives n times as many parts.

        For example, with the digits 0 and 1 of size 2 each, n = 4 -> (0, 1) and (1, 0).

        Args:
          head: the digits of the dimension so far.
          n: the product that the sizes of the further digits must have.
          used: the digits that may not be used.
        """
        # No further part is needed.
        if n == 1:
            yield head
            return
        # Any digit may come next whose size divides the product.
        for digit, size in enumerate(self.sizes):
            if digit not in used and n % size == 0:
                blocked = used.union(self.overlaps[digit])
                yield from self._rows((*head, digit), n // size, blocked)

    def cut(self, dim: int, held: BlockedDimension, digits: Labels) -> list[BlockedDimension]:
        """Return a dimension cut by more digits, once per padded size that it may have.

        A sharded dimension keeps its padded size (its grid). A whole one may take any.
        """
        found = self.known.get((dim, held, digits))
        if found is None:
            n, size = held.count * self.parts(digits), held.count * held.block
            found = self.known[dim, held, digits] = [
                self.held(held.digits + digits, n, block)
                for block in self.blocks(dim, n)
                # A whole dimension is padded for free, a sharded one keeps its padded size.
                if held.count == 1 or block * n == size
            ]
        return found

    def without_minor_digits(
        self, dim: int, held: BlockedDimension
    ) -> list[tuple[BlockedDimension, Labels]]:
        """Return the dimension after each possible gather, and the digits that the gather removes.

        A gather removes one or more digits from the minor end. The gathered block must have one of
        the sizes that the search allows (`blocks`); a dimension that becomes whole always may.
        """
        options = self.known.get((dim, held))
        if options is None:
            options = self.known[dim, held] = []
            # `num_left` digits stay; with none of them, the dimension is whole.
            for num_left in range(len(held.digits)):
                digits, leaving = held.digits[:num_left], held.digits[num_left:]
                n = self.parts(digits)
                # A gathered block has the blocks of all parts that it replaces. A dimension that
                # becomes whole loses its padding.
                block = held.block * (held.count // n) if num_left else self.shape[dim]
                if not num_left or block in self.blocks(dim, n):
                    options.append((self.held(digits, n, block), leaving))
        return options

    def retile_options(
        self, dim: int, held: BlockedDimension
    ) -> list[tuple[int, BlockedDimension]]:
        """Return a dimension in every other block size that one retile can give it.

        A retile keeps the devices of all parts and moves the borders between the blocks. Each entry
        is (margin, dimension): the elements that a device fetches from its neighbour, and the
        dimension after the retile.
        """
        options = self.known.get((held, dim))
        if options is None:
            options = self.known[held, dim] = []
            # A dimension of one part has no border to move.
            block_sizes = self.blocks(dim, held.count) if held.count > 1 else ()
            for block in block_sizes:
                # For an empty dimension, `margin` would divide by a block size of 0. It returns
                # None if elements would move further than to a neighbour.
                width = held.block and margin(self.shape[dim], held.count, held.block, block)
                if block != held.block and width is not None:
                    options.append((width, self.held(held.digits, held.count, block)))
        return options


def _padded_elements(local: int, held: BlockedDimension, after: BlockedDimension) -> int:
    """Return the number of a device's elements after a dimension is padded for an even cut.

    Args:
      local: the number before.
      held, after: the dimension before it is padded, and after it is cut.
    """
    return local // max(held.block, 1) * after.block * (after.count // held.count)
