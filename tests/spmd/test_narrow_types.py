"""Running extremes of types without infinities, with padding: equal to one device."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate

TYPES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz", "float8_e5m2")


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
