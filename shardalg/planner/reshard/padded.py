"""Paths of sizes that do not divide, built from the path of a padded tensor.

A dimension that goes from `n` parts to `m` is padded to a multiple of `lcm(n, m)`, and takes the
path of the padded tensor. Its blocks become the padded ones before the first move that changes its
number of parts, and blocks of `ceil(D/m)` after the last. A retile changes them; it is not needed
for blocks of equal size and for whole dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import lcm, prod
from typing import Any

from shardalg.algebra.digits import Digits, parts
from shardalg.costs.collectives import step_wire_bytes
from shardalg.planner.reshard.closed_forms import with_row
from shardalg.planner.reshard.even import Move, SearchStep, Shape, State, tile
from shardalg.planner.reshard.even import search as even_search
from shardalg.planner.reshard.exchanges import Retile, margin
from shardalg.sizes.amounts import quotient
from shardalg.sizes.formula import has_formula
from shardalg.sizes.recorded import are_numbers
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import AllGather, AllReduce, AllToAlls, DynamicSlice


class _PaddedMoves:
    """A sequence of moves on padded blocks.

    Attributes:
      shape: sizes of the tensor.
      now: the padded size of each dimension.
    """

    def __init__(self, shape: Shape, start: State) -> None:
        self.shape, self.state = shape, start
        self.now = [self.natural(dim, digits) for dim, digits in enumerate(start[0])]
        self.steps: list[SearchStep] = []

    def natural(self, dim: int, digits: Digits) -> int:
        """Return the size of a dimension with the padding of its last block.

        It is `n * ceil(size / n)` if the digits divide the dimension into n blocks.
        """
        n = parts(digits)
        return tile(self.shape[dim], n) * n

    def retile(self, dim: int, size: int) -> bool:
        """Append a retile of a dimension to padded size `size`; return whether this is possible.

        It is not possible if a device lacks elements of more than one neighbour.
        """
        digits, before = self.state[0][dim], self.now[dim]
        n = parts(digits)
        # A device with the whole dimension has every element, so its padding changes without
        # communication.
        if n == 1 or before == size:
            return True
        move = Retile(dim, digits, self.shape[dim], before // n, size // n)
        width = None
        # Formulas have no margin: such a dimension is gathered.
        if are_numbers((before, size)):
            width = margin(self.shape[dim], n, move.before, move.after)
        if width is not None:
            # A device sends `width` slices across all its other dimensions.
            others = prod(self.block(d) for d in range(len(self.shape)) if d != dim)
            self.now[dim] = size
            self.add(move, self.state, width * others)
        return width is not None

    def block(self, dim: int) -> int:
        """Return a device's block size of a dimension, padding included."""
        return self.now[dim] // parts(self.state[0][dim])

    def move(self, move: Move, after: State, grid: Shape) -> None:
        """Append a move of the padded tensor, with the price of the padded blocks.

        A dimension that was whole and is cut now gets its padded size `grid[dim]` first. A
        dimension that is whole again after the move loses its padding.

        Args:
          move: the move. after: the state after it.
          grid: the padded sizes of dimensions that the move cuts.
        """
        # `local` is the number of elements in the padded block that a device has before the move.
        kind, local = move.sent_as if isinstance(move, Collective) else None, 1
        for dim, (old_digits, new_digits) in enumerate(zip(self.state[0], after[0], strict=True)):
            is_first_cut = len(new_digits) > len(old_digits) and not old_digits
            local *= grid[dim] if is_first_cut else self.block(dim)
            # Another number of parts changes the padded size (`now`); a permute does not.
            if old_digits != new_digits and parts(old_digits) != parts(new_digits):
                self.now[dim] = grid[dim] if new_digits else self.shape[dim]
        # A device of a permute sends its block to one other device, however many digits change.
        size = 2 if kind == "collective_permute" else parts(move.digits)
        sent = step_wire_bytes(kind, group_size=size, local_bytes=local) if kind else 0
        self.add(move, after, sent)

    def add(self, move: Move, after: State, sent: Any) -> None:
        """Append a step to the sequence, with the padded sizes after it.

        Args:
          after: the state after the move. sent: the elements that a device sends.
        """
        self.state = after
        # Natural blocks are blocks of the tensor itself, so such a dimension has its own size.
        shape = [
            size if now == self.natural(dim, digits) else now
            for dim, (size, now, digits) in enumerate(
                zip(self.shape, self.now, after[0], strict=True)
            )
        ]
        self.steps.append(SearchStep(move, after, sent, tuple(shape)))


def padded_path(shape: Shape, start: State, goal: State, axes: Digits) -> list[SearchStep] | None:
    """Return the moves of a reshard that pads dimensions, so that all blocks have equal sizes.

    Each dimension that changes its number of parts is padded to a size that both numbers of parts
    divide. Then the search for even sizes finds the path. Return None if a device would need
    elements of more than one neighbour to form its padded block. For example, 10 elements from 4 to
    2 parts are padded to 12.

    Args:
      start, goal: states (digits of each dimension, digits of pending sums).
      axes: digits of mesh axes that the path may use.
    """
    counts = [lcm(parts(old), parts(new)) for old, new in zip(start[0], goal[0], strict=True)]
    grid = tuple(tile(size, n) * n for size, n in zip(shape, counts, strict=True))
    moves = list(_one_by_one(start, even_search(grid, start, goal, axes)))
    path = _PaddedMoves(shape, start)
    states = [start, *[after for _, after in moves]]
    # Only moves that change a dimension's number of parts need its padded size. `changed` has these
    # dimensions for each move.
    changed = [
        {
            dim
            for dim, (old, new) in enumerate(zip(before_dims, after_dims, strict=True))
            if old != new and parts(old) != parts(new)
        }
        for (before_dims, _), (after_dims, _) in pairwise(states)
    ]
    for number, (move, after) in enumerate(moves):
        # A retile moves the borders of blocks. False: the elements of one neighbour do not suffice.
        if not all(path.retile(dim, grid[dim]) for dim in changed[number]):
            return None
        path.move(move, after, grid)
        # A dimension returns to its own blocks only after the last move that changes its number of
        # parts, because each such move needs the padded blocks.
        later = {dim for dims in changed[number + 1 :] for dim in dims}
        for dim in changed[number] - later:
            if not path.retile(dim, path.natural(dim, after[0][dim])):
                return None
    return path.steps


def _one_by_one(start: State, steps: Iterable[SearchStep]) -> Iterator[tuple[Move, State]]:
    """Yield the moves of a path and the states after them, with one move per exchange.

    Exchanges that a path makes at once become separate moves, because each of them pads and cuts
    the blocks of its own dimensions.
    """
    dims = start[0]
    for step in steps:
        if isinstance(step.move, AllToAlls):
            # The exchanges share no dimension, so the digits after each of them follow one by one.
            for one in step.move.exchanges:
                held, arriving = dims[one.concat_dim], one.arriving or one.digits
                dims = with_row(dims, one.concat_dim, held[: len(held) - len(one.digits)])
                dims = with_row(dims, one.split_dim, dims[one.split_dim] + arriving)
                yield one, (dims, step.state[1])
        else:
            yield step.move, step.state
        dims = step.state[0]


def gather_path(shape: Shape, start: State, goal: State) -> list[SearchStep]:
    """Return the path that gathers every dimension and then slices.

    Dimensions with the most padding are gathered first, which removes their padding early.
    """

    def growth(dim: int) -> Any:
        """Return the elements by which a block grows in a gather, per element sent.

        It is 1 for even blocks. It is less if the last blocks hold padding, which a gather sends,
        too. Formulas have no order, so their growth counts as 0.
        """
        size, n = shape[dim], parts(dims[dim])
        block = tile(size, n)
        if has_formula((block,)) or not block or n == 1:
            return 0
        return quotient(size - block, block * (n - 1))

    path, (dims, pending) = _PaddedMoves(shape, start), start
    to_reduce = tuple(d for d in pending if d not in goal[1])
    # Sums come first: a device's block is smallest before the gathers.
    if to_reduce:
        pending = tuple(d for d in pending if d in goal[1])
        path.move(AllReduce(to_reduce), (dims, pending), shape)
    # A small growth means much padding: it is gathered away first.
    for dim in sorted(range(len(shape)), key=growth):
        if dims[dim]:
            move, dims = AllGather(dim, dims[dim]), with_row(dims, dim, ())
            path.move(move, (dims, pending), shape)
    for dim, digits in enumerate(goal[0]):
        if digits:
            # A slice needs blocks of equal size, so the dimension is padded to a multiple first.
            grid = with_row(shape, dim, path.natural(dim, digits))
            dims = with_row(dims, dim, digits)
            block = tile(shape[dim], parts(digits))
            path.move(DynamicSlice(dim, digits, block), (dims, pending), grid)
    return path.steps
