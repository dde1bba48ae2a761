"""`answer.why_not`: a given strategy compared with the best plan of a search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shardalg.plan.comparing.compared import ComparedStrategy, StrategyDifference
from shardalg.tables import Answer, Parts, Table, bytes_text, seconds_text

MOST_SHOWN = 12
"""Rows of the printed table of values."""


@dataclass(frozen=True, eq=False, repr=False)
class SearchDifference(Answer):
    """The price of a given plan, and the values and moves that make the difference.

    Attributes:
      best: the best plan of the search.
      given: the given plan, at the same rates.
      is_in_family: whether its mesh was among the searched ones.
      bound_s: the lower bound of the search.
    """

    best: ComparedStrategy
    given: ComparedStrategy
    is_in_family: bool
    bound_s: float

    @property
    def difference_s(self) -> float:
        """Seconds per step by which the given plan is slower; negative if it is faster."""
        return self.given.step_s - self.best.step_s

    @cached_property
    def values(self) -> Table:
        """A row per value of which the sharding differs: the best plan's and the given one's."""
        if self.best.plan is None or self.given.plan is None:
            return Table(("value", "best", "given"), ())
        rows = self.best.plan.diff(self.given.plan).values
        return Table(
            ("value", "best", "given"),
            tuple((row["value"], row["sharding"], row["other_sharding"]) for row in rows),
        )

    @property
    def causes(self) -> Table:
        """A row per cause of time; the differences add up to the difference of the steps."""
        return self._difference.causes

    @property
    def table(self) -> Table:
        """A row per module, kind of collective and axes whose bytes differ, the largest first."""
        return self._difference.table

    @cached_property
    def _difference(self) -> StrategyDifference:
        """The difference of the given plan from the best one."""
        return StrategyDifference(self.best, self.given)

    @property
    def sentence(self) -> str:
        """The seconds of both plans, the difference, and the largest reason, in words."""
        share = self.difference_s / self.best.step_s if self.best.step_s else 0.0
        said = (
            f"The given strategy takes {seconds_text(self.given.step_s)} per step, the best plan "
            f"{seconds_text(self.best.step_s)} ({share:+.1%}), with peaks of "
            f"{bytes_text(self.given.peak_bytes)} and {bytes_text(self.best.peak_bytes)}. "
            f"{len(self.values)} values are sharded differently."
        )
        if not self.is_in_family:
            said += " Its mesh was not searched."
        if self.given.step_s < self.bound_s:
            said += " It is below the bound: the table overestimates this program."
        # The tables have "given minus best". The sign makes a cost of the slower plan positive.
        sign = 1 if self.difference_s > 0 else -1
        slower = "given strategy" if sign > 0 else "best plan"
        causes = [row for row in self.causes if sign * row["difference_s"] > 0]
        if self.difference_s and causes:
            cause = max(causes, key=lambda row: sign * row["difference_s"])
            lost = seconds_text(sign * cause["difference_s"])
            said += f" The {slower} loses {lost} more to {cause['cause']}."
        if self.difference_s:
            said += self._difference.more_sent(sign)
        return said

    def parts(self) -> Parts:
        """Return the sentence, the moves, and the first values."""
        more = len(self.values) - MOST_SHOWN
        rest = (f"and {more} more: `.values` has all.",) if more > 0 else ()
        shown = Table(self.values.columns, self.values.rows[:MOST_SHOWN])
        return (self.sentence, self.table, shown, *rest)
