"""ZeRO's levels from annotations alone: collectives and memory as the papers say, and right."""

from functools import cache

import jax
import numpy as np
import pytest

import shardalg as sa
from shardalg.errors import StrategyError
from shardalg.lab import weight_update
from shardalg.lab.weight_update import level_bars, levels
from shardalg.models.transformer import Config

CONFIG = Config(B=8, S=4, M=16, H=32, N=4, D=4, V=16, L=1, dtype="float32")
N = 4
MESH = sa.Mesh({"X": N})
WEIGHTS = 4 * sum(CONFIG.parameter_counts().values())
# Each level sends these multiples of `weights * (N-1)/N`: ZeRO (arXiv:1910.02054), section 7.
SENT = {
    0: {"all_reduce": 2, "reduce_scatter": 0, "all_gather": 0},
    1: {"all_reduce": 0, "reduce_scatter": 1, "all_gather": 1},
    2: {"all_reduce": 0, "reduce_scatter": 1, "all_gather": 1},
    3: {"all_reduce": 0, "reduce_scatter": 1, "all_gather": 2},
}


@cache
def planned(optimizer, level):
    if level:
        return planned(optimizer, 0).replan(weight_update.strategy(level, MESH, CONFIG, optimizer))
    return sa.plan(
        weight_update.function(CONFIG, optimizer),
        *weight_update.arguments(CONFIG, optimizer),
        strategy=weight_update.strategy(0, MESH, CONFIG, optimizer),
        roles=weight_update.ROLES,
        donate_argnums=weight_update.DONATED,
    )


@cache
def table(optimizer):
    plans = {level: planned(optimizer, level) for level in weight_update.LEVELS}
    return levels(plans)


@pytest.mark.parametrize("level", weight_update.LEVELS)
def test_adam_sends_what_the_papers_say(level):
    (row,) = table("adam").where(level=level)
    unit, loss = WEIGHTS * (N - 1) // N, 2 * 4 * (N - 1) // N
    for kind, times in SENT[level].items():
        assert row[f"{kind}_wire_bytes"] == times * unit + loss * (kind == "all_reduce")


@pytest.mark.parametrize("optimizer", weight_update.OPTIMIZERS)
def test_what_is_split_takes_an_nth(optimizer):
    rows = list(table(optimizer))
    step = 4
    for level, row in enumerate(rows):
        state = rows[0]["optimizer_state_bytes"] - step
        assert row["optimizer_state_bytes"] == step + state // (N if level >= 1 else 1)
        assert row["gradients_bytes"] == WEIGHTS // (N if level >= 1 else 1)
        assert row["parameters_bytes"] == WEIGHTS // (N if level >= 3 else 1)
    peaks = [row["peak_memory_bytes"] for row in rows]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[3] < peaks[0]


def test_adafactor_sends_its_small_moments_beside():
    """Only sums of moments, which are thin, are sent in addition to the weights."""
    adam, factored = (table(name) for name in ("adam", "adafactor"))
    for level in weight_update.LEVELS:
        (less,), (more,) = adam.where(level=level), factored.where(level=level)
        assert less["wire_bytes"] <= more["wire_bytes"] <= 1.1 * less["wire_bytes"]


def test_completion_carries_the_axis_of_the_state_to_the_gradients():
    """Level 2 needs no annotation of its own; a gradient that is held whole is all-reduced."""
    assert planned("adam", 1).diff(planned("adam", 2)).collectives.rows == ()
    given = weight_update.strategy(1, MESH, CONFIG)
    whole = {"gradients": jax.sharding.PartitionSpec()}
    strict = planned("adam", 0).replan(
        sa.Strategy(MESH, given.in_shardings, given.out_shardings, whole)
    )
    kinds = set(strict.collectives_table["kind"])
    assert kinds == {"all_reduce", "all_gather"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optimizer", weight_update.OPTIMIZERS)
def test_level_3_is_proved(optimizer):
    assert planned(optimizer, 3).verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", weight_update.OPTIMIZERS)
@pytest.mark.parametrize("level", weight_update.LEVELS)
def test_a_level_is_right(level, optimizer):
    """The suite runs level 3 in the notebook, and proves it above."""
    arguments = weight_update.random_arguments(CONFIG, optimizer)
    want = jax.tree.leaves(weight_update.function(CONFIG, optimizer)(*arguments))
    results = jax.tree.leaves(planned(optimizer, level).lower()(*arguments))
    for a, b in zip(results, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_the_bars_are_the_table():
    figure = level_bars(table("adam"))
    held, sent = figure.axes
    assert sum(bar.get_height() for bar in sent.patches) == sum(table("adam")["wire_bytes"])
    assert len(held.patches) == 3 * len(weight_update.LEVELS)


def test_refusals_name_what_there_is():
    with pytest.raises(StrategyError, match=r"levels \[0, 1, 2, 3\] .* got level 4"):
        weight_update.strategy(4, MESH, CONFIG)
    with pytest.raises(StrategyError, match="mesh of one axis"):
        weight_update.strategy(1, sa.Mesh({"X": 2, "Y": 4}), CONFIG)
    with pytest.raises(StrategyError, match="optimizer 'sgd'"):
        weight_update.function(CONFIG, "sgd")
