"""GSPMD (arXiv:2105.04663), Tables 2 and 3: the 13 two-dimensional columns from their plans.

The whole train step (embedding, loss, Adafactor, layers unrolled, nothing rematerialised) is
planned under the finalized strategy at the paper's sizes.
"""

import statistics

import pytest

from shardalg.costs.hardware import Hardware
from shardalg.lab.evaluation import two_dimensional
from shardalg.lab.evaluation.comparison import compare, side_by_side
from shardalg.lab.evaluation.prediction import PEAK, summary
from shardalg.lab.evaluation.published import column, columns

COLUMNS = [c for c in columns() if c.kind == "dense2d"]
GB = 1e9
# What the TPU compiler counts on a core of the first column.
COMPILER_FLOPS = 2.198e14


def test_flops_of_the_first_column_are_the_compiler_s():
    assert two_dimensional.cost(column("dense-bench.c1")).flops == pytest.approx(
        COMPILER_FLOPS, rel=0.01
    )


@pytest.mark.parametrize("case", COLUMNS, ids=lambda c: c.id)
def test_counted_parameters_are_the_papers(case):
    """Counts are in units of 2**30; the paper leaves the embedding out."""
    made = two_dimensional.model(case)
    assert made.parameters - made.vocab * made.model_dim == case.stated_parameters


def memory_errors(show, columns=COLUMNS):
    values = [v for v in compare(columns) if v.quantity == PEAK]
    show(f"{side_by_side(values)}\n{summary(values)}")
    assert len(values) == len(columns)
    return [abs(value.error) for value in values]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", COLUMNS, ids=lambda c: c.id)
def test_memory_of_a_column_is_within_a_fifth(case, show):
    assert memory_errors(show, [case])[0] <= 20


@pytest.mark.slow
def test_memory_of_most_columns_is_within_the_goal(show):
    """No constant is fitted."""
    errors = memory_errors(show)
    assert statistics.median(errors) <= 5
    assert max(errors) <= 20


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    reason="narrow-bench.c1 says 12.4 GB, of which the TPU compiler makes 14.9 as we do; at a "
    "batch of 1024 on (32, 64) XLA holds more than the program as it is planned",
)
def test_memory_of_all_columns_is_within_the_goal(show):
    assert max(memory_errors(show)) <= 15


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["dense-bench.c1", "narrow-bench.c3"])
def test_a_compiler_that_rebuilds_nothing_would_not_fit(name):
    """The model fits 16 GB per core only because XLA rebuilds values in the backward pass."""
    case = column(name)
    plain = Hardware("plain")  # keeps what the backward pass reads
    plans = two_dimensional.plans(case)
    (low, first), (high, second) = (
        (n, plan.cost(plain).peak_memory_bytes) for n, plan in sorted(plans.items())
    )
    assert (second - first) / (high - low) * case.facts["L"] > 16 * GB
    assert two_dimensional.predict(case)[PEAK].value < 16
