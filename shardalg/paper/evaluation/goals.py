"""How near to each measured value a prediction should come, or why the paper does not determine it.

Goals are for the values of a table together: the median of the errors, and the largest of them.
Bytes and seconds are compared in per cent of what was measured, shares in points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardalg.paper.evaluation.published import Column

PERCENT, POINTS = "%", "points"


@dataclass(frozen=True)
class Goal:
    """The errors that predictions of one quantity should stay within.

    Attributes:
      median, most: of the sizes of the errors, in `unit`; None where nothing is asked of it.
      unit: "%" of the measured value, or "points" of a share.

    >>> print(Goal(5, 15), Goal(2, unit=POINTS), sep="; ")
    median 5 %, most 15 %; median 2 points
    """

    median: float | None = None
    most: float | None = None
    unit: str = PERCENT

    def __str__(self) -> str:
        asked = (("median", self.median), ("most", self.most))
        return ", ".join(f"{name} {value:g} {self.unit}" for name, value in asked if value)

    def met(self, median: float, most: float) -> bool:
        """Whether errors of that median and that largest size are within the goal."""
        asked = ((median, self.median), (most, self.most))
        return all(limit is None or found <= limit for found, limit in asked)


@dataclass(frozen=True)
class Undetermined:
    """Why the paper says too little for a value to be predicted."""

    reason: str

    def __str__(self) -> str:
        return f"not determined by the paper: {self.reason}"


PEAK, STEP, UTILISATION = "peak_memory_GB", "step_time_s", "flops_util_pct"
RAW, BUBBLES, RECOMPUTE = "raw_flops_util_pct", "bubbles_pct", "recompute_pct"
ALL_TO_ALL = "alltoall_pct"
UNITS = {
    PEAK: PERCENT, STEP: PERCENT, UTILISATION: POINTS, RAW: POINTS, BUBBLES: POINTS,
    RECOMPUTE: POINTS, ALL_TO_ALL: POINTS,
}  # fmt: skip
"""Every measured quantity, and what its errors are in."""

_TWO_D = {PEAK: Goal(5, 15), STEP: Goal(4, 10), UTILISATION: Goal(2, unit=POINTS)}
_SCHEDULE = {BUBBLES: Goal(most=1.5, unit=POINTS), RECOMPUTE: Goal(most=2, unit=POINTS)}
_ANCHORED = Goal(5, 12)
_RAW = Undetermined("which flops the profiler counts as valid is not stated")
_NO_SIZES = "{} are not stated, so that bytes and flops are not known"
_SPARSE, _HYBRID, _SPATIAL = (
    Undetermined(_NO_SIZES.format(what))
    for what in ("layers, widths and sequence length", "layers, M, D and S", "channel widths")
)
_ROUNDED = Undetermined("sizes are not stated, and the share is rounded to a per cent")
GOALS: Mapping[int, Mapping[str, Goal | Undetermined]] = {
    2: _TWO_D,
    3: _TWO_D,
    4: {PEAK: Goal(10), STEP: Goal(5, 10), RAW: _RAW, **_SCHEDULE},
    5: {PEAK: Goal(10), STEP: _ANCHORED, RAW: _RAW, **_SCHEDULE},
    6: {PEAK: _SPARSE, STEP: _ANCHORED, UTILISATION: _SPARSE, ALL_TO_ALL: _ROUNDED},
    7: {PEAK: _HYBRID, STEP: _ANCHORED, UTILISATION: _HYBRID},
    8: {PEAK: _SPATIAL, STEP: _ANCHORED, UTILISATION: _SPATIAL},
}
"""By table and quantity. Tables 5 to 8 leave sizes open: their seconds need one anchor each."""
MISPRINTS = {
    ("conformer-pipe-bench.c4", RECOMPUTE): Undetermined(
        "29.9 is out of line with the other five (21.3 to 22.9), a suspected misprint of 22.9"
    )
}


def goal(column: Column, quantity: str) -> Goal | Undetermined:
    """What is asked of a prediction of one measured value.

    >>> from shardalg.paper.evaluation.published import column
    >>> print(goal(column("narrow-bench.c1"), STEP))
    median 4 %, most 10 %
    >>> print(goal(column("sparse-bench.c1"), ALL_TO_ALL))
    not determined by the paper: sizes are not stated, and the share is rounded to a per cent
    """
    return MISPRINTS.get((column.id, quantity)) or GOALS[column.table][quantity]
