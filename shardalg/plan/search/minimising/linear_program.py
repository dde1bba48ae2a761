"""The linear relaxation of a reduced factor graph, solved by HiGHS through scipy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array

from shardalg.errors import StrategyError
from shardalg.plan.search.minimising.factor_graph import Vector
from shardalg.plan.search.minimising.message_passing import CAP, Dual
from shardalg.plan.search.minimising.reduction import ReducedGraph

MOST_SECONDS = 300.0
"""Seconds after which HiGHS stops."""
LEAST_SECONDS = 1.0
"""Seconds that HiGHS has at least, so that a first solution is found."""
NEAR_ZERO = 1e-6
"""Distance from 0 and 1 up to which a share of a label counts as whole."""


class Solved(NamedTuple):
    """The solution of the relaxation or, with whole labels, of the problem itself.

    Attributes:
      bound_ps: the optimum, a lower bound of every solution.
      labels: per variable, its label as a number in the whole factor graph.
      num_fractional: number of labels with a share between 0 and 1.
      dual: costs that move from edges to variables at the optimum; {} with whole labels.
      shares: per variable, the share of each label that is left.
    """

    bound_ps: float
    labels: dict[int, int]
    num_fractional: int
    dual: Dual
    shares: dict[int, Vector]


class _LinearProgram(NamedTuple):
    """Columns and rows of the linear program.

    There is a column per label and per finite pair of labels. The labels of a variable add up to 1,
    and the pairs of an edge with one label add up to this label.
    """

    costs: Vector
    matrix: csr_array
    right: Vector
    first: dict[int, int]
    num_labels: int
    edges: tuple[tuple[int, int], ...]


def relaxation(reduced: ReducedGraph, seconds: float = MOST_SECONDS) -> Solved | None:
    """Return the optimum of the linear relaxation of a reduced factor graph.

    Returns None if HiGHS does not find it in its time, or if there is no solution.
    """
    problem = _problem(reduced)
    scale = _scale(problem.costs)
    found = linprog(
        problem.costs / scale, A_eq=problem.matrix, b_eq=problem.right, bounds=(0, None),
        method="highs", options={"time_limit": min(MOST_SECONDS, max(seconds, LEAST_SECONDS))},
    )  # fmt: skip
    # At the time limit HiGHS gives a point that is not the optimum, whose duals prove less.
    if found.x is None or found.status != 0:
        return None
    return _solved(reduced, problem, found, found.eqlin.marginals * scale, scale)


def whole_labels(reduced: ReducedGraph, seconds: float = MOST_SECONDS) -> Solved:
    """Return the optimum with whole labels, by branch and bound.

    Raises:
      StrategyError: HiGHS finds no solution in `MOST_SECONDS`.
    """
    problem = _problem(reduced)
    scale = _scale(problem.costs)
    kinds = np.zeros(len(problem.costs))
    kinds[: problem.num_labels] = 1
    found = milp(
        problem.costs / scale, integrality=kinds, bounds=Bounds(0, np.inf),
        constraints=LinearConstraint(problem.matrix, problem.right, problem.right),
        options={"time_limit": min(MOST_SECONDS, max(seconds, LEAST_SECONDS)), "mip_rel_gap": 1e-7},
    )  # fmt: skip
    if found.x is None:
        raise StrategyError(f"HiGHS did not solve the integer program: {found.message}")
    return _solved(reduced, problem, found, None, scale)


def _scale(costs: Vector) -> float:
    """Return the median positive cost: HiGHS has absolute tolerances, so costs are near 1."""
    positive = costs[costs > 0]
    return max(1.0, float(np.median(positive))) if len(positive) else 1.0


def _problem(reduced: ReducedGraph) -> _LinearProgram:
    """Return the linear program of a reduced factor graph."""
    first: dict[int, int] = {}
    num_labels = 0
    for variable, own in reduced.costs.items():
        first[variable] = num_labels
        num_labels += len(own)
    costs, right = [*reduced.costs.values()], [np.ones(len(reduced.costs))]
    rows = [np.repeat(np.arange(len(first)), [len(each) for each in reduced.costs.values()])]
    columns, values = [np.arange(num_labels)], [np.ones(num_labels)]
    num_rows, num_columns = len(first), num_labels
    edges = [(one, other) for one, near in reduced.near.items() for other in near if one < other]
    for one, other in edges:
        matrix = reduced.near[one][other]
        pairs = np.nonzero(np.isfinite(matrix) & (matrix < CAP))
        costs.append(matrix[pairs])
        at = num_columns + np.arange(len(pairs[0]))
        num_columns += len(at)
        for variable, side in zip((one, other), pairs, strict=True):
            count = len(reduced.costs[variable])
            rows += [num_rows + side, num_rows + np.arange(count)]
            columns += [at, first[variable] + np.arange(count)]
            values += [np.ones(len(at)), -np.ones(count)]
            right.append(np.zeros(count))
            num_rows += count
    entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
    matrix = coo_array(entries, (num_rows, num_columns)).tocsr()
    ends = np.concatenate(costs), matrix, np.concatenate(right)
    return _LinearProgram(*ends, first, num_labels, tuple(edges))


def _solved(
    reduced: ReducedGraph,
    problem: _LinearProgram,
    found: object,
    marginals: Vector | None,
    scale: float,
) -> Solved:
    """Return a result of scipy as `Solved`."""
    x, optimum = found.x[: problem.num_labels], float(found.fun)  # type: ignore[attr-defined]
    fractional = int(((x > NEAR_ZERO) & (x < 1 - NEAR_ZERO)).sum())
    shares = {
        variable: x[problem.first[variable] : problem.first[variable] + len(costs)]
        for variable, costs in reduced.costs.items()
    }
    labels = {
        variable: int(reduced.labels[variable][share.argmax()])
        for variable, share in shares.items()
    }
    dual: Dual = {}
    if marginals is not None:
        # The rows of an edge follow the rows of all variables, first end before second end.
        at = len(reduced.costs)
        for one, other in problem.edges:
            sides = []
            for variable in (one, other):
                count = len(reduced.costs[variable])
                sides.append(marginals[at : at + count])
                at += count
            dual[one, other] = sides[0], sides[1]
    return Solved(optimum * scale + reduced.constant, labels, fractional, dual, shares)
