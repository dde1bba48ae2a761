"""An axis that is data parallel outside a loop, and the axis of stages inside (figure 2)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from tests.partition.planned import numbers

MESH = sa.Mesh({"L": 4, "Y": 2})
STAGES, STEPS, BATCH, WIDTH = 4, 4, 8, 8


def stage(w, x):
    return x + jax.nn.relu(x @ w[0]) @ w[1]


def model(e, w, x):
    """Return an embedding and its transpose on the batch, with stages between, along one axis."""
    hidden = sa.mesh_split(x @ e, MESH, [0, -1])
    batches = hidden.reshape(BATCH, STEPS, WIDTH).swapaxes(0, 1)

    def step(state, fresh):
        first = lax.broadcasted_iota(jnp.int32, state.shape, 0) == 0
        state = jnp.where(first, fresh[None], jnp.pad(state, ((1, 0), (0, 0), (0, 0)))[:-1])
        state = sa.mesh_split(state, MESH, [0, -1, -1], (1, 2))
        state = jax.vmap(jax.checkpoint(stage))(w, state)
        return state, state[-1]

    fresh = jnp.pad(batches, ((0, STAGES - 1), (0, 0), (0, 0)))
    start = sa.mesh_split(jnp.zeros((STAGES, BATCH, WIDTH)), MESH, [0, -1, -1], (1, 2))
    made = lax.scan(step, start, fresh)[1][STAGES - 1 :]
    made = made.swapaxes(0, 1).reshape(BATCH * STEPS, WIDTH)
    return sa.mesh_split(made, MESH, [0, -1]) @ e.T


def loss(e, w, x):
    return (model(e, w, x) ** 2).mean()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_gradient", [False, True])
def test_only_the_stages_have_the_axis_inside(is_gradient):
    fn = jax.grad(loss, (0, 1)) if is_gradient else model
    weights = 0.125 * numbers(STAGES, WIDTH, 16), 0.125 * numbers(STAGES, 16, WIDTH, seed=1)
    values = numbers(16, WIDTH), weights, numbers(BATCH * STEPS, 16, seed=2)
    specs = (P(), (P("L", None, "Y"), P("L", "Y")), P("L"))
    options = sa.Options(switches=sa.Switches(defer_in_loops=True))
    plan = sa.plan(fn, *values, mesh=MESH, in_shardings=specs, options=options)
    inside = [r for r in plan.collectives_table if "scan" in r["region"] and "L" in r["mesh_axes"]]
    assert [r["kind"] for r in inside] == ["collective_permute"] * (1 + is_gradient)
    want = jax.tree.leaves(jax.jit(fn)(*values))
    results = simulate(plan.program, plan.graph, *jax.tree.leaves(values))
    for found, wanted in zip(results, want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
    assert plan.verify().ok, plan.verify().refuted
