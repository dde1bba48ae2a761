"""Mesh axes laid onto the levels of a network, as JAX orders devices.

A part of a mesh axis that lies on links of one kind.

The spans under any digits of a mesh: under its axes, their parts, and several of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.mesh import Mesh
from shardalg.sizes.recorded import are_numbers

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
class DigitSpan:
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

    def part(self, digit: Digit) -> DigitSpan:
        """The span of a part of the positions."""
        return replace(self, digit=digit, stride=self.stride * (digit.stride // self.digit.stride))


Place = tuple[int, int, int]
"""A level by its number, how many of it, and the stride between them."""
Placement = dict[str, list[Place]]
"""Per axis what it takes, major first."""


def exact(sizes: Mapping[str, int], levels: Sequence[int]) -> Placement | None:
    """Each axis on whole levels, if there is such a way: the innermost axis chooses first.

    It takes as many levels together as make its size, as `jax.make_mesh` does
    (`jax.experimental.mesh_utils.create_device_mesh`).

    Args:
      sizes: of the axes, major first. levels: sizes of the levels, outermost first.

    >>> exact({"X": 8, "Y": 16}, [8, 8, 2]), exact({"X": 3}, [8])
    ({'X': [(1, 8, 1)], 'Y': [(0, 8, 1), (2, 2, 1)]}, None)
    """
    free = [i for i, size in enumerate(levels) if size > 1]
    found: Placement = {name: [] for name in sizes}
    for name in reversed(list(sizes)):
        ways = (c for n in range(len(free), 0, -1) for c in combinations(free, n))
        taken = next((c for c in ways if math.prod(levels[i] for i in c) == sizes[name]), ())
        if sizes[name] > 1 and not taken:
            return None
        found[name] = [(i, levels[i], 1) for i in taken]
        free = [i for i in free if i not in taken]
    return found


def filled(
    sizes: Mapping[str, int], levels: Sequence[int], *, shared: bool = False
) -> Placement | None:
    """Axes and levels filled from the inside, one after the other; None where sizes do not divide.

    Args:
      shared: an axis takes of each level what divides both, and leaves the rest to axes outside of
        it, as JAX splits dimensions of a torus (`allow_split_physical_axes`).

    >>> filled({"X": 4, "Y": 4}, [8, 2]), filled({"X": 3, "Y": 2}, [2, 3])
    ({'X': [(0, 4, 2)], 'Y': [(0, 2, 1), (1, 2, 1)]}, None)
    >>> filled({"X": 3, "Y": 2}, [2, 3], shared=True)
    {'X': [(1, 3, 1)], 'Y': [(0, 2, 1)]}
    """
    found: Placement = {name: [] for name in sizes}
    left, strides = list(levels), [1] * len(levels)
    for name in reversed(list(sizes)):
        rest = sizes[name]
        for i in reversed(range(len(left))):
            count = math.gcd(rest, left[i])
            if not shared and count < min(rest, left[i]):
                return None
            if count > 1:
                found[name].insert(0, (i, count, strides[i]))
            left[i] //= count
            strides[i] *= count
            rest //= count
        if rest > 1:
            return None
    return found


def spans(
    placed: Placement, sizes: Mapping[str, int], levels: Sequence[Level]
) -> Iterator[tuple[str, tuple[DigitSpan, ...]]]:
    """Per axis its spans, major first; their digits are those of the mesh with these axes."""
    stride = math.prod(sizes.values())
    for name, size in sizes.items():
        stride //= size
        found, below = [], size
        for i, count, apart in placed[name]:
            below //= count
            found.append(DigitSpan(levels[i], Digit(stride * below, count), apart))
        yield name, tuple(found)


@dataclass(frozen=True, eq=False)
class Wiring:
    """What lies under the axes of a mesh."""

    mesh: Mesh
    axes: dict[str, tuple[DigitSpan, ...]]

    def spans(self, digits: Digits) -> tuple[DigitSpan, ...]:
        """Under several digits, major first; a digit in formulas is the whole of its axis."""
        return tuple(chain.from_iterable(map(self._under, digits)))

    def _under(self, digit: Digit) -> tuple[DigitSpan, ...]:
        found: list[DigitSpan] = []
        for name, part in axis_parts(self.mesh, digit):
            whole = self.axes[name]
            if not are_numbers((part.size,)) or part == self.mesh.digit(name):
                found += whole
            else:
                found += (s for span in whole if (s := _common(span, part)) is not None)
        return tuple(found)


@dataclass(frozen=True, eq=False)
class UnplacedAxes:
    """Axes with links of their own, of which the speed is known and no more: one stage each.

    Attributes:
      speeds: bytes per second along each axis, one way.
    """

    mesh: Mesh
    speeds: dict[str, float]
    latency_s: float

    def spans(self, digits: Digits) -> tuple[DigitSpan, ...]:
        """Under several digits: one span per axis, of all parts of it that there are."""
        sizes: dict[str, Any] = {}
        for name, part in chain.from_iterable(axis_parts(self.mesh, d) for d in digits):
            sizes[name] = sizes[name] * part.size if name in sizes else part.size
        return tuple(
            DigitSpan(Level(LINK, size, self.speeds[name], self.latency_s), Digit(1, size))
            for name, size in sizes.items()
        )


def axis_parts(mesh: Mesh, digit: Digit) -> tuple[tuple[str, Digit], ...]:
    """The axes that a digit joins, major first, each with the part of it."""
    if are_numbers((digit.size,)):
        if digit.size == 1:
            return ()
        return tuple((ref.name, mesh.ref_digit(ref)) for ref in mesh.axis_refs(digit))
    # A digit whose size is a formula is one axis, or a part of it: its stride tells which.
    axes = ((name, mesh.digit(name)) for name, size in mesh.axes if size > 1)
    names = [n for n, a in axes if a.stride <= digit.stride < a.stride * a.size]
    return tuple((name, digit) for name in names)


def _common(span: DigitSpan, part: Digit) -> DigitSpan | None:
    """The part of a span that a part of its axis takes."""
    low = max(span.digit.stride, part.stride)
    high = min(span.digit.stride * span.digit.size, part.stride * part.size)
    return span.part(Digit(low, -(-high // low))) if high > low else None
