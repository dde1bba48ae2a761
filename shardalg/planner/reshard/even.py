"""The cheapest chain of moves between two shardings with even blocks, in digits of both sides.

`closed_forms.py` gives the route if there are no sums to reduce. This module reduces partial sums
before the route, and turns the route into moves with prices. If some axes have slower links than
others, there is no normal form: it can pay to gather along a slow axis while blocks are small, to
leave a slow axis where it is, or to reduce along fast axes first. All chains are then searched.
Each move costs the seconds of `costs/collectives.py` (`links.py`).
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
    exchange_route,
    permute_route,
    primes,
    with_row,
)
from shardalg.planner.reshard.exchanges import Retile
from shardalg.planner.reshard.links import Links
from shardalg.planner.reshard.shuffle import Swap, together
from shardalg.sizes.amounts import quotient
from shardalg.sizes.recorded import are_numbers
from shardalg.spmd.instructions import (
    AllGather,
    AllGathers,
    AllReduce,
    AllToAll,
    AllToAlls,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
    ReduceScatters,
)

EVERY_ORDER = 3
"""The largest number of digits that an all-to-all delivers in any order; more keep their order."""
MOST = 1000
"""The number of states after which the search on unequal links gives up."""
State = tuple[Dims, Digits]
"""Digits per dimension, and the digits along which partial sums are pending."""
Move = (
    AllGather | AllGathers | AllReduce | AllToAll | AllToAlls | CollectivePermute | DynamicSlice
    | ReduceScatter | ReduceScatters | Retile
)  # fmt: skip


class SearchStep(NamedTuple):
    """One step of the search for a reshard: a move and its effect.

    Attributes:
      move: the collective or slice.
      state: the sharding after the move: digits per dimension, and digits of pending sums.
      sent: the elements that a device sends for the move.
      shape: sizes of the padded tensor after the move; None if blocks are not padded.
    """

    move: Move
    state: State
    sent: Any
    shape: Shape | None = None


def search(shape: Shape, start: State, goal: State, axes: Digits) -> list[SearchStep]:
    """Return the moves that send the fewest elements, then the fewest moves that send.

    Args:
      shape: sizes, which the parts of both shardings divide.
      axes: axes of the mesh.
    """
    if start[1] == goal[1]:
        # Without sums to reduce the route has a closed form.
        return _moves(shape, start, goal, axes) if start != goal else []
    found = best_first(EvenBlocks(shape, goal, axes), (start,))
    assert found is not None, "sums can always be reduced in place"
    return [step for _, steps in found[1] for step in steps]


class Ends(NamedTuple):
    """The ends of a reshard of even blocks: a tensor's shape, its first and its last state."""

    shape: Shape
    start: State
    goal: State


def cheaper(even: list[SearchStep], ends: Ends, axes: Digits, links: Links) -> list[SearchStep]:
    """Return the moves of the fewest seconds, then the fewest moves that send.

    No buffer on the path is larger than the larger end.

    Args:
      even: the steps on equal links. They are returned if nothing is cheaper, or if the search
        visits too many states.
      axes: axes of the mesh.
    """
    shape = tuple(map(index, ends.shape))
    start, goal = (_of_several(plain(dims), plain((pending,))[0]) for dims, pending in ends[1:])
    if start == goal:
        return even
    held = dict.fromkeys(d for dims, more in (start, goal) for ds in (*dims, more) for d in ds)
    (axes,), _ = _of_several(plain((axes,)), ())
    # Axes that neither end uses may shard the tensor in between: smaller blocks then cross the slow
    # links.
    digits = (*held, *(a for a in axes if not any(overlap(a, d) for d in held)))
    # Only a path faster than the one on equal links is of interest, so its seconds are the limit.
    limit = path_seconds(even, ends, links), 0
    # Without this limit, gathering everything along the fastest axes could be the fastest path.
    fitting = max(local_elements(shape, dims) for dims, _ in (start, goal))
    found = best_first(
        Linked(shape, goal, digits, links, fitting), (start,), limit=limit, most=MOST
    )
    if found is None:
        return even
    steps = [step for _, steps in found[1] for step in steps]
    # The last state has the digits of the goal again, which may be formulas.
    return [*steps[:-1], steps[-1]._replace(state=ends.goal)]


def _of_several(dims: Dims, pending: Digits) -> State:
    """Return a state without the digits of axes of size 1.

    They move nothing, but a search would try them at every place.
    """
    kept = tuple(tuple(d for d in digits if d.size > 1) for digits in (*dims, pending))
    return kept[:-1], kept[-1]


def path_seconds(steps: Sequence[SearchStep], ends: Ends, links: Links) -> float:
    """Return the seconds of the moves of a path.

    Args:
      steps: the moves, each with the state after it.
      ends: start and goal of the path, with the shape of the tensor.
    """
    total, dims = 0.0, ends.start[0]
    for step in steps:
        total += links.seconds(step.move, local_elements(ends.shape, dims)) if step.sent else 0
        dims = step.state[0]
    return total


Reached = tuple[Cost, State, list[SearchStep]]
"""The cost of some steps, the state after them, and the steps."""


@dataclass(frozen=True)
class EvenBlocks:
    """The search for a reshard with even blocks that must reduce partial sums.

    A state is a pair: the digits of each dimension, and the digits along which sums are pending.
    Sums that are pending at the start and not in the goal are reduced in any order. Once no such
    sum is left, `closed_forms.py` gives the rest of the route.

    Attributes:
      shape: the global shape of the tensor.
      goal: the state to reach.
      digits: axes of the mesh.
    """

    shape: Shape
    goal: State
    digits: Digits

    def is_goal(self, state: State) -> bool:
        """Return whether a state is the goal."""
        return state == self.goal

    def least(self, state: State) -> Any:
        """Return a lower bound of the elements that a device sends on a path to the goal."""
        return bound(self.shape, state, self.goal)

    def onward(self, state: State, _: Cost) -> Iterator[Reached]:
        """Yield (price, next state, moves) for the ways on from a state of the search.

        A state is (digits of each dimension, digits of pending sums). The whole route to the goal
        is yielded at once if no sum is left to reduce, and single moves otherwise.
        """
        if state[1] == self.goal[1]:
            route = _moves(self.shape, state, self.goal, self.digits)
            # The price is (elements sent, number of moves that send).
            price = sum([step.sent for step in route]), sum([step.sent > 0 for step in route])
            yield price, self.goal, route
            return
        steps = list(additions(self.shape, state, self.goal))
        # Slices by digits that the goal has in a dimension cost nothing, and less is reduced after
        # them.
        used = {d for digits in state[0] for d in digits} | set(state[1])
        for dim, goal_digits in enumerate(self.goal[0]):
            extra = tuple(d for d in goal_digits if d not in used)
            for end in range(1, len(extra) + 1):
                steps += _slice(self.shape, state, dim, extra[:end])
        # If sums stay pending, no permute is possible later: all-to-alls are tried here, too.
        if self.goal[1]:
            steps += _swaps(self.shape, state)
        for step in steps:
            yield (step.sent, step.sent > 0), step.state, [step]


@dataclass(frozen=True)
class Linked(EvenBlocks):
    """The search over all chains of moves, priced in seconds.

    Attributes:
      digits: the digits that moves may use: those of the start and of the goal, and unused axes.
      fitting: the largest number of elements that a device's buffer may have.
    """

    links: Links
    fitting: int

    def least(self, state: State) -> Any:
        """Return a lower bound of the seconds from a state to the goal."""
        return self.links.least_seconds(bound(self.shape, state, self.goal))

    def onward(self, state: State, _: Cost) -> Iterator[Reached]:
        """Yield ((seconds, whether it sends), next state, [move]) for every next move that fits.

        A state is (digits of each dimension, digits of pending sums).
        """
        block_elements = local_elements(self.shape, state[0])
        for step in self.steps(state):
            # Blocks stay within `fitting`, so that no path needs more memory than both of its ends.
            if step.state != state and local_elements(self.shape, step.state[0]) <= self.fitting:
                seconds = self.links.seconds(step.move, block_elements) if step.sent else 0
                yield (seconds, bool(step.sent)), step.state, [step]

    def steps(self, state: State) -> Iterator[SearchStep]:
        """Yield every move that is possible in a state, with the state after it and its price.

        A state is (digits of each dimension, digits of pending sums). The price is the number of
        elements that a device sends.
        """
        shape, (dims, pending) = self.shape, state
        # Reductions of pending sums: all-reduces and reduce-scatters.
        yield from additions(shape, state, self.goal)
        yield from self.scattered(state)
        # A slice along a digit that shards nothing yet only drops elements that a device has.
        used = [*pending, *(d for digits in dims for d in digits)]
        free = [d for d in self.digits if not any(overlap(d, u) for u in used)]
        for dim, digits in enumerate(dims):
            for digit in free:
                yield from _slice(shape, state, dim, (digit,))
            # A gather removes the minor digits of a dimension and leaves the first `count` digits.
            for count in range(len(digits)):
                sequence = MoveSequence(shape, *state)
                gather = AllGather(dim, digits[count:])
                sequence.add(gather, with_row(dims, dim, digits[:count]), "all_gather")
                yield from sequence.steps
        # All-to-alls move digits from one dimension to another.
        yield from _swaps(shape, state, EVERY_ORDER)
        # A permute would move partial sums out of the groups that add them.
        for new_dims in self.permuted_dims(dims) if not pending else ():
            sequence = MoveSequence(shape, *state)
            sequence.permute(new_dims)
            yield from sequence.steps

    def scattered(self, state: State) -> Iterator[SearchStep]:
        """Yield reduce-scatters along several digits at once, which use the links of them all.

        Those along one digit come from `additions`. Blocks must stay even.
        """
        dims, pending = state
        # Sums that the goal leaves pending are not reduced.
        to_reduce = tuple(d for d in pending if d not in self.goal[1])
        # The order of the digits matters: they become the minor digits of the dimension. With many
        # digits there would be too many orders to try.
        for count in range(2, min(len(to_reduce), EVERY_ORDER) + 1):
            for digits, dim in product(permutations(to_reduce, count), range(len(dims))):
                new_digits = dims[dim] + digits
                if self.shape[dim] % parts(new_digits) == 0:
                    still_pending = tuple(d for d in pending if d not in digits)
                    sequence = MoveSequence(self.shape, dims, still_pending)
                    scatter = ReduceScatter(dim, digits)
                    sequence.add(scatter, with_row(dims, dim, new_digits), "reduce_scatter")
                    yield from sequence.steps

    def permuted_dims(self, dims: Dims) -> Iterator[Dims]:
        """Yield shardings that one collective permute can reach from `dims`.

        There are two kinds. The first one exchanges two digits of equal size. The second one has a
        limit of slowness: all digits on links within the limit are brought to their places in the
        goal, and digits of slower axes are not moved.
        """
        links, every = self.links, self.digits
        for one, other in combinations(every, 2):
            if one.size == other.size:
                yield _with_names(dims, {one: other, other: one})
        # `names` maps each digit to the digit that takes its place. Exchanging two entries keeps it
        # a permutation, which a permute needs.
        for most in sorted({factor for _, factor in links.slowness}):
            names = {d: d for d in every}
            for held, wanted in zip(dims, self.goal[0], strict=True):
                for old, new in zip(held, wanted, strict=False):
                    slowest = max(links.factor((old,)), links.factor((new,)))
                    # `old` shards the dimension where the goal has `new`: exchange the two names.
                    if old.size == new.size and slowest <= most:
                        here = next(d for d, name in names.items() if name == new)
                        names[here], names[old] = names[old], new
            yield _with_names(dims, names)


def _with_names(dims: Dims, names: Mapping[Digit, Digit]) -> Dims:
    """Return the dimensions' digits with each digit replaced by its value in `names`, if any."""
    return tuple([tuple([names.get(digit, digit) for digit in digits]) for digits in dims])


def _moves(shape: Shape, start: State, goal: State, axes: Digits) -> list[SearchStep]:
    """Return the moves of the cheapest route between states with equal pending sums.

    Three routes are tried in order: slices and gathers alone (`direct`), one permute, and
    all-to-alls found by a search. A permute is not possible while sums are pending, because it
    would move the partial sums to other devices too.
    """
    (dims, pending), (wanted, _) = start, goal
    route = direct(shape, dims, wanted)
    if route is None:
        dims, wanted, axes = plain(dims), plain(wanted), *plain((axes,))
        route = None if pending else permute_route(dims, wanted, axes)
    if route is None:
        dims, wanted = (tuple(map(primes, side)) for side in (dims, wanted))
        if pending:
            steps = _moves_with_pending_sums(shape, (dims, pending), wanted, axes)
            return [*steps[:-1], steps[-1]._replace(state=goal)]
        route = exchange_route(shape, dims, wanted, (axes, ())) or Route(dims)
    # The search has the digits in pieces of prime size; the last state gets them as given.
    steps = in_moves(shape, (dims, pending), wanted, route)
    return [*steps[:-1], steps[-1]._replace(state=goal)]


def _moves_with_pending_sums(
    shape: Shape, start: State, goal: Dims, axes: Digits
) -> list[SearchStep]:
    """Return the cheapest moves from `start` to the dimensions `goal`, while all sums stay pending.

    Permutes are not used. A slice by digits that the start does not have sends nothing, at the
    beginning or at the end. Either order may have the cheaper moves in between, so both are priced.
    """
    dims, pending = start
    used = {digit for digits in dims for digit in digits}
    # `later` is the goal without minor digits that the start lacks. A slice by these digits is free
    # at the end, too, and by then blocks may be smaller.
    later = tuple(
        tuple(reversed(list(dropwhile(lambda d: d not in used, reversed(digits)))))
        for digits in goal
    )
    routes = [exchange_route(shape, dims, end, (axes, pending)) for end in (goal, later)]
    routes.append(direct(shape, dims, later))
    ways = [in_moves(shape, start, goal, route or Route(dims)) for route in routes]
    return min(ways, key=lambda way: sum([step.sent for step in way]))


def in_moves(shape: Shape, start: State, goal: Dims, route: Route) -> list[SearchStep]:
    """Return the moves of a route from a sharding to the goal, each with its price.

    The price is the number of elements that a device sends. The moves are slices to `route.first`,
    the exchanges of the route, then slices and gathers.

    Args:
      shape: the sizes of the tensor's dimensions.
      start: the digits of each dimension, and the digits of pending sums.
      goal: the digits of each dimension at the end.
    """
    way = MoveSequence(shape, *start)
    # Slices send nothing, so they come first and make the blocks of all later moves smaller.
    way.slices(route.first)
    for exchange in together(route.exchange):
        if isinstance(exchange, list):
            way.swap(*exchange)
        else:
            way.permute(exchange)
    way.finish(goal)
    return way.steps


def plain(dims: Dims) -> Dims:
    """Return the digits with plain numbers in place of named sizes.

    Everything that is computed from the returned digits is valid for these numbers only.
    """
    if are_numbers(d.size for digits in dims for d in digits):
        return dims
    return tuple(tuple(Digit(index(d.stride), index(d.size)) for d in digits) for digits in dims)


class MoveSequence:
    """A sequence of moves under construction, with their costs."""

    def __init__(self, shape: Shape, dims: Dims, pending: Digits) -> None:
        self.shape, self.dims, self.pending = shape, dims, pending
        self.steps: list[SearchStep] = []

    def add(self, move: Move, dims: Dims, kind: str = "") -> None:
        """Append a move, priced as a collective of this kind; a move without a kind is free.

        Args:
          dims: the digits of each dimension after the move.
        """
        price = 0
        if kind:
            held = local_elements(self.shape, self.dims)
            # A device of a permute sends its block once, to one device.
            size = 2 if kind == "collective_permute" else parts(move.digits)
            price = step_wire_bytes(kind, group_size=size, local_bytes=held)
        self.dims = dims
        self.steps.append(SearchStep(move, (dims, self.pending), price))

    def slices(self, wanted: Dims) -> None:
        """Append slices that shard dimensions further, towards the digits of `wanted`.

        A slice sends nothing. It is possible along digits that no dimension uses, if a dimension
        already has the major digits of `wanted`.
        """
        for dim, wanted_digits in enumerate(wanted):
            digits = self.dims[dim]
            # Only minor digits can be added: a block is cut into smaller blocks.
            is_prefix = wanted_digits[: len(digits)] == digits
            added = wanted_digits[len(digits) :] if is_prefix else ()
            # Devices that differ along a used digit hold different elements, which a slice needs.
            used = [d for each in self.dims for d in each]
            if added and not any(overlap(new, d) for new in added for d in used):
                block = tile(self.shape[dim], parts(wanted_digits))
                move = DynamicSlice(dim, added, block)
                self.add(move, with_row(self.dims, dim, wanted_digits))

    def swap(self, *swaps: Swap) -> None:
        """Append one all-to-all, which moves minor digits from dimensions to other dimensions.

        Args:
          swaps: per exchange, (dimension that loses the digits, dimension that gets them, digits,
            the same digits in the order in which they arrive). No two share a dimension.
        """
        dims, exchanges = self.dims, []
        for source, target, leaving, arriving in swaps:
            # The leaving digits are the last, most minor ones; arriving ones become the most minor.
            dims = with_row(dims, source, dims[source][: len(dims[source]) - len(leaving)])
            dims = with_row(dims, target, dims[target] + arriving)
            # Equal moves must be equal values, so an unchanged order has one form: ().
            order = () if leaving == arriving else arriving
            exchanges.append(AllToAll(target, source, leaving, order))
        # Several exchanges are sent as one collective.
        move = exchanges[0] if len(exchanges) == 1 else AllToAlls(tuple(exchanges))
        self.add(move, dims, "all_to_all")

    def permute(self, dims: Dims) -> None:
        """Append a permute, after which the dimensions have the digits `dims`.

        The permute has no (source, target) pairs yet: a price does not need them.
        """
        # A permute is named by the digits of all dimensions that change.
        pairs = zip(self.dims, dims, strict=True)
        changed = {d for old, new in pairs if old != new for d in (*old, *new)}
        # Digits of one collective must not overlap, so the prime pieces of both sides replace them.
        if any(overlap(a, b) for a, b in combinations(changed, 2)):
            changed = set(primes(tuple(changed)))
        move = CollectivePermute(tuple(sorted(changed, reverse=True)), ())
        self.add(move, dims, "collective_permute")

    def finish(self, goal: Dims) -> None:
        """Append the slices and gathers that end at the digits `goal` of each dimension.

        Digits that are only in the goal are added by slices. If a dimension has other digits than
        the goal, it is first gathered until only the leading digits that agree remain, and then
        sliced.
        """
        # Slices come first, because gathers then send smaller blocks.
        self.slices(goal)
        for dim, (digits, goal_digits) in enumerate(zip(self.dims, goal, strict=True)):
            # `same` counts the leading digits that agree. A slice past the end is (), never equal.
            same = 0
            while digits[same : same + 1] == goal_digits[same : same + 1] != ():
                same += 1
            if same < len(digits):
                move = AllGather(dim, digits[same:])
                self.add(move, with_row(self.dims, dim, digits[:same]), "all_gather")
        # After the gathers, no dimension has other digits than the goal: the rest is added.
        self.slices(goal)


def tile(size: int, count: int) -> int:
    """Return the block size `ceil(size / count)`."""
    return -(-size // count)


def local_elements(shape: Shape, dims: Dims) -> int:
    """Return the elements of a device's block, padding included."""
    total = 1
    for size, digits in zip(shape, dims, strict=True):
        total *= tile(size, parts(digits))
    return total


def bound(shape: Shape, start: State, goal: State) -> object:
    """Return a lower bound of the elements that a device must send from `start` to `goal`.

    In every move a device sends as much as it receives, so the bound counts received elements. Let
    even blocks have `L` elements at the start and `G` at the goal. Some device has only `O`
    elements of its goal block. `O` is the product, over dimensions, of the smaller block if the
    digits of one side begin with those of the other, else 0.

    Without sums to reduce, the device lacks `G - O` elements. A reduce-scatter of sums over `n`
    devices sends `L*(n-1)/n` elements and leaves `L/n`. It sends less after slices into `f` parts,
    by goal digits that the start lacks:
        G - O                                      no sums to reduce
        L/f*(n-1)/n + G - min(L/(f*n), O)          sums to reduce
    Uneven blocks are smallest on the last devices, so the bound is that of the first device.
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
        # Neither side's digits begin with the other's: some device is first along a digit of the
        # one side and last along a digit of the other, so its two blocks have no common element.
        shorter = min(len(digits), len(other))
        if digits[:shorter] == other[:shorter]:
            shared *= min(here, there)
        else:
            shared = 0
    # Both blocks of the first device begin at element 0, so the smaller one is all that it has.
    if not even:
        return needed - first
    # If some sums stay pending, the cost of reducing the others is left out: the bound is lower,
    # but still a bound.
    if pending == kept or kept:
        return needed - shared
    n = parts(pending)
    used = {*pending, *(digit for digits in dims for digit in digits)}
    n_new = n * parts(tuple([d for digits in wanted for d in digits if d not in used]))
    return quotient(held * (n - 1), n_new) + needed - min(quotient(held, n_new), shared)


def is_direct(shape: Shape, start: State, goal: State) -> bool:
    """Return whether some path is known, without a search, to be a cheapest one.

    It then sends no more elements than `bound`, which every path must send. Such paths are slices
    followed by gathers, an all-reduce, or slices followed by reduce-scatters to the goal's digits.
    All blocks must be even.
    """
    (dims, pending), (wanted, kept) = start, goal
    if any(size % parts(d) for side in (dims, wanted) for size, d in zip(shape, side, strict=True)):
        return False
    used = {digit for digits in dims for digit in digits}
    # `cut` has the digits by which a dimension is split further. A slice sends nothing, but is only
    # possible along digits of which each device holds all blocks.
    pairs = [(a, b) for a, b in zip(dims, wanted, strict=True) if a != b]
    cut = [b[len(a) :] for a, b in pairs if b[: len(a)] == a]
    if not all(used.isdisjoint(digits) for digits in cut):
        return False
    # Each dimension is then sliced or gathered, and a gather after the slices brings only elements
    # of the goal.
    if pending == kept:
        return all(b[: len(a)] == a or a[: len(b)] == b for a, b in pairs)
    if kept:
        return False
    # A reduce-scatter adds its digits as the most minor ones, so slices must come before it. Digits
    # that are pending must therefore be at the minor end of the goal's digits.
    scattered = [d for digits in cut for d in takewhile(pending.__contains__, reversed(digits))]
    return not pairs or (len(cut) == len(pairs) and len(scattered) == len(pending))


def additions(shape: Shape, state: State, goal: State) -> Iterator[SearchStep]:
    """Yield the all-reduces and reduce-scatters of sums that the goal does not leave pending.

    Each step has its move, the state after it, and the elements that a device sends. A state is
    (digits of each dimension, digits of pending sums).
    """
    dims, pending = state
    block_elements = local_elements(shape, dims)
    to_reduce = tuple(d for d in pending if d not in goal[1])
    # An all-reduce along two digits of m and n devices sends 2*(1 - 1/(m*n)) of the block, less
    # than two all-reduces. Along one digit it leaves the others to a reduce-scatter. With a single
    # digit both are the same move, which the dictionary has once.
    single_digits = [(digit,) for digit in to_reduce]
    for digits in dict.fromkeys([to_reduce, *single_digits]) if to_reduce else ():
        still_pending = tuple(d for d in pending if d not in digits)
        price = step_wire_bytes("all_reduce", group_size=parts(digits), local_bytes=block_elements)
        yield SearchStep(AllReduce(digits), (dims, still_pending), price)
    # A reduce-scatter shards any dimension further that stays even.
    for digit in to_reduce:
        still_pending = tuple(d for d in pending if d != digit)
        price = step_wire_bytes("reduce_scatter", group_size=digit.size, local_bytes=block_elements)
        for dim, size in enumerate(shape):
            digits = (*dims[dim], digit)
            if size % parts(digits) == 0:
                after = with_row(dims, dim, digits), still_pending
                yield SearchStep(ReduceScatter(dim, (digit,)), after, price)


def _slice(shape: Shape, state: State, dim: int, digits: Digits) -> Iterator[SearchStep]:
    """Yield the slice of a dimension by more digits, if they divide its size."""
    dims, pending = state
    cut = dims[dim] + digits
    if shape[dim] % parts(cut) == 0:
        move = DynamicSlice(dim, digits, shape[dim] // parts(cut))
        yield SearchStep(move, (with_row(dims, dim, cut), pending), 0)


def _swaps(shape: Shape, state: State, every: int = 0) -> Iterator[SearchStep]:
    """Yield one search step for each possible all-to-all from a state.

    All-to-alls are yielded also while sums are pending: if some sums stay pending in the goal, no
    later permute can replace an all-to-all.

    Args:
      shape: the sizes of the tensor's dimensions.
      state: the digits of each dimension, and the digits of pending sums.
      every: the largest number of moved digits for which each order at the new dimension is a step
        of its own. More digits keep their order.
    """
    for source, digits in enumerate(state[0]):
        for at, target in product(range(len(digits)), range(len(shape))):
            moved = digits[at:]
            if source != target and shape[target] % parts(state[0][target] + moved) == 0:
                # Every order of arrival costs the same bytes; many digits have too many orders.
                for arriving in permutations(moved) if len(moved) <= every else (moved,):
                    way = MoveSequence(shape, *state)
                    way.swap(Swap(source, target, moved, arriving))
                    yield from way.steps
