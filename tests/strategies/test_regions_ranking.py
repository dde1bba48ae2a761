"""The map of regions equals the ranking of plans in numbers, at drawn points of three functions."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa

SEED = 3704
X, Y = 8, 4
"""Hints of the mesh axes."""
ROWS, ALL = P("X"), P(("X", "Y"))
CHIP = sa.Hardware.load("v5p").with_own_links()


@dataclass(frozen=True)
class Case:
    """A training step with a named batch, and layouts of its weights by strategy.

    Attributes:
      loss: a function of the weights and the batch.
      weights: the shapes.
      batch: a function from the number of samples to the argument with the samples.
      layouts: for each strategy the layouts of the weights, and those of the samples.
    """

    loss: Callable
    weights: dict
    batch: Callable
    layouts: dict

    def compare(self, batch, mesh, hardware, options=None):
        def step(weights, data):
            return jax.grad(self.loss)(weights, data)

        weights = {n: jax.ShapeDtypeStruct(s, "bfloat16") for n, s in self.weights.items()}
        rows = {
            name: sa.Strategy(mesh, (layout, samples), layout)
            for name, (layout, samples) in self.layouts.items()
        }
        given = (weights, self.batch(batch))
        roles = {"roles": ("parameters", "data"), "options": options}
        return sa.compare(step, *given, strategies=rows, hardware=hardware, **roles)


def mean_square(y):
    return jnp.mean(y.astype(jnp.float32) ** 2)


def mlp(weights, x):
    return mean_square(jax.nn.gelu(x @ weights["up"]) @ weights["down"])


def layer(weights, x):
    q, k, v = (jnp.einsum("bsd,dhe->bhse", x, weights[name]) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bhse,bhte->bhst", q, k), -1)
    x = x + jnp.einsum("bhst,bhte,hed->bsd", scores, v, weights["o"])
    return mean_square(x + jax.nn.gelu(x @ weights["up"]) @ weights["down"])


def embedding(weights, tokens):
    x = weights["table"][tokens]
    logits = jnp.maximum(x @ weights["up"], 0) @ weights["down"] @ weights["table"].T
    return jax.nn.logsumexp(logits.astype(jnp.float32), -1).mean()


def every(weights, spec):
    return dict.fromkeys(weights, spec)


MLP = {"up": (2048, 8192), "down": (8192, 2048)}
HEADS = dict.fromkeys("qkv", (1024, 16, 64)) | {"o": (16, 64, 1024)}
LAYER = {**HEADS, "up": (1024, 4096), "down": (4096, 1024)}
TABLE = {"table": (32000, 1024), "up": (1024, 4096), "down": (4096, 1024)}
UP = {"up": P(None, "Y"), "down": P("Y")}
CASES = {
    "MLP step": Case(
        mlp,
        MLP,
        lambda B: jax.ShapeDtypeStruct((B, 2048), "bfloat16"),
        {
            "data": (every(MLP, P()), ALL),
            "fsdp": (every(MLP, ALL), ALL),
            "tensor": ({"up": P("X", "Y"), "down": P("Y", "X")}, ROWS),
        },
    ),
    "Transformer layer": Case(
        layer,
        LAYER,
        lambda B: jax.ShapeDtypeStruct((B, 128, 1024), "bfloat16"),
        {
            "data": (every(LAYER, P()), ALL),
            "fsdp": (every(LAYER, P(("X", "Y"))), ALL),
            "tensor": (
                {**{n: P(None, "Y") for n in "qkv"}, "o": P("Y"), **UP},
                ROWS,
            ),
        },
    ),
    "embedding": Case(
        embedding,
        TABLE,
        lambda B: jax.ShapeDtypeStruct((B, 64), "int32"),
        {
            "data": (every(TABLE, P()), ALL),
            "fsdp": (every(TABLE, ALL), ALL),
            "tensor": ({"table": P("Y"), **UP}, ROWS),
        },
    ),
}


def drawn(seed, batches, axes):
    """Return values of B and of a mesh axis; one batch does not divide."""
    draw = random.Random(seed)
    even = draw.sample([32 * 2**k * m for k in range(0, 12, 2) for m in (1, 3)], batches - 1)
    return sorted({*even, draw.randrange(65, 2048)}), sorted(draw.sample([1, 2, 3, 4, 8, 16], axes))


def named_text(machine):
    return machine if isinstance(machine, str) else machine.name


def differing(name, seed, batches, axes, hardware=lambda mesh: CHIP):
    """Return the number of points of a drawn grid, and texts of those that differ from plans.

    Args:
      hardware: the machine for a mesh.
    """
    case = CASES[name]
    B = sa.dims("B M", hint=(512, 1))[0]
    mesh = sa.Mesh({"X": X, "Y": Y}, symbolic=True)
    first, second = drawn(seed, batches, axes)
    named = case.compare(B, mesh, hardware(mesh))
    found = named.regions(B=first, X=second)
    # Plans with named sizes leave out the variants that have no formula.
    options = named.rows[0].plan.options
    wrong = []
    for i, batch in enumerate(first):
        for j, size in enumerate(second):
            numbers = sa.Mesh({"X": size, "Y": Y})
            there = replace(options, hardware=named_text(hardware(numbers)))
            plans = case.compare(batch, numbers, hardware(numbers), there)
            steps = {row.name: row.step_s for row in plans.rows}
            ours = dict(zip(found.names, found.step_s[:, i, j], strict=True))
            best = plans.rows[0].name if plans.rows[0].fits else None
            won = found.at(B=batch, X=size)
            same = all(np.isclose(ours[n], steps[n], rtol=1e-9) for n in steps)
            fits = {row.name: row.fits for row in plans.rows}
            same &= all(fits[n] == f for n, f in zip(found.names, found.fits[:, i, j], strict=True))
            # Strategies that take equally long have no order.
            if not same or (won != best and ours.get(won) != steps.get(best)):
                wrong.append(f"{name} B={batch} X={size}: {won} {ours}, plans {best} {steps}")
    return len(first) * len(second), wrong, found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_regions_are_the_ranking_of_plans(name, show):
    count, wrong, _ = differing(name, SEED, 2, 2)
    assert not wrong, f"seed {SEED}: {wrong}"
    show(f"{name}: the map equals plans at {count} points, seed {SEED}")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_regions_are_the_ranking_of_plans_at_many_points(name, show):
    count, wrong, found = differing(name, SEED + 1, 12, 6)
    assert not wrong, f"seed {SEED + 1}: {wrong}"
    assert len({*found.winner.flat}) > 1
    show(f"{name}: the map equals plans at {count} points, seed {SEED + 1}")


@pytest.mark.slow
def test_a_topology_is_arranged_for_the_number_of_devices(show):
    """On H100, 8 GPUs are an island; more of them reach each other over the network."""
    on = lambda mesh: f"h100:{mesh.size}"  # noqa: E731
    count, wrong, found = differing("MLP step", SEED, 2, 3, on)
    assert not wrong, f"seed {SEED}: {wrong}"
    assert not found.refused
    show(f"a topology for each number of devices: {count} points, seed {SEED}")
