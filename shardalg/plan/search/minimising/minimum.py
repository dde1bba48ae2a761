"""The minimum of a factor graph with a lower bound: reduction, messages, and a linear program."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shardalg.plan.search.minimising.factor_graph import FactorGraph
from shardalg.plan.search.minimising.linear_program import relaxation, whole_labels
from shardalg.plan.search.minimising.message_passing import Dual, MessagePassing, bounds_of_labels
from shardalg.plan.search.minimising.reduction import ReducedGraph

MOST_SWEEPS = 120
"""Number of sweeps of message passing in a round."""
ROUNDS = 2
"""Number of rounds of message passing; after each, labels are removed by their bounds."""
LEAST_GAIN = 2e-4
"""Relative gain of the bound in `CHECKED` sweeps below which a round ends."""
CHECKED = 10
"""Number of sweeps between two solutions that are read off the messages."""
SLACK = 1e-6
"""Relative excess of a label's bound over the best solution up to which the label stays.

Bounds are sums in float64; without slack their rounding could remove the labels of the optimum.
"""


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
    """

    labels: tuple[int, ...]
    cost_ps: float
    bound_ps: float
    steps: tuple[tuple[int, ...], ...] = ()
    duals: tuple[Round, ...] = ()


def minimum(factors: FactorGraph) -> Minimum:
    """Return the minimum of a factor graph, and the largest lower bound that was proved.

    Labels that can only be part of solutions above the best one are removed before the linear
    program. If its optimum is not whole, HiGHS branches on what is left.

    Raises:
      StrategyError: there is no solution, or HiGHS finds none in its time.
    """
    reduced = ReducedGraph(factors)
    reduced.reduce()
    best, cost, bound = None, math.inf, -math.inf
    duals: list[Round] = []
    steps = tuple(reduced.steps)
    for _ in range(ROUNDS):
        if not reduced.costs:
            break
        messages, before = MessagePassing(reduced), -math.inf
        for sweep in range(1, MOST_SWEEPS + 1):
            after = messages.sweep()
            if sweep % CHECKED == 0:
                taken = messages.improved(messages.guess())
                if (found := messages.total(taken)) < cost:
                    cost = found
                    best = reduced.solution(
                        {
                            variable: int(reduced.labels[variable][label])
                            for variable, label in zip(messages.order, taken, strict=True)
                        }
                    )
                bound = max(bound, after)
                if after - before < LEAST_GAIN * after:
                    break
                before = after
        duals.append((messages.dual(), dict(reduced.labels)))
        at_least, after = bounds_of_labels(reduced, duals[-1][0])
        bound = max(bound, after)
        for variable, values in at_least.items():
            reduced.keep(variable, values <= cost * (1 + SLACK) + 1)
        reduced.make_consistent()
    if reduced.costs:
        solved = relaxation(reduced)
        duals.append((solved.dual, dict(reduced.labels)))
        bound = max(bound, min(solved.bound_ps, cost))
        if solved.num_fractional:
            solved = whole_labels(reduced)
            bound = max(bound, min(solved.bound_ps, cost))
        taken = reduced.solution(solved.labels)
    else:
        taken = reduced.solution({})
        bound = max(bound, reduced.constant)
    if best is None or factors.total(taken) < cost:
        best, cost = taken, factors.total(taken)
    return Minimum(tuple(best), cost, min(bound, cost), steps, tuple(duals))
