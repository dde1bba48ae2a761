"""Seconds of a collective over spans of links, by the cheapest algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardalg.costs.network.placement import CHIP, HOSTS, LINK, SLICES, SWITCH, TORUS, DigitSpan
from shardalg.sizes.amounts import over, quotient, times
from shardalg.sizes.formula import Formula, has_formula
from shardalg.sizes.maximum import larger, smaller
from shardalg.sizes.recorded import total

LATENCY, NETWORK, DCN = "latency", "network", "dcn"
CAUSES = {TORUS: LINK, SWITCH: LINK, LINK: LINK, HOSTS: NETWORK, SLICES: DCN}
_SWITCHED = (HOSTS, SLICES, SWITCH)
_OUTER_FIRST = (SLICES, HOSTS, LINK, TORUS, SWITCH, CHIP)


@dataclass(frozen=True)
class LinkStage:
    """Spans of one kind of links, which a collective uses at the same time.

    On a torus each dimension carries a share of the data at the same time. The shares use
    the dimensions in different orders (Sack and Gropp, "Collective algorithms for multiported torus
    networks", ACM TOPC 1 (2015)), so the bandwidths add up. Unknown links are one stage per axis.
    """

    spans: tuple[DigitSpan, ...]

    @property
    def medium(self) -> str:
        """Kind of all spans of the stage."""
        return self.spans[0].level.medium

    @property
    def cause(self) -> str:
        """Cause of the seconds of the stage's bytes."""
        return CAUSES[self.medium]

    @property
    def count(self) -> Any:
        """Number of members that the stage joins: the product over its spans."""
        return math.prod(span.count for span in self.spans)

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second that one device sends, and receives."""
        # Into a switch a device has one link, however many axes run through it.
        joined = min if self.medium in _SWITCHED else sum
        return joined(span.bytes_per_s for span in self.spans)

    @property
    def copies(self) -> Any:
        """Number of times that a device sends its data if all share it in a single pass."""
        return self.steps if self.medium in _SWITCHED else self.count - 1

    @property
    def latency_s(self) -> float:
        """Latency of one hop."""
        return self.spans[0].level.latency_s

    @property
    def steps(self) -> Any:
        """Number of consecutive messages until all devices have the farthest device's data.

        Through a switch the number is log2 n (recursive doubling). On a torus a chip passes data on
        to its neighbours, so the number is the sum of the hops along all dimensions.
        """
        if self.medium in _SWITCHED:
            return (self.count - 1).bit_length()
        return sum((span.hops for span in self.spans[1:]), self.spans[0].hops)


def stages(spans: Sequence[DigitSpan]) -> tuple[LinkStage, ...]:
    """Return the stages of a collective, slowest and outermost first; cores of a chip are free."""
    found: dict[Any, list[DigitSpan]] = {}
    for place, span in enumerate(spans):
        medium = span.level.medium
        rank = _OUTER_FIRST.index(medium)
        # Axes with links of their own are a stage each; all other spans of one medium form one
        # stage.
        key = (rank, span.bytes_per_s, place) if medium == LINK else (rank, 0.0, 0)
        found.setdefault(key, []).append(span)
    return tuple(LinkStage(tuple(found[key])) for key in sorted(found))


def slices_joined(spans: Sequence[DigitSpan]) -> Any:
    """Return the number of slices that a collective over these spans joins; 1 inside a slice."""
    return math.prod(span.count for span in spans if span.level.medium == SLICES)


# Seconds by cause ("link", "network", "dcn" or "latency"), in numbers or formulas.
Seconds = dict[str, Any]


def collective_s(kind: str, spans: Sequence[DigitSpan], local_bytes: Any) -> Seconds:
    """Return the seconds of one execution of a collective, by cause.

    Args:
      kind: a name of `costs.collectives.RING_BYTES`.
      spans: spans of the digits along which the collective runs, major first.
      local_bytes: bytes of the operand on one device.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.costs.network.placement import Level
    >>> line, ring = (Level(TORUS, 8, 1e9, 1e-6, wraps=wraps) for wraps in (False, True))
    >>> collective_s("all_gather", [DigitSpan(line, Digit(1, 8))], 1_000_000)
    {'link': 0.007, 'latency': 7e-06}
    >>> collective_s("all_gather", [DigitSpan(ring, Digit(1, 8))], 1_000_000)
    {'link': 0.0035, 'latency': 4e-06}
    """
    return _WAYS[kind](stages(spans), local_bytes)


def _all_gather(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds of an all-gather from the outermost stage inwards.

    A stage of n devices sends `(n - 1) * bytes`, where `bytes` is a device's data before the stage.
    The outermost and slowest links come first, because data grows from stage to stage.
    """
    moved: list[tuple[LinkStage, Any]] = []
    for stage in over_stages:
        moved.append((stage, held * (stage.count - 1)))
        held = held * stage.count
    return _booked(moved)


def _reduce_scatter(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds of a reduce-scatter, which is an all-gather run backwards."""
    return _all_gather(over_stages, quotient(held, math.prod(s.count for s in over_stages)))


def _all_reduce(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds of the cheaper of two all-reduce algorithms.

    The first is a reduce-scatter and an all-gather. The second takes each stage in a single pass.
    It sends more bytes over half of the hops: through a switch `log2 n` times the whole (recursive
    doubling), on a torus all parts to all chips, which then add them. A single ring of all devices
    is never cheaper: it sends as many bytes as the first and takes more hops.
    """
    # Both passes of the first algorithm take the time of an all-gather.
    scattered = _reduce_scatter(over_stages, held)
    first = {cause: seconds + seconds for cause, seconds in scattered.items()}
    second = _booked([(stage, held * stage.copies) for stage in over_stages])
    one, other = total(first.values()), total(second.values())
    # Numbers decide between the two; formulas cannot be compared yet.
    if not has_formula((one, other)):
        return first if one <= other else second
    # In formulas the causes of bytes are those of the first algorithm. The latency is the rest of
    # the smaller sum, so that all causes add up to it.
    moved = {cause: seconds for cause, seconds in first.items() if cause != LATENCY}
    return {**moved, LATENCY: smaller(one, other) - total(moved.values())}


def _all_to_all(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds of an all-to-all, which the bisection of a torus dimension bounds.

    Half of all data cross the middle of each dimension. Along a dimension of k chips, `k / 4` of
    a chip's data goes each way, over the one link of a line or the two links of a ring. Through
    a switch, and over unknown links, a device sends everything except its own part. The network
    between islands and the switches inside are busy at the same time.
    """
    slowest: dict[str, Any] = {}
    for stage in over_stages:
        for span in stage.spans if stage.medium == TORUS else ():
            crossing = held * Fraction(span.count * span.count // 4, span.count)
            cause = stage.cause
            slowest[cause] = larger(slowest.get(cause, 0), over(crossing, span.bytes_per_s))
        if stage.medium != TORUS and stage.medium != CHIP:
            sent = quotient(held * (stage.count - 1), stage.count)
            added = over(sent, stage.bytes_per_s)
            slowest[stage.cause] = slowest.get(stage.cause, 0) + added
    _hide_faster_level(slowest)
    return {**slowest, LATENCY: total(_waited(stage, held) for stage in over_stages)}


def _permute(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds of a permute to a neighbour, over one link one way.

    This is the price of a permute whose pairs are unknown: while the planner searches, and over
    links of which only the speed is known. `permute_seconds.py` prices a permute by its pairs.
    A permute is as slow as the slowest link that some device uses: a link of the outermost stage.
    """
    stage = over_stages[0]
    if stage.medium == CHIP:
        return {}
    rate = min(span.one_way_bytes_per_s for span in stage.spans)
    return {stage.cause: over(held, rate), LATENCY: waited(1, stage.latency_s, held)}


_WAYS: dict[str, Callable[[Sequence[LinkStage], Any], Seconds]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
}
# Kinds of collectives, as they are on the wire.
COLLECTIVES = tuple(_WAYS)


def _booked(moved: Iterable[tuple[LinkStage, Any]]) -> Seconds:
    """Return the seconds by cause of bytes that stages send one after the other.

    The network between islands and the switches inside carry pieces of one collective at the same
    time. Of these two only the slower counts.
    """
    found: Seconds = {}
    latency = []
    for stage, sent in moved:
        if stage.medium == CHIP:
            continue
        seconds = over(sent, stage.bytes_per_s)
        found[stage.cause] = found.get(stage.cause, 0) + seconds
        latency.append(_waited(stage, sent))
    _hide_faster_level(found)
    return {**found, LATENCY: total(latency)}


def _hide_faster_level(found: Seconds) -> None:
    """Subtract the faster of network and switch, so that the sum of both is the slower one."""
    if NETWORK in found and LINK in found:
        found[LINK] = found[LINK] - smaller(found[NETWORK], found[LINK])


def _waited(stage: LinkStage, sent: Any) -> Any:
    """Return the latency of a stage; a formula if `sent` is a formula."""
    return waited(stage.steps, stage.latency_s, sent)


def waited(steps: Any, latency_s: float, sent: Any) -> Any:
    """Return the latency of consecutive messages; a formula if `sent` is a formula."""
    return times(Formula.of(steps) if has_formula((sent,)) else steps, latency_s)
