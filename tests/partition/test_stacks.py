"""Loops over stacks whose layers are divided: one layer is fetched per iteration, or all before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import StrategyError
from shardalg.spmd.host.simulate import simulate
from tests.partition.planned import numbers

LINE, GRID = sa.Mesh({"L": 4}), sa.Mesh({"L": 4, "M": 2})
STREAM, WHOLE = (sa.Options(stream_layers=on) for on in (True, False))


def forward(w, x):
    layer = lambda h, w: (h + jnp.tanh(h @ w[0]) @ w[1], None)  # noqa: E731
    return lax.scan(layer, x, w)[0]


def backwards(w, x):
    layer = lambda h, w: (h + jnp.tanh(h @ w[0]) @ w[1], None)  # noqa: E731
    return lax.scan(layer, x, w, reverse=True)[0]


def gradient(w, x):
    return jax.grad(lambda w: (forward(w, x) ** 2).sum())(w)


def recomputed(w, x):
    layer = jax.checkpoint(lambda h, w: (h + jnp.tanh(h @ w[0]) @ w[1], None))
    return jax.grad(lambda w: (lax.scan(layer, x, w)[0] ** 2).sum())(w)


def with_biases(w, x):
    step = lambda h, w: (jnp.tanh(h @ w[0] + w[1]), h.sum())  # noqa: E731
    return lax.scan(step, x, w)


def microbatches(w, xs):
    return lax.scan(lambda c, x: (c + jnp.tanh(x @ w).sum(), None), 0.0, xs)[0]


def weights(layers=8, width=16, inner=32):
    first, second = numbers(layers, width, inner), numbers(layers, inner, width, seed=1)
    return first / 8, second / 8


X = numbers(8, 16, seed=2) / 8
L = P("L")
TWO = P("L", None, "M"), P("L", "M")
CASES = {  # function, arguments, mesh, layouts of arguments and results
    "forward": (forward, (weights(), X), LINE, (L, L), L),
    "from replicated values": (forward, (weights(), X), LINE, (L, P()), P()),
    "backwards": (backwards, (weights(), X), LINE, (L, L), L),
    "gradient": (gradient, (weights(), X), LINE, (L, L), L),
    "recomputed": (recomputed, (weights(), X), LINE, (L, L), L),
    "two axes": (gradient, (weights(), X), GRID, (TWO, L), TWO),
    "uneven": (forward, (weights(6, 15, 30), numbers(8, 15)), LINE, (L, L), L),
    "biases": (with_biases, ((numbers(8, 16, 16), numbers(8, 16)), X), LINE, (L, L), None),
    "microbatches": (microbatches, (numbers(16, 4), numbers(8, 8, 16)), LINE, (P(), L), None),
}


def sent(plan):
    return sum(row["wire_bytes_per_step"] for row in plan.collectives_table)


def peak(plan):
    return plan.cost("tpu_v3").peak_memory_bytes


def planned(name, options):
    fn, arguments, mesh, given, wanted = CASES[name]
    layouts = {"mesh": mesh, "in_shardings": given, "out_shardings": wanted}
    return sa.plan(fn, *arguments, options=options, **layouts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_a_loop_fetches_one_layer_per_iteration(name):
    fn, arguments, *_ = CASES[name]
    plan, whole = planned(name, STREAM), planned(name, WHOLE)
    assert peak(plan) < peak(whole)
    before = [row for row in plan.collectives_table if row["executions"] == 1]
    gathered = [row for row in before if row["kind"] == "all_gather"]
    assert not gathered  # before the loop and after it, stacks are exchanged
    values, want = jax.tree.leaves(arguments), jax.tree.leaves(fn(*arguments))
    runs = [simulate(plan.program, plan.graph, *values)]
    runs.append(jax.tree.leaves(plan.lower()(*arguments)))
    for results in runs:
        for found, wanted in zip(results, want, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    assert plan.verify().ok, plan.verify().refuted


def test_a_layer_says_why_it_is_divided():
    plan = planned("forward", STREAM)
    told = [plan.sharded.why(value.index) for value in plan.graph.values]
    assert sum("the loop fetches one per iteration" in why for why in told) == 2


def big(dtype="bfloat16"):
    """64 layers of 8192 x 28672, forward: 60 GB of weights."""
    first, second = (64, 8192, 28672), (64, 28672, 8192)
    w = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in (first, second))
    return w, jax.ShapeDtypeStruct((2048, 8192), dtype)


@pytest.mark.parametrize("chip", ["tpu_v3", "h100"])
def test_a_stack_that_does_not_fit_or_takes_longer_is_fetched_layer_by_layer(chip):
    stack = 2 * 2 * 64 * 8192 * 28672
    layouts = {"mesh": sa.Mesh({"L": 8}), "in_shardings": (L, L), "out_shardings": L}
    options = sa.Options(hardware=chip)
    plan = sa.plan(forward, *big(), options=options, **layouts)
    assert (
        plan.cost(chip).peak_memory_bytes
        < stack / 3
        <= stack
        < peak(plan.replan(sa.Strategy(layouts["mesh"], (L, L), L), options=WHOLE))
    )
    (row,) = [r for r in plan.warnings().to_dict("records") if r["op"] == "scan"]
    assert "fetches one layer per iteration" in row["warning"]
    assert row["remedy"].endswith("which does not fit") == (chip == "tpu_v3")  # of 16 and 80 GB
    assert plan.cost(chip).fits


def test_a_stack_that_fits_names_the_other_way_with_both_prices():
    plan, other = planned("forward", sa.Options()), planned("forward", STREAM)
    assert str(plan.program) == str(planned("forward", WHOLE).program)
    (row,) = [r for r in plan.warnings().to_dict("records") if r["op"] == "scan"]
    told = sa.plan(forward, weights(), X, mesh=LINE, in_shardings=(L, L), out_shardings=L)
    said = str(told.explain(0))
    for text in (row["remedy"], said):
        assert "Options(stream_layers=True) fetches one layer per iteration" in text
        assert f"{sent(plan) / 1e3:.3g} kB to {sent(other) / 1e3:.3g} kB" in text
        assert f"{peak(plan) / 1e3:.3g} kB to {peak(other) / 1e3:.3g} kB" in text
    assert "Options(stream_layers=False) gathers" in str(other.explain(0))


def test_xla_layouts_gather_the_stack_and_wrong_options_are_refused():
    for policy in ("gspmd", "shardy"):
        plan = planned("forward", sa.Options(policy=policy))
        assert plan.collectives_table["kind"][:2] == ("all_gather", "all_gather")
    with pytest.raises(StrategyError, match="stream_layers is 'yes'"):
        sa.Options(stream_layers="yes")


def test_a_plan_that_streams_is_saved_and_loaded(tmp_path):
    plan = planned("gradient", STREAM)
    plan.save(tmp_path / "plan.json")
    assert str(sa.load_plan(tmp_path / "plan.json").program) == str(plan.program)
