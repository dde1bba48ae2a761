"""The seconds of moves on a mesh whose axes have links of different speeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import axis_names, kind_seconds
from shardalg.costs.hardware import Hardware
from shardalg.costs.network.permute_seconds import permutes_s
from shardalg.costs.network.placement import CHIP, UnplacedAxes, Wiring
from shardalg.costs.topology import Topology
from shardalg.sizes.recorded import total


@dataclass(frozen=True)
class Links:
    """The links of a mesh's axes, for values of one item size.

    Attributes:
      slowness: how many times slower than the fastest axis each axis is: (axis name, factor).
      hardware: whose links these are; its figures price the moves.
      itemsize: bytes of an element. It matters because latency does not grow with the bytes.
    """

    mesh: Mesh
    slowness: tuple[tuple[str, float], ...]
    hardware: Hardware | Topology = field(hash=False, repr=False)
    itemsize: int = 4

    def factor(self, digits: Digits) -> float:
        """Return the slowness of the slowest axis that a collective along these digits uses."""
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

    def seconds(self, move: Any, held: Any) -> float:
        """Return the seconds of one move, as `costs.collectives.seconds` prices it.

        A permute is priced by its pairs. In the search it has none yet, and has the price of
        a permute to a neighbour.

        Args:
          held: elements on a device before the move.
        """
        size, routes = held * self.itemsize, getattr(move, "routes", ())
        if routes and self._wiring.network:
            return float(total(permutes_s(self._wiring.network, routes, size).values()))
        found: float = kind_seconds(move.sent_as, size, self._wiring.spans(move.digits))
        return found

    def least_seconds(self, sent: Any) -> float:
        """Return a lower bound of the seconds in which a device sends so many elements.

        No collective sends faster than all links of a device together.
        """
        return float(sent) * self.itemsize / self._most_bytes_per_s

    def of(self, itemsize: int) -> Links:
        """Return the same links for elements of another size."""
        return self if itemsize == self.itemsize else replace(self, itemsize=itemsize)

    @cached_property
    def _wiring(self) -> UnplacedAxes | Wiring:
        return self.hardware.wiring(self.mesh)

    @cached_property
    def _most_bytes_per_s(self) -> float:
        """Bytes per second that a device sends over the links of all axes together."""
        spans = self._wiring.spans(tuple(self.mesh.digit(name) for name in self.mesh.axis_names))
        if any(span.level.medium == CHIP for span in spans):
            # Cores of one chip exchange data without a link, so no speed of links bounds the time.
            return math.inf
        return sum(span.bytes_per_s for span in spans)

    def are_equally_slow(self, moves: Iterable[Any]) -> bool:
        """Return whether the slowest axes of some moves are equally slow, one axis per move."""
        return len({self.factor(move.digits) for move in moves}) == 1


def links_on(mesh: Mesh, hardware: Hardware | Topology | None, itemsize: int = 4) -> Links | None:
    """Return the links of a mesh's axes; None if all axes are equally fast.

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
    # On equally fast axes the fewest bytes take the fewest seconds, so the search by bytes is
    # exact.
    if hardware is None or len(set(speeds.values())) < 2:
        return None
    # Axes inside a chip have infinite speed: their factor is 0, relative to the fastest real link.
    fastest = max(speed for speed in speeds.values() if speed != math.inf)
    slowness = tuple((name, fastest / speed) for name, speed in speeds.items())
    return Links(mesh, slowness, hardware, itemsize)
