"""Evaluation of a plan's seconds and memory at millions of values of its named sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardalg.costs.analyses.peaks import possible_maxima
from shardalg.costs.hardware import Hardware
from shardalg.sizes.array_steps import Code, run
from shardalg.sizes.checked import Checked
from shardalg.sizes.facts import Fact
from shardalg.sizes.formula import Formula
from shardalg.tables import bytes_text, seconds_text


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """Seconds and memory of a plan's step at many points.

    A point is a value for each swept size. All arrays have the shape to which the arrays in `sizes`
    broadcast.

    Attributes:
      hardware: the chip that the seconds are for.
      sizes: for each swept size, the array of its values.
      step_time_s: seconds of a step, in double precision.
      peak_memory_bytes: most bytes alive at once on a device, in double precision.
      holds: True where all conditions that planning recorded have the same answers as at the sizes
        for which the plan was made, so that the formulas are valid. False does not prove that the
        plan differs; `Plan.holds` plans again at a point and compares. On a topology it is False at
        other sizes of axes, because the axes have other links there.
      doubtful: True where only conditions inside of called functions have other answers. Such
        functions may still return the same; `Plan.holds` decides.
      machine: text that names the chip, the number of devices, and the source of both.
    """

    hardware: Hardware
    sizes: Mapping[str, np.ndarray]
    step_time_s: np.ndarray
    peak_memory_bytes: np.ndarray
    holds: np.ndarray
    doubtful: np.ndarray
    machine: str = ""

    @property
    def fits(self) -> np.ndarray:
        """True where the peak is within the memory of a device."""
        return self.peak_memory_bytes <= self.hardware.hbm_bytes

    def __repr__(self) -> str:
        """Return a summary: how many points there are, where the plan holds and fits, the best."""
        names, good = ", ".join(self.sizes), self.holds & self.fits
        on = self.machine or f"{self.hardware.name} (as asked for)"
        others = "" if self.holds.all() else " (plan.holds decides at the others)"
        text = (
            f"Sweep of {names} on {on}: {self.holds.size:,} points, the plan holds for certain "
            f"at {self.holds.sum():,}{others}, fits at {good.sum():,}"
        )
        if not good.any():
            return text
        best = np.unravel_index(np.argmin(np.where(good, self.step_time_s, np.inf)), good.shape)
        at = {n: np.broadcast_to(a, good.shape)[best] for n, a in self.sizes.items()}
        where = ", ".join(f"{name}={value}" for name, value in at.items())
        return (
            f"{text}; fastest {where}: {seconds_text(float(self.step_time_s[best]))}, "
            f"{bytes_text(int(self.peak_memory_bytes[best]))}"
        )


class Sweeper:
    """Formulas of a plan on a chip, compiled for evaluation at arrays of sizes.

    Args:
      step_time_s: seconds of a step.
      peaks: formulas whose largest is the peak of memory, in bytes.
      asked: the conditions that planning recorded: in its own code, and in functions that it calls.
      known: values of the sizes that are not swept.

    >>> from shardalg.sizes.formula import symbols
    >>> B, X = symbols("B X")
    >>> sweeper = Sweeper(B / X, [B + X, 2 * B], ([], [Fact(B - 4, "> 0")]), {"X": 4})
    >>> sweeper.at({"B": np.array([2, 8])})
    (array([0.5, 2. ]), array([ 6., 16.]), array([False,  True]), array([ True, False]))
    """

    def __init__(
        self,
        step_time_s: Any,
        peaks: Iterable[Formula],
        asked: tuple[Iterable[Fact], Iterable[Fact]],
        known: Mapping[str, int],
    ) -> None:
        """Compile the formulas; the arguments are those of the class."""
        self.code = Code()
        self.time = self.code.polynomial(Formula.of(step_time_s).subs(known).terms)
        self.peak = _maximum(self.code, (peak.subs(known) for peak in peaks))
        self.own, self.called = (Checked(facts, known) for facts in asked)

    def at(self, sizes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return four arrays with one entry per point of a grid of sizes.

        They are the seconds of a step, the bytes of the peak, and two masks: whether all recorded
        conditions hold, and whether only a condition of a called function fails. At points of the
        second mask the plan may still be the same.

        Args:
          sizes: for each swept size, by name, an array of its values.
        """
        seconds, peak = run(self.code, [self.time, self.peak], sizes)
        # Where a condition of the planner's own code is false, the formulas are not valid anyway.
        # So the conditions of called functions are checked only elsewhere.
        own = self.own.hold(sizes)
        holds = self.called.hold(sizes, own)
        return seconds, peak, holds, own & ~holds


class StepFormulas:
    """Formulas of a step's seconds, peak memory and sent bytes, compiled for arrays of sizes.

    Args:
      step_time_s: seconds of a step.
      peaks: formulas whose largest is the peak of memory, in bytes.
      wire_bytes: bytes that a device sends.

    >>> from shardalg.sizes.formula import symbols
    >>> B, X = symbols("B X")
    >>> formulas = StepFormulas(B / X, [B + X, 2 * B], 4 * B)
    >>> formulas.at({"B": np.array([2, 8]), "X": np.array([4, 4])})
    (array([0.5, 2. ]), array([ 6., 16.]), array([ 8., 32.]))
    """

    def __init__(self, step_time_s: Any, peaks: Iterable[Formula], wire_bytes: Any) -> None:
        """Compile the formulas; the arguments are those of the class."""
        self.code = Code()
        self.places = [
            self.code.polynomial(Formula.of(step_time_s).terms),
            _maximum(self.code, peaks),
            self.code.polynomial(Formula.of(wire_bytes).terms),
        ]

    def at(self, sizes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return (seconds, peak bytes, sent bytes) at arrays of sizes that have one shape.

        Double precision misses whole numbers of bytes by its rounding, which is corrected. Uneven
        blocks send a fraction of a byte on average.
        """
        shape = next(iter(sizes.values())).shape
        arrays = [np.broadcast_to(array, shape) for array in run(self.code, self.places, sizes)]
        seconds, *amounts = arrays
        for number, array in enumerate(amounts):
            nearest = np.rint(array)
            is_near = np.isclose(array, nearest, rtol=1e-12, atol=1e-6)
            amounts[number] = np.where(is_near, nearest, array)
        return seconds, *amounts


def _maximum(code: Code, formulas: Iterable[Formula]) -> Any:
    """Return the place in compiled code of the largest of several formulas."""
    # The maximum is part of the compiled code, so one evaluation gives that of all candidates.
    first, *others = possible_maxima(formulas)
    found = code.polynomial(first.terms)
    for other in others:
        found = code.step("max", found, code.polynomial(other.terms))
    return found
