"""Placement of mesh axes on the levels of a network, in JAX's order of devices.

The levels of a network are nested: slices, the dimensions of each slice's torus, the cores of each
chip. A span is a part of a mesh axis on one level. `Wiring` gives the spans of an axis, of a part
of an axis, or of several axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations
from typing import Any

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.mesh import Mesh
from shardalg.sizes.recorded import are_numbers

CHIP, TORUS, SWITCH, HOSTS, SLICES, LINK = "chip", "torus", "switch", "hosts", "dcn", "link"
"""Kinds of links: between cores of a chip, chips of a torus, GPUs of an island, islands, slices.

"link" is a link of which only the speed is known, because the chip's interconnect is not given.
"""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a network: members of one kind and the links between them.

    An example is one dimension of a torus, whose members are chips.

    Attributes:
      medium: kind of the links: "chip", "torus", "switch", "hosts", "dcn" or "link".
      size: number of members.
      bytes_per_s: bandwidth of one link, one way, for all devices that share it.
      latency_s: latency of one hop in seconds.
      sharing: number of devices that share the link (the cores of a chip).
      wraps: whether a link joins the last member with the first, so that the level is a ring.
      number: the level's number in its network, outermost first.
    """

    medium: str
    size: int
    bytes_per_s: float
    latency_s: float = 0.0
    sharing: int = 1
    wraps: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class DigitSpan:
    """A part of a mesh axis on one level of the network.

    Attributes:
      level: the level, such as one dimension of a torus.
      digit: the part of the axis, as a digit of a device's position in the mesh.
      stride: distance on the level between two neighbours along the axis. The devices in between
        belong to other groups, which share the links on a torus.
    """

    level: Level
    digit: Digit
    stride: int = 1

    @property
    def count(self) -> Any:
        """Number of the level's members that the span connects."""
        return self.digit.size

    @property
    def wraps(self) -> bool:
        """True if the span is a ring: a whole level that wraps."""
        return self.level.wraps and self.count * self.stride == self.level.size

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second that one device sends in a collective along the span.

        All groups of devices on the level send at the same time. A ring is used both ways. An end
        of a line has only one neighbour, so that only one way counts.
        """
        ways = 2 if self.wraps and self.count > 2 else 1
        return self.one_way_bytes_per_s * ways

    @property
    def one_way_bytes_per_s(self) -> float:
        """Bytes per second that one device sends to one neighbour, while all other devices send."""
        # On a torus the groups in between send over the same links; a switch has a link per device.
        groups = self.stride if self.level.medium == TORUS else 1
        return self.level.bytes_per_s / (self.level.sharing * groups)

    @property
    def hops(self) -> Any:
        """Number of hops from a position to the farthest one.

        It is half of a ring, all of a line, 1 through a switch or network, and 0 inside a chip.
        """
        if self.level.medium in (SWITCH, HOSTS, SLICES):
            return 1
        if self.level.medium == CHIP:
            return 0
        along = self.count // 2 if self.wraps else self.count - 1
        return along * self.stride

    def part(self, digit: Digit) -> DigitSpan:
        """Return the span of a smaller part of the axis, on the same level."""
        return replace(self, digit=digit, stride=self.stride * (digit.stride // self.digit.stride))


Place = tuple[int, int, int]
"""(Number of a level, number of its members that an axis uses, stride between them).

An axis may use a part of a level, and leave the rest for an axis outside of it.
"""
Placement = dict[str, list[Place]]
"""For each axis name, its places, major first; an axis can use several levels."""


def exact_placement(sizes: Mapping[str, int], levels: Sequence[int]) -> Placement | None:
    """Return a placement in which each axis uses whole levels; None if there is none.

    The innermost axis chooses first. An axis takes several levels if their product is its size.
    JAX's mesh utilities choose in the same way (function create_device_mesh). The result has, per
    axis, a list of (number of the level, members used, stride).

    Args:
      sizes: sizes of the axes, major first.
      levels: sizes of the levels, outermost first.

    >>> exact_placement({"X": 8, "Y": 16}, [8, 8, 2]), exact_placement({"X": 3}, [8])
    ({'X': [(1, 8, 1)], 'Y': [(0, 8, 1), (2, 2, 1)]}, None)
    """
    free_levels = [i for i, size in enumerate(levels) if size > 1]
    placement: Placement = {name: [] for name in sizes}
    # The innermost axis first: in JAX it takes neighbouring devices.
    for name in reversed(list(sizes)):
        # As many levels as possible, as in JAX: an axis has more links then.
        ways = (
            way
            for count in range(len(free_levels), 0, -1)
            for way in combinations(free_levels, count)
        )
        fitting_ways = (way for way in ways if math.prod(levels[i] for i in way) == sizes[name])
        axis_levels = next(fitting_ways, ())
        # An axis of size 1 needs no level.
        if sizes[name] > 1 and not axis_levels:
            return None
        placement[name] = [(i, levels[i], 1) for i in axis_levels]
        free_levels = [i for i in free_levels if i not in axis_levels]
    return placement


def fill_levels(
    sizes: Mapping[str, int], levels: Sequence[int], *, shared: bool = False
) -> Placement | None:
    """Return a placement in which axes use up one level after the other, innermost first.

    An axis takes from each level the greatest common divisor of the two sizes that are left: of the
    axis, and of the level. The result has, per axis, a list of (number of the level, members used,
    stride between them). It is None if a part of an axis finds no level.

    Args:
      shared: whether both may have a rest, as 2 of an axis of 4 and 3 of a level of 6. If not, the
        result is None in this case. JAX has the same option for a torus
        (`allow_split_physical_axes`).

    >>> fill_levels({"X": 4, "Y": 4}, [8, 2]), fill_levels({"X": 3, "Y": 2}, [2, 3])
    ({'X': [(0, 4, 2)], 'Y': [(0, 2, 1), (1, 2, 1)]}, None)
    >>> fill_levels({"X": 3, "Y": 2}, [2, 3], shared=True)
    {'X': [(1, 3, 1)], 'Y': [(0, 2, 1)]}
    """
    placement: Placement = {name: [] for name in sizes}
    remaining_levels, strides = list(levels), [1] * len(levels)
    for name in reversed(list(sizes)):
        remaining_size = sizes[name]
        # A level that is used up has size 1, so each axis begins where the one before it ended.
        for i in reversed(range(len(remaining_levels))):
            count = math.gcd(remaining_size, remaining_levels[i])
            # Without sharing, the level or the axis must be used up. The rest of a level is then
            # left to the next axis.
            if not shared and count < min(remaining_size, remaining_levels[i]):
                return None
            if count > 1:
                placement[name].insert(0, (i, count, strides[i]))
            remaining_levels[i] //= count
            strides[i] *= count
            remaining_size //= count
        if remaining_size > 1:
            return None
    return placement


def spans(
    placed: Placement, sizes: Mapping[str, int], levels: Sequence[Level]
) -> Iterator[tuple[str, tuple[DigitSpan, ...]]]:
    """Yield (axis name, its spans, major first) for each axis of a placement.

    Args:
      placed: the levels that each axis uses.
      sizes: sizes of the mesh axes, major first.
      levels: the levels of the network, outermost first.
    """
    # The stride of an axis is the product of all axes inside of it (row-major order).
    stride = math.prod(sizes.values())
    for name, size in sizes.items():
        stride //= size
        found, below = [], size
        for i, count, step in placed[name]:
            below //= count
            found.append(DigitSpan(levels[i], Digit(stride * below, count), step))
        yield name, tuple(found)


@dataclass(frozen=True, eq=False)
class Wiring:
    """Links under the axes of a mesh that is placed on a topology.

    Attributes:
      axes: for each axis name, its spans, major first.
    """

    mesh: Mesh
    axes: dict[str, tuple[DigitSpan, ...]]

    @cached_property
    def network(self) -> tuple[DigitSpan, ...]:
        """The spans of all axes."""
        return tuple(chain.from_iterable(self.axes.values()))

    def spans(self, digits: Digits) -> tuple[DigitSpan, ...]:
        """Return the links under some digits of device positions, major first.

        A digit is an axis or a part of an axis. If its size is a formula, it counts as the whole
        axis.
        """
        found: list[DigitSpan] = []
        for name, part in chain.from_iterable(axis_parts(self.mesh, d) for d in digits):
            whole = self.axes[name]
            if not are_numbers((part.size,)) or part == self.mesh.digit(name):
                found += whole
            else:
                # A digit of a device's position is a range of strides, so a span and a part of the
                # axis overlap where their ranges do.
                for span in whole:
                    low = max(span.digit.stride, part.stride)
                    high = min(span.digit.stride * span.digit.size, part.stride * part.size)
                    if high > low:
                        found.append(span.part(Digit(low, -(-high // low))))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class UnplacedAxes:
    """Links of a mesh whose axes are not placed: each axis has separate links of a known speed.

    Attributes:
      speeds: bytes per second along each axis, one way.
      latency_s: latency of one hop in seconds.
    """

    mesh: Mesh
    speeds: dict[str, float]
    latency_s: float

    @property
    def network(self) -> tuple[DigitSpan, ...]:
        """No spans, because the places of devices are unknown."""
        return ()

    def spans(self, digits: Digits) -> tuple[DigitSpan, ...]:
        """Return one span per axis of the digits, for all parts of the axis together."""
        sizes: dict[str, Any] = {}
        for name, part in chain.from_iterable(axis_parts(self.mesh, d) for d in digits):
            sizes[name] = sizes[name] * part.size if name in sizes else part.size
        # An axis has links of its own: a level of the network that has only this axis, in which
        # neighbours differ by 1 (stride 1).
        return tuple(
            DigitSpan(Level(LINK, size, self.speeds[name], self.latency_s), Digit(1, size))
            for name, size in sizes.items()
        )


def axis_parts(mesh: Mesh, digit: Digit) -> tuple[tuple[str, Digit], ...]:
    """Return pairs (axis name, part of the axis) that a digit consists of, major first.

    A digit of size 1 has no parts.
    """
    # A digit in numbers may span several axes, e.g. size 8 on a mesh X=2, Y=4.
    if are_numbers((digit.size,)):
        if digit.size == 1:
            return ()
        return tuple((ref.name, mesh.ref_digit(ref)) for ref in mesh.axis_refs(digit))
    # A digit whose size is a formula is one axis or a part of it. The stride identifies the axis.
    axes = ((name, mesh.digit(name)) for name, size in mesh.axes if size > 1)
    names = [n for n, a in axes if a.stride <= digit.stride < a.stride * a.size]
    return tuple((name, digit) for name in names)
