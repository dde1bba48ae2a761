"""Branch and bound on the linear program of a reduced factor graph, with a proof per leaf."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardalg.errors import StrategyError
from shardalg.plan.search.minimising.linear_program import NEAR_ZERO, Solved, relaxation
from shardalg.plan.search.minimising.message_passing import Dual
from shardalg.plan.search.minimising.reduction import ReducedGraph

MOST_BRANCHES = 100
"""Number of linear programs after which the open branches keep the bounds that they have."""


@dataclass
class Branch:
    """A set of solutions: a leaf with a bound, or two branches with other labels of a variable.

    Attributes:
      dual: the proof of the leaf's bound; {} if the branch has no solution, or is divided.
      labels: per variable, the numbers of the labels that the vectors of the dual are for.
      variable: the variable on which the branch divides; None for a leaf.
      taken: the labels that the variable can have in the first part; all others in the second.
      parts: the two branches.
    """

    dual: Dual
    labels: dict[int, np.ndarray]
    variable: int | None = None
    taken: tuple[int, ...] = ()
    parts: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class Branched:
    """The result of branch and bound: the least bound of all leaves, and the tree."""

    bound_ps: float
    tree: Branch


def branched(
    reduced: ReducedGraph, solved: Solved, take: Callable[[list[int]], float], end: float
) -> Branched:
    """Divide a fractional linear program until each leaf's bound reaches the best solution.

    Args:
      solved: the fractional optimum of the whole program.
      take: called with a solution of the whole factor graph; returns the cost of the best one.
      end: the time by `time.monotonic` after which no branch is divided.
    """
    root = Branch(solved.dual, dict(reduced.labels))
    number = itertools.count()
    # The branch with the least bound is divided first: it alone holds the whole bound down.
    waiting = [(solved.bound_ps, next(number), root, reduced, solved)]
    cost = take(reduced.solution(solved.labels))
    closed = []
    for _ in range(MOST_BRANCHES):
        if not waiting or waiting[0][0] >= cost * (1 - NEAR_ZERO) or time.monotonic() > end:
            break
        bound, _, branch, graph, found = heapq.heappop(waiting)
        # The variable whose largest share is smallest is the least decided one.
        variable = min(found.shares, key=lambda v: float(found.shares[v].max()))
        names = graph.labels[variable]
        first = int(names[found.shares[variable].argmax()])
        branch.variable, branch.taken, branch.dual = variable, (first,), {}
        parts = []
        for is_first in (True, False):
            part = graph.copy()
            child = Branch(found.dual, dict(graph.labels))
            parts.append(child)
            part.keep(variable, (names == first) == is_first)
            try:
                part.make_consistent()
            except StrategyError:
                # No solution has these labels, and the check finds that without a dual.
                child.dual = {}
                continue
            inner = relaxation(part, end - time.monotonic())
            if inner is None:
                # The bound of the whole branch is one of each part.
                closed.append(bound)
                continue
            child.dual, child.labels = inner.dual, dict(part.labels)
            if inner.num_fractional:
                entry = (inner.bound_ps, next(number), child, part, inner)
                heapq.heappush(waiting, entry)
            else:
                cost = take(reduced.solution(inner.labels))
                closed.append(inner.bound_ps)
        branch.parts = tuple(parts)
    least = min([cost, *closed, *(entry[0] for entry in waiting)])
    return Branched(least, root)
