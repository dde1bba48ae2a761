"""A part of a mesh axis that lies on links of one kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shardalg.algebra.digits import Digit

CHIP, TORUS, SWITCH, HOSTS, SLICES, LINK = "chip", "torus", "switch", "hosts", "dcn", "link"
"""Cores of a chip, chips of a torus, GPUs of an island, islands, slices; links of which nothing
but the speed is known."""


@dataclass(frozen=True, slots=True)
class Level:
    """Things of one kind that are joined alike: the chips along a dimension of a torus.

    Attributes:
      medium: one of the kinds above.
      size: how many are joined.
      bytes_per_s: what one of them sends one way along one link, to all devices that share it.
      sharing: devices that share that link (the cores of a chip).
      latency_s: of one hop.
      wraps: whether the last is joined with the first, so that both directions carry.
    """

    medium: str
    size: int
    bytes_per_s: float
    latency_s: float = 0.0
    sharing: int = 1
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Positions along a digit of a mesh that are neighbours on a level.

    Attributes:
      digit: of the device's position in the mesh.
      stride: things from one to the next; on a torus the groups between share the links.
    """

    level: Level
    digit: Digit
    stride: int = 1

    @property
    def count(self) -> Any:
        """Things that the span joins."""
        return self.digit.size

    @property
    def wraps(self) -> bool:
        """Whether the span is a ring: the whole of a level that wraps."""
        return self.level.wraps and self.count * self.stride == self.level.size

    @property
    def bytes_per_s(self) -> float:
        """What one device sends one way, while all groups along the level do so too.

        A ring is used both ways; on a line each end has one neighbour, so that one way bounds.
        """
        ways = 2 if self.wraps and self.count > 2 else 1
        return self.one_way_bytes_per_s * ways

    @property
    def one_way_bytes_per_s(self) -> float:
        """What one device sends to one neighbour."""
        apart = self.stride if self.level.medium == TORUS else 1
        return self.level.bytes_per_s / (self.level.sharing * apart)

    @property
    def hops(self) -> Any:
        """From the first to the farthest: half of a ring, all of a line; one through a switch."""
        if self.level.medium in (SWITCH, HOSTS, SLICES):
            return 1
        if self.level.medium == CHIP:
            return 0
        along = self.count // 2 if self.wraps else self.count - 1
        return along * self.stride

    def part(self, digit: Digit) -> Span:
        """The span of a part of the positions."""
        return replace(self, digit=digit, stride=self.stride * (digit.stride // self.digit.stride))
