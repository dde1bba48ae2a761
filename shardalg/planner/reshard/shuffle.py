"""All-to-alls that bring one layout to another, for the fewest bytes, where sizes stay as they are.

Digits are single bits of a number. A dimension is a stack of *blocks*, major first, each a set of
digits in an order that is still open: what one all-to-all brings, or one slice cuts, can be had in
any order for the same bytes. The orders are settled backwards once all moves are known. An
all-to-all among `m` devices costs `1 - 1/m` of the local block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from shardalg.planner.reshard.best_first import Cost, best_first

Stack = tuple[int, ...]
Stacks = tuple[Stack, ...]
Order = tuple[int, ...]
Other = TypeVar("Other")


class AllToAllHop(NamedTuple):
    """One all-to-all: the blocks `moved` leave the minor end of `source` for that of `target`."""

    source: int
    target: int
    moved: Stack


Hops = tuple[AllToAllHop, ...]


class Swap(NamedTuple):
    """One all-to-all in settled orders: what leaves `source`, and the same as it arrives."""

    source: int
    target: int
    leaving: tuple[Any, ...]
    arriving: tuple[Any, ...]

    @property
    def reverse(self) -> Swap:
        """The way back."""
        return Swap(self.target, self.source, self.arriving, self.leaving)


class Needs(NamedTuple):
    """What one dimension still costs at least, and by which hops.

    Attributes:
      lacks: of the hops that bring the digits of the goal that are not in their places.
      leaves: of the hops that take away what is in their way, or is wanted in another dimension.
      blocked: of those that have to leave before anything of use arrives; 0 where nothing is.
    """

    lacks: int
    leaves: int
    blocked: int


class Shuffle:
    """The cheapest hops from a layout to any that begins with the goal's digits (A*).

    A hop among m devices is priced `pieces * (1 - 1/m)`.

    Attributes:
      goal: per dimension its digits, single bits, major first.
      shape: places of each dimension, which the parts of a stack must divide.
      parts: devices along each set of digits, by its number.
      price: of a hop that moves a set of digits, by its number: of `pieces`, all devices that take
        part, all but one of m are sent.
      fits: whether any dimension may hold any digits.
      elsewhere: per dimension, the digits that the goal has in another one.
      known: per dimension, what a stack needs.
    """

    def __init__(
        self, goal: tuple[Order, ...], *, shape: Sequence[int], parts: tuple[int, ...], pieces: int
    ) -> None:
        self.goal, self.shape, self.parts = goal, shape, parts
        self.price = _prices(parts, pieces)
        self.fits = not any(size % parts[-1] for size in shape)
        placed = sum(map(sum, goal))
        self.elsewhere = [placed & ~sum(order) for order in goal]
        self.known: list[dict[Stack, Needs]] = [{} for _ in goal]

    def search(self, firsts: Iterable[Stacks], limit: Cost) -> tuple[int, Stacks, Hops] | None:
        """(pieces that are sent, layout, hops) of the cheapest way from any of the layouts.

        None where it costs the limit, or more.
        """
        self.limit = limit
        found = best_first(self, filter(self.holds, firsts), limit=limit)
        if found is None:
            return None
        hops = tuple([hop for _, hop in found[1]])
        return sum([self.price[sum(hop.moved)] for hop in hops]), found[0], hops

    def holds(self, stacks: Stacks) -> bool:
        """Whether the parts of each dimension divide its places."""
        pairs = () if self.fits else zip(self.shape, stacks, strict=True)
        return not any(size % self.parts[sum(stack)] for size, stack in pairs)

    def is_goal(self, state: Stacks) -> bool:
        """Whether nothing is needed any more."""
        return not self.least(state)

    def least(self, state: Stacks) -> int:
        """What hops cost at least from a layout.

        Each brings to one dimension and takes from one, and hops of m1 and m2 parts cost no less
        than one of m1*m2. Where every dimension that lacks something is blocked, what leaves the
        first of them arrives where it is of no use.
        """
        found = self.found(state)
        lacks = sum([need.lacks for need in found])
        leaves = sum([need.leaves for need in found])
        if lacks:
            lacks += min([need.blocked for need in found if need.lacks])
        return lacks if lacks > leaves else leaves

    def found(self, stacks: Stacks) -> list[Needs]:
        """What each dimension needs."""
        rows = zip(self.known, stacks, strict=True)
        return [k[s] if s in k else self.needs(dim, s) for dim, (k, s) in enumerate(rows)]

    def needs(self, dim: int, stack: Stack) -> Needs:
        """What the stack of a dimension needs.

        >>> shuffle = Shuffle(((1, 2), ()), shape=(8, 8), parts=(1, 2, 2, 4), pieces=4)
        >>> shuffle.needs(0, (1,)), shuffle.needs(0, (2,)), shuffle.needs(1, (2,))
        (Needs(lacks=2, leaves=0, blocked=0), Needs(lacks=3, leaves=2, blocked=2), \
Needs(lacks=0, leaves=2, blocked=0))
        """
        need = self._needs(self.goal[dim], self.elsewhere[dim], stack)
        self.known[dim][stack] = need
        return need

    def _needs(self, goal: Order, elsewhere: int, stack: Stack) -> Needs:
        at, end, leaves, blocked = 0, len(goal), 0, 0
        for block in stack:
            leaves |= block if leaves else block & elsewhere
            if blocked:
                blocked |= block
                continue
            while at < end and goal[at] & block:
                block ^= goal[at]
                at += 1
            blocked = block if at < end else 0
        price = self.price
        return Needs(price[sum(goal[at:])], price[leaves | blocked], price[blocked])

    def onward(self, stacks: Stacks, cost: Cost) -> Iterator[tuple[Cost, Stacks, AllToAllHop]]:
        """Every hop after which less may be needed than the limit leaves, and the layout."""
        found, limit = self.found(stacks), self.limit[0] - cost[0]
        lacks = sum([need.lacks for need in found])
        leaves = sum([need.leaves for need in found])
        for source, rest, moved in _pops(stacks):
            group = sum(moved)
            price = self.price[group]
            if price + leaves - found[source].leaves >= limit:
                continue
            for target, held in enumerate(stacks):
                if target == source or price + lacks - found[target].lacks >= limit:
                    continue
                if self.fits or not self.shape[target] % self.parts[sum(held) | group]:
                    after = list(stacks)
                    after[source], after[target] = rest, (*held, group)
                    yield (price, 1), tuple(after), AllToAllHop(source, target, moved)


@lru_cache(maxsize=1 << 10)
def _prices(parts: tuple[int, ...], pieces: int) -> tuple[int, ...]:
    """Of a hop that moves a set of digits, by its number."""
    return tuple([pieces - pieces // n for n in parts])


def _pops(stacks: Stacks) -> Iterator[tuple[int, Stack, Stack]]:
    """Every (dimension, what stays, what leaves)."""
    for source, stack in enumerate(stacks):
        for depth in range(len(stack) - 1, -1, -1):
            part = block = stack[depth]
            while part:
                yield source, *_cut(stack, depth, part)
                part = (part - 1) & block


def _cut(stack: Stack, depth: int, part: int) -> tuple[Stack, Stack]:
    """What stays and what leaves where `part` of a block and all above it leave."""
    rest = stack[depth] ^ part
    return stack[:depth] + ((rest,) if rest else ()), (part, *stack[depth + 1 :])


def settled(
    first: Stacks, hops: Sequence[AllToAllHop], goal: Sequence[Order]
) -> tuple[tuple[Order, ...], tuple[Swap, ...], tuple[Order, ...]]:
    """The layout before the hops, the hops, and the layout after them, all digits in order.

    >>> settled(((1, 2), (4,)), [AllToAllHop(0, 1, (2,))], ((1,), (4, 2)))
    (((1, 2), (4,)), (Swap(source=0, target=1, leaving=(2,), arriving=(2,)),), ((1,), (4, 2)))
    """
    stacks = list(first)
    for hop in hops:
        stacks[hop.target] = (*stacks[hop.target], sum(hop.moved))
        stacks[hop.source], _ = _without(stacks[hop.source], hop.moved)
    orders = [_ordered(stack, wanted) for stack, wanted in zip(stacks, goal, strict=True)]
    last, swaps = tuple(orders), []
    for hop in reversed(hops):
        count = sum(hop.moved).bit_count()
        arriving = orders[hop.target][len(orders[hop.target]) - count :]
        leaving = tuple(d for block in hop.moved for d in arriving if d & block)
        orders[hop.target] = orders[hop.target][: len(orders[hop.target]) - count]
        orders[hop.source] += leaving
        swaps.append(Swap(hop.source, hop.target, leaving, arriving))
    return tuple(orders), tuple(reversed(swaps)), last


def _without(stack: Stack, moved: Stack) -> tuple[Stack, Stack]:
    return _cut(stack, len(stack) - len(moved), moved[0])


def _ordered(stack: Stack, goal: Order) -> Order:
    """The digits of a stack, those of the goal first, in its order."""
    blocks = [[d for d in goal if d & block] + _bits(block & ~sum(goal)) for block in stack]
    return tuple(d for block in blocks for d in block)


def _bits(block: int) -> list[int]:
    return [1 << i for i in range(block.bit_length()) if block >> i & 1]


def together(exchanges: Iterable[Swap | Other]) -> list[list[Swap] | Other]:
    """Return the exchanges, neighbouring all-to-alls between dimensions of their own as one."""
    found: list[list[Swap] | Other] = []
    for exchange in exchanges:
        last = found[-1] if found else None
        if not isinstance(exchange, Swap):
            found.append(exchange)
        elif isinstance(last, list) and not {*exchange[:2]} & {d for s in last for d in s[:2]}:
            last.append(exchange)
        else:
            found.append([exchange])
    return found
