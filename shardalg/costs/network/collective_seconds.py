"""Seconds of a collective over spans, by the cheapest of the ways that a library has."""

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
_CAUSE = {TORUS: LINK, SWITCH: LINK, LINK: LINK, HOSTS: NETWORK, SLICES: DCN}
_SWITCHED = (HOSTS, SLICES, SWITCH)
_OUTER_FIRST = (SLICES, HOSTS, LINK, TORUS, SWITCH, CHIP)


@dataclass(frozen=True)
class LinkStage:
    """Spans of one kind, over which a collective goes at once.

    On a torus all dimensions carry a share of the data at the same time, each share taking them in
    another order (Sack and Gropp, "Collective algorithms for multiported torus networks", ACM TOPC
    1 (2015)): their speeds add up. Unknown links are one stage per axis.
    """

    spans: tuple[DigitSpan, ...]

    @property
    def medium(self) -> str:
        """Of all its spans."""
        return self.spans[0].level.medium

    @property
    def cause(self) -> str:
        """What its bytes are booked under."""
        return _CAUSE[self.medium]

    @property
    def count(self) -> Any:
        """Things that it joins."""
        return math.prod(span.count for span in self.spans)

    @property
    def bytes_per_s(self) -> float:
        """What one device sends, and receives, a second."""
        return sum(span.bytes_per_s for span in self.spans)

    @property
    def copies(self) -> Any:
        """How often a device sends what it holds until all have all of it, in one go."""
        return self.steps if self.medium in _SWITCHED else self.count - 1

    @property
    def latency_s(self) -> float:
        """Of one hop."""
        return self.spans[0].level.latency_s

    @property
    def steps(self) -> Any:
        """Messages that follow one another until all have what the farthest sent.

        By doubling through a switch; on a torus a chip passes on what it gets.
        """
        if self.medium in _SWITCHED:
            return (self.count - 1).bit_length()
        return sum((span.hops for span in self.spans[1:]), self.spans[0].hops)


def stages(spans: Sequence[DigitSpan]) -> tuple[LinkStage, ...]:
    """The stages of a collective, outermost and slowest first; a chip's own cores take no time."""
    found: dict[Any, list[DigitSpan]] = {}
    for place, span in enumerate(spans):
        medium = span.level.medium
        rank = _OUTER_FIRST.index(medium)
        key = (rank, span.bytes_per_s, place) if medium == LINK else (rank, 0.0, 0)
        found.setdefault(key, []).append(span)
    return tuple(LinkStage(tuple(found[key])) for key in sorted(found))


Seconds = dict[str, Any]
"""Per cause, "link", "network", "dcn" or "latency"; numbers or formulas."""


def collective_s(kind: str, spans: Sequence[DigitSpan], local_bytes: Any) -> Seconds:
    """Seconds of one execution of a collective, by cause.

    Args:
      kind: as in `costs.collectives.RING_BYTES`.
      spans: of the digits along which it goes, major first.
      local_bytes: what a device holds before it.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.costs.network.placement import Level
    >>> line, ring = (Level(TORUS, 8, 1e9, 1e-6, wraps=wraps) for wraps in (False, True))
    >>> collective_s("all_gather", [Span(line, Digit(1, 8))], 1_000_000)
    {'link': 0.007, 'latency': 7e-06}
    >>> collective_s("all_gather", [Span(ring, Digit(1, 8))], 1_000_000)
    {'link': 0.0035, 'latency': 4e-06}
    """
    return _WAYS[kind](stages(spans), local_bytes)


def _all_gather(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """From the outermost stage inwards: the slowest links carry the fewest bytes.

    A stage of n devices sends `(n - 1) * bytes` of what a device holds by then.
    """
    moved: list[tuple[LinkStage, Any]] = []
    for stage in over_stages:
        moved.append((stage, held * (stage.count - 1)))
        held = held * stage.count
    return _booked(moved)


def _reduce_scatter(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """An all-gather run backwards."""
    return _all_gather(over_stages, quotient(held, _devices(over_stages)))


def _all_reduce(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """The cheaper of a reduce-scatter with an all-gather, and of each stage in one go.

    The second sends more and takes half of the hops: through a switch by doubling, `log2 n` times
    the whole; on a torus all parts to all chips, which then add them. One ring of all devices
    sends as much as the first and takes more hops.
    """
    share = quotient(held, _devices(over_stages))
    halved = _all_gather(over_stages, share)
    twice = {cause: seconds + seconds for cause, seconds in halved.items()}
    once = _booked([(stage, held * stage.copies) for stage in over_stages])
    return _cheaper(twice, once)


def _all_to_all(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Through the middle of each dimension: of a torus of n chips half of all data cross it.

    Along a dimension of k chips `k / 4` of what a chip holds goes each way over the one link of a
    line, or the two of a ring. Through a switch, and over links of which nothing is known, a device
    sends all but its own part.
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
    return {**slowest, LATENCY: total(_waited(stage, held) for stage in over_stages)}


def _permute(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """To a neighbour, over one link one way: as slow as the slowest that some device sends over."""
    stage = over_stages[0]
    if stage.medium == CHIP:
        return {}
    rate = min(span.one_way_bytes_per_s for span in stage.spans)
    return {stage.cause: over(held, rate), LATENCY: _exactly(1, stage.latency_s, held)}


_WAYS: dict[str, Callable[[Sequence[LinkStage], Any], Seconds]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
}
COLLECTIVES = tuple(_WAYS)
"""Kinds of collectives, as they are on the wire."""


def _devices(over_stages: Sequence[LinkStage]) -> Any:
    return math.prod(stage.count for stage in over_stages)


def _booked(moved: Iterable[tuple[LinkStage, Any]]) -> Seconds:
    """Seconds per cause of what stages send.

    Stages follow one another, but that the network between islands and the switches within carry
    pieces of one collective at the same time: the slower of the two is booked.
    """
    found: Seconds = {}
    latency = []
    for stage, sent in moved:
        if stage.medium == CHIP:
            continue
        seconds = over(sent, stage.bytes_per_s)
        found[stage.cause] = found.get(stage.cause, 0) + seconds
        latency.append(_waited(stage, sent))
    if NETWORK in found and LINK in found:
        hidden = smaller(found[NETWORK], found[LINK])
        found[LINK] = found[LINK] - hidden
    return {**found, LATENCY: total(latency)}


def _waited(stage: LinkStage, sent: Any) -> Any:
    """Latency of a stage: a formula where what it sends is one."""
    return _exactly(stage.steps, stage.latency_s, sent)


def _exactly(steps: Any, latency_s: float, sent: Any) -> Any:
    return times(Formula.of(steps) if has_formula((sent,)) else steps, latency_s)


def _cheaper(first: Seconds, second: Seconds) -> Seconds:
    """The way of fewer seconds; of formulas their smaller sum, latency being what bytes are not."""
    one, other = total(first.values()), total(second.values())
    if not has_formula((one, other)):
        return first if one <= other else second
    moved = {cause: seconds for cause, seconds in first.items() if cause != LATENCY}
    return {**moved, LATENCY: smaller(one, other) - total(moved.values())}
