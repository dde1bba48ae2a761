"""The minimum of a factor graph with a lower bound: reduction, messages, and a linear program."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shardalg.errors import StrategyError
from shardalg.plan.search.minimising.branches import Branch, branched
from shardalg.plan.search.minimising.factor_graph import FactorGraph
from shardalg.plan.search.minimising.linear_program import relaxation, whole_labels
from shardalg.plan.search.minimising.message_passing import (
    CAP,
    Dual,
    MessagePassing,
    bounds_of_labels,
)
from shardalg.plan.search.minimising.reduction import ReducedGraph

MOST_SWEEPS = 120
"""Number of sweeps of message passing in a round."""
ROUNDS = 2
"""Number of rounds of message passing; after each, labels are removed by their bounds."""
LEAST_GAIN = 2e-4
"""Relative gain of the bound in `CHECKED` sweeps below which a round ends."""
CHECKED = 10
"""Number of sweeps between two solutions that are read off the messages."""
INTERRUPTED, OUT_OF_TIME = "interrupted", "out of time"
"""The reasons why a search ends before its proof."""
SLACK = 1e-6
"""Relative excess of a label's bound over the best solution up to which the label stays.

Bounds are sums in float64; without slack their rounding could remove the labels of the optimum.
"""


class Clock(NamedTuple):
    """The time at which a search ends.

    Attributes:
      end: the time by `time.monotonic`; infinite without a limit.
    """

    end: float = math.inf

    @staticmethod
    def of(seconds: float | None) -> Clock:
        """Return the clock that ends in some seconds; None has no end."""
        return Clock() if seconds is None else Clock(time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()


Round = tuple[Dual, dict[int, np.ndarray]]
"""A dual, and per variable the numbers of the labels that its vectors are for."""


@dataclass(frozen=True)
class Minimum:
    """The best solution of a factor graph, and a proved lower bound.

    Attributes:
      labels: one label per variable.
      cost_ps: the cost of these labels.
      bound_ps: no solution costs less.
      steps: the steps of the exact reduction (`ReducedGraph.steps`).
      duals: per round, the dual that proves its bound, and the labels that were left before it.
      tree: the branches of the last linear program; None if its solution is whole.
      stopped: why the search ended before its proof: "", "interrupted" or "out of time".
    """

    labels: tuple[int, ...]
    cost_ps: float
    bound_ps: float
    steps: tuple[tuple[int, ...], ...] = ()
    duals: tuple[Round, ...] = ()
    tree: Branch | None = None
    stopped: str = ""


@dataclass
class _Best:
    """The best solution so far, and the proved bound.

    Attributes:
      labels: one label per variable; None before the first solution.
    """

    factors: FactorGraph
    labels: list[int] | None = None
    cost: float = math.inf
    bound: float = -math.inf
    duals: list[Round] = field(default_factory=list)
    tree: Branch | None = None

    def take(self, labels: list[int]) -> float:
        """Take a solution if it is the best one; return the cost of the best one."""
        cost = self.factors.total(labels)
        # A rounded solution may have an impossible pair.
        if cost < self.cost:
            self.labels, self.cost = labels, cost
        return self.cost


def minimum(factors: FactorGraph, clock: Clock | None = None) -> Minimum:
    """Return the minimum of a factor graph, and the largest lower bound that was proved.

    Labels that can only be part of solutions above the best one are removed before the linear
    program. If its optimum is not whole, it branches on what is left. An interruption or the end of
    the time gives the best solution so far with its bound.

    Raises:
      StrategyError: there is no solution, or HiGHS finds none in its time.
      KeyboardInterrupt: the interruption came before the first solution.
    """
    clock = clock or Clock()
    reduced = ReducedGraph(factors)
    reduced.reduce()
    steps = tuple(reduced.steps)
    best, stopped = _Best(factors), ""
    try:
        for _ in range(ROUNDS):
            if reduced.costs and (clock.left_s > 0 or best.labels is None):
                _pass_messages(reduced, best, clock)
        if not reduced.costs:
            best.take(reduced.solution({}))
            best.bound = max(best.bound, reduced.constant)
        elif clock.left_s > 0 or best.labels is None:
            _solve(reduced, best, clock)
        # A bound that rounding alone separates from the solution is a proof.
        if clock.left_s <= 0 and best.bound < best.cost * (1 - SLACK):
            stopped = OUT_OF_TIME
    except KeyboardInterrupt:
        if best.labels is None:
            raise
        stopped = INTERRUPTED
    if best.labels is None:
        raise StrategyError("no assignment of layouts is possible. Remove a pin or a ban.")
    bound = min(best.bound, best.cost)
    proof = steps, tuple(best.duals), best.tree
    return Minimum(tuple(best.labels), best.cost, bound, *proof, stopped)


def _pass_messages(reduced: ReducedGraph, best: _Best, clock: Clock) -> None:
    """Run a round of message passing, and remove the labels that its bound excludes."""
    messages, before = MessagePassing(reduced), -math.inf
    for sweep in range(1, MOST_SWEEPS + 1):
        after = messages.sweep()
        # The first sweeps are made in any case: before, solutions are far from the best one.
        if sweep % CHECKED == 0:
            taken = messages.improved(messages.guess())
            # A guess can have impossible pairs, which the capped costs of messages allow.
            if messages.total(taken) < CAP:
                best.take(
                    reduced.solution(
                        {
                            variable: int(reduced.labels[variable][label])
                            for variable, label in zip(messages.order, taken, strict=True)
                        }
                    )
                )
            best.bound = max(best.bound, after)
            if after - before < LEAST_GAIN * after or clock.left_s <= 0:
                break
            before = after
    best.duals.append((messages.dual(), dict(reduced.labels)))
    at_least, after = bounds_of_labels(reduced, best.duals[-1][0])
    best.bound = max(best.bound, after)
    for variable, values in at_least.items():
        reduced.keep(variable, values <= best.cost * (1 + SLACK) + 1)
    reduced.make_consistent()


def _solve(reduced: ReducedGraph, best: _Best, clock: Clock) -> None:
    """Solve the linear program of the labels that are left, with branches if it is fractional.

    Raises:
      StrategyError: HiGHS finds no solution in its time.
    """
    solved = relaxation(reduced, clock.left_s)
    if solved is None:
        if best.labels is None:
            raise StrategyError("the search found no solution in its time. Give more seconds=.")
        return
    best.duals.append((solved.dual, dict(reduced.labels)))
    best.bound = max(best.bound, min(solved.bound_ps, best.cost))
    if not solved.num_fractional:
        best.take(reduced.solution(solved.labels))
        return
    found = branched(reduced, solved, best.take, clock.end)
    best.tree = found.tree
    best.bound = max(best.bound, min(found.bound_ps, best.cost))
    # After the last branch HiGHS closes the rest, without a proof that can be checked.
    is_open = best.bound < best.cost * (1 - SLACK) and clock.left_s > 0
    if best.labels is None or is_open:
        whole = whole_labels(reduced, clock.left_s)
        best.take(reduced.solution(whole.labels))
        best.bound = max(best.bound, min(whole.bound_ps, best.cost))
