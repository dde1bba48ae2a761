"""The cheapest path between two shardings without partial sums: slices, an exchange, gathers.

The normal form is that of Rink et al., "Memory-efficient array redistribution through portable
collective communication" (arXiv:2112.01075). They fix the sizes first, and the devices by one
permute at the end.

Slices cost nothing and make blocks smaller; gathers make them larger. So slices come first and
gathers last, and blocks keep their size in between. If blocks of `U` elements are exchanged and
`x*U` elements are sent for that, the path to blocks of `G` elements costs

    G - U*(1 - x)

in every order of the gathers. The cheapest path therefore has no exchange (`x = 0`), or one
all-to-all among m devices (`x = 1 - 1/m`) on the largest possible blocks, or one permute (`x = 1`),
which costs `G` at any size. All other paths send more than `G`, on the smallest possible blocks:
all-to-alls alone (`shuffle.py`), or the fewest all-to-alls that make the numbers of parts fit, and
a permute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from math import gcd, lcm, prod
from typing import NamedTuple, TypeVar

from shardalg.algebra.digits import Digit, Digits, complement, nested, overlap, parts
from shardalg.planner.reshard.shuffle import Shuffle, Stacks, Swap, ordered_hops

Dims = tuple[Digits, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A path of a reshard in three parts: slices, an exchange, then slices and gathers to the goal.

    Attributes:
      first: the digits of each dimension after the first slices.
      exchange: all-to-alls and permutes. A permute is written as the digits of each dimension after
        it.
    """

    first: Dims
    exchange: tuple[Swap | Dims, ...] = ()


def direct(shape: Shape, start: Dims, goal: Dims) -> Route | None:
    """Return the route with no exchange or one all-to-all, or None.

    It exists only if one side's digits of each dimension begin with the other's. The all-to-all may
    move digits of several pairs of dimensions at once.

    Args:
      start, goal: per dimension, the digits that shard it, major first. A digit is a mesh axis or a
        factor of one.

    >>> x, y = (Digit(4, 2),), (Digit(1, 4),)
    >>> direct((8, 8), (x, ()), (x + y, ()))
    Route(first=((Digit(stride=4, size=2), Digit(stride=1, size=4)), ()), exchange=())
    >>> direct((8, 8), (x, ()), (y, ())) is None
    True
    """
    pairs = list(zip(start, goal, strict=True))
    for held, wanted in pairs:
        shorter = min(len(held), len(wanted))
        if held[:shorter] != wanted[:shorter]:
            return None
    place = {digit: k for k, held in enumerate(start) for digit in held}
    added = [(d, k) for k, (held, wanted) in enumerate(pairs) for d in wanted[len(held) :]]
    # Digits that a dimension gains and another one has must move: (source, target).
    arcs = {(place[digit], k) for digit, k in added if digit in place}
    longer = tuple([max(pair, key=len) for pair in pairs])
    if not arcs:
        return Route(longer)
    # Exchanges that share a dimension are not one all-to-all.
    if len({dim for arc in arcs for dim in arc}) < 2 * len(arcs):
        return None
    # The pairs share no dimension, so the slices of each pair can be chosen alone.
    first: Dims = longer
    swaps: list[Swap | Dims] = []
    for arc in sorted(arcs):
        route = _one_swap(shape, (start, goal, longer), arc)
        if route is None:
            return None
        for dim in arc:
            first = with_row(first, dim, route.first[dim])
        swaps += route.exchange
    return Route(first, tuple(swaps))


def _one_swap(shape: Shape, ends: tuple[Dims, Dims, Dims], arc: tuple[int, int]) -> Route | None:
    """Return the route of one all-to-all between two dimensions, or None.

    The source's minor digits move to the target. Blocks must stay contiguous, so the first digit
    that moves takes all digits minor to it along. Before the all-to-all, slices by unused digits
    shorten dimensions where the goal has more digits than the start. For example, from `[x y, -]`
    to `[x, y]`, the digit y leaves dimension 0 and arrives at dimension 1.

    Args:
      ends: (start, goal, longer): digits per dimension; `longer` has the longer of the two.
      arc: (source, target): the dimension that digits leave, and the one at which they arrive.
    """
    (start, goal, longer), (source, target) = ends, arc
    held, added = start[source], goal[target][len(start[target]) :]
    # Blocks must stay contiguous, so the digits behind the first one that leaves (`at`) leave, too.
    at = min([held.index(digit) for digit in added if digit in held])
    before = next(i for i, digit in enumerate(added) if digit in held)
    # An all-to-all appends digits at the minor end of the target. The target's more major new
    # digits (`head`) must therefore be there before, by a slice.
    head, rest = added[:before], added[before:]
    new = tuple(digit for digit in rest if digit not in held)
    # If the source cannot be cut by the new digits first, the target is sliced after the exchange.
    # The new digits must then be its most minor ones.
    # `leaving` and `arriving` must be the same digits, because an all-to-all only moves them.
    for early in (new, ()):
        leaving = held[at:] + early
        arriving = rest[: len(rest) - len(new)] if new and not early else rest
        arriving += tuple(d for d in leaving if d not in rest)
        first = with_row(with_row(longer, target, start[target] + head), source, held + early)
        fits = shape[source] % parts(first[source]) == 0
        fits = fits and shape[target] % parts(first[target] + arriving) == 0
        if fits and len(arriving) == len(leaving) and set(arriving) == set(leaving):
            return Route(first, (Swap(source, target, leaving, arriving),))
    return None


def permute_route(start: Dims, goal: Dims, axes: Digits) -> Route | None:
    """Return the route of one permute between equally many parts in each dimension, or None.

    Args:
      start, goal: per dimension, the digits that shard it.
      axes: all axes of the mesh.
    """
    # A permute keeps the number of parts of each dimension. Slices before it and gathers after it
    # lead from the start's number to the goal's if both divide the number in between.
    counts = [lcm(parts(a), parts(b)) for a, b in zip(start, goal, strict=True)]
    # The common refinement would need more parts than there are devices.
    if parts(axes) % prod(counts):
        return None
    first = filled_up(start, counts, goal, axes)
    last = filled_up(goal, counts, first, axes)
    if list(map(parts, first)) != counts or list(map(parts, last)) != counts:
        return None
    return Route(first, () if first == last else (last,))


def nearest_dims(like: Dims, counts: Sequence[int], axes: Digits) -> Dims:
    """Return digits of the axes with these numbers of parts, as similar to `like` as possible.

    Args:
      like: per dimension, the digits of another sharding.
      counts: per dimension, the number of parts.
      axes: all axes of the mesh.
    """
    # Keep the longest major part of each dimension's digits whose number of parts divides `count`.
    kept = []
    for held, count in zip(like, counts, strict=True):
        ends = [end for end in range(len(held) + 1) if count % parts(held[:end]) == 0]
        kept.append(held[: max(ends)])
    return filled_up(tuple(kept), counts, ((),) * len(like), axes)


def filled_up(dims: Dims, counts: Sequence[int], like: Dims, axes: Digits) -> Dims:
    """Return `dims` split further into these numbers of parts, by digits of `like` if they fit.

    For example, () in 4 parts with `like` (X,) of size 2 -> (X, Y), if the axis Y has size 2, too.
    A dimension gets fewer parts if no digits are left.

    Args:
      dims, like: per dimension, the digits of a sharding.
      counts: per dimension, the wanted number of parts.
      axes: axes of the mesh. Their parts are used if no digit of `like` fits.
    """
    filled = list(dims)
    used = [digit for digits in dims for digit in digits]
    # First the digits of `like`, so that the result has blocks in common with it.
    for dim, digits in enumerate(like):
        for digit in digits:
            missing = counts[dim] // parts(filled[dim])
            fits = missing > 1 and missing % digit.size == 0
            # Digits that do not nest have no complement, so the free digits would be unknown.
            if fits and all(nested(digit, other) and not overlap(digit, other) for other in used):
                filled[dim] += (digit,)
                used.append(digit)
    # Then any free digits. They have prime sizes, so each divides the missing factor or does not.
    free = list(unused_digits(tuple(used), axes))
    for dim, count in enumerate(counts):
        for digit in tuple(free):
            if count // parts(filled[dim]) % digit.size == 0:
                filled[dim] += (digit,)
                free.remove(digit)
    return tuple(filled)


@lru_cache(maxsize=1 << 12)
def unused_digits(used: Digits, axes: Digits) -> Digits:
    """Return the unused parts of the axes, in pieces of prime size, major first.

    A digit is (stride, size) in the device position. For example, on X=2, Y=4 with X used, the
    pieces of Y are (2, 2) and (1, 2). The result is () if the used digits do not nest.
    """
    pieces = []
    # The complement has the digits that together with the used ones count all devices.
    for stride, size in complement(used, parts(axes)) or ():
        # No piece may reach over the border of two axes: a collective is named by axes.
        inner_borders = [axis.stride for axis in axes if stride < axis.stride < stride * size]
        borders = sorted({stride * size, stride, *inner_borders}, reverse=True)
        pieces += [Digit(low, top // low) for top, low in pairwise(borders)]
    return primes(tuple(pieces))


@lru_cache(maxsize=1 << 12)
def primes(digits: Digits) -> Digits:
    """Return the digits, split into pieces of prime size.

    >>> primes((Digit(2, 12),))
    (Digit(stride=12, size=2), Digit(stride=6, size=2), Digit(stride=2, size=3))
    """
    found = []
    for stride, size in digits:
        # Factors are split off at the major end, so that the pieces are major first.
        top, factor = stride * size, 2
        while top > stride:
            if top // stride % factor == 0:
                top //= factor
                found.append(Digit(top, factor))
            else:
                factor += 1
    return tuple(found)


def exchange_route(
    shape: Shape, start: Dims, goal: Dims, axes_and_pending: tuple[Digits, Digits]
) -> Route | None:
    """Return the cheapest route of several exchanges, or None if no such route exists.

    `direct` and `permute_route` find the routes with one exchange, which send at most one block of
    the goal. This function is for all other pairs of shardings. It compares two kinds of routes:
    only all-to-alls, and all-to-alls with one permute.

    Args:
      start, goal: the digits of each dimension before and after, in digits of prime size.
      axes_and_pending: the axes of the mesh, and the digits along which sums stay pending. Pending
        digits must not move, so a route with a permute is compared only if there are none.
    """
    axes, kept = axes_and_pending
    # Both lists are [start, goal]. Unused digits count, because slices by them make the exchanged
    # blocks smaller.
    used = [tuple(d for digits in dims for d in digits) for dims in (start, goal)]
    free = [unused_digits(digits + kept, axes) for digits in used]
    # The pair (price, route) of the best route so far.
    best = (None, None) if kept else fitted_then_permuted(shape, start, goal, axes)
    pool = tuple(sorted({*used[0], *free[0]}, reverse=True))
    # All-to-alls keep the set of digits, so both sides must consist of the same ones.
    if pool != tuple(sorted({*used[1], *free[1]}, reverse=True)):
        return best[1]
    # The side with fewer unused digits has fewer placements to start from. If that is the goal, the
    # search runs backwards (`back`).
    back = len(free[1]) < len(free[0])
    ends = (goal, start) if back else (start, goal)
    wanted = [d for d in free[back] if d in used[not back]]
    others = [d for d in free[back] if d not in used[not back]]
    # `_all_to_all_route` gets the digits that it may use, those by which it slices first, and the
    # direction. Slices by digits of the other side stay; slices by other digits only make blocks
    # smaller, and are gathered again.
    for placed in (wanted, wanted + others) if others else (wanted,):
        best = _all_to_all_route(shape, ends, Pool(pool, tuple(placed), back), best)
    return best[1]


Priced = tuple[Fraction | None, Route | None]
"""The elements that a route sends beyond the goal's block, as a share of the tensor; the route."""
Arc = tuple[int, int, int]
"""Source and target dimension of an all-to-all, and its number of devices."""


class Pool(NamedTuple):
    """The digits that a search may use.

    Attributes:
      placed: digits by which dimensions are sliced before the first exchange.
      back: whether the search runs from the goal to the start.
    """

    digits: Digits
    placed: Digits
    back: bool


def _all_to_all_route(shape: Shape, ends: tuple[Dims, Dims], among: Pool, best: Priced) -> Priced:
    """Return the cheapest route of all-to-alls alone, with its price, or `best` if that is cheaper.

    The price is the number of elements that a device sends in addition to one block of the goal, as
    a share of the tensor. A unit is a group of digits that a cheapest path moves together
    (`_units`). The search represents a set of units as an integer with one bit per unit, and a
    dimension as a list of such sets, major first.

    Args:
      ends: the shardings at which the search begins and ends. If `among.back` is True, the search
        runs backwards, from the goal to the start.
      among: the digits that the search may use.
      best: the cheapest route so far, with its price.
    """
    (start, goal), (pool, placed, back) = ends, among
    # If the number of devices divides every size, any dimension may hold any digits (`ample`).
    units = _units(start, goal, pool, ample=not any(size % parts(pool) for size in shape))
    # Integers are compared faster than tuples of digits. The digits of a unit follow each other in
    # every sharding, so its first digit stands for all of them, and the others have no bit.
    bit_of_digit = {unit[0]: 1 << i for i, unit in enumerate(units)}
    unit_of_bit = {1 << i: unit for i, unit in enumerate(units)}
    start_bits, goal_bits = (
        tuple([tuple([bit_of_digit[d] for d in row if d in bit_of_digit]) for row in dims])
        for dims in ends
    )
    # All-to-alls keep the size of the blocks: all the time, the tensor has `used` blocks. The
    # search counts in 1/used of a block, so that sending one block costs `used`.
    used = prod([d.size for digits in (*start, placed) for d in digits])
    search = Shuffle(goal_bits, shape=shape, parts=_parts(tuple(map(parts, units))), pieces=used)
    # A route that sends n blocks has the price (n - 1)/used, because a block is 1/used of the
    # tensor. It is cheaper than the best one if n < 1 + price * used. Without a route to beat, the
    # limit is four blocks.
    limit_blocks = 4 if best[0] is None else 1 + best[0] * used
    # Before the first all-to-all, the digits `placed` may slice any dimensions.
    placed_bits = [bit_of_digit[d] for d in placed if d in bit_of_digit]
    found = search.search(_placements(start_bits, placed_bits), (limit_blocks * used, 0))
    if found is None:
        return best
    cost, start_sets, unordered_hops = found
    # The search moves sets of units. Now the units of each set are put in order, and written as
    # digits again.
    before, hops, after = ordered_hops(start_sets, unordered_hops, goal_bits)
    first, last = (tuple([_digits(row, unit_of_bit) for row in rows]) for rows in (before, after))
    swaps = []
    for source, target, leaving, arriving in hops:
        leaving_digits, arriving_digits = (_digits(x, unit_of_bit) for x in (leaving, arriving))
        swaps.append(Swap(source, target, leaving_digits, arriving_digits))
    # All-to-alls can be undone for the same bytes, so a path found backwards is reversed.
    if back:
        first, swaps = last, [swap.reverse for swap in reversed(swaps)]
    # n = cost/used blocks are sent, so the price (n - 1)/used is (cost - used)/used**2.
    return Fraction(cost - used, used * used), Route(first, tuple(swaps))


def _digits(bits: Sequence[int], of_bits: Mapping[int, Digits]) -> Digits:
    """Return the digits of several bits, one after the other.

    The search numbers the digits as bits. One bit can stand for several digits.

    Args:
      of_bits: the digits of each bit.
    """
    return tuple([digit for bit in bits for digit in of_bits[bit]])


def _units(start: Dims, goal: Dims, pool: Digits, *, ample: bool) -> list[Digits]:
    """Return the groups of digits that some cheapest path always moves together.

    The search moves groups instead of digits, so that it is smaller. Digits form a group if they
    are neighbours in one dimension at the start and at the goal, or unused at both.

    Proof that this loses no cheapest path. Suppose that two digits of a group, of sizes m and n,
    are separated on a cheapest path. Where an all-to-all moves only one of them, together with k
    other parts, a device sends the share 1 - 1/(k*m) or 1 - 1/(k*n) of its block. Change the path
    so that one digit always goes with the other: each such share becomes 1 - 1/(k*m*n) or 1 - 1/k.
    There are two such changes. Their average with the weights `log m : log n` sends no more than
    the path, because 1/t is convex in log t. So one of the two changes sends no more. The proof
    needs that any dimension may hold any digits (`ample`).

    Args:
      start, goal: the digits of each dimension at both ends.
      pool: all digits of the mesh.
      ample: whether any dimension may hold any digits; if False, each digit is a group.

    >>> a, b, c = (Digit(4, 2),), (Digit(2, 2),), (Digit(1, 2),)
    >>> _units((a + b + c, ()), (c, a + b), a + b + c, ample=True)
    [(Digit(stride=1, size=2),), (Digit(stride=4, size=2), Digit(stride=2, size=2))]
    """
    if not ample:
        return [(digit,) for digit in pool]
    # Two neighbours may be grouped only if on both sides one follows the other directly, or both
    # are unused. `behind` has the digit before each digit.
    behind, used = [], []
    for dims in (start, goal):
        behind.append({b: a for digits in dims for a, b in pairwise(digits)})
        used.append({digit for digits in dims for digit in digits})
    # Digits that never part are neighbours in one of these orders, so only neighbours are compared.
    orders = [*goal, *([d for d in digits if d not in used[1]] for digits in start)]
    orders.append([d for d in pool if d not in used[0] and d not in used[1]])
    units: list[Digits] = []
    for order in orders:
        last = None
        for digit in order:
            # At the start, and at the goal: `digit` follows `last` directly, or both are unused.
            stay_together = [
                before[digit] == last if digit in before else digit not in on and last not in on
                for before, on in zip(behind, used, strict=True)
            ]
            if last is not None and all(stay_together):
                units[-1] += (digit,)
            else:
                units.append((digit,))
            last = digit
    return units


@lru_cache(maxsize=1 << 10)
def _parts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of devices along each set of units, which are groups of digits.

    Entry `s` is for the set of the units `j` whose bit `j` is 1 in the number `s`.

    Args:
      sizes: the number of devices along each unit.
    """
    # Sets with unit j have numbers from 2**j on: each is a set without it, times its size.
    found = [1]
    for size in sizes:
        found += [count * size for count in found]
    return tuple(found)


def _placements(start: Stacks, placed: Sequence[int]) -> Iterator[Stacks]:
    """Yield the stacks after every way to slice the dimensions by the bits of `placed`.

    A stack is the list of digit blocks of one dimension, major first; each bit is a digit. Each bit
    slices one dimension. The bits that slice the same dimension become one block, the sum of these
    bits: the order of digits in a block is decided later (`ordered_hops`).
    """
    dims = range(len(start))
    for places in product(dims, repeat=len(placed)):
        pairs = list(zip(placed, places, strict=True))
        cuts = [sum([bit for bit, place in pairs if place == k]) for k in dims]
        yield tuple([(*held, cut) if cut else held for held, cut in zip(start, cuts, strict=True)])


def fitted_then_permuted(shape: Shape, start: Dims, goal: Dims, axes: Digits) -> Priced:
    """Return a route with all-to-alls and one permute; the result is (price, route).

    (None, None) if there is no such route. A permute needs equally many parts in each dimension
    before and after, for example `lcm(n, m)` for n parts at the start and m in the goal. Together
    these may be more parts than there are devices. The all-to-alls change this: one among r
    devices, from a dimension with too many parts to one with too few, divides the number by r.

    For example, from (4, 1) to (1, 4) parts on 8 devices, a permute needs (4, 4) parts, twice as
    many as there are devices:
        slice (4, 1) -> (4, 2), all-to-all among 2 devices -> (2, 4), permute, gather -> (1, 4)
    """
    devices = parts(axes)
    counts = [(parts(a), parts(b)) for a, b in zip(start, goal, strict=True)]
    need = prod([lcm(n, m) for n, m in counts])
    # Parts common to n and m stay, so dimension k gives up (`out`) or takes (`into`) only the rest.
    out = [n // gcd(n, m) for n, m in counts]
    into = [m // gcd(n, m) for n, m in counts]
    # `arcs` is (price, all-to-alls). Each all-to-all is (source dimension, target dimension, number
    # of devices), and together they divide the number of parts until it fits on the mesh.
    arcs = _arcs(need // gcd(need, devices), tuple(out), tuple(into))
    if arcs is None:
        return None, None
    before, after = _numbers(counts, arcs[1])
    room = devices // prod(before) if devices % prod(before) == 0 else 1
    # Unused devices make blocks smaller, so that the exchange sends less.
    for digit in primes((Digit(1, room),)):
        for k, size in enumerate(shape):
            if size % (max(before[k], after[k]) * digit.size) == 0:
                before[k], after[k] = before[k] * digit.size, after[k] * digit.size
                break
    first, last = filled_up(start, before, goal, axes), filled_up(goal, after, start, axes)
    if list(map(parts, last)) != after:
        return None, None
    # The all-to-alls move digits of the start, and the permute comes last. If digits of the start
    # do not fit, digits of the goal may, and the permute comes first. `arcs[0]` is the price in
    # blocks, of which the tensor has `prod(before)`.
    there = _by_parts(first, arcs[1])
    back = _by_parts(last, [(target, source, r) for source, target, r in reversed(arcs[1])])
    if there is not None:
        return arcs[0] / prod(before), Route(first, (*there[0], last))
    if back is not None:
        swaps = tuple(swap.reverse for swap in reversed(back[0]))
        return arcs[0] / prod(before), Route(first, (back[1], *swaps))
    return None, None


def _numbers(counts: Sequence[tuple[int, int]], arcs: Sequence[Arc]) -> tuple[list[int], list[int]]:
    """Return two lists: per dimension, its number of parts before and after some all-to-alls.

    A path slices each dimension from its n parts at the start to the first number, runs the
    all-to-alls, and gathers each dimension from the second number to its m parts at the goal. The
    returned numbers are the smallest ones that make this possible.

    Args:
      counts: (n, m) of each dimension.
      arcs: (source dimension, target dimension, number of devices) of each all-to-all.
    """
    before, after = [], []
    for k, (n, m) in enumerate(counts):
        given = prod([r for source, _, r in arcs if source == k])
        taken = prod([r for _, target, r in arcs if target == k])
        # Slicing makes n a divisor of `before`; all-to-alls take `given` parts away and bring
        # `taken` ones, and the result must be a multiple of m. So `before` must also be a multiple
        # of `given` times the part of m that `taken` does not bring.
        before.append(lcm(n, m // gcd(m, taken) * given))
        after.append(before[-1] // given * taken)
    return before, after


@lru_cache(maxsize=1 << 12)
def _arcs(
    over: int, out: tuple[int, ...], into: tuple[int, ...]
) -> tuple[Fraction, tuple[Arc, ...]] | None:
    """Return (price, all-to-alls) for the cheapest way to divide the number of parts by `over`.

    Slices may give a tensor `over` times more parts than the mesh has devices. Each all-to-all is
    (source dimension, target dimension, number r of devices), and the product of all r is `over`.
    The price is the sum of `1 - 1/r`. None if there is no such way.

    Args:
      out, into: per dimension, the number that the r of outgoing and of incoming ones must divide.
    """
    # The numbers of parts fit on the mesh: no all-to-all is needed.
    if over == 1:
        return Fraction(0), ()
    found = []
    for (k, n), (j, m) in product(enumerate(out), enumerate(into)):
        most = gcd(over, n, m)
        for r in range(2, most + 1):
            if most % r == 0:
                left = tuple(v // r if i == k else v for i, v in enumerate(out))
                room = tuple(v // r if i == j else v for i, v in enumerate(into))
                rest = _arcs(over // r, left, room)
                if rest is not None:
                    found.append((rest[0] + 1 - Fraction(1, r), ((k, j, r), *rest[1])))
    return min(found, default=None)


def _by_parts(dims: Dims, arcs: Sequence[Arc]) -> tuple[tuple[Swap, ...], Dims] | None:
    """Return the all-to-alls of `arcs`, and the digits of each dimension after them.

    None if one of them does not fit the digits of its source dimension.

    Args:
      dims: the digits of each dimension before.
      arcs: (source dimension, target dimension, number of devices) of each all-to-all. It moves the
        minor digits of the source, which must have exactly this number of devices.
    """
    new_dims, swaps = list(dims), []
    for source, target, count in arcs:
        digits = new_dims[source]
        # The first of the minor digits that have together `count` devices.
        starts = (k for k in range(len(digits)) if parts(digits[k:]) == count)
        start = next(starts, None)
        if start is None:
            return None
        moved = digits[start:]
        new_dims[source], new_dims[target] = digits[:start], new_dims[target] + moved
        swaps.append(Swap(source, target, moved, moved))
    return tuple(swaps), tuple(new_dims)


Row = TypeVar("Row")


def with_row(rows: tuple[Row, ...], dim: int, row: Row) -> tuple[Row, ...]:
    """Return the tuple with another row for one dimension."""
    return (*rows[:dim], row, *rows[dim + 1 :])
