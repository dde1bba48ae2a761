"""Samples that do not divide stay on their device where they are merged with other dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.graph.evaluate import evaluate
from shardalg.planner.padded_samples import padding_of_samples
from shardalg.spmd.host.simulate import simulate


def per_sample(loss):
    """Return the function of the gradients of a loss by its weights, one per sample."""
    return jax.vmap(jax.grad(loss), in_axes=(None, 0))


def convolved(w, x, *, strides=(1, 1), groups=1):
    made = lax.conv_general_dilated(x[None], w, strides, "SAME", feature_group_count=groups)
    return (jnp.tanh(made) ** 2).sum()


def convolved_1d(w, x):
    return (lax.conv_general_dilated(x[None], w, (1,), "VALID") ** 2).sum()


def two_layers(ws, x):
    x = jnp.tanh(lax.conv_general_dilated(x[None], ws[0], (1, 1), "VALID"))
    return (jnp.tanh(x.reshape(-1) @ ws[1]) ** 3).sum()


def tokens(w, x):
    """Return a dense layer of the merged tokens of all samples."""
    n, t, d = x.shape
    return jnp.tanh(x.reshape(n * t, d) @ w).reshape(n, t, -1)


def tokens_loss(w, x):
    return jnp.log(1 / tokens(w, x) ** 2 + 1).sum()


def merged_einsum(w, x):
    n, t, d = x.shape
    y = jnp.einsum("ad,df->af", x.reshape(n * t, d), w)
    z = jnp.einsum("af,df->ad", jnp.sin(y), w)
    return z.reshape(n, t, d)


CASES = {  # function, weights, shape of one sample
    "conv 2d": (per_sample(convolved), (2, 1, 3, 3), (1, 6, 6)),
    "conv 2d, three features": (per_sample(convolved), (3, 2, 3, 3), (2, 5, 4)),
    "strided": (per_sample(lambda w, x: convolved(w, x, strides=(2, 1))), (4, 1, 3, 3), (1, 6, 5)),
    "groups": (per_sample(lambda w, x: convolved(w, x, groups=2)), (4, 1, 3, 3), (2, 5, 5)),
    "conv 1d": (per_sample(convolved_1d), (3, 2, 3), (2, 9)),
    "tokens": (tokens, (4, 6), (3, 4)),
    "einsum": (merged_einsum, (4, 6), (5, 4)),
}
SPLIT = P("x")
SAMPLES = [(61, 8), (13, 4), (9, 8), (100, 8), (7, 2), (3, 4)]


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def planned(function, w, x, devices, out=SPLIT, **switches):
    options = sa.Options(switches=sa.Switches(**switches))
    specs = {"in_shardings": (P(), P("x")), "out_shardings": out, "options": options}
    return sa.plan(function, w, x, mesh=sa.Mesh({"x": devices}), **specs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("samples", "devices"), SAMPLES)
@pytest.mark.parametrize("name", CASES)
def test_uneven_samples_send_nothing(name, samples, devices):
    function, weights, sample = CASES[name]
    w, x = drawn(*weights), drawn(samples, *sample, seed=1)
    plan = planned(function, w, x, devices)
    assert plan.cost("h100").wire_bytes == 0
    assert plan.verify().ok
    expected = function(w, x)
    (got,) = simulate(plan.program, plan.graph, w, x)
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-5)
    (whole,) = evaluate(plan.graph, w, x)
    np.testing.assert_allclose(whole, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["conv 2d", "tokens"])
def test_lowered_programs_compute_what_one_device_does(name):
    function, weights, sample = CASES[name]
    w, x = drawn(*weights), drawn(13, *sample, seed=1)
    plan = planned(function, w, x, 4)
    np.testing.assert_allclose(plan.lower()(w, x), function(w, x), rtol=2e-4, atol=1e-5)


def test_gradients_of_two_layers_send_nothing():
    ws = drawn(2, 1, 3, 3), drawn(32, 3)
    x = drawn(13, 1, 6, 6, seed=1)
    plan = planned(per_sample(two_layers), ws, x, 4)
    assert plan.cost("h100").wire_bytes == 0
    assert plan.verify().ok


@pytest.mark.slow
def test_a_sum_over_merged_samples_reads_zeros_for_those_that_were_added():
    """The loss of a sample of zeros is infinite, and its gradient is nan."""
    w, x = drawn(4, 6), drawn(13, 3, 4, seed=1)
    function = jax.grad(tokens_loss)
    plan = planned(function, w, x, 4, out=P())
    assert plan.cost("h100").wire_bytes == 2 * 3 / 4 * 4 * 6 * 4
    assert plan.verify().ok
    (got,) = simulate(plan.program, plan.graph, w, x)
    np.testing.assert_allclose(got, function(w, x), rtol=2e-3, atol=1e-3)


def gram(w, x):
    """Return products of all pairs of tokens: samples are two loops of one product."""
    n, t, d = x.shape
    y = x.reshape(n * t, d)
    return ((y @ w) @ (y @ w).T) @ y


def softmax(w, x):
    """Return a softmax over the tokens of all samples: its maximum is over samples."""
    n, t, d = x.shape
    return jax.nn.softmax(x.reshape(n * t, d) @ w, axis=0).reshape(n, t, -1)


def channels_first(w, x):
    """Return a layer in which samples are the minor part of a merged dimension."""
    n, t, d = x.shape
    return jnp.tanh(x.transpose(1, 0, 2).reshape(t * n, d) @ w).reshape(t, n, -1).sum(0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [gram, softmax, channels_first])
@pytest.mark.parametrize(("samples", "devices"), [(13, 4), (9, 8)])
def test_samples_that_are_read_together_are_right(function, samples, devices):
    w, x = drawn(4, 4), drawn(samples, 3, 4, seed=1)
    plan = planned(function, w, x, devices, out=P())
    assert plan.verify().ok
    (got,) = simulate(plan.program, plan.graph, w, x)
    np.testing.assert_allclose(got, function(w, x), rtol=2e-4, atol=1e-4)


def test_samples_stay_as_they_are_where_padding_sends_no_less_or_is_turned_off():
    function, weights, sample = CASES["conv 2d"]
    w = drawn(*weights)
    even = planned(function, w, drawn(64, *sample), 8)
    assert padding_of_samples(even.sharded) is None
    off = planned(function, w, drawn(13, *sample), 4, pad_blocks=False)
    assert off.cost("h100").wire_bytes > 0
    assert "pad" not in {node.primitive for node in off.graph.nodes}


def test_a_plan_file_and_another_mesh_pad_again(tmp_path):
    function, weights, sample = CASES["conv 2d"]
    w, x = drawn(*weights), drawn(13, *sample)
    plan = planned(function, w, x, 4)
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert loaded.text() == plan.text()
    other = loaded.replan(mesh=sa.Mesh({"x": 8}))
    assert other.cost("h100").wire_bytes == 0
    assert other.text() == planned(function, w, x, 8).text()
    lowered = loaded.lower(fn=function)
    np.testing.assert_allclose(lowered(w, x), function(w, x), rtol=1e-4, atol=1e-4)
