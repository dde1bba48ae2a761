"""Seconds of a collective by the cheapest algorithm.

The links are given as spans: parts of mesh axes on links of one kind (`placement.py`).
"""

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
    """Links of one kind that a collective uses at the same time.

    On a torus each dimension carries a share of the data at the same time. The shares use
    the dimensions in different orders (Sack and Gropp, "Collective algorithms for multiported torus
    networks", ACM TOPC 1 (2015)), so the bandwidths add up. If only the speed of the links is
    known, each mesh axis is a stage.

    Attributes:
      spans: the parts of mesh axes on these links.
    """

    spans: tuple[DigitSpan, ...]

    @property
    def medium(self) -> str:
        """Kind of the stage's links, such as "torus" or "switch"; equal for all spans."""
        return self.spans[0].level.medium

    @property
    def cause(self) -> str:
        """Name under which the stage's transfer time is reported: "link", "network" or "dcn"."""
        return CAUSES[self.medium]

    @property
    def count(self) -> Any:
        """Number of chips, islands or slices that the stage connects: the product of its spans."""
        return math.prod(span.count for span in self.spans)

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second that one device sends, and at the same time receives."""
        # Into a switch a device has one link, however many axes run through it.
        joined = min if self.medium in _SWITCHED else sum
        return joined(span.bytes_per_s for span in self.spans)

    @property
    def copies(self) -> Any:
        """Number of times that a device sends its data if every device gets all data directly.

        This is the second algorithm of `_all_reduce`: one pass, without a reduce-scatter first.
        """
        return self.steps if self.medium in _SWITCHED else self.count - 1

    @property
    def latency_s(self) -> float:
        """Latency of one hop in seconds."""
        return self.spans[0].level.latency_s

    @property
    def steps(self) -> Any:
        """Number of messages, one after the other, until data of each device reaches all devices.

        Through a switch the number is log2 n (recursive doubling). On a torus data pass from chip
        to chip, so the number is the sum of the hops along all dimensions.
        """
        if self.medium in _SWITCHED:
            return (self.count - 1).bit_length()
        return sum((span.hops for span in self.spans[1:]), self.spans[0].hops)


def stages(spans: Sequence[DigitSpan]) -> tuple[LinkStage, ...]:
    """Return the stages of a collective: its spans grouped by kind of link, slowest first.

    The slowest links are the outermost ones, such as those between slices.
    """
    found: dict[Any, list[DigitSpan]] = {}
    for place, span in enumerate(spans):
        medium = span.level.medium
        rank = _OUTER_FIRST.index(medium)
        # Axes with separate links of a known speed are used one after the other, so each is a
        # stage. All other spans on links of one kind are used at the same time, so they are one
        # stage.
        key = (rank, span.bytes_per_s, place) if medium == LINK else (rank, 0.0, 0)
        found.setdefault(key, []).append(span)
    return tuple(LinkStage(tuple(found[key])) for key in sorted(found))


def slices_joined(spans: Sequence[DigitSpan]) -> Any:
    """Return the number of slices that a collective over these spans joins; 1 inside a slice."""
    return math.prod(span.count for span in spans if span.level.medium == SLICES)


# Keys are causes: "link", "network", "dcn" or "latency". A calibration scales each of them by
# a share of its own, so they are not added up here.
Seconds = dict[str, Any]


def collective_s(kind: str, spans: Sequence[DigitSpan], local_bytes: Any) -> Seconds:
    """Return the seconds of one execution of a collective, by cause.

    The causes are "link", "network" (between islands of GPUs), "dcn" (between slices) and
    "latency".

    Args:
      kind: "all_gather", "all_reduce", "reduce_scatter", "all_to_all" or "collective_permute".
      spans: the links under the mesh axes along which the collective runs, major first.
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
    """Return the seconds by cause of an all-gather, which runs from the outermost stage inwards.

    In a stage of n devices each sends `(n - 1) * bytes`, where `bytes` is its data before the
    stage. The outermost and slowest links come first, because data grows from stage to stage.

    Args:
      over_stages: the stages, outermost first.
      held: bytes of the operand on one device.
    """
    moved: list[tuple[LinkStage, Any]] = []
    for stage in over_stages:
        moved.append((stage, held * (stage.count - 1)))
        held = held * stage.count
    return _single_pass(moved)


def _reduce_scatter(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds by cause of a reduce-scatter.

    It takes as long as the all-gather in the opposite direction, whose result has `held` bytes.

    Args:
      held: bytes of the operand on one device.
    """
    return _all_gather(over_stages, quotient(held, math.prod(s.count for s in over_stages)))


def _all_reduce(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds by cause of the cheaper of two all-reduce algorithms.

    The first is a reduce-scatter and an all-gather. The second takes each stage in a single pass.
    It sends more bytes, but needs only half of the hops: through a switch `log2 n` times the whole
    (recursive doubling), on a torus all parts to all chips, which then add them. A single ring of
    all devices is never cheaper: it sends as many bytes as the first and takes more hops.

    Args:
      held: bytes of the operand on one device.
    """
    # Both passes of the first algorithm take the time of an all-gather.
    scattered = _reduce_scatter(over_stages, held)
    first = {cause: seconds + seconds for cause, seconds in scattered.items()}
    second = _single_pass([(stage, held * stage.copies) for stage in over_stages])
    first_s, second_s = total(first.values()), total(second.values())
    # Numbers decide between the two; formulas cannot be compared yet.
    if not has_formula((first_s, second_s)):
        return first if first_s <= second_s else second
    # In formulas the causes of bytes are those of the first algorithm. The latency is the rest of
    # the smaller sum, so that all causes add up to it.
    moved = {cause: seconds for cause, seconds in first.items() if cause != LATENCY}
    return {**moved, LATENCY: smaller(first_s, second_s) - total(moved.values())}


def _all_to_all(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds by cause of an all-to-all, which the middle of a torus dimension bounds.

    Half of all data cross the middle of each dimension. Along a dimension of k chips, `k / 4` of
    a chip's data goes each way, over the one link of a line or the two links of a ring. Through
    a switch, and over unknown links, a device sends everything except its own part. The network
    between islands and the switches inside are busy at the same time.

    Args:
      over_stages: the stages of the collective, slowest first.
      held: bytes of the operand on one device.
    """
    slowest: dict[str, Any] = {}
    for stage in over_stages:
        for span in stage.spans if stage.medium == TORUS else ():
            # k * k // 4 pairs of k chips have the middle between them, and each chip sends one k-th
            # of its data to each other chip.
            crossing = held * Fraction(span.count * span.count // 4, span.count)
            cause = stage.cause
            slowest[cause] = larger(slowest.get(cause, 0), over(crossing, span.bytes_per_s))
        if stage.medium != TORUS and stage.medium != CHIP:
            sent = quotient(held * (stage.count - 1), stage.count)
            added = over(sent, stage.bytes_per_s)
            slowest[stage.cause] = slowest.get(stage.cause, 0) + added
    _hide_faster_level(slowest)
    return {**slowest, LATENCY: total(_latency(stage, held) for stage in over_stages)}


def _permute(over_stages: Sequence[LinkStage], held: Any) -> Seconds:
    """Return the seconds by cause of a permute to a neighbour, over one link one way.

    This is the price of a permute whose pairs are unknown: while the planner searches, and over
    links of which only the speed is known. `permute_seconds.py` prices a permute by its pairs.
    A permute is as slow as the slowest link that some device uses: a link of the outermost stage.

    Args:
      over_stages: the stages of the collective, slowest first.
      held: bytes of the operand on one device.
    """
    stage = over_stages[0]
    if stage.medium == CHIP:
        return {}
    rate = min(span.one_way_bytes_per_s for span in stage.spans)
    return {stage.cause: over(held, rate), LATENCY: latency_of_hops(1, stage.latency_s, held)}


_WAYS: dict[str, Callable[[Sequence[LinkStage], Any], Seconds]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
    "ragged_all_to_all": _all_to_all,
}
COLLECTIVES = tuple(_WAYS)
"""Names of the collectives that devices exchange bytes by; other instructions are sent as these."""


def _single_pass(moved: Iterable[tuple[LinkStage, Any]]) -> Seconds:
    """Return the seconds by cause of stages that run one after the other.

    The network between islands and the switches inside carry pieces of one collective at the same
    time. Of these two only the slower counts.

    Args:
      moved: pairs of a stage and the bytes that each device sends in it.
    """
    found: Seconds = {}
    latency = []
    for stage, sent in moved:
        if stage.medium == CHIP:
            continue
        seconds = over(sent, stage.bytes_per_s)
        found[stage.cause] = found.get(stage.cause, 0) + seconds
        latency.append(_latency(stage, sent))
    _hide_faster_level(found)
    return {**found, LATENCY: total(latency)}


def _hide_faster_level(found: Seconds) -> None:
    """Subtract the part of the links' seconds that runs at the same time as the network.

    One collective uses the network between islands and the links (switches) inside of them at the
    same time. Together they take as long as the slower one.

    Args:
      found: the seconds by cause; changed in place.
    """
    if NETWORK in found and LINK in found:
        found[LINK] = found[LINK] - smaller(found[NETWORK], found[LINK])


def _latency(stage: LinkStage, sent: Any) -> Any:
    """Return the seconds of latency of all hops in a stage; a formula if `sent` is a formula."""
    return latency_of_hops(stage.steps, stage.latency_s, sent)


def latency_of_hops(steps: Any, latency_s: float, sent: Any) -> Any:
    """Return the latency of `steps` consecutive messages, in seconds.

    The result is a formula if `sent`, the bytes of a message, is a formula.
    """
    return times(Formula.of(steps) if has_formula((sent,)) else steps, latency_s)
