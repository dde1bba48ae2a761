"""The cheapest chain of moves between two layouts, in digits that both sides share.

`route.py` knows the way where nothing is to be added up. Here partial sums are added before it, and
a way becomes moves with their prices.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import combinations, count, dropwhile, product, takewhile
from operator import index

from shardalg.algebra.digits import Digit, Digits, overlap, parts
from shardalg.costs.collectives import quotient, step_wire_bytes
from shardalg.reshard.route import Dims, Route, Shape, direct, permuted, primes, shuffled
from shardalg.reshard.shuffle import Swap
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
)

State = tuple[Dims, Digits]
"""Digits per dimension, and those along which partial sums are pending."""
Move = AllGather | AllReduce | AllToAll | CollectivePermute | DynamicSlice | ReduceScatter
Step = tuple[Move, State, object]
"""A move, the state it leads to and the elements that a device sends for it."""


def search(shape: Shape, start: State, goal: State, axes: Digits) -> list[Step]:
    """Fewest elements sent, then fewest communicating moves.

    Where and when sums are added is searched by bounds (A*); the rest is the cheapest route.

    Args:
      shape: sizes that the parts of both layouts divide.
      axes: of the mesh.
    """
    if start[1] == goal[1]:
        return _moves(shape, start, goal, axes) if start != goal else []
    heap: list[tuple[object, int, int, State, list[Step]]] = [(0, 0, 0, start, [])]
    best: dict[State, object] = {}
    numbers = count(1)
    while True:
        _, hops, _, state, steps = heapq.heappop(heap)
        if state == goal:
            return steps
        sent = sum([price for *_, price in steps])
        if state in best and sent >= best[state]:
            continue
        best[state] = sent
        for more in _onward(shape, state, goal, axes):
            after, prices = more[-1][1], [price for *_, price in more]
            least = sent + sum(prices) + bound(shape, after, goal)
            hops_after = hops + sum([price > 0 for price in prices])
            heapq.heappush(heap, (least, hops_after, next(numbers), after, steps + more))


def _onward(shape: Shape, state: State, goal: State, axes: Digits) -> Iterator[list[Step]]:
    """Every next move while sums are to be added, and then the way to the goal."""
    if state[1] == goal[1]:
        yield _moves(shape, state, goal, axes)
        return
    for step in (*additions(shape, state, goal), *_slices(shape, state, goal)):
        yield [step]
    for step in _swaps(shape, state) if goal[1] else ():
        yield [step]


def _moves(shape: Shape, start: State, goal: State, axes: Digits) -> list[Step]:
    """The cheapest route in moves."""
    (dims, pending), (wanted, _) = start, goal
    route = direct(shape, dims, wanted)
    if route is None:
        dims, wanted, axes = plain(dims), plain(wanted), *plain((axes,))
        route = None if pending else permuted(dims, wanted, axes)
    if route is None:
        dims, wanted = (tuple(map(primes, side)) for side in (dims, wanted))
        if pending:
            steps = _in_place(shape, (dims, pending), wanted, axes)
            return [*steps[:-1], (steps[-1][0], goal, steps[-1][2])]
        route = shuffled(shape, dims, wanted, (axes, ())) or Route(dims)
    steps = in_moves(shape, (dims, pending), wanted, route)
    move, _, price = steps[-1]
    return [*steps[:-1], (move, goal, price)]


def _in_place(shape: Shape, start: State, goal: Dims, axes: Digits) -> list[Step]:
    """Sums that stay pending stay where they are: no permute, so slices may do better last."""
    dims, pending = start
    used = {digit for digits in dims for digit in digits}
    later = tuple(
        tuple(reversed(list(dropwhile(lambda d: d not in used, reversed(digits)))))
        for digits in goal
    )
    routes = [shuffled(shape, dims, end, (axes, pending)) for end in (goal, later)]
    routes.append(direct(shape, dims, later))
    ways = [in_moves(shape, start, goal, route or Route(dims)) for route in routes]
    return min(ways, key=lambda way: sum([price for *_, price in way]))


def in_moves(shape: Shape, start: State, goal: Dims, route: Route) -> list[Step]:
    """A route as moves with their prices."""
    way = Way(shape, *start)
    way.slices(route.first)
    for exchange in route.exchange:
        if isinstance(exchange, Swap):
            way.swap(exchange)
        else:
            way.permute(exchange)
    way.finish(goal)
    return way.steps


def plain(dims: Dims) -> Dims:
    """Digits in plain numbers: what is found from here on holds for these sizes alone."""
    if all(type(d.size) is int for digits in dims for d in digits):
        return dims
    return tuple(tuple(Digit(index(d.stride), index(d.size)) for d in digits) for digits in dims)


class Way:
    """Moves one after the other, with what they cost."""

    def __init__(self, shape: Shape, dims: Dims, pending: Digits) -> None:
        self.shape, self.dims, self.pending = shape, dims, pending
        self.steps: list[Step] = []

    def add(self, move: Move, dims: Dims, kind: str = "") -> None:
        """A move that leads to `dims`, and sends as collectives of this kind do."""
        price = 0
        if kind:
            held = local_elements(self.shape, self.dims)
            size = 2 if kind == "collective_permute" else parts(move.digits)
            price = step_wire_bytes(kind, group_size=size, local_bytes=held)
        self.dims = dims
        self.steps.append((move, (dims, self.pending), price))

    def slices(self, wanted: Dims) -> None:
        """Cut every dimension that the wanted layout cuts further, as far as digits are free."""
        for dim, digits in enumerate(wanted):
            held = self.dims[dim]
            more = digits[len(held) :] if digits[: len(held)] == held else ()
            used = [d for digits in self.dims for d in digits]
            if more and not any(overlap(new, d) for new in more for d in used):
                block = tile(self.shape[dim], parts(digits))
                move = DynamicSlice(dim, more, block)
                self.add(move, replaced(self.dims, dim, digits))

    def swap(self, swap: Swap) -> None:
        """An all-to-all."""
        source, target, leaving, arriving = swap
        stays = self.dims[source][: len(self.dims[source]) - len(leaving)]
        dims = replaced(self.dims, source, stays)
        dims = replaced(dims, target, dims[target] + arriving)
        order = () if leaving == arriving else arriving
        self.add(AllToAll(target, source, leaving, order), dims, "all_to_all")

    def permute(self, dims: Dims) -> None:
        """The pairs of positions are left out: only who takes the path needs them."""
        changed = {d for a, b in zip(self.dims, dims, strict=True) if a != b for d in (*a, *b)}
        if any(overlap(a, b) for a, b in combinations(changed, 2)):
            changed = set(primes(tuple(changed)))
        move = CollectivePermute(tuple(sorted(changed, reverse=True)), ())
        self.add(move, dims, "collective_permute")

    def finish(self, goal: Dims) -> None:
        """Slices and gathers to the goal; where neither leads there, from what both begin with."""
        self.slices(goal)
        for dim, (held, wanted) in enumerate(zip(self.dims, goal, strict=True)):
            same = 0
            while held[same : same + 1] == wanted[same : same + 1] != ():
                same += 1
            if same < len(held):
                move = AllGather(dim, held[same:])
                self.add(move, replaced(self.dims, dim, held[:same]), "all_gather")
        self.slices(goal)


def tile(size: int, count: int) -> int:
    """Block size `ceil(size / count)`."""
    return -(-size // count)


def local_elements(shape: Shape, dims: Dims) -> int:
    """Elements on a device, padding included."""
    total = 1
    for size, digits in zip(shape, dims, strict=True):
        total *= tile(size, parts(digits))
    return total


def replaced(dims: Dims, dim: int, digits: Digits) -> Dims:
    """The layout with other digits on one dimension."""
    return (*dims[:dim], digits, *dims[dim + 1 :])


def bound(shape: Shape, start: State, goal: State) -> object:
    """Elements that a device sends at least: what it lacks of the goal, and what it has to add.

    In every move a device sends as much as it receives. Of even blocks with `L` elements at the
    start and `G` at the goal, some device shares only `O`: the product over dimensions of the
    smaller block where one side's digits begin with the other's, 0 elsewhere. Sums over `n` devices
    cost `L*(n-1)/n` where they are scattered, which leaves `L/n` on each, less after slices along
    the `f` parts of the goal that the start has nowhere:
        G - O                                      nothing to add
        L/f*(n-1)/n + G - min(L/(f*n), O)          sums to add
    Of uneven blocks the first device shares the smaller one in each dimension.
    """
    (dims, pending), (wanted, kept) = start, goal
    held = needed = shared = first = 1
    even = True
    for size, digits, other in zip(shape, dims, wanted, strict=True):
        n, m = parts(digits), parts(other)
        here, there = -(-size // n), -(-size // m)
        even = even and here * n == size == there * m
        held *= here
        needed *= there
        first *= min(here, there)
        shorter = min(len(digits), len(other))
        if digits[:shorter] == other[:shorter]:
            shared *= min(here, there)
        else:
            shared = 0
    if not even:
        return needed - first
    if pending == kept or kept:
        return needed - shared
    n = parts(pending)
    used = {*pending, *(digit for digits in dims for digit in digits)}
    n_new = n * parts(tuple([d for digits in wanted for d in digits if d not in used]))
    return quotient(held * (n - 1), n_new) + needed - min(quotient(held, n_new), shared)


def is_direct(shape: Shape, start: State, goal: State) -> bool:
    """Whether some chain sends just as much as `bound` says, as seen without a search.

    Slices and then gathers; an all-reduce; or slices and then reduce-scatters to where the goal has
    the digits; of even blocks all.
    """
    (dims, pending), (wanted, kept) = start, goal
    if any(size % parts(d) for side in (dims, wanted) for size, d in zip(shape, side, strict=True)):
        return False
    used = {digit for digits in dims for digit in digits}
    pairs = [(a, b) for a, b in zip(dims, wanted, strict=True) if a != b]
    cut = [b[len(a) :] for a, b in pairs if b[: len(a)] == a]
    if not all(used.isdisjoint(digits) for digits in cut):
        return False
    if pending == kept:
        return all(b[: len(a)] == a or a[: len(b)] == b for a, b in pairs)
    if kept:
        return False
    scattered = [d for digits in cut for d in takewhile(pending.__contains__, reversed(digits))]
    return not pairs or (len(cut) == len(pairs) and len(scattered) == len(pending))


def additions(shape: Shape, state: State, goal: State) -> Iterator[Step]:
    """Sums added everywhere, or each device its own block of them."""
    dims, pending = state
    local = local_elements(shape, dims)
    todo = tuple(d for d in pending if d not in goal[1])
    for digits in dict.fromkeys([todo, *((digit,) for digit in todo)]):
        rest = tuple(d for d in pending if d not in digits)
        price = step_wire_bytes("all_reduce", group_size=parts(digits), local_bytes=local)
        yield AllReduce(digits), (dims, rest), price
    for digit in todo:
        rest = tuple(d for d in pending if d != digit)
        price = step_wire_bytes("reduce_scatter", group_size=digit.size, local_bytes=local)
        for dim, size in enumerate(shape):
            digits = (*dims[dim], digit)
            if size % parts(digits) == 0:
                yield ReduceScatter(dim, (digit,)), (replaced(dims, dim, digits), rest), price


def _slices(shape: Shape, state: State, goal: State) -> Iterator[Step]:
    """Cut by digits that the goal has on the dimension: less is then added."""
    dims, pending = state
    used = {d for digits in dims for d in digits} | set(pending)
    for dim, digits in enumerate(dims):
        extra = tuple(d for d in goal[0][dim] if d not in used)
        for end in range(1, len(extra) + 1):
            cut = digits + extra[:end]
            if shape[dim] % parts(cut) == 0:
                move = DynamicSlice(dim, extra[:end], shape[dim] // parts(cut))
                yield move, (replaced(dims, dim, cut), pending), 0


def _swaps(shape: Shape, state: State) -> Iterator[Step]:
    """All-to-alls before sums are added: where others stay pending, no permute mends it later."""
    for source, digits in enumerate(state[0]):
        for at, target in product(range(len(digits)), range(len(shape))):
            if source != target and shape[target] % parts(state[0][target] + digits[at:]) == 0:
                way = Way(shape, *state)
                way.swap(Swap(source, target, digits[at:], digits[at:]))
                yield from way.steps
