"""GSPMD (arXiv:2105.04663), Tables 5 to 8: steps, from real plans and one column of each table."""

import statistics

import pytest

from shardalg.lab.evaluation import anchored_columns as anchored
from shardalg.lab.evaluation.comparison import compare, side_by_side, text
from shardalg.lab.evaluation.prediction import ANCHORS, PEAK, RAW, RECOMPUTE, STEP, slice_of
from shardalg.lab.evaluation.published import column, columns

TABLES = (5, 6, 7, 8)


def errors(values, quantity):
    return {v.column.id: v.error for v in values if v.quantity == quantity and v.counts}


@pytest.mark.slow
def test_every_column_of_tables_5_to_8(show):
    """Step times within 5 % (median) and 12 %; peaks of the Conformer within 10 % (median)."""
    values = [v for table in TABLES for v in compare(columns(table))]
    show(text(values))
    steps, peaks = errors(values, STEP), errors(values, PEAK)
    assert len(steps) == 17
    assert len(peaks) == 6
    assert statistics.median(map(abs, steps.values())) <= 5
    assert max(map(abs, steps.values())) <= 12
    assert statistics.median(map(abs, peaks.values())) <= 10


@pytest.mark.slow
def test_a_circular_conformer(show):
    """Gradients go into the weights of a round alone: a quarter of a device's, each trip."""
    values = compare([column("conformer-pipe-bench.c3")])
    show(str(side_by_side(values)))
    assert abs(errors(values, STEP)["conformer-pipe-bench.c3"]) <= 12
    assert abs(errors(values, RECOMPUTE)["conformer-pipe-bench.c3"]) <= 3.5


@pytest.mark.slow
def test_frames_are_those_of_the_anchor_s_raw_utilisation(show):
    """The one column says how many flops a step has; another schedule has as many as it should."""
    for name, off in ((ANCHORS[5], 0.01), ("conformer-pipe-bench.c3", 0.03)):
        here = column(name)
        plan = anchored._planned(name)
        on = slice_of(plan.mesh.size)
        ours = plan.cost(on).flops / here.measured[STEP] / on.chip.peak("bfloat16")
        show(f"{name}: raw utilisation {ours:.1%}, measured {here.measured[RAW]} %")
        assert 100 * ours == pytest.approx(here.measured[RAW], rel=off)


@pytest.mark.slow
def test_two_images_a_core_take_the_rows_of_eight(show):
    """(4,16) takes twice as long as (2,32): as many rows of tiles for half of the images."""
    values = compare([column(f"unet-bench.{name}") for name in ("c6", "c7")])
    show(str(side_by_side(values)))
    found = errors(values, STEP)
    assert max(map(abs, found.values())) <= 12
    c6, c7 = (v.prediction.value for v in values if v.quantity == STEP)
    assert c6 / c7 == pytest.approx(2, abs=0.15)
    measured = [column(f"unet-bench.{name}").measured[PEAK] for name in ("c6", "c7")]
    assert measured[0] / measured[1] == pytest.approx(2, abs=0.3)  # memory is padded alike


@pytest.mark.slow
def test_prefix_sums_of_the_gating_are_why_2048_experts_take_longer(show):
    """Prefix sums grow with the experts; the column is far below the measurement without them."""
    few, many = (anchored._planned(f"sparse-bench.{name}") for name in ("c2", "c4"))
    seconds = [anchored.prefix_sums_s(plan) for plan in (few, many)]
    assert seconds[1] == pytest.approx(16 * seconds[0], rel=0.01)
    values = compare([column("sparse-bench.c4")])
    show(f"prefix sums {seconds[1]:.2f} s\n{side_by_side(values)}")
    assert abs(errors(values, STEP)["sparse-bench.c4"]) <= 12
    alone = [plan.cost(slice_of(plan.mesh.size)).step_time_s for plan in (few, many)]
    measured = [column(f"sparse-bench.{name}").measured[STEP] for name in ("c2", "c4")]
    assert alone[1] / alone[0] < 0.8 * measured[1] / measured[0]
