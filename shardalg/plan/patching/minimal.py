"""The search for the fewest constraints under which XLA's program is as good as the plan.

One constraint after the other is not enough: the first of three necessary ones can make XLA's
program worse. So the search starts from all constraints and removes them, in groups and singly
(delta debugging: Zeller and Hildebrandt, IEEE Trans. Software Engineering 28 (2002)). If that does
not reach the plan's bytes, a beam search adds several constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardalg.plan.patching.constraint_trials import Chosen, ConstraintTrials, XlaFigures
from shardalg.plan.patching.probes import Constraint

NEAR = 1.05
"""XLA agrees with the plan if it sends at most this many times the plan's bytes."""
MORE_FLOPS = 1.001
"""Times the flops without a patch from which on a set makes devices repeat work."""
WORTH = 1.2
"""Times the seconds that a set may take if it sends no more than the plan."""
WIDTH, MOST_ADDED = 5, 4
"""Sets that a round of the beam search keeps, and its rounds."""
_SAME = 1e-4
"""Scores that differ by a smaller share are equal."""


@dataclass(eq=False)
class MinimalSearch:
    """A search over sets of constraints.

    Attributes:
      trials: asks XLA about a set.
      plan_bytes: bytes that the plan sends.
      limit: most sets that XLA is asked about.
      say: called with the number of sets that were asked, and the best bytes so far.
    """

    trials: ConstraintTrials
    plan_bytes: float
    limit: int
    say: Callable[[int, float], None]

    def score(self, chosen: Chosen) -> float:
        """Return the score of a set, lower is better: seconds times the excess of bytes.

        A set that sends at most `NEAR` times the plan's bytes has no excess. It may take `WORTH`
        times the seconds of one that sends more: 6 % of the bytes are not worth 78 % more time.
        A set that is refused, or makes XLA compute more flops, has an infinite score.
        """
        # The empty set is XLA's program without any constraint.
        figures, before = self.trials.figures(chosen), self.trials.figures(frozenset())
        self.say(len(self.trials.known), self.best.wire_bytes if self.best else 0.0)
        if figures is None or before is None:
            return float("inf")
        # Fewer bytes by repeated work are no gain.
        if figures.flops > before.flops * MORE_FLOPS:
            return float("inf")
        # A plan that sends nothing counts as one byte, so that the quotient exists.
        excess = figures.wire_bytes / max(NEAR * self.plan_bytes, 1.0)
        return figures.step_s * (excess * WORTH if excess > 1 else 1.0)

    @property
    def best(self) -> XlaFigures | None:
        """Figures of the set with the fewest bytes so far."""
        return min(filter(None, self.trials.known.values()), default=None)

    @property
    def is_spent(self) -> bool:
        """True if XLA was asked about as many sets as allowed."""
        return len(self.trials.known) >= self.limit

    def run(self, constraints: Sequence[Constraint], others: Sequence[Constraint] = ()) -> Chosen:
        """Return the best set that the search finds; the empty one if no set is better.

        Args:
          constraints: forms that values have in the plan.
          others: other shardings, which are tried if the forms do not reach the plan's bytes.
        """
        empty: Chosen = frozenset()
        if self.is_reached(empty):
            return empty
        # The starts: every form of every value, and the last form of each value.
        last = {each.expression: each for each in constraints}
        starts = (frozenset(constraints), frozenset(last.values()))
        found = min({self.reduced(start) for start in starts}, key=self.order)
        for start, more in ((empty, constraints), (found, constraints), (empty, others)):
            if more and not self.is_reached(found):
                longer = self.extended(start, more)
                found = min(self.reduced(longer), found, key=self.order)
        return min(found, empty, key=self.order)

    def order(self, chosen: Chosen) -> tuple[float, int, list[Constraint]]:
        """Return the key by which sets are compared: score, number of constraints, and places."""
        return self.rounded(chosen), len(chosen), sorted(chosen)

    def is_reached(self, chosen: Chosen) -> bool:
        """Return whether XLA sends at most `NEAR` times the plan's bytes under a set."""
        found = self.trials.figures(chosen)
        return found is not None and found.wire_bytes <= NEAR * self.plan_bytes

    def rounded(self, chosen: Chosen) -> float:
        """Return the score, rounded so that nearly equal ones are equal."""
        score = self.score(chosen)
        return float(f"{score:.4g}")

    def reduced(self, chosen: Chosen) -> Chosen:
        """Return a subset that is at least as good, from which no constraint can be removed.

        Groups of half the set are removed first, then smaller ones, down to single constraints
        (delta debugging). After XLA was asked `limit` times, the set is returned as it is.
        """
        size = max(1, len(chosen) // 2)
        while chosen and not self.is_spent:
            score = self.score(chosen)
            for group in _groups(sorted(chosen, key=self.is_short), size):
                smaller = chosen - group
                # A score that is worse by rounding alone counts as equal.
                if self.is_spent or self.score(smaller) <= score * (1 + _SAME):
                    chosen = smaller
                    break
            # No group of this size can be removed, so smaller ones are tried.
            else:
                if size == 1:
                    break
                size = max(1, size // 2)
        return chosen

    def is_short(self, each: Constraint) -> tuple[bool, Constraint]:
        """Return the order of removal: constraints inside of a statement come before own lines."""
        expression = self.trials.marked.expressions.get(each.expression)
        own = expression is None or bool(expression.statement or expression.rebinds)
        return own, each

    def extended(self, start: Chosen, constraints: Sequence[Constraint]) -> Chosen:
        """Return the best set that adds up to `MOST_ADDED` constraints to a set (a beam search).

        After each round the `WIDTH` best sets are extended, also if all of them are worse than
        before: a constraint may help only together with another one. The search ends early at a
        better set that reaches the plan's bytes.
        """
        seen = {start}
        level, best = [start], start
        for _ in range(MOST_ADDED):
            larger = {
                chosen | {each} for chosen in level for each in constraints if each not in chosen
            }
            # In a fixed order, so that each run asks XLA about the same sets.
            scored = []
            for chosen in sorted(larger - seen, key=sorted):
                if self.is_spent:
                    break
                seen.add(chosen)
                scored.append((self.rounded(chosen), sorted(chosen), chosen))
                if self.is_reached(chosen) and self.rounded(chosen) < self.rounded(best):
                    return chosen
            level = [chosen for _, _, chosen in sorted(scored, key=lambda each: each[:2])[:WIDTH]]
            best = min([best, *level], key=self.rounded)
        return best


def _groups(items: Sequence[Constraint], size: int) -> Iterator[Chosen]:
    """Yield disjoint groups of this size; the last one may be smaller."""
    for start in range(0, len(items), size):
        yield frozenset(items[start : start + size])
