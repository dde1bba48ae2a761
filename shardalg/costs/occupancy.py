"""What is in memory while the instructions of a block run, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from shardalg.sizes.recorded import first_largest

ProgramPoint = tuple[int, ...]
"""An instruction: its number in the program, then in the body of that loop, ...; () the start."""


class Held(NamedTuple):
    """Bytes that a value takes, and the local values whose bytes they are."""

    bytes: int = 0
    of: tuple[int, ...] = ()


NOTHING = Held()


@dataclass
class Timeline:
    """What is alive in a block, instruction by instruction; the totals so far, and where."""

    alive: dict[int, Held]
    total: int = 0
    inner: dict[int, Held] = field(default_factory=dict)
    totals: list[tuple[int, ProgramPoint]] = field(default_factory=list)

    def add(self, value: int, held: Held) -> None:
        """Count a value as held from here on, in place of what was counted for it."""
        self.total += held.bytes - self.alive.get(value, NOTHING).bytes
        self.alive[value] = held

    @cached_property
    def peak(self) -> tuple[int, ProgramPoint]:
        """The first of the largest totals, and where it is."""
        return self.totals[first_largest([total for total, _ in self.totals])]

    def drop(self, value: int) -> None:
        """Count a value as freed."""
        self.total -= self.alive.pop(value, NOTHING).bytes

    def reach(self, i: int, inner: Timeline | None) -> None:
        """Instruction `i` runs now; `inner` is the body of the loop that it is."""
        inside, place = inner.peak if inner else (0, ())
        self.totals.append((self.total + inside, (i, *place)))
