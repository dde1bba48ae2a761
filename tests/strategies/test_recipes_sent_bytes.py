"""Plans of recipes send what the strategies' papers count, and compute an equal share each.

P bytes of parameters on n devices (ZeRO, arXiv:1910.02054, section 7): data parallelism sums the
gradients, `2 P (n - 1)/n` per device. Fully sharded, it gathers parameters for the forward and for
the backward pass and scatters gradients, `3 P (n - 1)/n`. With sharded optimizer state alone it
scatters gradients and gathers the new parameters, `2 P (n - 1)/n`.
"""

import math
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import shardalg as sa

SHAPES = {"table": (1024, 256), "up": (256, 1024), "down": (1024, 256), "scale": (256,)}
PARAMS = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()}
TOKENS = jax.ShapeDtypeStruct((64, 128), "int32")
BYTES = {name: 4 * math.prod(shape) for name, shape in SHAPES.items()}
N = 8
ALL = sum(BYTES.values())
SCALE = BYTES["scale"]


def loss(params, tokens):
    x = params["table"][tokens]
    h = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * params["scale"]
    x = x + jax.nn.relu(h @ params["up"]) @ params["down"]
    return jax.nn.logsumexp(x @ params["table"].T, -1).mean()


def step(params, state, tokens):
    slope = jax.grad(loss)(params, tokens)
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, slope)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state


def planned(recipe, mesh):
    """Return the plan, and its bytes per device and step by kind of collective."""
    mesh = sa.Mesh(mesh)
    roles = ("parameters", "optimizer_state", "data")
    given = PARAMS, PARAMS, TOKENS
    strategy = recipe.strategy(step, *given, mesh=mesh, roles=roles)
    plan = sa.plan(step, *given, strategy=strategy, roles=roles)
    sent = Counter()
    for row in plan.collectives().to_dict("records"):
        sent[row["kind"]] += row["wire_bytes_per_step"]
    return plan, dict(sent)


def share(size):
    """Return the bytes that a ring sends per device for a gather of this many bytes."""
    return size * (N - 1) // N


# Sums of single numbers, and rounding.
SMALL = 256
CASES = {
    "data": (sa.recipes.data("data"), {"all_reduce": 2 * share(ALL)}),
    "zero 1": (
        sa.recipes.zero(1, "data"),
        {
            "reduce_scatter": share(ALL - SCALE),
            "all_gather": share(ALL - SCALE),
            "all_reduce": 2 * share(SCALE),
        },
    ),
    # The table is looked up in the forward pass; it is read again for the logits, and for their
    # gradient in the backward pass. Forward, both uses share one gathered copy.
    "fsdp": (
        sa.recipes.fsdp("data"),
        {
            "reduce_scatter": share(ALL - SCALE),
            "all_gather": 2 * share(ALL - SCALE),
            "all_reduce": 2 * share(SCALE),
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_sends_what_the_paper_counts(name):
    recipe, expected = CASES[name]
    _, sent = planned(recipe, {"data": N})
    assert sent.keys() == expected.keys()
    for kind, size in expected.items():
        assert abs(sent[kind] - size) <= SMALL, (kind, sent[kind], size)


def test_tensor_parallelism_sums_twice_per_pass():
    """A column and a row: one sum of activations forward, one backward (Megatron, section 3).

    The vocabulary adds a sum before the logits in the backward pass. The look-up would add another
    one; gathering the table instead sends less, because it is smaller than the activations.
    """
    _, sent = planned(sa.recipes.tensor("model"), {"model": N})
    activations = 4 * math.prod(TOKENS.shape) * SHAPES["up"][0]
    assert sent.keys() == {"all_gather", "all_reduce"}
    assert sent["all_gather"] == share(BYTES["table"]) < 2 * share(activations)
    # Norms and the softmax sum a number per token.
    tokens = 4 * math.prod(TOKENS.shape)
    assert 0 <= sent["all_reduce"] - 3 * 2 * share(activations) <= 4 * 2 * share(tokens)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("recipe", "mesh"),
    [
        (sa.recipes.data("data"), {"data": 8}),
        (sa.recipes.fsdp("data"), {"data": 8}),
        (sa.recipes.fsdp("data") | sa.recipes.tensor("model"), {"data": 4, "model": 2}),
        (
            sa.recipes.fsdp("data") | sa.recipes.tensor("model") | sa.recipes.sequence("model"),
            {"data": 4, "model": 2},
        ),
        (sa.recipes.two_d("x", "y"), {"x": 4, "y": 2}),
        (sa.recipes.tensor("model"), {"model": 8}),
    ],
)
def test_every_device_computes_an_equal_share(recipe, mesh):
    alone, _ = planned(sa.recipes.data("one"), {"one": 1})
    plan, _ = planned(recipe, mesh)
    share_of_one = float(plan.cost("h100").flops) * plan.mesh.size / float(alone.cost("h100").flops)
    assert 0.99 <= share_of_one <= 1.03


@pytest.mark.slow
def test_a_recipe_runs_and_equals_one_device():
    """The lowered step on eight CPU devices gives the numbers of JAX on one."""
    recipe = sa.recipes.fsdp("data") | sa.recipes.tensor("model")
    shapes = {"table": (32, 16), "up": (16, 64), "down": (64, 16), "scale": (16,)}
    keys = jax.random.split(jax.random.key(0), len(shapes))
    params = {
        name: jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    state = jax.tree.map(jnp.zeros_like, params)
    tokens = jax.random.randint(jax.random.key(1), (8, 4), 0, 32)
    mesh = sa.Mesh({"data": 4, "model": 2})
    strategy = recipe.strategy(step, params, state, tokens, mesh=mesh)
    found = sa.plan(step, params, state, tokens, strategy=strategy).lower()(params, state, tokens)
    expected = step(params, state, tokens)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
