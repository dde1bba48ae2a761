"""The cheapest way between two layouts without partial sums: slices, an exchange, gathers.

The normal form is that of Rink et al., "Memory-efficient array redistribution through portable
collective communication" (arXiv:2112.01075), who settle the sizes first and the devices by one
permute at the end.

Slices cost nothing and make blocks smaller, gathers make them larger: so slices come first and
gathers last, and in between blocks keep their size. With blocks of `U` elements there and `x*U`
sent for the exchange, the way to blocks of `G` elements costs

    G - U*(1 - x)

whatever the order of the gathers. So the cheapest way has no exchange (`x = 0`), or one all-to-all
among m devices (`x = 1 - 1/m`), with blocks as large as can be; or else one permute (`x = 1`),
which costs `G` at any size. All that remains sends more than `G`, with blocks as small as can be:
all-to-alls alone (`shuffle.py`), or the fewest that make the numbers of parts fit, and a permute.
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
from shardalg.planner.reshard.shuffle import Shuffle, Stacks, Swap, settled

Dims = tuple[Digits, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A way to a goal: slices to `first`, the exchange, then slices and gathers to the goal.

    Attributes:
      exchange: all-to-alls, and permutes as the layout that they lead to.
    """

    first: Dims
    exchange: tuple[Swap | Dims, ...] = ()


def direct(shape: Shape, start: Dims, goal: Dims) -> Route | None:
    """No exchange, or one all-to-all: where each dimension begins alike on both sides.

    The all-to-all may move the cuts of several dimensions at once.

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
    arcs = {(place[digit], k) for digit, k in added if digit in place}
    longer = tuple([max(pair, key=len) for pair in pairs])
    if not arcs:
        return Route(longer)
    if len({dim for arc in arcs for dim in arc}) < 2 * len(arcs):
        return None
    # Between dimensions of their own, all all-to-alls are one exchange.
    first: Dims = longer
    swaps: list[Swap | Dims] = []
    for arc in sorted(arcs):
        route = _one_swap(shape, (start, goal, longer), arc)
        if route is None:
            return None
        for dim in arc:
            first = replaced(first, dim, route.first[dim])
        swaps += route.exchange
    return Route(first, tuple(swaps))


def _one_swap(shape: Shape, ends: tuple[Dims, Dims, Dims], arc: tuple[int, int]) -> Route | None:
    """What moves leaves one dimension for another with what stands behind it there, or will."""
    (start, goal, longer), (source, target) = ends, arc
    held, added = start[source], goal[target][len(start[target]) :]
    at = min([held.index(digit) for digit in added if digit in held])
    before = next(i for i, digit in enumerate(added) if digit in held)
    head, rest = added[:before], added[before:]
    new = tuple(digit for digit in rest if digit not in held)
    # a dimension that cannot be cut further is left before the slice, if what is new comes last
    for early in (new, ()):
        leaving = held[at:] + early
        arriving = rest[: len(rest) - len(new)] if new and not early else rest
        arriving += tuple(d for d in leaving if d not in rest)
        first = replaced(replaced(longer, target, start[target] + head), source, held + early)
        fits = shape[source] % parts(first[source]) == 0
        fits = fits and shape[target] % parts(first[target] + arriving) == 0
        if fits and len(arriving) == len(leaving) and set(arriving) == set(leaving):
            return Route(first, (Swap(source, target, leaving, arriving),))
    return None


def permuted(start: Dims, goal: Dims, axes: Digits) -> Route | None:
    """One permute between layouts with as many parts in each dimension."""
    counts = [lcm(parts(a), parts(b)) for a, b in zip(start, goal, strict=True)]
    if parts(axes) % prod(counts):
        return None
    first = filled(start, counts, goal, axes)
    last = filled(goal, counts, first, axes)
    if list(map(parts, first)) != counts or list(map(parts, last)) != counts:
        return None
    return Route(first, () if first == last else (last,))


def translated(like: Dims, counts: Sequence[int], axes: Digits) -> Dims:
    """A layout on the axes with so many parts, which begins as `like` does where that fits."""
    kept = []
    for held, count in zip(like, counts, strict=True):
        ends = [end for end in range(len(held) + 1) if count % parts(held[:end]) == 0]
        kept.append(held[: max(ends)])
    return filled(tuple(kept), counts, ((),) * len(like), axes)


def filled(dims: Dims, counts: Sequence[int], like: Dims, axes: Digits) -> Dims:
    """`dims` cut further, by digits of `like` where they fit, into so many parts.

    Args:
      axes: those of the mesh; where a digit of `like` does not fit, parts of them do.
    """
    out = list(dims)
    used = [digit for digits in dims for digit in digits]
    for k, digits in enumerate(like):
        for digit in digits:
            need = counts[k] // parts(out[k])
            fits = need > 1 and need % digit.size == 0
            if fits and all(nested(digit, u) and not overlap(digit, u) for u in used):
                out[k] += (digit,)
                used.append(digit)
    free = list(unused(tuple(used), axes))
    for k, count in enumerate(counts):
        for digit in tuple(free):
            if count // parts(out[k]) % digit.size == 0:
                out[k] += (digit,)
                free.remove(digit)
    return tuple(out)


@lru_cache(maxsize=1 << 12)
def unused(used: Digits, axes: Digits) -> Digits:
    """Parts of the axes that are not used, in pieces of prime size, major first."""
    found = []
    for stride, size in complement(used, parts(axes)) or ():
        inside = [a.stride for a in axes if stride < a.stride < stride * size]
        borders = sorted({stride * size, stride, *inside}, reverse=True)
        found += [Digit(low, top // low) for top, low in pairwise(borders)]
    return primes(tuple(found))


@lru_cache(maxsize=1 << 12)
def primes(digits: Digits) -> Digits:
    """The digits cut into pieces of prime size.

    >>> primes((Digit(2, 12),))
    (Digit(stride=12, size=2), Digit(stride=6, size=2), Digit(stride=2, size=3))
    """
    found = []
    for stride, size in digits:
        top, factor = stride * size, 2
        while top > stride:
            if top // stride % factor == 0:
                top //= factor
                found.append(Digit(top, factor))
            else:
                factor += 1
    return tuple(found)


def shuffled(shape: Shape, start: Dims, goal: Dims, room: tuple[Digits, Digits]) -> Route | None:
    """The cheapest of what sends more than the goal holds, between layouts in prime digits.

    Args:
      room: axes of the mesh, and digits that stay as they are: only without is there a permute.
    """
    axes, kept = room
    used = [tuple(d for digits in dims for d in digits) for dims in (start, goal)]
    free = [unused(digits + kept, axes) for digits in used]
    best = (None, None) if kept else fitted(shape, start, goal, axes)
    pool = tuple(sorted({*used[0], *free[0]}, reverse=True))
    if pool != tuple(sorted({*used[1], *free[1]}, reverse=True)):
        return best[1]
    back = len(free[1]) < len(free[0])
    ends = (goal, start) if back else (start, goal)
    wanted = [d for d in free[back] if d in used[not back]]
    others = [d for d in free[back] if d not in used[not back]]
    for placed in (wanted, wanted + others) if others else (wanted,):
        best = _swapped(shape, ends, Pool(pool, tuple(placed), back), best)
    return best[1]


Priced = tuple[Fraction | None, Route | None]
"""What a route sends beyond the goal's elements, as a share of the tensor."""
Arc = tuple[int, int, int]
"""Source and target dimension of an all-to-all, and its number of devices."""


class Pool(NamedTuple):
    """All digits that a search may use.

    Attributes:
      placed: those to cut by first. back: the search runs from the goal to the start.
    """

    digits: Digits
    placed: Digits
    back: bool


def _swapped(shape: Shape, ends: tuple[Dims, Dims], among: Pool, best: Priced) -> Priced:
    """All-to-alls alone, if they send less than the best; found from the side that is fuller."""
    (start, goal), (pool, placed, back) = ends, among
    units = _units(start, goal, pool, ample=not any(size % parts(pool) for size in shape))
    bits = {unit[0]: 1 << i for i, unit in enumerate(units)}
    of_bits = {1 << i: unit for i, unit in enumerate(units)}
    start_bits, goal_bits = (
        tuple([tuple([bits[d] for d in digits if d in bits]) for digits in dims]) for dims in ends
    )
    used = prod([d.size for digits in (*start, placed) for d in digits])
    search = Shuffle(goal_bits, shape=shape, parts=_parts(tuple(map(parts, units))), pieces=used)
    most = 4 if best[0] is None else 1 + best[0] * used
    firsts = _placements(start_bits, [bits[d] for d in placed if d in bits])
    found = search.search(firsts, (most * used, 0))
    if found is None:
        return best
    cost = found[0]
    before, hops, after = settled(*found[1:], goal_bits)
    first, last = (tuple([_digits(side, of_bits) for side in sides]) for sides in (before, after))
    swaps = [Swap(*s[:2], *(_digits(side, of_bits) for side in s[2:])) for s in hops]
    if back:
        first, swaps = last, [swap.reverse for swap in reversed(swaps)]
    return Fraction(cost - used, used * used), Route(first, tuple(swaps))


def _digits(bits: Sequence[int], of_bits: Mapping[int, Digits]) -> Digits:
    return tuple([digit for bit in bits for digit in of_bits[bit]])


def _units(start: Dims, goal: Dims, pool: Digits, *, ample: bool) -> list[Digits]:
    """Digits that need never part: neighbours on either side, or on nothing there.

    Let two such digits of sizes m and n part on the cheapest way: where only one travels, with k
    others, a device sends 1 - 1/(k*m) or 1 - 1/(k*n) of its block. If one follows the other
    everywhere that becomes 1 - 1/(k*m*n), and 1 - 1/k where it now stays away. Both ways to join
    them, weighted `log m : log n`, send no more on average (1/t is convex in log t): so one of the
    two sends no more. All it asks of sizes is that any dimension may hold any digits (`ample`).

    >>> a, b, c = (Digit(4, 2),), (Digit(2, 2),), (Digit(1, 2),)
    >>> _units((a + b + c, ()), (c, a + b), a + b + c, ample=True)
    [(Digit(stride=1, size=2),), (Digit(stride=4, size=2), Digit(stride=2, size=2))]
    """
    if not ample:
        return [(digit,) for digit in pool]
    behind, used = [], []
    for dims in (start, goal):
        behind.append({b: a for digits in dims for a, b in pairwise(digits)})
        used.append({digit for digits in dims for digit in digits})
    orders = [*goal, *([d for d in digits if d not in used[1]] for digits in start)]
    orders.append([d for d in pool if d not in used[0] and d not in used[1]])
    units: list[Digits] = []
    for order in orders:
        last = None
        for digit in order:
            alike = [
                held[digit] == last if digit in held else digit not in on and last not in on
                for held, on in zip(behind, used, strict=True)
            ]
            if last is not None and all(alike):
                units[-1] += (digit,)
            else:
                units.append((digit,))
            last = digit
    return units


@lru_cache(maxsize=1 << 10)
def _parts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Devices along each set of units: number i has bit j for the j-th."""
    found = [1]
    for size in sizes:
        found += [count * size for count in found]
    return tuple(found)


def _placements(start: Stacks, placed: Sequence[int]) -> Iterator[Stacks]:
    """Every way to cut the dimensions by the placed bits too; those of one may be in any order."""
    dims = range(len(start))
    for places in product(dims, repeat=len(placed)):
        pairs = list(zip(placed, places, strict=True))
        cuts = [sum([bit for bit, place in pairs if place == k]) for k in dims]
        yield tuple([(*held, cut) if cut else held for held, cut in zip(start, cuts, strict=True)])


def fitted(shape: Shape, start: Dims, goal: Dims, axes: Digits) -> Priced:
    """All-to-alls that make the numbers of parts fit, then a permute.

    `lcm` parts in each dimension are `over` times too many for the devices. An all-to-all among r
    of them, from a dimension with more parts than the goal's to one with fewer, takes a factor r.
    """
    devices = parts(axes)
    counts = [(parts(a), parts(b)) for a, b in zip(start, goal, strict=True)]
    need = prod([lcm(n, m) for n, m in counts])
    out = [n // gcd(n, m) for n, m in counts]
    into = [m // gcd(n, m) for n, m in counts]
    arcs = _arcs(need // gcd(need, devices), tuple(out), tuple(into))
    if arcs is None:
        return None, None
    before, after = _numbers(counts, arcs[1])
    room = devices // prod(before) if devices % prod(before) == 0 else 1
    for digit in primes((Digit(1, room),)):  # blocks as small as can be
        for k, size in enumerate(shape):
            if size % (max(before[k], after[k]) * digit.size) == 0:
                before[k], after[k] = before[k] * digit.size, after[k] * digit.size
                break
    first, last = filled(start, before, goal, axes), filled(goal, after, start, axes)
    if list(map(parts, last)) != after:
        return None, None
    there = _by_parts(first, arcs[1])
    back = _by_parts(last, [(target, source, r) for source, target, r in reversed(arcs[1])])
    if there is not None:
        return arcs[0] / prod(before), Route(first, (*there[0], last))
    if back is not None:
        swaps = tuple(swap.reverse for swap in reversed(back[0]))
        return arcs[0] / prod(before), Route(first, (back[1], *swaps))
    return None, None


def _numbers(counts: Sequence[tuple[int, int]], arcs: Sequence[Arc]) -> tuple[list[int], list[int]]:
    """Parts of each dimension before and after the arcs, the fewest that refine both ends."""
    before, after = [], []
    for k, (n, m) in enumerate(counts):
        given = prod([r for source, _, r in arcs if source == k])
        taken = prod([r for _, target, r in arcs if target == k])
        before.append(lcm(n, m // gcd(m, taken) * given))
        after.append(before[-1] // given * taken)
    return before, after


@lru_cache(maxsize=1 << 12)
def _arcs(
    over: int, out: tuple[int, ...], into: tuple[int, ...]
) -> tuple[Fraction, tuple[Arc, ...]] | None:
    """The cheapest (source, target, r) whose r multiply to `over`; None where none do."""
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
    """All-to-alls of so many parts each, and where they lead; None where no digits fit."""
    held, swaps = list(dims), []
    for source, target, r in arcs:
        at = next((i for i in range(len(held[source])) if parts(held[source][i:]) == r), None)
        if at is None:
            return None
        moved = held[source][at:]
        held[source], held[target] = held[source][:at], held[target] + moved
        swaps.append(Swap(source, target, moved, moved))
    return tuple(swaps), tuple(held)


Row = TypeVar("Row")


def replaced(rows: tuple[Row, ...], dim: int, row: Row) -> tuple[Row, ...]:
    """What is said of each dimension, with something else on one of them."""
    return (*rows[:dim], row, *rows[dim + 1 :])
