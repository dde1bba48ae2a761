"""Moves between layouts of which a size does not divide, in the digits of the mesh.

`grids.py` finds them on numbered digits, and so once for all layouts that differ in names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardalg.algebra.digits import Digits, overlap
from shardalg.reshard.grids import Hop, Labels, Puzzle, solve
from shardalg.reshard.grids import State as Found
from shardalg.reshard.padded import gathered, padded_path
from shardalg.reshard.retile import Retile
from shardalg.reshard.route import primes, unused
from shardalg.reshard.search import Move, Shape, State, Step, plain
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
)

PIECES = 3
"""Digits of prime size among which is searched; with more of them there are too many states."""


def search(shape: Shape, start: State, goal: State, axes: Digits, *, padded: bool) -> list[Step]:
    """Fewest elements sent, then fewest moves that send.

    What a search finds, which looks at every grid of few digits; of more digits, or where blocks
    are not padded, the path of the padded tensor, or gathering and slicing.

    Args:
      axes: of the mesh.
      padded: whether there are other blocks than those of `ceil(D/n)`, whose bytes are formulas.
    """
    ends = [
        (tuple(map(primes, plain(dims))), *map(primes, plain((p,)))) for dims, p in (start, goal)
    ]
    names = _named(reversed(ends), *plain((axes,)))
    named = any(type(n) is not int for n in shape)
    few = len(names) <= PIECES
    best = None
    if named or not (few and padded):
        ways = padded_path(shape, start, goal, axes), gathered(shape, start, goal)
        if not padded:
            ways = [way for way in ways if way and all(step.shape == shape for step in way)]
        best = min([way for way in ways if way is not None], key=_price)
    if not few:
        return best
    puzzle, limit = _puzzle(shape, ends, names, padded=padded), _price(best) if best else None
    # recorded sizes note what is asked of them, so they are asked every time
    hops = (solve.__wrapped__ if named else solve)(puzzle, limit)
    if hops is None:
        return best or gathered(shape, start, goal)
    return [_step(shape, before, hop, names) for before, hop in hops]


def _price(way: Iterable[Step]) -> tuple[object, int]:
    """Elements that are sent, and moves that send."""
    sent = [step.sent for step in way]
    return sum(sent), sum([elements > 0 for elements in sent])


def _named(ends: Iterable[State], axes: Digits) -> Digits:
    """All digits that take part, those of the goal first; their places are their numbers."""
    held = [digit for dims, pending in ends for digits in (*dims, pending) for digit in digits]
    known = tuple(dict.fromkeys(held))
    return (*known, *unused(known, axes))


def _puzzle(shape: Shape, ends: Iterable[State], names: Digits, *, padded: bool) -> Puzzle:
    number = {digit: k for k, digit in enumerate(names)}
    numbered = [
        (
            tuple(tuple(number[d] for d in digits) for digits in dims),
            tuple(map(number.get, pending)),
        )
        for dims, pending in ends
    ]
    sizes = tuple(digit.size for digit in names)
    overlaps = tuple(tuple(k for k, b in enumerate(names) if overlap(a, b)) for a in names)
    return Puzzle(shape, sizes, overlaps, *numbered, padded=padded)


def _step(shape: Shape, before: Found, hop: Hop, names: Digits) -> Step:
    """A hop as a move of the mesh's digits."""

    def named(labels: Labels) -> Digits:
        return tuple([names[k] for k in labels])

    (after, pending), made = hop.after, hop.move
    dims = tuple([named(held.digits) for held in after])
    padded = tuple(
        size if held.block == -(-size // held.count) else held.block * held.count
        for size, held in zip(shape, after, strict=True)
    )
    if made.kind == "retile":
        (dim,) = made.dims
        blocks = before[0][dim].block, after[dim].block
        move = Retile(dim, dims[dim], shape[dim], *blocks)
    elif made.kind == "collective_permute":
        pairs = zip(before[0], after, strict=True)
        changed = {k for a, b in pairs if a.digits != b.digits for k in (*a.digits, *b.digits)}
        move = CollectivePermute(tuple(sorted(named(tuple(changed)), reverse=True)), ())
    else:
        move = _MOVES[made.kind](hop, named(made.leaving), named(made.arriving))
    return Step(move, (dims, named(pending)), hop.sent, padded)


_MOVES: dict[str, Callable[[Hop, Digits, Digits], Move]] = {
    "all_gather": lambda hop, leaving, _: AllGather(*hop.move.dims, leaving),
    "all_reduce": lambda _, leaving, __: AllReduce(leaving),
    "reduce_scatter": lambda hop, leaving, _: ReduceScatter(*hop.move.dims, leaving),
    "slice": lambda hop, leaving, _: DynamicSlice(
        *hop.move.dims, leaving, hop.after[0][hop.move.dims[0]].block
    ),
    "all_to_all": lambda hop, leaving, arriving: AllToAll(
        *hop.move.dims, leaving, () if arriving == leaving else arriving
    ),
}
