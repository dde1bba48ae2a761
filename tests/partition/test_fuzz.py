"""A sample of the random operators in random layouts that `make fuzz-operators` draws."""

import jax
import pytest

from tests.ops import random_cases
from tests.partition import fuzz

SEED = 20
LAYOUTS = 10


@pytest.fixture(autouse=True)
def quick_compiles():
    """Each program runs once: an optimiser costs more than it saves."""
    option = "jax_disable_most_optimizations"
    before = jax.config.read(option)
    jax.config.update(option, True)
    yield
    jax.config.update(option, before)


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
