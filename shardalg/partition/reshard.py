"""The cheapest chain of collectives from one layout of a tensor to another."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import index

from shardalg.algebra.digits import Digit, Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import step_wire_bytes
from shardalg.costs.decided import decided
from shardalg.spmd.program import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
)

Dims = tuple[Digits, ...]
State = tuple[Dims, Digits]
Move = AllGather | AllReduce | AllToAll | CollectivePermute | DynamicSlice | ReduceScatter


@dataclass(frozen=True)
class Step:
    """One move and the layout it leads to.

    Attributes:
      attributes: of the instruction.
      layout: sharding after the step.
      wire_elements: elements that a device sends (bytes divided by the item size).
    """

    attributes: Move
    layout: Sharding
    wire_elements: object


@dataclass(frozen=True)
class Path:
    """A chain of steps; `wire_elements` is their sum."""

    steps: tuple[Step, ...]
    wire_elements: object


@decided(1 << 16, lambda source, target: source.numbers)
def reshard_path(source: Sharding, target: Sharding) -> Path:
    """Fewest wire bytes, then fewest communicating steps, from `source` to `target`.

    A shortest path (Dijkstra) over all-gather of minor digits, slice, all-to-all, permute,
    reduce-scatter and all-reduce, each priced by `costs.collectives`. Where a size does not divide,
    only moves whose tiles nest are taken: `ceil(D/n) = m * ceil(D/(n*m))`; gathering a whole
    dimension and slicing a whole one always nest, so a path exists.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> x, y = mesh.digits("x"), mesh.digits("y")
    >>> path = reshard_path(Sharding(mesh, (8, 8), (x, y)), Sharding(mesh, (8, 8), (x + y, ())))
    >>> [type(step.attributes).__name__ for step in path.steps], path.wire_elements
    (['AllToAll'], 6)
    """
    if source.dims == target.dims and source.unreduced == target.unreduced:
        return Path((), 0)
    cuts = _cuts((source, target))
    start, goal = (
        (_refine_dims(s.dims, cuts), tuple(sorted(_refine(s.unreduced, cuts), reverse=True)))
        for s in (source, target)
    )
    steps, total, before = [], 0, start[0]
    for move, (dims, pending), price in _search(source.shape, start, goal):
        if isinstance(move, CollectivePermute):
            move = replace(move, pairs=_permutation(before, dims, source.mesh.size))
        at_goal = (dims, pending) == goal
        layout = target if at_goal else Sharding(source.mesh, source.shape, dims, unreduced=pending)
        steps.append(Step(move, layout, price))
        total, before = total + price, dims
    return Path(tuple(_fused(steps)), total)


def _cuts(shardings: tuple[Sharding, ...]) -> tuple[int, ...]:
    """Strides at which any digit of either side begins or ends."""
    cuts = set()
    for sharding in shardings:
        for digits in (*sharding.dims, sharding.unreduced):
            for digit in digits:
                cuts |= {digit.stride, digit.stride * digit.size}
    return tuple(sorted(cuts, reverse=True))


def _refine(digits: Digits, cuts: tuple[int, ...]) -> Digits:
    """Split digits at the cuts inside them, so that both sides speak of the same digits."""
    out: list[Digit] = []
    for digit in digits:
        low, top = digit.stride, digit.stride * digit.size
        inside = [c for c in cuts if low < c < top and c % low == 0 and top % c == 0]
        bounds = list(pairwise([top, *inside, low]))
        if all(a % b == 0 for a, b in bounds):
            out += [Digit(b, a // b) for a, b in bounds]
        else:
            out.append(digit)
    return tuple(out)


def _refine_dims(dims: Dims, cuts: tuple[int, ...]) -> Dims:
    return tuple(_refine(digits, cuts) for digits in dims)


def tile(size: int, count: int) -> int:
    """Block size `ceil(size / count)`."""
    return -(-size // count)


def nests(size: int, outer: int, inner: int) -> bool:
    """Whether `inner` blocks tile each of `outer` blocks exactly (or the dimension is whole)."""
    return outer == 1 or tile(size, outer) == inner * tile(size, outer * inner)


def _search(shape: tuple[int, ...], start: State, goal: State) -> list[tuple[Move, State, object]]:
    best: dict[State, tuple[object, int]] = {start: (0, 0)}
    came: dict[State, tuple[State, Move, object]] = {}
    heap: list[tuple[object, int, int, State]] = [(0, 0, 0, start)]
    count = 0
    while heap:
        cost, hops, _, state = heapq.heappop(heap)
        if state == goal:
            break
        if (cost, hops) > best[state]:
            continue
        for move, after, price in _moves(shape, state, goal):
            key = (cost + price, hops + (price > 0))
            if after not in best or key < best[after]:
                best[after] = key
                came[after] = (state, move, price)
                count += 1
                heapq.heappush(heap, (*key, count, after))
    assert goal in best, f"no path from {start} to {goal}: gathering and slicing always lead there"
    chain = []
    state = goal
    while state != start:
        before, move, price = came[state]
        chain.append((move, state, price))
        state = before
    return chain[::-1]


def _local_elements(shape: tuple[int, ...], dims: Dims) -> int:
    total = 1
    for size, digits in zip(shape, dims, strict=True):
        total *= tile(size, parts(digits))
    return total


def _moves(
    shape: tuple[int, ...], state: State, goal: State
) -> Iterator[tuple[Move, State, object]]:
    dims, pending = state
    local = _local_elements(shape, dims)
    yield from _pending_moves(shape, state, goal, local)
    if pending and not goal[1]:
        return
    yield from _gathers(shape, state, local)
    yield from _slices(shape, state, goal)
    yield from _exchanges(shape, state, local)
    yield from _permutes(state, goal, local)


def _with(dims: Dims, dim: int, digits: Digits) -> Dims:
    return (*dims[:dim], digits, *dims[dim + 1 :])


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
                after = _with(dims, dim, (*dims[dim], digit))
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
                yield AllGather(dim, gone), (_with(dims, dim, digits[:keep]), pending), price


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
                after = _with(dims, dim, digits + extra[:end])
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
                after = _with(_with(dims, source, digits[:keep]), target, other + moved)
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
        found.append(_with(dims, dim, first + tuple(d for d in digits if d not in first)))
    return [layout for layout in dict.fromkeys(found) if layout != dims]


def _block(dims: Dims, position: int) -> tuple[int, ...]:
    numbers = []
    for digits in dims:
        number = 0
        for digit in digits:
            number = number * digit.size + digit.at(position)
        numbers.append(number)
    return tuple(numbers)


def _numbers(dims: Dims) -> Dims:
    """Digits in plain numbers: places of devices are no formulas."""
    return tuple(tuple(Digit(index(d.stride), index(d.size)) for d in digits) for digits in dims)


def _permutation(source: Dims, target: Dims, positions: int) -> tuple[tuple[int, int], ...]:
    """(source, target) positions: the r-th holder of a block serves its r-th taker."""
    source, target = _numbers(source), _numbers(target)
    holders: dict[tuple[int, ...], list[int]] = {}
    for position in range(positions):
        holders.setdefault(_block(source, position), []).append(position)
    takers: dict[tuple[int, ...], int] = {}
    pairs = []
    for position in range(positions):
        block = _block(target, position)
        rank = takers.get(block, 0)
        takers[block] = rank + 1
        pairs.append((holders[block][rank], position))
    return tuple(pairs)


def _fused(steps: list[Step]) -> list[Step]:
    """Neighbouring steps of one kind on one dimension are one collective."""
    out: list[Step] = []
    for step in steps:
        last = out[-1] if out else None
        joined = _join(last.attributes, step.attributes) if last else None
        if joined is not None:
            out[-1] = Step(joined, step.layout, last.wire_elements + step.wire_elements)
        else:
            out.append(step)
    return out


def _join(first: Move, second: Move) -> Move | None:
    if type(first) is not type(second):
        return None
    if isinstance(first, ReduceScatter) and first.dim == second.dim:
        return ReduceScatter(first.dim, first.digits + second.digits, first.combine)
    if isinstance(first, AllGather) and first.dim == second.dim:
        return AllGather(first.dim, second.digits + first.digits)
    if isinstance(first, AllReduce):
        return AllReduce(first.digits + second.digits, first.combine)
    return None
