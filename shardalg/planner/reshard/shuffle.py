"""The cheapest all-to-alls from one sharding to another, with blocks of constant size.

Digits are single bits of a number. A dimension is a stack of *blocks*, major first. Each block is a
set of digits in an open order: an all-to-all, or a slice, can deliver its digits in any order for
the same bytes. The orders are derived backwards once all moves are known. An all-to-all among `m`
devices costs `1 - 1/m` of the local block.
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
    """One all-to-all, from the minor end of dimension `source` to that of dimension `target`.

    Attributes:
      moved: the blocks (sets of digits) that move.
    """

    source: int
    target: int
    moved: Stack


Hops = tuple[AllToAllHop, ...]


class Swap(NamedTuple):
    """One all-to-all between two dimensions, with its digits in fixed orders.

    Attributes:
      source, target: the dimension that loses the digits, and the dimension that gets them.
      leaving: the digits, major first, in the order that they have on `source`.
      arriving: the same digits in the order that they have on `target`.
    """

    source: int
    target: int
    leaving: tuple[Any, ...]
    arriving: tuple[Any, ...]

    @property
    def reverse(self) -> Swap:
        """The all-to-all in the other direction."""
        return Swap(self.target, self.source, self.arriving, self.leaving)


class Needs(NamedTuple):
    """Lower bounds of the cost of the all-to-alls (hops) that one dimension still needs.

    Attributes:
      lacks: hops that deliver the goal's digits that are not in their places yet.
      leaves: hops that remove digits which are in the way, or which another dimension needs.
      blocked: hops that must leave before any useful digit can arrive; 0 if there are none.
    """

    lacks: int
    leaves: int
    blocked: int


class Shuffle:
    """The search (A*) for the cheapest all-to-alls to a sharding that starts with goal digits.

    A hop is one all-to-all; among m devices it costs `pieces * (1 - 1/m)`. A stack is the list of
    digit sets that shard one dimension, major first.

    Attributes:
      goal: per dimension its digits, major first. A digit is an integer with one bit; a set of
        digits is the sum of its digits.
      shape: the size of each dimension; the number of parts of the dimension must divide it.
      parts: number of devices along each set of digits, indexed by the set's number.
      price: cost of a hop that moves a set of digits, indexed by the set's number.
      fits: whether any dimension may hold any digits.
      elsewhere: per dimension, the digits that the goal has in other dimensions.
      known: per dimension, a cache from a stack to what it still needs to become the goal's stack.
    """

    def __init__(
        self, goal: tuple[Order, ...], *, shape: Sequence[int], parts: tuple[int, ...], pieces: int
    ) -> None:
        """Set the price of every hop, and empty tables.

        Args:
          goal: per dimension, its digits as single bits, major first.
          shape: the size of each dimension.
          parts: the number of devices along each set of digits, indexed by the set's number.
          pieces: the price of sending a whole block.
        """
        self.goal, self.shape, self.parts = goal, shape, parts
        self.price = _prices(parts, pieces)
        # `parts[-1]` is the number of devices along all digits. If it divides every size, no stack
        # can have a number of parts that does not divide.
        self.fits = not any(size % parts[-1] for size in shape)
        # The tables of the bound. `elsewhere` has, per dimension, the goal's digits in all other
        # dimensions, which must leave it. `known` caches, per dimension, the results of `needs`.
        placed = sum(map(sum, goal))
        self.elsewhere = [placed & ~sum(order) for order in goal]
        self.known: list[dict[Stack, Needs]] = [{} for _ in goal]

    def search(self, firsts: Iterable[Stacks], limit: Cost) -> tuple[int, Stacks, Hops] | None:
        """Return (cost, start, hops) of the cheapest path to the goal.

        None if it costs `limit` or more. A hop is one all-to-all.

        Args:
          firsts: the states from which a path may start. The result names the one that it uses.
        """
        self.limit = limit
        found = best_first(self, filter(self.holds, firsts), limit=limit)
        if found is None:
            return None
        hops = tuple([hop for _, hop in found[1]])
        return sum([self.price[sum(hop.moved)] for hop in hops]), found[0], hops

    def holds(self, stacks: Stacks) -> bool:
        """Return whether the number of parts divides the size of each dimension.

        Args:
          stacks: the digits of each dimension.
        """
        pairs = () if self.fits else zip(self.shape, stacks, strict=True)
        return not any(size % self.parts[sum(stack)] for size, stack in pairs)

    def is_goal(self, state: Stacks) -> bool:
        """Return whether all digits of the goal are in place."""
        # The bound is 0 exactly there. Digits that the goal lacks may be minor to the goal's
        # digits: the route gathers them afterwards.
        return not self.least(state)

    def least(self, state: Stacks) -> int:
        """Return a lower bound of the cost of the all-to-alls (hops) that are still necessary.

        Each hop removes digits from one dimension and adds them to another one. So the cost is at
        least the sum of what all dimensions lack, and at least the sum of what must leave them. If
        no dimension can take its missing digits yet, one must first be emptied by a hop that adds
        no missing digit anywhere. The cheapest of these hops is added. Two hops with m1 and m2
        parts cost no less than one with m1*m2, so each sum may count one hop per dimension.
        """
        found = self.found(state)
        lacks = sum([need.lacks for need in found])
        leaves = sum([need.leaves for need in found])
        if lacks:
            lacks += min([need.blocked for need in found if need.lacks])
        return lacks if lacks > leaves else leaves

    def found(self, stacks: Stacks) -> list[Needs]:
        """Return, per dimension, lower bounds of the cost of the hops that it still needs."""
        rows = zip(self.known, stacks, strict=True)
        return [k[s] if s in k else self.needs(dim, s) for dim, (k, s) in enumerate(rows)]

    def needs(self, dim: int, stack: Stack) -> Needs:
        """Return lower bounds of the cost of the hops that a dimension still needs; store them.

        A hop is an all-to-all that moves a set of digits. In the example, the goal has the digits 1
        and 2 in dimension 0, and none in dimension 1.

        Args:
          dim: the dimension.
          stack: the sets of digits that the dimension has now, major first. A set is a number with
            one bit per digit.

        >>> shuffle = Shuffle(((1, 2), ()), shape=(8, 8), parts=(1, 2, 2, 4), pieces=4)
        >>> shuffle.needs(0, (1,)), shuffle.needs(0, (2,)), shuffle.needs(1, (2,))
        (Needs(lacks=2, leaves=0, blocked=0), Needs(lacks=3, leaves=2, blocked=2), \
Needs(lacks=0, leaves=2, blocked=0))
        """
        need = self._needs(self.goal[dim], self.elsewhere[dim], stack)
        self.known[dim][stack] = need
        return need

    def _needs(self, goal: Order, elsewhere: int, stack: Stack) -> Needs:
        """Return lower bounds of the price of the all-to-alls that a dimension still needs.

        The digits of the dimension are compared with the digits that the goal has there, from the
        major end. The three bounds are for the digits that must arrive, for the digits that must
        leave, and for the digits that must leave before a digit of the goal can arrive.

        A digit is an integer with one bit, and a set of digits the sum of its digits. `price` is
        indexed by a set: it is the cost of one all-to-all that moves the set.

        Args:
          goal: the digits of the dimension at the goal, major first.
          elsewhere: the set of digits that other dimensions have at the goal.
          stack: the present sets of digits of the dimension, major first.
        """
        at, end, leaves, blocked = 0, len(goal), 0, 0
        for block in stack:
            # A digit can leave only together with all digits minor to it.
            leaves |= block if leaves else block & elsewhere
            # All that is minor to a digit out of place must leave before a digit of the goal
            # arrives.
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
        """Yield every all-to-all after which the path can still cost less than the limit.

        An all-to-all from dimension `source` to `target` removes digits from the first one only,
        and adds digits to the second one only. So the rest of the path costs at least the sum of
        `leaves` over all dimensions except `source`, and the sum of `lacks` over all except
        `target` (see `Needs`).
        """
        found, limit = self.found(stacks), self.limit[0] - cost[0]
        lacks = sum([need.lacks for need in found])
        leaves = sum([need.leaves for need in found])
        for source, rest, moved in _pops(stacks):
            group = sum(moved)
            price = self.price[group]
            # Digits that still have to leave or arrive cost at least `leaves` or `lacks`. A state
            # whose price and bound reach the limit cannot beat the best path.
            if price + leaves - found[source].leaves >= limit:
                continue
            for target, held in enumerate(stacks):
                if target == source or price + lacks - found[target].lacks >= limit:
                    continue
                # The target must have even blocks, because an all-to-all sends blocks of one size.
                if self.fits or not self.shape[target] % self.parts[sum(held) | group]:
                    after = list(stacks)
                    after[source], after[target] = rest, (*held, group)
                    yield (price, 1), tuple(after), AllToAllHop(source, target, moved)


@lru_cache(maxsize=1 << 10)
def _prices(parts: tuple[int, ...], pieces: int) -> tuple[int, ...]:
    """Return the cost of an all-to-all that moves a set of digits, for each set.

    An entry's index is the number of the set (a bit mask of digits). If n devices differ along the
    digits, a device keeps 1/n of its block and sends the rest.

    Args:
      parts: per set, the number n of devices.
      pieces: the cost of sending a whole block.
    """
    return tuple([pieces - pieces // n for n in parts])


def _pops(stacks: Stacks) -> Iterator[tuple[int, Stack, Stack]]:
    """Yield (dimension, digits that stay, digits that leave) for each set of digits a hop can move.

    A hop is an all-to-all: it moves minor digits of one dimension to another. A stack has the
    digits of one dimension in blocks, major first. Inside of a block, the order of the digits is
    open. A block is a number in which each bit stands for a digit.
    """
    for source, stack in enumerate(stacks):
        for depth in range(len(stack) - 1, -1, -1):
            part = block = stack[depth]
            while part:
                # Any non-empty subset of the block's digits may leave, because their order is open.
                # `(part - 1) & block` is the next smaller subset of the bits of `block`.
                yield source, *_split_stack(stack, depth, part)
                part = (part - 1) & block


def _split_stack(stack: Stack, depth: int, part: int) -> tuple[Stack, Stack]:
    """Split a dimension's stack of blocks in two: the blocks that stay, and those that move.

    A stack lists blocks of digits, major first. A block is a set of digits, as the bits of a
    number. Digits move together with all blocks minor to them.

    Args:
      depth: the number of the block from which digits move.
      part: the digits of this block that move.
    """
    rest = stack[depth] ^ part
    return stack[:depth] + ((rest,) if rest else ()), (part, *stack[depth + 1 :])


def ordered_hops(
    first: Stacks, hops: Sequence[AllToAllHop], goal: Sequence[Order]
) -> tuple[tuple[Order, ...], tuple[Swap, ...], tuple[Order, ...]]:
    """Return the start, the hops and the end with all digits in a fixed order.

    The search leaves the order of the digits in a block open, because it does not change the cost.

    >>> ordered_hops(((1, 2), (4,)), [AllToAllHop(0, 1, (2,))], ((1,), (4, 2)))
    (((1, 2), (4,)), (Swap(source=0, target=1, leaving=(2,), arriving=(2,)),), ((1,), (4, 2)))
    """
    # Forwards first, because the order of digits is chosen at the end, whose blocks are not known.
    stacks = list(first)
    for hop in hops:
        stacks[hop.target] = (*stacks[hop.target], sum(hop.moved))
        stack = stacks[hop.source]
        stacks[hop.source], _ = _split_stack(stack, len(stack) - len(hop.moved), hop.moved[0])
    # Gathers remove minor digits, so in each block of the end the goal's digits come first.
    orders = []
    for stack, wanted in zip(stacks, goal, strict=True):
        digits: list[int] = []
        for block in stack:
            others = block & ~sum(wanted)
            digits += [d for d in wanted if d & block]
            digits += [1 << i for i in range(others.bit_length()) if others >> i & 1]
        orders.append(tuple(digits))
    last, swaps = tuple(orders), []
    # Backwards: the order at the end fixes the order in which the last hop delivers, which fixes
    # the order before this hop, and so on:
    #   source [.. leaving], target [..]   --hop-->   source [..], target [.. arriving]
    for hop in reversed(hops):
        count = sum(hop.moved).bit_count()
        arriving = orders[hop.target][len(orders[hop.target]) - count :]
        leaving = tuple(d for block in hop.moved for d in arriving if d & block)
        orders[hop.target] = orders[hop.target][: len(orders[hop.target]) - count]
        orders[hop.source] += leaving
        swaps.append(Swap(hop.source, hop.target, leaving, arriving))
    return tuple(orders), tuple(reversed(swaps)), last


def together(exchanges: Iterable[Swap | Other]) -> list[list[Swap] | Other]:
    """Return the exchanges; consecutive all-to-alls without a common dimension become one.

    A list of the result is one all-to-all. One all-to-all of several pairs sends each element at
    most once, and so sends less than one for each pair.

    Args:
      exchanges: all-to-alls, as (source dimension, target dimension, ...), and other moves.
    """
    joined: list[list[Swap] | Other] = []
    for exchange in exchanges:
        last = joined[-1] if joined else None
        # Another move ends the run of all-to-alls, because it must stay between them.
        if not isinstance(exchange, Swap):
            joined.append(exchange)
            continue
        used_dims = {dim for swap in last for dim in swap[:2]} if isinstance(last, list) else set()
        if isinstance(last, list) and used_dims.isdisjoint(exchange[:2]):
            last.append(exchange)
        else:
            joined.append([exchange])
    return joined
