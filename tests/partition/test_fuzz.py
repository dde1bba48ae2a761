"""A sample of the random operators in random layouts that `make fuzz-operators` draws."""

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.ops import random_cases
from tests.partition import fuzz

SEED = 20
LAYOUTS = 10


pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.mark.parametrize("group", fuzz.GROUPS, ids=lambda group: group.__name__)
def test_random_layouts_are_right(group, show):
    *_, drawn = fuzz.functions(group, SEED)
    for strategy, found in fuzz.cases_of(drawn, LAYOUTS):
        assert not found, f"{drawn}\n{strategy}\n" + "\n".join(found)
    show(f"{drawn}: {LAYOUTS} cases, one lowered")


def test_a_window_that_reads_no_element():
    """Blocks whose windows lie between the elements: an interval of no places."""
    drawn = next(fuzz.functions(random_cases.convolutions, 2002))
    assert not [found for _, found in fuzz.cases_of(drawn, 2) if found]


STRATEGIES = {
    "padding of what is padded itself": sa.Strategy(
        sa.Mesh({"X": 4, "Y": 2}), (P(None, None, "X"), P("Y"))
    ),
    "sums along an axis that is cut": sa.Strategy(sa.Mesh({"X": 8}), (P("X"), P(None, "X"))),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_gradient_of_a_dilated_convolution(name):
    drawn = next(fuzz.functions(random_cases.convolutions, 5001))
    function, want = fuzz.flat(drawn)
    with jax.enable_x64(True):
        plan = sa.plan(function, *drawn.arguments, strategy=STRATEGIES[name])
        assert not list(fuzz.faults(plan, drawn.arguments, want, lowered=False))
