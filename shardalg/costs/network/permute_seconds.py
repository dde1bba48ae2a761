"""Seconds of a permute whose (source, target) positions are known, from the links that it uses.

A message on a torus takes a shortest way. It is split into as many parts as it crosses dimensions.
Each part crosses the dimensions in another order, so that the parts leave over different links. On
a ring, a message to the opposite chip goes both ways. The messages on one link share its bandwidth:

    (0, 15) on 4 x 4 without wrap        seconds = load * bytes / bandwidth + hops * latency

     0 --> 1 --> 2 --> 3                 load: the most messages on one link; parts of a message
     |                 |                       count as fractions (here 1/2)
     4     5     6     7                 hops: links of the longest way (here 6)
     |                 |
     8     9    10    11
     |                 |
    12 --> 13 -> 14 -> 15

Source: "How to Scale Your Model" (jax-ml/scaling-book), tpus.md, the question about a message
between two corners of a v5e 4x4. Routing by dimensions: Dally and Seitz, "Deadlock-free message
routing in multiprocessor interconnection networks", IEEE Trans. Computers C-36 (1987).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from shardalg.costs.network.collective_seconds import CAUSES, LATENCY, Seconds, latency_of_hops
from shardalg.costs.network.placement import CHIP, SLICES, TORUS, DigitSpan, Level
from shardalg.sizes.amounts import over

if TYPE_CHECKING:
    import numpy as np

Permute = tuple[Any, ...]
"""One permute as the planner describes it: one or more collections of (source, target) positions.

A collection is a tuple of pairs, or a compressed `Runs` of pairs.
"""


def permutes_s(spans: Sequence[DigitSpan], permutes: Sequence[Permute], sent: Any) -> Seconds:
    """Return the seconds of several permutes by cause; {} if no message leaves a chip.

    The causes are "link", "network", "dcn" and "latency". The transfer times of the permutes add
    up. All permutes start together, so only the latency of the longest way counts.

    Args:
      spans: the links under all axes of the mesh.
      permutes: for each permute, its (source, target) positions.
      sent: bytes of each message, a number or a formula.

    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.costs.topology import Topology
    >>> chips = Topology("v5e", (4, 4)).wiring(Mesh({"X": 4, "Y": 4})).network
    >>> [permutes_s(chips, [((pair,),)], 10**8) for pair in ((0, 1), (0, 15))]
    [{'link': 0.002, 'latency': 1e-06}, {'link': 0.001, 'latency': 6e-06}]
    """
    seconds: Seconds = {}
    slowest = [route for each in permutes if (route := _route(tuple(spans), each)) is not None]
    for route in slowest:
        cause = CAUSES[route.medium]
        # Permutes share the links, so their times add up per cause.
        seconds[cause] = seconds.get(cause, 0) + over(sent, route.bytes_per_s)
    if slowest:
        longest = max(slowest, key=lambda route: route.hops * route.latency_s)
        seconds[LATENCY] = latency_of_hops(longest.hops, longest.latency_s, sent)
    return seconds


class _Route(NamedTuple):
    """The links that determine how long a permute takes.

    Attributes:
      medium: kind of the outermost links that a message crosses, such as "torus".
      bytes_per_s: rate of one message, in bytes per second, on the link that most messages share.
      hops: number of links on the longest way of a message.
      latency_s: latency of one hop in seconds.
    """

    medium: str
    bytes_per_s: float
    hops: int
    latency_s: float


@lru_cache(maxsize=1 << 12)
def _route(spans: tuple[DigitSpan, ...], permute: Permute) -> _Route | None:
    """Return the links that determine a permute's time; None if no message leaves a chip.

    Args:
      spans: the links under all axes of the mesh.
      permute: collections of (source, target) positions.
    """
    import numpy as np

    # `Runs` of pairs have an array. A pair that occurs in several collections is sent once.
    pairs = [np.array(getattr(each, "arrays", each), int).reshape(-1, 2) for each in permute]
    ends = np.unique(np.concatenate(pairs), axis=0)
    by_number = {span.level.number: span.level for span in spans}
    levels = [by_number[number] for number in sorted(by_number)]
    # Axes that share a level are digits of one place on this level, so their parts add up.
    places = {level: np.zeros_like(ends) for level in levels}
    for span in spans:
        along = ends // span.digit.stride % span.digit.size
        places[span.level] += along * span.stride
    # Levels that some message crosses, outermost first: its source and target differ there.
    leaving = [
        (level, place) for level, place in places.items() if (place[:, 0] != place[:, 1]).any()
    ]
    if not leaving or leaving[0][0].medium == CHIP:
        return None
    # Links of outer levels are slower, so the messages on the outermost level decide.
    level, crossed = leaving[0]
    if level.medium == TORUS:
        slices = np.zeros_like(ends[:, 0])
        for outer in levels:
            if outer.medium == SLICES:
                slices += places[outer][:, 0]
        dims = [dim for dim in levels if dim.medium == TORUS]
        return _torus_route(dims, np.stack([places[dim] for dim in dims]), slices)
    # Through a switch, each device sends and receives one message over a link of its own. Devices
    # of one host share its link into the data center network. Which devices these are is unknown:
    # in the worst case, all senders, or all receivers, of a slice.
    moved = crossed[crossed[:, 0] != crossed[:, 1]]
    sharing = min(level.sharing, int(max(np.bincount(end).max() for end in moved.T)))
    return _Route(level.medium, level.bytes_per_s / sharing, 1, level.latency_s)


def _torus_route(dims: Sequence[Level], places: np.ndarray, slices: np.ndarray) -> _Route:
    """Return the links that determine a permute's time if all messages stay inside their slice.

    All messages are routed hop by hop. Each is split into as many equal parts as it crosses
    dimensions, and each part crosses the dimensions in another order. The parts on every link are
    added up (`load`). The link with the most parts gives the rate, and the message with the most
    hops the latency.

    Args:
      dims: the dimensions of the torus.
      places: array [dimension, pair, 2] of the coordinates of each pair's source and target.
      slices: for each pair, the number of its slice; each slice has links of its own.
    """
    import numpy as np

    sizes = np.array([level.size for level in dims])
    differs = places[:, :, 0] != places[:, :, 1]
    # Parts of messages are counted in this unit, so that all counts are integers.
    unit = 2 * math.lcm(*range(1, len(dims) + 1))
    load = np.zeros((2, len(dims), int(slices.max()) + 1, *sizes), int)
    hops = np.zeros(len(slices), int)
    for first in range(len(dims)):
        # Parts of one message begin in different dimensions, so that more links carry it. This part
        # crosses the dimension `first` first, then the others in turn.
        chosen = differs[first]
        at, goal = places[:, chosen, 0].copy(), places[:, chosen, 1]
        part = unit // differs[:, chosen].sum(axis=0)
        for dim in (*range(first, len(dims)), *range(first)):
            up, size = goal[dim] - at[dim], dims[dim].size
            ways = np.stack([up % size, -up % size] if dims[dim].wraps else [up, -up])
            # Without a wrap, only the direction towards the target arrives.
            ways = np.where(ways < 0, size, ways)
            least = ways.min(axis=0)
            # The opposite chip of a ring is as far one way as the other; a pair has one link.
            both = (ways[0] == ways[1]) & (size > 2)
            for direction, sign in enumerate((1, -1)):
                alone = ways[0] <= ways[1] if direction == 0 else ways[1] < ways[0]
                share = np.where(both, part // 2, part * alone)
                for step in range(int(least.max(initial=0))):
                    here = at.copy()
                    here[dim] = (at[dim] + sign * step) % size
                    sent = share * (step < least)
                    np.add.at(load[direction, dim], (slices[chosen], *here), sent)
            # A message waits for its slowest part. All parts have equally many hops: a dimension's
            # hops are added in the round that begins with it, so that each counts once.
            if first == dim:
                hops[chosen] += least
            at[dim] = goal[dim]
    fullest = load.reshape(2, len(dims), -1).max(axis=(0, 2)).tolist()
    rate = min(
        level.bytes_per_s / float(Fraction(most, unit))
        for level, most in zip(dims, fullest, strict=True)
        if most
    )
    return _Route(TORUS, rate, int(hops.max()), dims[0].latency_s)
