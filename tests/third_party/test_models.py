"""Three models from PyPI, unchanged: attention with dropout, convolution, state space.

Each train step (optax, donated state) is planned, proved, and run beside one device.
"""

from functools import cache

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

import shardalg as sa
from tests.third_party import models

STEPS = 20
MESH = sa.Mesh({"X": 2, "Y": 4})
MODELS = {
    "attention with dropout": models.attention,
    "convolution with batch normalisation": models.convolution,
    "state space": models.state_space,
}
each_model = pytest.mark.parametrize("name", MODELS)


@cache
def planned(name):
    """Return the step of a model, and its plan."""
    step = MODELS[name]()
    plan = sa.plan(
        step.step,
        *step.arguments,
        mesh=MESH,
        in_shardings=step.in_shardings,
        out_shardings=step.out_shardings,
        roles=models.ROLES,
        donate_argnums=models.DONATED,
    )
    return step, plan


@pytest.mark.sampled(1)
@each_model
def test_every_claim_is_proved(name):
    _, plan = planned(name)
    assert plan.verify().ok


@pytest.mark.sampled(1)
@each_model
def test_no_byte_is_moved_for_want_of_a_row(name, show):
    _, plan = planned(name)
    moved = plan.collectives()
    total = (moved["wire_bytes"] * moved["executions"]).sum()
    warnings = plan.warnings()
    fallback = warnings["wire_bytes"].sum()
    show(f"{name}: fallback gathers {fallback:.0f} of {total:.0f} wire bytes per step")
    assert total > 0
    assert fallback == 0, warnings.to_string()


first, *others = MODELS


SAMPLE = [first, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


@pytest.mark.parametrize("name", SAMPLE)
def test_twenty_steps_equal_one_device(name):
    step, plan = planned(name)
    places = jax.tree.map(
        lambda spec: NamedSharding(MESH.to_jax(), spec),
        step.in_shardings,
        is_leaf=models.is_spec,
    )
    ours = jax.device_put(jax.tree.map(jax.numpy.array, step.arguments), places)
    alone = jax.tree.map(jax.numpy.array, step.arguments)
    run, single = plan.lower(), jax.jit(step.step)
    got, want = [], []
    for _ in range(STEPS):
        before = jax.tree.leaves(ours[:2])
        *state, loss = run(*ours)
        got.append(float(loss))
        assert sum(leaf.is_deleted() for leaf in before) > 0.9 * len(before)
        for leaf, place in zip(jax.tree.leaves(state), jax.tree.leaves(places[:2]), strict=True):
            assert leaf.sharding.is_equivalent_to(place, leaf.ndim)
        ours = (*state, *ours[2:])
        *state, loss = single(*alone)
        want.append(float(loss))
        alone = (*state, *alone[2:])
    assert want[-1] < 0.8 * want[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(alone), strict=True):
        if jax.dtypes.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)
