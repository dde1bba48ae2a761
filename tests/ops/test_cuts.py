"""Chains of slices and pads: fewer nodes, the same numbers, and what moves is what is shifted."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.graph.evaluate import evaluate
from shardalg.graph.trace import trace
from shardalg.ops.normalise import normalise
from tests.partition.planned import checked, moves, numbers

SEED = 210504663
ROWS = P("Y")


def random_step(rng, size):
    """A slice or a pad of a vector, that leaves at least one element."""
    if rng.integers(2):
        start = int(rng.integers(0, size))
        limit, stride = int(rng.integers(start + 1, size + 1)), int(rng.choice([1, 1, 2, 3]))
        return lambda x: lax.slice(x, (start,), (limit,), (stride,))
    low, high = (int(n) for n in rng.integers(-min(2, size // 3), 4, 2))
    return lambda x, interior=int(rng.choice([0, 0, 1])): lax.pad(x, 7.0, ((low, high, interior),))


def random_chain(rng, x):
    steps, size = [], x.size
    for _ in range(int(rng.integers(2, 5))):
        steps.append(random_step(rng, size))
        size = steps[-1](np.zeros(size, np.float32)).size
    return steps


def test_random_chains_give_the_same_numbers(show):
    rng, before, after = np.random.default_rng(SEED), 0, 0
    x = np.arange(1, 14, dtype=np.float32)
    for _ in range(60):
        steps = random_chain(rng, x)

        def fn(x, steps=steps):
            for step in steps:
                x = step(x)
            return x

        graph = normalise(trace(fn, x))
        (got,) = evaluate(graph, x)
        np.testing.assert_array_equal(got, fn(x))
        before, after = before + len(steps), after + len(list(graph.walk()))
    show(f"{before} slices and pads became {after}, seed {SEED}")
    assert after < 0.85 * before


@pytest.mark.parametrize(
    ("fn", "primitives"),
    [
        (lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1], ["pad"]),
        (lambda x: jnp.pad(x[:-1], ((1, 0), (0, 0))), ["pad"]),
        (lambda x: x[2:][::3][1:], ["slice"]),
        (lambda x: jnp.pad(x[1:], ((1, 0), (0, 0))), ["slice", "pad"]),  # the first row is lost
        (lambda x: jnp.pad(x, ((1, 1), (0, 0)))[::2], ["pad", "slice"]),
    ],
)
def test_what_is_one(fn, primitives):
    graph = normalise(trace(fn, numbers(16, 3)))
    assert [node.primitive for node in graph.walk()] == primitives


def test_a_shift_sends_what_is_shifted():
    plan = checked(
        lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1], (numbers(16, 3),), (ROWS,), out_shardings=ROWS
    )
    assert moves(plan) == [("collective_permute", "Y")]
    assert [row["wire_bytes"] for row in plan.collectives_table] == [3 * 4]
    assert plan.verify().ok
