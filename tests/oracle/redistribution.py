"""The planner of Rink et al. for even layouts, as a judge of ours.

"Memory-efficient array redistribution through portable collective communication"
(arXiv:2112.01075). What is theirs:

- a type is a list of mesh axes per dimension, of which the minor one moves; axes are cut into
  pieces of prime size, of which those of one axis move together too;
- the collectives, each on one axis or piece: `dynslice`, `allgather`, `alltoall`, and an
  `allpermute` between any two types with as many parts in each dimension;
- the normal form, slices, then what keeps sizes, then gathers, so that no array on the way is
  larger than both at the ends; in it at most one allpermute;
- the search: the cheapest path between *weak* types, the numbers of parts alone, under that bound.
  An allpermute puts the devices right.

More than theirs, so that they lose nothing here by a detail: the permute stands where blocks are
smallest, any way without one is tried too (among *strong* types), prices are those of
`costs.collectives`, and neighbours of one kind on the same dimensions count as one collective.
"""

import heapq
import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

from shardalg.algebra.digits import parts
from shardalg.planner.reshard.closed_forms import primes


@dataclass(frozen=True)
class Redistribution:
    """Sent elements, the number of collectives, and the largest operands and results."""

    sent: int
    steps: int
    held: int


def redistribution(source, target):
    """Return the cheaper of the ways with one allpermute and with none."""
    ends = tuple(tuple(map(primes, s.dims)) for s in (source, target))
    size = math.prod(source.shape)
    most = max(size // _parts(dims) for dims in ends)
    axes = tuple(primes((source.mesh.digit(name),)) for name in source.mesh.axis_names)
    strong = _cheapest(_Strong(axes), ends[0], (size, most)).get(ends[1])
    counts = [tuple(map(parts, dims)) for dims in ends]
    weak = _cheapest(_Weak(source.mesh.size), (counts[0], False), (size, most))[counts[1], True]
    found = [_counted(way, size) for way in (strong, weak) if way is not None]
    return min(found, key=lambda way: (way.sent, way.steps))


def _parts(dims):
    return math.prod(map(parts, dims))


@dataclass(frozen=True)
class _Strong:
    """Types as they are: pieces of axes per dimension, major first."""

    axes: tuple

    def parts(self, dims):
        return _parts(dims)

    def moves(self, dims):
        """(kind, number of devices, type that it leads to) of every collective."""
        used = {piece for held in dims for piece in held}
        for i, held in enumerate(dims):
            for piece in (piece for axis in self.axes for piece in axis if piece not in used):
                yield ("dynslice", i), piece.size, _with(dims, i, (*held, piece))
            for moved in self.minor(held):
                left = _with(dims, i, held[: -len(moved)])
                yield ("allgather", i), parts(moved), left
                for j in {*range(len(dims))} - {i}:
                    yield ("alltoall", i, j), parts(moved), _with(left, j, (*dims[j], *moved))

    def minor(self, held):
        """Return the minor piece, and the pieces above it of the same axis."""
        for at in range(len(held) - 1, -1, -1):
            if any(set(held[at:]) <= set(axis) for axis in self.axes):
                yield held[at:]


@dataclass(frozen=True)
class _Weak:
    """Types up to the choice of axes: the number of parts per dimension, and if a permute was."""

    devices: int

    def parts(self, state):
        return math.prod(state[0])

    def moves(self, state):
        counts, permuted = state
        if not permuted:
            yield ("allpermute",), 2, (counts, True)
        for i, n in enumerate(counts):
            for p in _factors(self.devices // math.prod(counts)):
                yield ("dynslice", i), p, (_with(counts, i, n * p), permuted)
            for p in _factors(n):
                left = _with(counts, i, n // p)
                yield ("allgather", i), p, (left, permuted)
                for j in {*range(len(counts))} - {i}:
                    yield ("alltoall", i, j), p, (_with(left, j, left[j] * p), permuted)


def _factors(n):
    return [p for p in range(2, n + 1) if n % p == 0 and all(p % q for q in range(2, p))]


def _with(items, index, item):
    return (*items[:index], item, *items[index + 1 :])


_SENT = {
    "dynslice": lambda local, p: 0,
    "allgather": lambda local, p: local * (p - 1),
    "alltoall": lambda local, p: local - local // p,
    "allpermute": lambda local, p: local,
}


@lru_cache(maxsize=1 << 12)
def _cheapest(types, start, sizes):
    """Type to its cheapest way from the start (Dijkstra): (kind, devices, parts before) of each."""
    size, most = sizes
    best, heap, numbers = {}, [(0, 0, 0, start, ())], itertools.count(1)
    while heap:
        sent, steps, _, state, way = heapq.heappop(heap)
        if state in best:
            continue
        best[state] = way
        local = size // types.parts(state)
        for kind, p, after in types.moves(state):
            price = _SENT[kind[0]](local, p)
            if after not in best and size // types.parts(after) <= most:
                key = (sent + price, steps + (price > 0), next(numbers))
                heapq.heappush(heap, (*key, after, (*way, (kind, p, local))))
    return best


def _counted(way, size):
    sent, steps, held = 0, 0, 0
    for kind, group in itertools.groupby(way, key=lambda step: step[0]):
        members = list(group)
        local, p = members[0][2], math.prod(p for _, p, _ in members)
        price = _SENT[kind[0]](local, p)
        written = {"allgather": local * p, "dynslice": local // p}.get(kind[0], local)
        sent, steps, held = sent + price, steps + (price > 0), max(held, local + written)
    return Redistribution(sent, steps, held)
