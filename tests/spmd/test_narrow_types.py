"""Narrow types that lack an infinity, or a zero, with padding: equal to one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate

TYPES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz", "float8_e5m2")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", TYPES)
def test_running_extremes_of_a_type_without_infinities(dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(9, 3)) * 3).astype(dtype)

    def fn(x):
        return lax.cummax(x, 0), lax.cummin(x, 0, reverse=True), jnp.max(x, 0), jnp.argmin(x, 0)

    plan = sa.plan(fn, x, mesh=sa.Mesh({"X": 4}), in_shardings=P("X"))
    assert plan.verify().ok
    for run in (lambda: simulate(plan.program, plan.graph, np.asarray(x)), lambda: plan.lower()(x)):
        for got, want in zip(run(), fn(x), strict=True):
            np.testing.assert_array_equal(np.float32(got), np.float32(want))


TABLE = (np.arange(52) % 7 + 1.0).reshape(13, 4)
ROWS_AT = np.array([3, 12, -2, 5])
WITHOUT_ZERO = {
    "product": lambda x: lax.dot_general(
        x, x, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
    ),
    "product with another type": lambda x: lax.dot_general(
        jnp.ones((13, 2)), x, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
    ),
    "sum in another type": lambda x: x.astype(jnp.float32).sum(0),
    "sum of what was whole": lambda x: jnp.flip(x, 0).astype(jnp.float32).T @ jnp.ones((13, 2)),
    "rows": lambda x: x.at[ROWS_AT].get(mode="clip"),
    "box": lambda x: lax.dynamic_slice(x, (jnp.argmax(x[:, 0].astype("f4")), 0), (3, 4)),
    "extremes": lambda x: (jnp.max(x, 0), lax.cummin(x, 0, reverse=True)),
    "windows": lambda x: lax.reduce_window(x, x[0, 0], lax.max, (3, 1), (2, 1), "SAME"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WITHOUT_ZERO)
def test_a_type_of_powers_of_two_has_no_zero(name):
    """Padding and other devices' values need an element without effect, which the type lacks."""
    fn, x = WITHOUT_ZERO[name], jnp.asarray(TABLE).astype("float8_e8m0fnu")
    plan = sa.plan(fn, x, mesh=sa.Mesh({"X": 4}), in_shardings=P("X"))
    assert plan.verify().ok
    got = simulate(plan.program, plan.graph, np.asarray(x))
    for one, want in zip(got, jax.tree.leaves(fn(x)), strict=True):
        np.testing.assert_array_equal(np.float32(one), np.float32(want))


@pytest.mark.parametrize("combine", [jnp.max, jnp.min])
def test_extremes_of_half_a_byte(combine):
    """No integer of a device has as many bits: they are compared as numbers of a byte."""
    x = np.float32([[-6, 0.5], [1.5, -2], [4, 6], [-0.5, 3], [2, -3]])

    def fn(x):
        return combine(x.astype("float4_e2m1fn"), 0).astype(jnp.float32)

    plan = sa.plan(fn, x, mesh=sa.Mesh({"X": 4}), in_shardings=P("X"))
    assert plan.verify().ok
    np.testing.assert_array_equal(plan.lower()(x), combine(x, 0))
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, x)[0], combine(x, 0))
