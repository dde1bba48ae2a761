"""How fast the links of a mesh's axes are beside each other: what moves cost where they differ."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import axis_names
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology


@dataclass(frozen=True)
class Links:
    """How many times slower than the fastest axis each one is: (axis name, factor)."""

    mesh: Mesh
    slowness: tuple[tuple[str, float], ...]

    def factor(self, digits: Digits) -> float:
        """Of the slowest axis that a collective along these digits uses."""
        found = self._known.get(digits)
        if found is None:
            factors = [self._factors[name] for name in axis_names(self.mesh, digits)]
            found = self._known[digits] = max(factors, default=1.0)
        return found

    @cached_property
    def _factors(self) -> dict[str, float]:
        return dict(self.slowness)

    @cached_property
    def _known(self) -> dict[Digits, float]:
        return {}

    def sent(self, steps: Iterable[tuple[Any, Any]]) -> float:
        """What moves send, each element as often as its axis is slow."""
        return sum(sent * self.factor(move.digits) for move, sent in steps if sent)

    def alike(self, moves: Iterable[Any]) -> bool:
        """Whether the slowest axes of these moves are as slow as each other."""
        return len({self.factor(move.digits) for move in moves}) == 1


def links_on(mesh: Mesh, hardware: Hardware | Topology | None) -> Links | None:
    """The links of a mesh's axes where they differ, else None.

    >>> mesh, chip = Mesh({"dcn": 2, "ici": 4}), Hardware("toy", link_bytes_per_s=1e9)
    >>> links_on(mesh, chip) is None
    True
    >>> links_on(mesh, chip.with_links({"dcn": 1e8})).slowness
    (('dcn', 10.0), ('ici', 1.0))

    Between the cores of a chip nothing is sent over links:

    >>> links_on(mesh, Topology("v3", (2, 2))).slowness
    (('dcn', 0.0), ('ici', 1.0))
    """
    speeds = {} if hardware is None else hardware.speeds(mesh)
    if len(set(speeds.values())) < 2:
        return None
    fastest = max(speed for speed in speeds.values() if speed != math.inf)
    return Links(mesh, tuple((name, fastest / speed) for name, speed in speeds.items()))
