"""Lines that say what is being done, with the seconds since the start."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


def _write(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True)
class Progress:
    """Call it with what begins now.

    >>> Progress(clock=lambda: 2.0, start=0.5)("planning")
    [  1.5 s] planning
    """

    write: Callable[[str], None] = _write
    clock: Callable[[], float] = time.perf_counter
    start: float = field(default_factory=time.perf_counter)

    def __call__(self, what: str) -> None:
        """Write the line."""
        self.write(f"[{self.clock() - self.start:5.1f} s] {what}")
