"""Moves between shardings in which a size does not divide, in the digits of the mesh.

`grids.py` searches them on numbered digits, so that shardings which differ only in the names of
axes are searched once. Blocks are padded (`padded.py`) and exchanged like even ones. At the end a
retile gives them their final borders (`exchanges.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardalg.algebra.digits import Digits, overlap
from shardalg.planner.reshard.best_first import Cost
from shardalg.planner.reshard.closed_forms import primes, unused_digits
from shardalg.planner.reshard.even import Move, SearchStep, Shape, State, plain
from shardalg.planner.reshard.exchanges import Retile
from shardalg.planner.reshard.grids import Dims as Blocks
from shardalg.planner.reshard.grids import GridMove, GridProblem, Labels, Layout, solve
from shardalg.planner.reshard.grids import State as Found
from shardalg.planner.reshard.padded import gather_path, padded_path
from shardalg.sizes.recorded import are_numbers
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
)

PIECES = 3
"""The largest number of prime digits for which grids are searched; more have too many states.

The padded path alone sends more on 236 of the 1,287 uneven pairs of `benchmarks/reshard_paths.py`
on small meshes (2.8 % of all bytes), and on 139 of 780 of `tests/partition/test_uneven.py`.
"""


def search(
    shape: Shape, start: State, goal: State, axes: Digits, *, padded: bool
) -> list[SearchStep]:
    """Return the path from `start` to `goal` that sends the fewest elements.

    Of several such paths it has the fewest moves that send. Two candidates are always compared:
    moves of the padded tensor, and gathering followed by slicing. If the mesh has few axes, a
    search over all paddings (`grids.py`) may find a cheaper path. Named and numeric sizes give the
    same path.

    Args:
      axes: axes of the mesh.
      padded: whether blocks of other sizes than `ceil(D/n)` are allowed. Only those of `ceil(D/n)`
        have formulas.
    """
    first, last = _in_primes(start), _in_primes(goal)
    # The grid search names a digit by its place in this list (`names`), so that reshards which
    # differ only in the names of axes are one problem. The goal's digits come first.
    ends = (last, first)
    held = [digit for dims, pending in ends for digits in (*dims, pending) for digit in digits]
    known = tuple(dict.fromkeys(held))
    names = (*known, *unused_digits(known, plain((axes,))[0]))
    whole = gather_path(shape, start, goal)
    ways = [way for way in (padded_path(shape, start, goal, axes), whole) if way is not None]
    if not padded:
        ways = [way for way in ways if way and all(step.shape == shape for step in way)]
    # The cheapest candidate is the limit of the search. To end early, the search drops each path
    # that cannot cost less.
    best = min(ways, key=_price)
    if len(names) > PIECES:
        return best
    problem = _grid_problem(shape, (first, last), names, padded=padded)
    # Recorded sizes record every comparison, so a search on them must not be cached.
    hops = (solve if are_numbers(shape) else solve.__wrapped__)(problem, _price(best))
    if hops is None:
        return best
    return [_step(shape, before, hop, names) for before, hop in hops]


def _in_primes(state: State) -> State:
    """Return a state in digits of prime size, as plain numbers."""
    dims, pending = state
    return tuple(map(primes, plain(dims))), primes(plain((pending,))[0])


def _price(way: Iterable[SearchStep]) -> Cost:
    """Return the elements sent, and the number of moves that send."""
    sent = [step.sent for step in way]
    return sum(sent), sum([elements > 0 for elements in sent])


def _grid_problem(
    shape: Shape, ends: tuple[State, State], names: Digits, *, padded: bool
) -> GridProblem:
    """Return the search problem of a reshard, in which digit `names[k]` is the number `k`.

    Args:
      ends: the states before and after: (digits of each dimension, digits of pending sums).
      padded: whether blocks may be padded on the path.
    """
    # Without axis names, one cache entry of `solve` serves all shardings with digits of these
    # sizes.
    number = {digit: k for k, digit in enumerate(names)}

    def numbered(state: State) -> Layout:
        """Return a state with numbers in place of digits."""
        labels = tuple(tuple(number[d] for d in digits) for digits in (*state[0], state[1]))
        return labels[:-1], labels[-1]

    start, goal = map(numbered, ends)
    sizes = tuple(digit.size for digit in names)
    # Per digit, the numbers of the digits that overlap it, itself included.
    overlaps = tuple(
        tuple(k for k, other in enumerate(names) if overlap(digit, other)) for digit in names
    )
    return GridProblem(
        shape=shape, sizes=sizes, overlaps=overlaps, start=start, goal=goal, padded=padded
    )


def _step(shape: Shape, before: Found, hop: GridMove, names: Digits) -> SearchStep:
    """Return a move of the search on padded sizes as a move with digits of the mesh.

    Args:
      before: the state of the search before the move.
      hop: the move, whose digits are numbers.
      names: the digit of the mesh for each number.
    """

    def named(labels: Labels) -> Digits:
        return tuple([names[k] for k in labels])

    after, pending = hop.after
    dims = tuple([named(held.digits) for held in after])
    padded = tuple(
        # Blocks of `ceil(D/n)` are blocks of the tensor itself; other blocks belong to a longer
        # one.
        size if held.block == -(-size // held.count) else held.block * held.count
        for size, held in zip(shape, after, strict=True)
    )
    move = _move(shape, before[0], hop, named)
    return SearchStep(move, (dims, named(pending)), hop.sent, padded)


def _move(shape: Shape, before: Blocks, hop: GridMove, named: Callable[[Labels], Digits]) -> Move:
    """Return the instruction of a grid move; a permute gets its pairs of positions later.

    Args:
      before: the blocks of all dimensions before the move.
      named: returns the mesh's digits for numbers of the grid search.
    """
    after, leaving = hop.after[0], named(hop.leaving)
    dim = hop.dims[0] if hop.dims else -1
    match hop.kind:
        case "all_gather":
            return AllGather(dim, leaving)
        case "all_reduce":
            return AllReduce(leaving)
        case "reduce_scatter":
            return ReduceScatter(dim, leaving)
        case "slice":
            return DynamicSlice(dim, leaving, after[dim].block)
        case "all_to_all":
            order = () if hop.arriving == hop.leaving else named(hop.arriving)
            return AllToAll(dim, hop.dims[1], leaving, order)
        case "retile":
            digits = named(after[dim].digits)
            return Retile(dim, digits, shape[dim], before[dim].block, after[dim].block)
    # Only a permute is left. Its groups are as small as possible: devices that differ only in
    # unchanged digits never exchange blocks.
    pairs = [(old.digits, new.digits) for old, new in zip(before, after, strict=True)]
    changed = {label for old, new in pairs if old != new for label in (*old, *new)}
    return CollectivePermute(tuple(sorted(named(tuple(changed)), reverse=True)), ())
