"""JAX functions planned, simulated, lowered and partitioned by XLA: all equal to one device."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.algebra.mesh import Mesh
from shardalg.graph.annotate import annotate
from shardalg.plan.plan import plan
from shardalg.planner.propagate.strategy import Strategy
from shardalg.spmd.host.simulate import simulate

EVEN, UNEVEN = (8, 4, 16, 32), (7, 3, 15, 30)
PERMUTED = (3, 1, 2, 0, 7, 6, 5, 4)


def ffn(params, x):
    h = annotate(jnp.einsum("bsm,mh->bsh", x, params["in"]), "hidden")
    return jnp.einsum("bsh,hm->bsm", jax.nn.relu(h), params["out"])


def ffn_grad(params, x):
    return jax.grad(lambda p, x: (ffn(p, x) ** 2).sum(), argnums=(0, 1))(params, x)


def attention(params, x):
    q = annotate(jnp.einsum("bsm,mh->bsh", x, params["in"]), "hidden")
    scores = jax.nn.softmax(jnp.einsum("bsh,bth->bst", q, q) / 4, axis=-1)
    return jnp.einsum("bst,bth,hm->bsm", scores, q, params["out"])


def layers(params, x):
    stacked = jax.tree.map(lambda w: jnp.stack([w, w / 2, w / 3]), params)
    return jax.lax.scan(lambda x, p: (jnp.tanh(ffn(p, x)), x.sum()), x, stacked)


FUNCTIONS = {f.__name__: f for f in (ffn, ffn_grad, attention, layers)}


def arguments(b, s, m, h):
    rng = np.random.default_rng(0)
    array = lambda *shape: (rng.standard_normal(shape) / 4).astype(np.float32)  # noqa: E731
    return {"in": array(m, h), "out": array(h, m)}, array(b, s, m)


def planned(fn, args, device_ids=None):
    mesh = Mesh({"X": 2, "Y": 4}, device_ids=device_ids)
    weights = {"in": P("X", "Y"), "out": P("Y", "X")}
    sites = {"hidden": P("X", None, "Y")}
    strategy = Strategy(mesh, in_shardings=(weights, P("X", None, "Y")), sites=sites)
    return plan(fn, *args, strategy=strategy)


def assert_close(results, expected):
    for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        assert np.max(np.abs(a - b)) <= 1e-5 * max(1e-30, np.max(np.abs(b)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_simulated_lowered_and_xla_equal_one_device(name, sizes):
    fn, args = FUNCTIONS[name], arguments(*sizes)
    made = planned(fn, args)
    expected = jax.jit(fn)(*args)
    assert_close(simulate(made.program, made.graph, *jax.tree.leaves(args)), expected)
    lowered = made.lower()
    results = lowered(*args)
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    assert_close(results, expected)
    assert_close(lowered.jit()(*args), expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_a_permuted_mesh(sizes):
    args = arguments(*sizes)
    made = planned(ffn_grad, args, PERMUTED)
    expected = jax.jit(ffn_grad)(*args)
    assert_close(simulate(made.program, made.graph, *jax.tree.leaves(args)), expected)
    assert_close(made.lower()(*args), expected)


def test_blocks_of_a_permuted_mesh_lie_where_jax_puts_them():
    args = arguments(*EVEN)
    lowered = planned(ffn, args, PERMUTED).lower()
    placed, *_ = jax.tree.leaves(lowered.place(*args))
    devices = np.array(jax.devices())[list(PERMUTED)].reshape(2, 4)
    for shard in placed.addressable_shards:
        (x,), (y,) = np.nonzero(devices == shard.device)
        assert shard.index == (slice(8 * x, 8 * x + 8), slice(8 * y, 8 * y + 8))


def test_the_twin_constrains_the_sites():
    text = planned(ffn, arguments(*UNEVEN)).lower().jit().stage.as_text()
    assert text.count("sharding_constraint") >= 1 + 3  # the site, and three uneven arguments


def train_step(params, x):
    loss, grads = jax.value_and_grad(lambda p: (ffn(p, x) ** 2).mean())(params)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), loss


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_donated_state_keeps_its_layout_from_step_to_step(sizes):
    params, x = arguments(*sizes)
    mesh = Mesh({"X": 2, "Y": 4})
    weights = {"in": P("X", "Y"), "out": P("Y", "X")}
    made = plan(
        train_step, params, x, mesh=mesh, in_shardings=(weights, P("X")),
        out_shardings=(weights, None), donate_argnums=0,
    )  # fmt: skip
    lowered = made.lower()
    (state, _), expected = lowered.place(params, x), params
    for _ in range(3):
        before = jax.tree.leaves(state)
        state, loss = lowered.padded(state, x)
        assert all(leaf.is_deleted() for leaf in before)
        (placed, _) = lowered.place(state, x)
        assert all(placed[name] is state[name] for name in state)
        expected, expected_loss = jax.jit(train_step)(expected, x)
        assert_close(loss, expected_loss)
    assert_close(lowered.strip((state, loss))[0], expected)


def test_partial_sums_are_not_transposed_inside_a_matmul_on_cpu():
    text = planned(ffn_grad, arguments(*EVEN)).lower().stage.as_text()
    assert "optimization_barrier" in text


def test_a_measurement_compares_both():
    args = arguments(*EVEN)
    lowered = planned(ffn, args).lower()
    result = replace(lowered, verified="3 of 3 claims proved").measure(*args, repeats=3)
    assert len(result.ours.seconds) == len(result.xla.seconds) == 3
    assert result.max_relative_error < 1e-6
    assert result.memory.argument_bytes == result.xla_memory.argument_bytes > 0
    low, high = result.ours.quartiles_s
    assert 0 < low <= result.ours.median_s <= high
    assert "plan 3 of 3 claims proved" in repr(result)
    assert [row["executable"] for row in result.table()] == ["shardalg", "xla"]


def test_donation_survives_a_measurement():
    params, x = arguments(*EVEN)
    mesh = Mesh({"X": 2, "Y": 4})
    made = plan(
        train_step, params, x, mesh=mesh, in_shardings=(P("X", "Y"), P("X")),
        out_shardings=(P("X", "Y"), None), donate_argnums=0,
    )  # fmt: skip
    lowered = made.lower()
    state = jax.tree.map(jnp.asarray, params)
    result = lowered.measure(state, x, repeats=2)
    assert result.memory.alias_bytes > 0
    assert result.max_relative_error < 1e-5
    assert_close(state, params)
