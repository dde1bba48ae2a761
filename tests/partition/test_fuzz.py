"""A sample of the random operators in random layouts that `make fuzz-operators` draws."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.ops import cases, random_cases
from tests.partition import fuzz

SEED = 20
LAYOUTS = 10


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", fuzz.GROUPS, ids=lambda group: group.__name__)
def test_random_layouts_are_right(group, show):
    *_, drawn = fuzz.functions(group, SEED)
    for strategy, found in fuzz.cases_of(drawn, LAYOUTS):
        assert not found, f"{drawn}\n{strategy}\n" + "\n".join(found)
    show(f"{drawn}: {LAYOUTS} cases, one lowered")


EDGY = (cases.reductions, random_cases.joins, random_cases.normalised)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", EDGY, ids=lambda group: group.__name__)
def test_nan_infinities_and_zeros(group, show):
    found = list(fuzz.functions(group, SEED + 1, edges="edges"))
    for drawn in found[1 :: len(found) // 2]:
        for strategy, wrong in fuzz.cases_of(drawn, 3):
            assert not wrong, f"{drawn}\n{strategy}\n" + "\n".join(wrong)
        show(f"{drawn}: 3 cases, one lowered")


def test_an_infinity_times_a_mask_is_what_xla_makes_of_it():
    """The product of `-inf` and 0 is a NaN; one device's program selects, ours multiplies."""
    drawn = list(fuzz.functions(random_cases.normalised, 103, edges="edges"))[4]
    function, want = fuzz.flat(drawn)
    with jax.enable_x64(True):
        compiled = jax.jit(function)(*drawn.arguments)
        strategy = sa.Strategy(sa.Mesh({"X": 2, "Y": 2}), (P(None, "X"),), (P("Y", None),))
        plan = sa.plan(function, *drawn.arguments, strategy=strategy)
        assert not list(fuzz.faults(function, plan, drawn.arguments, strategy, want, compiled))
        wrong = [np.where(np.isinf(leaf), 1.0, leaf) for leaf in compiled]
        assert not fuzz.same(wrong, compiled, want)


def test_a_window_that_reads_no_element():
    """Windows of some blocks are between the elements: an empty interval."""
    drawn = next(fuzz.functions(random_cases.convolutions, 2002))
    assert not [found for _, found in fuzz.cases_of(drawn, 2) if found]


STRATEGIES = {
    "padding of what is padded itself": sa.Strategy(
        sa.Mesh({"X": 4, "Y": 2}), (P(None, None, "X"), P("Y"))
    ),
    "sums along an axis that is cut": sa.Strategy(sa.Mesh({"X": 8}), (P("X"), P(None, "X"))),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_gradient_of_a_dilated_convolution(name):
    drawn = next(fuzz.functions(random_cases.convolutions, 5001))
    function, want = fuzz.flat(drawn)
    with jax.enable_x64(True):
        strategy = STRATEGIES[name]
        plan = sa.plan(function, *drawn.arguments, strategy=strategy)
        assert not list(fuzz.faults(function, plan, drawn.arguments, strategy, want, None))


def test_a_fault_is_excused_by_what_xla_makes_of_the_function_itself():
    """XLA's result for our graph is no excuse, because it has the fault too."""
    x = np.arange(6, dtype=np.float32)
    strategy = sa.Strategy(sa.Mesh({"X": 4}, device_ids=(2, 0, 3, 1)), (P("X"),), (P(None),))
    (made,) = fuzz.of_xla(lambda x: (x / x,), (x,), strategy)
    np.testing.assert_array_equal(made, [np.nan, *np.ones(5)])
    assert not fuzz.as_right_as_xla(lambda x: (x + 1,), (x,), strategy, [x + 2], [x + 1])


ENDS = (cases.reductions, random_cases.waiting)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", ENDS, ids=lambda group: group.__name__)
def test_largest_and_smallest_numbers_of_every_type(group, show):
    for seed in (SEED, SEED + 1):
        found = list(fuzz.functions(group, seed, edges="ends"))
        for drawn in found[:: len(found) // 2]:
            for strategy, wrong in fuzz.cases_of(drawn, 2):
                assert not wrong, f"{drawn}\n{strategy}\n" + "\n".join(wrong)
            show(f"{drawn}: 2 cases, one lowered")
