"""The minimum of a factor graph, compared with all its solutions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardalg.errors import StrategyError
from shardalg.plan.search.minimising.factor_graph import FactorGraph
from shardalg.plan.search.minimising.message_passing import MessagePassing, bounds_of_labels
from shardalg.plan.search.minimising.minimum import minimum
from shardalg.plan.search.minimising.reduction import ReducedGraph


def random_factors(seed: int) -> FactorGraph:
    """Return a factor graph with up to seven variables, of which some pairs are impossible."""
    rng = np.random.default_rng(seed)
    factors = FactorGraph()
    sizes = rng.integers(1, 5, rng.integers(1, 8))
    for size in sizes:
        # A first label that is always possible keeps the problem feasible.
        factors.add_variable(rng.integers(0, 20, size))
    for one, other in itertools.combinations(range(len(sizes)), 2):
        if rng.random() < 0.6:
            matrix = rng.integers(0, 20, (sizes[one], sizes[other])).astype(float)
            matrix[rng.random(matrix.shape) < 0.2] = np.inf
            matrix[0, 0] = 5.0
            factors.add_edge(one, other, matrix)
    return factors


def least(factors: FactorGraph) -> float:
    """Return the least cost of all solutions."""
    return min(map(factors.total, itertools.product(*(range(len(c)) for c in factors.costs))))


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_it_is_the_least_of_all_solutions(seed):
    factors = random_factors(seed)
    found = minimum(factors)
    assert found.cost_ps == factors.total(found.labels) == least(factors)
    assert found.bound_ps == pytest.approx(found.cost_ps, abs=1e-3)


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_reduction_keeps_the_minimum(seed):
    factors = random_factors(seed)
    reduced = ReducedGraph(factors)
    reduced.reduce()
    left = FactorGraph([*reduced.costs.values()])
    number = {variable: place for place, variable in enumerate(reduced.costs)}
    for one, near in reduced.near.items():
        for other, matrix in near.items():
            if one < other:
                left.add_edge(number[one], number[other], matrix)
    assert reduced.constant + least(left) == least(factors)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(60))
def test_every_dual_gives_a_lower_bound(seed):
    factors, sweeps = random_factors(seed), seed % 4
    reduced = ReducedGraph(factors)
    messages = MessagePassing(reduced)
    for _ in range(sweeps + 1):
        messages.sweep()
    at_least, bound = bounds_of_labels(reduced, messages.dual())
    assert bound <= least(factors) + 1e-6
    for variable, values in at_least.items():
        for label, value in enumerate(values):
            fixed = FactorGraph([c.copy() for c in factors.costs], factors.edges)
            fixed.costs[variable][np.arange(len(values)) != label] = np.inf
            assert value <= least(fixed) + 1e-6


def test_no_solution_is_an_error():
    factors = FactorGraph()
    one, other = factors.add_variable([0, 0]), factors.add_variable([0])
    factors.add_edge(one, other, np.full((2, 1), np.inf))
    with pytest.raises(StrategyError, match="no assignment of layouts is possible"):
        minimum(factors)
