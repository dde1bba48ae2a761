"""The cheapest chain of moves between layouts of which a size does not divide, by search.

Even sizes have a normal form, and take `search.py` and `route.py` instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from shardalg.algebra.digits import parts
from shardalg.costs.collectives import step_wire_bytes
from shardalg.partition.search import (
    Dims,
    Move,
    Shape,
    State,
    Step,
    bound,
    local_elements,
    replaced,
    tile,
)
from shardalg.spmd.program import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
)

Chain = list[Step]
"""Moves, each with the state it leads to and the elements that a device sends for it."""


def nests(size: int, outer: int, inner: int) -> bool:
    """Whether `inner` blocks tile each of `outer` blocks exactly (or the dimension is whole)."""
    return outer == 1 or tile(size, outer) == inner * tile(size, outer * inner)


def search(shape: Shape, start: State, goal: State) -> Chain:
    """Fewest elements sent, then fewest communicating moves (Dijkstra).

    A round visits only states from which the goal may be reached within a limit, as `bound` tells:
    first that of the start, which most pairs meet, then twice as much until the goal is found. A
    limit that is met leaves out no state of a cheapest chain: the answer is that of no limit.
    """
    limit = bound(shape, start, goal)
    while True:
        chain, beyond = _within(shape, (start, goal), limit)
        if chain is not None:
            return chain
        assert beyond is not None, f"{start} to {goal}: gathering and slicing always lead there"
        limit = max(beyond, 2 * limit)


def _within(
    shape: Shape, ends: tuple[State, State], limit: object
) -> tuple[Chain | None, object | None]:
    """The cheapest chain within the limit; without one, the least that is known to go beyond."""
    start, goal = ends
    best: dict[State, tuple[object, int]] = {start: (0, 0)}
    came: dict[State, tuple[State, Move, object]] = {}
    heap: list[tuple[object, int, int, State]] = [(0, 0, 0, start)]
    beyond, numbers = None, count(1)
    while heap:
        cost, hops, _, state = heapq.heappop(heap)
        if state == goal:
            return _chain(came, start, goal), None
        if (cost, hops) > best[state]:
            continue
        for move, after, price in _moves(shape, state, goal):
            key = (cost + price, hops + (price > 0))
            if after in best and key >= best[after]:
                continue
            least = key[0] + bound(shape, after, goal)
            if least > limit:
                beyond = least if beyond is None else min(beyond, least)
                continue
            best[after] = key
            came[after] = (state, move, price)
            heapq.heappush(heap, (*key, next(numbers), after))
    return None, beyond


def _chain(came: dict[State, tuple[State, Move, object]], start: State, goal: State) -> Chain:
    chain, state = [], goal
    while state != start:
        before, move, price = came[state]
        chain.append((move, state, price))
        state = before
    return chain[::-1]


def _moves(
    shape: tuple[int, ...], state: State, goal: State
) -> Iterator[tuple[Move, State, object]]:
    dims, pending = state
    local = local_elements(shape, dims)
    yield from _pending_moves(shape, state, goal, local)
    if pending and not goal[1]:
        return
    yield from _gathers(shape, state, local)
    yield from _slices(shape, state, goal)
    yield from _exchanges(shape, state, local)
    yield from _permutes(state, goal, local)


def _pending_moves(
    shape: tuple[int, ...], state: State, goal: State, local: int
) -> Iterator[tuple[Move, State, object]]:
    dims, pending = state
    todo = tuple(d for d in pending if d not in goal[1])
    if not todo:
        return
    price = step_wire_bytes("all_reduce", group_size=parts(todo), local_bytes=local)
    yield AllReduce(todo), (dims, tuple(d for d in pending if d not in todo)), price
    for digit in todo:
        rest = tuple(d for d in pending if d != digit)
        one = step_wire_bytes("all_reduce", group_size=digit.size, local_bytes=local)
        yield AllReduce((digit,)), (dims, rest), one
        for dim, size in enumerate(shape):
            if nests(size, parts(dims[dim]), digit.size):
                full = local // max(tile(size, parts(dims[dim])), 1)
                padded = full * tile(size, parts(dims[dim]) * digit.size) * digit.size
                price = step_wire_bytes("reduce_scatter", group_size=digit.size, local_bytes=padded)
                after = replaced(dims, dim, (*dims[dim], digit))
                yield ReduceScatter(dim, (digit,)), (after, rest), price


def _gathers(
    shape: tuple[int, ...], state: State, local: int
) -> Iterator[tuple[Move, State, object]]:
    dims, pending = state
    for dim, digits in enumerate(dims):
        for keep in range(len(digits)):
            gone = digits[keep:]
            if nests(shape[dim], parts(digits[:keep]), parts(gone)):
                price = step_wire_bytes("all_gather", group_size=parts(gone), local_bytes=local)
                yield AllGather(dim, gone), (replaced(dims, dim, digits[:keep]), pending), price


def _slices(
    shape: tuple[int, ...], state: State, goal: State
) -> Iterator[tuple[Move, State, object]]:
    """Cut by digits that the goal has on the dimension; a permute can still mend their order."""
    dims, pending = state
    used = {d for digits in dims for d in digits} | set(pending)
    for dim, digits in enumerate(dims):
        extra = tuple(d for d in goal[0][dim] if d not in used)
        for end in range(1, len(extra) + 1):
            n = parts(digits)
            if nests(shape[dim], n, parts(extra[:end])):
                block = tile(shape[dim], n * parts(extra[:end]))
                after = replaced(dims, dim, digits + extra[:end])
                yield DynamicSlice(dim, extra[:end], block), (after, pending), 0


def _exchanges(
    shape: tuple[int, ...], state: State, local: int
) -> Iterator[tuple[Move, State, object]]:
    dims, pending = state
    for source, digits in enumerate(dims):
        for keep in range(len(digits)):
            moved = digits[keep:]
            n = parts(moved)
            if not nests(shape[source], parts(digits[:keep]), n):
                continue
            for target, other in enumerate(dims):
                if target == source or not nests(shape[target], parts(other), n):
                    continue
                whole = tile(shape[target], parts(other))
                padded = local // max(whole, 1) * tile(shape[target], parts(other) * n) * n
                after = replaced(replaced(dims, source, digits[:keep]), target, other + moved)
                price = step_wire_bytes("all_to_all", group_size=n, local_bytes=padded)
                yield AllToAll(target, source, moved), (after, pending), price


def _permutes(state: State, goal: State, local: int) -> Iterator[tuple[Move, State, object]]:
    """Rename the digits: to those of the goal, or so that a dimension begins with the goal's.

    The pairs of positions are left out: only a move that is taken needs them.
    """
    dims, pending = state
    price = step_wire_bytes("collective_permute", group_size=2, local_bytes=local)
    for wanted in _renamed(dims, goal[0]) if not pending else ():
        changed = {d for a, b in zip(dims, wanted, strict=True) if a != b for d in (*a, *b)}
        move = CollectivePermute(tuple(sorted(changed, reverse=True)), ())
        yield move, (wanted, pending), price


def _renamed(dims: Dims, goal: Dims) -> list[Dims]:
    """Layouts of the same blocks, on other devices, that are nearer to the goal."""
    found = []
    if all(parts(a) == parts(b) for a, b in zip(dims, goal, strict=True)):
        found.append(goal)
    for dim, digits in enumerate(dims):
        first = tuple(d for d in goal[dim] if d in digits)
        found.append(replaced(dims, dim, first + tuple(d for d in digits if d not in first)))
    return [layout for layout in dict.fromkeys(found) if layout != dims]
