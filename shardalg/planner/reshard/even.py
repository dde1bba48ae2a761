"""The cheapest chain of moves between two layouts of even blocks, in digits that both sides share.

`closed_forms.py` knows the way where nothing is to be added up. Here partial sums are added before
it, and a way becomes moves with their prices. Where some axes have slower links than others there
is no normal form: it pays to gather along a slow axis while blocks are small, to leave that axis
where it is, to add up along the fast ones first. Then every chain is searched. Each move costs the
seconds that `costs.collectives.seconds` reports (`links.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, dropwhile, permutations, product, takewhile
from operator import index
from typing import Any, NamedTuple

from shardalg.algebra.digits import Digit, Digits, overlap, parts
from shardalg.costs.collectives import step_wire_bytes
from shardalg.planner.reshard.best_first import Cost, best_first
from shardalg.planner.reshard.closed_forms import (
    Dims,
    Route,
    Shape,
    direct,
    permuted,
    primes,
    replaced,
    shuffled,
)
from shardalg.planner.reshard.exchanges import Retile
from shardalg.planner.reshard.links import Links
from shardalg.planner.reshard.shuffle import Swap, together
from shardalg.sizes.amounts import quotient
from shardalg.sizes.recorded import are_numbers
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
)

EVERY_ORDER = 3
"""Of so many digits an all-to-all brings any order; of more that in which they left."""
MOST = 1000
"""Layouts after which the search on unequal links gives up."""
State = tuple[Dims, Digits]
"""Digits per dimension, and those along which partial sums are pending."""
Move = (
    AllGather | AllReduce | AllToAll | AllToAlls | CollectivePermute | DynamicSlice | ReduceScatter
    | Retile
)  # fmt: skip


class SearchStep(NamedTuple):
    """A move, the state it leads to, the elements that a device sends for it.

    Attributes:
      shape: of the tensor then, where blocks are padded.
    """

    move: Move
    state: State
    sent: Any
    shape: Shape | None = None


def search(shape: Shape, start: State, goal: State, axes: Digits) -> list[SearchStep]:
    """Fewest elements sent, then fewest communicating moves.

    Args:
      shape: sizes that the parts of both layouts divide.
      axes: of the mesh.
    """
    if start[1] == goal[1]:
        return _moves(shape, start, goal, axes) if start != goal else []
    found = best_first(EvenBlocks(shape, goal, axes), (start,))
    assert found is not None, "sums can be added everywhere"
    return [step for _, steps in found[1] for step in steps]


class Ends(NamedTuple):
    """A reshard of even blocks: sizes of a tensor, and its layouts before and after."""

    shape: Shape
    start: State
    goal: State


def cheaper(even: list[SearchStep], ends: Ends, axes: Digits, links: Links) -> list[SearchStep]:
    """Fewest seconds, then fewest moves that send.

    Every buffer on the way is at most as large as at the larger end.

    Args:
      even: the steps on equal links, which are taken where nothing is cheaper, or too many layouts
        lie between the ends.
      axes: of the mesh.
    """
    shape, start, goal = tuple(map(index, ends.shape)), *map(_plain_state, ends[1:])
    held = dict.fromkeys(d for dims, more in (start, goal) for ds in (*dims, more) for d in ds)
    (axes,) = plain((axes,))
    digits = (*held, *(a for a in axes if not any(overlap(a, d) for d in held)))
    limit = path_seconds(even, ends, links), 0
    fitting = max(local_elements(shape, dims) for dims, _ in (start, goal))
    found = best_first(
        Linked(shape, goal, digits, links, fitting), (start,), limit=limit, most=MOST
    )
    if found is None:
        return even
    steps = [step for _, steps in found[1] for step in steps]
    return [*steps[:-1], steps[-1]._replace(state=ends.goal)]


def path_seconds(steps: Sequence[SearchStep], ends: Ends, links: Links) -> float:
    """Return the seconds of the moves of a path that starts at `ends.start`."""
    total, dims = 0.0, ends.start[0]
    for step in steps:
        total += links.seconds(step.move, local_elements(ends.shape, dims)) if step.sent else 0
        dims = step.state[0]
    return total


def _plain_state(state: State) -> State:
    (pending,) = plain(state[1:])
    return plain(state[0]), pending


Reached = tuple[Cost, State, list[SearchStep]]
"""What some steps cost, and where they lead."""


@dataclass(frozen=True)
class EvenBlocks:
    """Where and when sums are added; the rest is the cheapest route in closed form.

    Attributes:
      digits: axes of the mesh.
    """

    shape: Shape
    goal: State
    digits: Digits

    def is_goal(self, state: State) -> bool:
        """Whether a way ends here."""
        return state == self.goal

    def least(self, state: State) -> Any:
        """Elements that are sent from a state at least."""
        return bound(self.shape, state, self.goal)

    def onward(self, state: State, _: Cost) -> Iterator[Reached]:
        """Every next move while sums are to be added, and then the way to the goal."""
        if state[1] == self.goal[1]:
            way = _moves(self.shape, state, self.goal, self.digits)
            price = sum([step.sent for step in way]), sum([step.sent > 0 for step in way])
            yield price, self.goal, way
            return
        steps = (*additions(self.shape, state, self.goal), *_slices(self.shape, state, self.goal))
        for step in (*steps, *(_swaps(self.shape, state) if self.goal[1] else ())):
            yield (step.sent, step.sent > 0), step.state, [step]


@dataclass(frozen=True)
class Linked(EvenBlocks):
    """Every chain of moves, each priced in seconds.

    Attributes:
      digits: all that may be used: those of both ends, and axes beside them.
      fitting: elements of the largest buffer.
    """

    links: Links
    fitting: int

    def least(self, state: State) -> Any:
        """Return a lower bound of the seconds from a state to the goal."""
        return self.links.least_seconds(bound(self.shape, state, self.goal))

    def onward(self, state: State, _: Cost) -> Iterator[Reached]:
        """Every next move."""
        held = local_elements(self.shape, state[0])
        for step in self.steps(state):
            if step.state != state and local_elements(self.shape, step.state[0]) <= self.fitting:
                seconds = self.links.seconds(step.move, held) if step.sent else 0
                yield (seconds, bool(step.sent)), step.state, [step]

    def steps(self, state: State) -> Iterator[SearchStep]:
        """Every next move, with the elements that are sent."""
        shape, (dims, pending) = self.shape, state
        yield from additions(shape, state, self.goal)
        yield from self.scattered(state)
        used = [*pending, *(d for held in dims for d in held)]
        free = [d for d in self.digits if not any(overlap(d, u) for u in used)]
        for dim, held in enumerate(dims):
            for digit in free:
                yield from _slice(shape, state, dim, (digit,))
            for keep in range(len(held)):
                way = MoveSequence(shape, *state)
                way.add(AllGather(dim, held[keep:]), replaced(dims, dim, held[:keep]), "all_gather")
                yield from way.steps
        yield from _swaps(shape, state, EVERY_ORDER)
        for wanted in self.renamed(dims) if not pending else ():
            way = MoveSequence(shape, *state)
            way.permute(wanted)
            yield from way.steps

    def scattered(self, state: State) -> Iterator[SearchStep]:
        """Several pending digits scattered at once: the links of their axes work together."""
        dims, pending = state
        todo = tuple(d for d in pending if d not in self.goal[1])
        for count in range(2, min(len(todo), EVERY_ORDER) + 1):
            for digits, dim in product(permutations(todo, count), range(len(dims))):
                cut = dims[dim] + digits
                if self.shape[dim] % parts(cut) == 0:
                    rest = tuple(d for d in pending if d not in digits)
                    way = MoveSequence(self.shape, dims, rest)
                    way.add(ReduceScatter(dim, digits), replaced(dims, dim, cut), "reduce_scatter")
                    yield from way.steps

    def renamed(self, dims: Dims) -> Iterator[Dims]:
        """Other digits in the same places: two of them exchanged, or all that the goal has there.

        Of digits that are at most as slow as some axis, so that slow ones may stay where they are.
        """
        links, every = self.links, self.digits
        for one, other in combinations(every, 2):
            if one.size == other.size:
                yield _exchanged(dims, {one: other, other: one})
        for most in sorted({factor for _, factor in links.slowness}):
            names = {d: d for d in every}
            for held, wanted in zip(dims, self.goal[0], strict=True):
                for old, new in zip(held, wanted, strict=False):
                    slowest = max(links.factor((old,)), links.factor((new,)))
                    if old.size == new.size and slowest <= most:
                        here = next(d for d, name in names.items() if name == new)
                        names[here], names[old] = names[old], new
            yield _exchanged(dims, names)


def _exchanged(dims: Dims, names: Mapping[Digit, Digit]) -> Dims:
    return tuple([tuple([names.get(digit, digit) for digit in digits]) for digits in dims])


def _moves(shape: Shape, start: State, goal: State, axes: Digits) -> list[SearchStep]:
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
            return [*steps[:-1], steps[-1]._replace(state=goal)]
        route = shuffled(shape, dims, wanted, (axes, ())) or Route(dims)
    steps = in_moves(shape, (dims, pending), wanted, route)
    return [*steps[:-1], steps[-1]._replace(state=goal)]


def _in_place(shape: Shape, start: State, goal: Dims, axes: Digits) -> list[SearchStep]:
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
    return min(ways, key=lambda way: sum([step.sent for step in way]))


def in_moves(shape: Shape, start: State, goal: Dims, route: Route) -> list[SearchStep]:
    """A route as moves with their prices."""
    way = MoveSequence(shape, *start)
    way.slices(route.first)
    for exchange in together(route.exchange):
        if isinstance(exchange, list):
            way.swap(*exchange)
        else:
            way.permute(exchange)
    way.finish(goal)
    return way.steps


def plain(dims: Dims) -> Dims:
    """Digits in plain numbers: what is found from here on holds for these sizes alone."""
    if are_numbers(d.size for digits in dims for d in digits):
        return dims
    return tuple(tuple(Digit(index(d.stride), index(d.size)) for d in digits) for digits in dims)


class MoveSequence:
    """Moves one after the other, with what they cost."""

    def __init__(self, shape: Shape, dims: Dims, pending: Digits) -> None:
        self.shape, self.dims, self.pending = shape, dims, pending
        self.steps: list[SearchStep] = []

    def add(self, move: Move, dims: Dims, kind: str = "") -> None:
        """A move that leads to `dims`, and sends as collectives of this kind do."""
        price = 0
        if kind:
            held = local_elements(self.shape, self.dims)
            size = 2 if kind == "collective_permute" else parts(move.digits)
            price = step_wire_bytes(kind, group_size=size, local_bytes=held)
        self.dims = dims
        self.steps.append(SearchStep(move, (dims, self.pending), price))

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

    def swap(self, *swaps: Swap) -> None:
        """An all-to-all; of several, between dimensions of their own, one for all of them."""
        dims, found = self.dims, []
        for source, target, leaving, arriving in swaps:
            dims = replaced(dims, source, dims[source][: len(dims[source]) - len(leaving)])
            dims = replaced(dims, target, dims[target] + arriving)
            order = () if leaving == arriving else arriving
            found.append(AllToAll(target, source, leaving, order))
        move = found[0] if len(found) == 1 else AllToAlls(tuple(found))
        self.add(move, dims, "all_to_all")

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


def additions(shape: Shape, state: State, goal: State) -> Iterator[SearchStep]:
    """Sums added everywhere, or each device its own block of them."""
    dims, pending = state
    local = local_elements(shape, dims)
    todo = tuple(d for d in pending if d not in goal[1])
    for digits in dict.fromkeys([todo, *((digit,) for digit in todo)]) if todo else ():
        rest = tuple(d for d in pending if d not in digits)
        price = step_wire_bytes("all_reduce", group_size=parts(digits), local_bytes=local)
        yield SearchStep(AllReduce(digits), (dims, rest), price)
    for digit in todo:
        rest = tuple(d for d in pending if d != digit)
        price = step_wire_bytes("reduce_scatter", group_size=digit.size, local_bytes=local)
        for dim, size in enumerate(shape):
            digits = (*dims[dim], digit)
            if size % parts(digits) == 0:
                yield SearchStep(
                    ReduceScatter(dim, (digit,)), (replaced(dims, dim, digits), rest), price
                )


def _slices(shape: Shape, state: State, goal: State) -> Iterator[SearchStep]:
    """Cut by digits that the goal has on the dimension: less is then added."""
    used = {d for digits in state[0] for d in digits} | set(state[1])
    for dim, wanted in enumerate(goal[0]):
        extra = tuple(d for d in wanted if d not in used)
        for end in range(1, len(extra) + 1):
            yield from _slice(shape, state, dim, extra[:end])


def _slice(shape: Shape, state: State, dim: int, digits: Digits) -> Iterator[SearchStep]:
    dims, pending = state
    cut = dims[dim] + digits
    if shape[dim] % parts(cut) == 0:
        move = DynamicSlice(dim, digits, shape[dim] // parts(cut))
        yield SearchStep(move, (replaced(dims, dim, cut), pending), 0)


def _swaps(shape: Shape, state: State, every: int = 0) -> Iterator[SearchStep]:
    """All-to-alls; before sums are added too: where others stay pending no permute mends it later.

    Args:
      every: of so many digits or fewer in any order.
    """
    for source, digits in enumerate(state[0]):
        for at, target in product(range(len(digits)), range(len(shape))):
            moved = digits[at:]
            if source != target and shape[target] % parts(state[0][target] + moved) == 0:
                for arriving in permutations(moved) if len(moved) <= every else (moved,):
                    way = MoveSequence(shape, *state)
                    way.swap(Swap(source, target, moved, arriving))
                    yield from way.steps
