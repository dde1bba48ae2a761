"""Bytes alive on one device at each instruction, with the values that are alive there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardalg.costs.memory import Scan
from shardalg.costs.walk import NOTHING, AliveBytes, LiveValue
from shardalg.graph.ir import Graph
from shardalg.spmd.program import SpmdProgram


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The time in which a local value is in memory.

    Attributes:
      value: number of the local value.
      bytes: bytes that it takes on one device.
      first, last: the first and the last point of `AliveCurve.totals` at which it is alive.
    """

    value: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class AliveCurve:
    """Bytes alive on one device while a program runs.

    Attributes:
      totals: bytes alive at each point. Point 0 is the start of the program, and point i + 1 is its
        instruction i. At a loop, they include the peak of the body.
      lifetimes: the values that are alive, of the outermost block and of the peaks of loop bodies.
    """

    totals: tuple[int, ...]
    lifetimes: tuple[Lifetime, ...]

    @property
    def peak(self) -> int:
        """The point with the most bytes alive; the first one if several tie."""
        return self.totals.index(max(self.totals))


@dataclass
class _Recorded(AliveBytes):
    """A count of the bytes alive that also records when each value is added and dropped.

    Attributes:
      opened: for each value that is alive, its bytes and the first point at which it is.
      closed: the lifetimes of the values that were dropped.
      inside: for each point with a loop, the count of its body.
    """

    opened: dict[int, tuple[int, int]] = field(default_factory=dict)
    closed: list[Lifetime] = field(default_factory=list)
    inside: dict[int, AliveBytes] = field(default_factory=dict)

    def add(self, value: int, held: LiveValue) -> None:
        """Count the bytes of a value as alive from the next point on."""
        super().add(value, held)
        self.opened[value] = held.bytes, len(self.totals)

    def drop(self, value: int) -> None:
        """Count the bytes of a value as freed after the last point."""
        super().drop(value)
        size, first = self.opened.pop(value, (0, 0))
        if size:
            self.closed.append(Lifetime(value, size, first, len(self.totals) - 1))

    def reach(self, i: int, inner: AliveBytes | None) -> None:
        """Record the bytes alive while instruction `i` runs."""
        if inner is not None:
            self.inside[len(self.totals)] = inner
        super().reach(i, inner)

    def lifetimes(self) -> list[Lifetime]:
        """Return the lifetimes of all values, with those at the peaks of loop bodies."""
        last = len(self.totals) - 1
        left = [Lifetime(v, size, first, last) for v, (size, first) in self.opened.items() if size]
        found = [*self.closed, *left]
        # A body is one point of the block around it, and its peak is what counts there.
        for point, inner in self.inside.items():
            found += [Lifetime(v, size, point, point) for v, size in _at_peak(inner)]
        return found


def _at_peak(line: AliveBytes) -> list[tuple[int, int]]:
    """Return pairs (value, bytes) of the values alive at the peak of a count of a loop body."""
    # A collective matmul has no instructions of its own, so that its count is not recorded.
    if not isinstance(line, _Recorded):
        return [(value, held.bytes) for value, held in line.alive.items()]
    sizes = [total for total, _ in line.totals]
    peak = sizes.index(max(sizes))
    return [(e.value, e.bytes) for e in line.lifetimes() if e.first <= peak <= e.last]


class _RecordingScan(Scan):
    """A scan of a program whose counts record when each value is alive."""

    def begin(self, start: dict[int, LiveValue]) -> AliveBytes:
        """Return a recording count that starts with the values at the start of a block."""
        held = sum(one.bytes for one in start.values())
        line = _Recorded(dict(start), held, totals=[(held, ())])
        line.opened = {value: (one.bytes, 0) for value, one in start.items() if one != NOTHING}
        return line


def alive_curve(
    program: SpmdProgram, graph: Graph, *, donated: Sequence[int], rebuild: bool
) -> AliveCurve:
    """Return the bytes alive at each instruction of a program in numbers.

    Its peak is the peak of `costs.memory.liveness` with the same arguments.

    Args:
      donated: positions of the flattened arguments whose buffers the program may take over.
      rebuild: whether the backward pass recomputes cheap values instead of keeping them.
    """
    scan = _RecordingScan(program, graph, (), rebuild)
    line = scan.peak(program.block, scan.lives(donated))
    assert isinstance(line, _Recorded), "`begin` makes no other count"
    return AliveCurve(tuple(total for total, _ in line.totals), tuple(line.lifetimes()))
