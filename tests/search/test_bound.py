"""The bound of `sa.search` holds for plans: random members, and messages that are sent as one."""

import itertools
import random

import jax
import jax.numpy as jnp
import pytest

import shardalg as sa
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.topology import arranged
from tests.search.test_search import PROGRAMS, specs

AXES = {"a": 2, "b": 2}
SEED = 20261128


@pytest.mark.parametrize(
    ("name", "count"),
    [("lookup", 8), *(pytest.param(name, 1000, marks=pytest.mark.slow) for name in PROGRAMS)],
)
def test_no_random_member_takes_less_than_the_bound(name, count):
    function, args = PROGRAMS[name]
    print(f"seed {SEED}")
    found = sa.search(function, *args, hardware="h100:4", over=sa.family(meshes=[AXES]))
    mesh = sa.Mesh(AXES)
    chip, first = arranged("h100", mesh).on(DATASHEET), None
    every = [*itertools.product(*(specs(each.shape, AXES) for each in args))]
    for layouts in random.Random(SEED).sample(every, min(count, len(every))):
        strategy = sa.Strategy(mesh, layouts)
        first = first.replan(strategy) if first else sa.plan(function, *args, strategy=strategy)
        step_s = float(first.cost(chip, overlap="none").step_time_s)
        assert step_s >= found.bound_s * (1 - 1e-9)


def test_independent_all_reduces_pay_one_latency():
    """Gradients of six small matrices are one message, so that the bound has few latencies."""

    def step(weights, x):
        def loss(weights):
            return sum(jnp.tanh(x @ w).astype("float32").sum() for w in weights)

        slopes = jax.grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, slopes, strict=True)]

    weights = [jax.ShapeDtypeStruct((256, 256), "bfloat16")] * 6
    x = jax.ShapeDtypeStruct((65536, 256), "bfloat16")
    found = sa.search(step, weights, x, hardware="h100:8", over=sa.family(meshes=[{"a": 8}]))
    assert 0 <= found.gap < 0.1


def test_phases_share_a_copy():
    """Without roles the backward pass reads the copy that the forward pass made."""

    def loss(table, head, ids):
        return jax.nn.logsumexp((table[ids] @ head).astype("float32"), -1).mean()

    args = (
        jax.ShapeDtypeStruct((4096, 512), "bfloat16"),
        jax.ShapeDtypeStruct((512, 4096), "bfloat16"),
    )
    ids = jax.ShapeDtypeStruct((64, 128), "int32")
    over = sa.family(meshes=[AXES])
    found = sa.search(jax.grad(loss, (0, 1)), *args, ids, hardware="h100:4", over=over)
    assert found.gap >= 0
