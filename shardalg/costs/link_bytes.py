"""Bytes that a device sends over each kind of link, by mesh axes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from shardalg.costs.collectives import axis_names, moves, wire_bytes
from shardalg.costs.network.collective_seconds import CAUSES, stages
from shardalg.costs.network.permute_seconds import permutes_s
from shardalg.costs.network.placement import CHIP, DigitSpan, UnplacedAxes, Wiring
from shardalg.costs.walk import sent_bytes, walk
from shardalg.spmd.instruction import Collective
from shardalg.spmd.program import SpmdProgram

KINDS_OF_LINKS = ("link", "network", "dcn", CHIP)
"""Links of a slice or island, between islands of GPUs, between slices, and inside of a chip."""


def link_bytes(
    program: SpmdProgram, wiring: Wiring | UnplacedAxes
) -> dict[tuple[str, ...], dict[str, float]]:
    """Return the bytes that a device sends in a step, by mesh axes and by kind of link.

    The bytes of each set of axes add up to those of its collectives on a ring (`wire_bytes`). If an
    axis is on links of several kinds, an all-gather sends each block over the slowest links once,
    and copies it inside. Named sizes have their hints.

    Args:
      program: the partitioned program.
      wiring: the links under the mesh axes.
    """
    bytes_by_axes: dict[tuple[str, ...], dict[str, float]] = {}
    for step in walk(program):
        # Local instructions, and collectives over one device, send nothing.
        if not moves(step):
            continue
        attributes = step.instruction.attributes
        sent = wire_bytes(attributes, sent_bytes(program, step.instruction))
        sums = bytes_by_axes.setdefault(
            axis_names(program.mesh, attributes.digits), defaultdict(float)
        )
        for link, share in _shares(attributes, wiring).items():
            sums[link] += float(sent * step.count * share)
    return {axes: dict(sums) for axes, sums in bytes_by_axes.items()}


def _shares(attributes: Collective, wiring: Wiring | UnplacedAxes) -> dict[str, Fraction]:
    """Return the share of a collective's bytes that go over each kind of link."""
    if not (wiring.network and attributes.routes):
        return link_shares(attributes.sent_as, wiring.spans(attributes.digits))
    # Each permute of an exchange sends one block. Its seconds name the slowest links that some
    # device uses; a permute without seconds stays inside of a chip.
    found: dict[str, Fraction] = defaultdict(Fraction)
    for route in attributes.routes:
        causes = [*permutes_s(wiring.network, (route,), 1), CHIP]
        found[causes[0]] += Fraction(1, len(attributes.routes))
    return found


def link_shares(kind: str, spans: Sequence[DigitSpan]) -> dict[str, Fraction]:
    """Return the share of a collective's bytes that go over each kind of link; they add up to 1.

    With n members on the outer links and m on the inner ones, a device sends

        all-gather       n - 1  blocks over the outer links,  n (m - 1)  over the inner ones
        all-to-all       m (n - 1)  parts over the outer links,  m - 1  over the inner ones

    A reduce-scatter is an all-gather in the opposite direction, and an all-reduce is both.

    Args:
      kind: the kind of the collective, such as "all_gather".
      spans: the links that it uses.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.costs.network.placement import HOSTS, SWITCH, Level
    >>> two, eight = DigitSpan(Level(HOSTS, 2, 5e10), Digit(8, 2)), DigitSpan(
    ...     Level(SWITCH, 8, 4.5e11), Digit(1, 8))
    >>> link_shares("all_gather", (two, eight))
    {'network': Fraction(1, 15), 'link': Fraction(14, 15)}
    >>> link_shares("all_to_all", (two, eight))
    {'network': Fraction(8, 15), 'link': Fraction(7, 15)}
    """
    return dict(_shares_over(kind, tuple(spans)))


@lru_cache(maxsize=1 << 10)
def _shares_over(kind: str, spans: tuple[DigitSpan, ...]) -> tuple[tuple[str, Fraction], ...]:
    """Return the result of `link_shares` as pairs."""
    outer_first = [(CAUSES.get(s.medium, CHIP), int(s.count)) for s in stages(spans)]
    if kind == "collective_permute":
        return ((outer_first[0][0], Fraction(1)),)
    devices = math.prod(count for _, count in outer_first)
    found: dict[str, Fraction] = defaultdict(Fraction)
    # The number of groups that the slower links, which are already counted, connect.
    outer = 1
    for link, count in outer_first:
        # An all-to-all first sends the data for other groups over the slower links. Only one part
        # in `outer` of the data remains, for members on these links or inside.
        members = devices // outer if kind.endswith("all_to_all") else outer * count
        blocks = members - members // count
        found[link] += Fraction(blocks, devices - 1)
        outer *= count
    return tuple(found.items())
