"""The cheapest chain of moves where some axes have slower links than others, by search (A*).

Of equal links a normal form is known (`route.py`). Where links differ it pays to gather along a
slow axis while blocks are small, to leave that axis where it is, to add up along the fast ones
first: each move counts its bytes on the slowest of its axes, as `costs.collectives.seconds` does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, count, permutations
from operator import index

from shardalg.algebra.digits import Digit, Digits, overlap, parts
from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import axis_names
from shardalg.costs.hardware import Hardware
from shardalg.reshard.route import Dims, Shape
from shardalg.reshard.search import (
    Move,
    State,
    Step,
    Way,
    additions,
    bound,
    local_elements,
    plain,
    replaced,
)
from shardalg.reshard.shuffle import Swap
from shardalg.spmd.instructions import AllGather, DynamicSlice

EVERY_ORDER = 3
"""Of so many digits an all-to-all brings any order; of more that in which they left."""
MOST = 1000
"""Layouts after which the search gives up."""
Ends = tuple[Shape, State, State]
"""A shape that the parts of two layouts divide, and the two."""


@dataclass(frozen=True)
class Links:
    """How many times slower than the fastest axis each one is: (axis name, factor)."""

    mesh: Mesh
    slowness: tuple[tuple[str, float], ...]

    def factor(self, digits: Digits) -> float:
        """Of the slowest axis that a collective along these digits uses."""
        found = self._known.get(digits)
        if found is None:
            factors = [self._factors[name] for name in axis_names(self.mesh, digits)]
            found = self._known[digits] = max(factors, default=1.0)
        return found

    @cached_property
    def _factors(self) -> dict[str, float]:
        return dict(self.slowness)

    @cached_property
    def _known(self) -> dict[Digits, float]:
        return {}

    def sent(self, steps: Iterable[tuple[Move, object]]) -> float:
        """What moves send, each element as often as its axis is slow."""
        return sum(sent * self.factor(move.digits) for move, sent in steps if sent)

    def alike(self, moves: Iterable[Move]) -> bool:
        """Whether the slowest axes of these moves are as slow as each other."""
        return len({self.factor(move.digits) for move in moves}) == 1

    def cheaper(self, ends: Ends, axes: Digits, steps: list[Step]) -> list[Step]:
        """These steps between two layouts, or others that send less on these links."""
        limit = self.sent((move, sent) for move, _, sent in steps)
        return search(ends, axes, self, limit) or steps


def links_on(mesh: Mesh, hardware: Hardware | None) -> Links | None:
    """The links of a mesh's axes where they differ, else None.

    >>> mesh, chip = Mesh({"dcn": 2, "ici": 4}), Hardware("toy", link_bytes_per_s=1e9)
    >>> links_on(mesh, chip) is None
    True
    >>> links_on(mesh, chip.with_links({"dcn": 1e8})).slowness
    (('dcn', 10.0), ('ici', 1.0))
    """
    speeds = {} if hardware is None else {name: hardware.link([name]) for name in mesh.axis_names}
    if len(set(speeds.values())) < 2:
        return None
    fastest = max(speeds.values())
    return Links(mesh, tuple((name, fastest / speed) for name, speed in speeds.items()))


def search(ends: Ends, axes: Digits, links: Links, limit: float) -> list[Step] | None:
    """Fewest elements sent, each as often as its axis is slow, then fewest moves that send.

    None where nothing is below the limit, or too many layouts lie between the ends. Every buffer on
    the way is at most as large as at the larger end.

    Args:
      axes: of the mesh.
      limit: what some way sends, counted like that.
    """
    shape, (dims, pending), (wanted, kept) = ends
    shape, start = tuple(map(index, shape)), (plain(dims), *plain((pending,)))
    goal = (plain(wanted), *plain((kept,)))
    most = max(local_elements(shape, dims) for dims, _ in (start, goal))
    held = tuple({d: None for dims, more in (start, goal) for ds in (*dims, more) for d in ds})
    (axes,), numbers = plain((axes,)), count()
    digits = (*held, *(a for a in axes if not any(overlap(a, d) for d in held)))
    heap: list[tuple[float, int, int, float, State, tuple[Step, ...]]] = []
    heap.append((0.0, 0, next(numbers), 0.0, start, ()))
    best: dict[State, float] = {}
    while heap and len(best) < MOST:
        _, hops, _, spent, state, steps = heapq.heappop(heap)
        if state == goal:
            (move, _, price) = steps[-1]
            return [*steps[:-1], (move, ends[2], price)]
        if best.get(state, limit) <= spent:
            continue
        best[state] = spent
        for step in _moves(shape, (state, goal), digits, links):
            move, after, price = step
            cost = spent + price * links.factor(move.digits) if price else spent
            least = cost + bound(shape, after, goal)
            small = local_elements(shape, after[0]) <= most
            if small and least < limit and best.get(after, limit) > cost:
                entry = (least, hops + (price > 0), next(numbers), cost, after, (*steps, step))
                heapq.heappush(heap, entry)
    return None


def _moves(shape: Shape, ends: tuple[State, State], digits: Digits, links: Links) -> Iterator[Step]:
    state, goal = ends
    dims, pending = state
    yield from additions(shape, state, goal)
    used = [*pending, *(d for held in dims for d in held)]
    free = [d for d in digits if not any(overlap(d, u) for u in used)]
    for dim, held in enumerate(dims):
        for digit in free:
            if shape[dim] % parts((*held, digit)) == 0:
                move = DynamicSlice(dim, (digit,), shape[dim] // parts((*held, digit)))
                yield move, (replaced(dims, dim, (*held, digit)), pending), 0
        for keep in range(len(held)):
            way = Way(shape, *state)
            way.add(AllGather(dim, held[keep:]), replaced(dims, dim, held[:keep]), "all_gather")
            yield from way.steps
            yield from _swaps(shape, state, (dim, held[keep:]))
    for wanted in _renamed(dims, goal[0], (digits, links)) if not pending else ():
        way = Way(shape, *state)
        way.permute(wanted)
        yield from way.steps


def _swaps(shape: Shape, state: State, leaving: tuple[int, Digits]) -> Iterator[Step]:
    source, moved = leaving
    for target, held in enumerate(state[0]):
        if target != source and shape[target] % parts(held + moved) == 0:
            every = permutations(moved) if len(moved) <= EVERY_ORDER else (moved,)
            for arriving in every:
                way = Way(shape, *state)
                way.swap(Swap(source, target, moved, arriving))
                yield from way.steps


def _renamed(dims: Dims, goal: Dims, digits: tuple[Digits, Links]) -> Iterator[Dims]:
    """Other digits in the same places: two of them exchanged, or all that the goal has there.

    Of digits that are at most as slow as some axis, so that slow ones may stay where they are.
    """
    every, links = digits
    for one, other in combinations(every, 2):
        if one.size == other.size:
            yield _exchanged(dims, {one: other, other: one})
    for most in sorted({factor for _, factor in links.slowness}):
        names = {d: d for d in every}
        for held, wanted in zip(dims, goal, strict=True):
            for old, new in zip(held, wanted, strict=False):
                slowest = max(links.factor((old,)), links.factor((new,)))
                if old.size == new.size and slowest <= most:
                    here = next(d for d, name in names.items() if name == new)
                    names[here], names[old] = names[old], new
        yield _exchanged(dims, names)


def _exchanged(dims: Dims, names: Mapping[Digit, Digit]) -> Dims:
    return tuple([tuple([names.get(digit, digit) for digit in digits]) for digits in dims])
