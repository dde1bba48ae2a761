"""Chains of slices and pads: fewer nodes, equal numbers, and only shifted elements move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.graph.evaluate import evaluate
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace
from tests.partition.planned import checked, moves, numbers

SEED = 210504663
ROWS = P("Y")


FILL = 7.0


def sliced(x, starts, limits, strides):
    return x[tuple(map(slice, starts, limits, strides or (1,) * x.ndim))]


def padded(x, config):
    """Numbers between, around, and cut off where there are fewer than none."""
    ((low, high, interior),) = config
    wide = np.full((len(x) - 1) * (interior + 1) + 1, FILL, x.dtype)
    wide[:: interior + 1] = x
    wide = np.concatenate([np.full(max(low, 0), FILL), wide, np.full(max(high, 0), FILL)])
    return wide[max(-low, 0) : len(wide) - max(-high, 0)]


def random_step(rng, size):
    """Parameters of a slice or of a pad of a vector; at least one element is left."""
    if rng.integers(2):
        start = int(rng.integers(0, size))
        limit, stride = int(rng.integers(start + 1, size + 1)), int(rng.choice([1, 1, 2, 3]))
        return "slice", ((start,), (limit,), (stride,))
    low, high = (int(n) for n in rng.integers(-min(2, size // 3), 4, 2))
    return "pad", (((low, high, int(rng.choice([0, 0, 1]))),),)


POINTWISE = {
    "neg": lambda x: -x,
    "mul": lambda x: x * np.float32(2),
    "add": lambda x: x + np.float32(3),
}


def run(graph, x):
    """Run a chain of slices, pads and pointwise operators, given by their parameters."""
    for node in graph.walk():
        param = node.signature.param
        if node.primitive == "slice":
            x = sliced(x, param("start_indices"), param("limit_indices"), param("strides"))
        elif node.primitive == "pad":
            x = padded(x, param("padding_config"))
        else:
            x = POINTWISE[node.primitive](x)
    return x


def test_random_chains_give_the_same_numbers(show):
    rng, before, after = np.random.default_rng(SEED), 0, 0
    values = np.arange(1, 14, dtype=np.float32)
    for _ in range(100):
        steps, want = [], values
        for _ in range(int(rng.integers(2, 5))):
            name, numbers = random_step(rng, want.size)
            steps.append((name, numbers))
            want = sliced(want, *numbers) if name == "slice" else padded(want, *numbers)

        def fn(x, steps=steps):
            for name, numbers in steps:
                x = lax.slice(x, *numbers) if name == "slice" else lax.pad(x, FILL, *numbers)
            return x

        graph = normalise(trace(fn, values))
        np.testing.assert_array_equal(run(graph, values), want)
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
        (lambda x: jnp.pad(jnp.pad(x, ((0, 1), (0, 0))), ((2, 0), (0, 0))), ["pad"]),
        (lambda x: jnp.concatenate([x[1:], jnp.zeros((1, 3))]), ["pad"]),
        (lambda x: jnp.concatenate([jnp.ones((2, 3)), x[:-2]]), ["pad"]),
        (lambda x: jnp.zeros_like(x).at[1:].set(x[:-1]), ["pad"]),
        (lambda x: lax.dynamic_update_slice(jnp.ones_like(x), x[2:], (0, 0)), ["pad"]),
        (lambda x: lax.dynamic_slice(x, (15, 0), (4, 3)), ["slice"]),  # starts are clamped
    ],
)
def test_what_is_one(fn, primitives):
    graph = normalise(trace(fn, numbers(16, 3)))
    assert [node.primitive for node in graph.walk()] == primitives
    np.testing.assert_array_equal(evaluate(graph, numbers(16, 3))[0], fn(numbers(16, 3)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: lax.pad(lax.pad(x, 1.0, [(1, 0, 0), (0, 0, 0)]), 2.0, [(1, 0, 0), (0, 0, 0)]),
        lambda x: lax.pad(lax.pad(x, 0.0, [(1, 0, 0), (0, 0, 0)]), -0.0, [(1, 0, 0), (0, 0, 0)]),
        lambda x: lax.pad(lax.pad(x, 0.0, [(-1, 0, 0), (0, 0, 0)]), 0.0, [(1, 0, 0), (0, 0, 0)]),
        lambda x: jnp.concatenate([jnp.zeros((1, 3)), x[1:-1], jnp.ones((1, 3))]),
        lambda x: x.at[1:].set(x[:-1]),
        lambda x: jnp.zeros_like(x).at[jnp.array([19])].set(x[:1], mode="drop"),
    ],
)
def test_what_is_not_one(fn):
    graph = normalise(trace(fn, numbers(16, 3)))
    assert [node.primitive for node in graph.walk()] not in (["pad"], ["slice"])
    found = np.asarray(evaluate(graph, numbers(16, 3))[0])
    assert found.tobytes() == np.asarray(fn(jnp.asarray(numbers(16, 3)))).tobytes()


SHIFTS = {
    "pad": lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1],
    "before": lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]),
    "behind": lambda x: jnp.concatenate([x[1:], jnp.zeros_like(x[:1])]),
    "set": lambda x: jnp.zeros_like(x).at[1:].set(x[:-1]),
    "update": lambda x: lax.dynamic_update_slice(jnp.zeros_like(x), x[:-1], (1, 0)),
}


def gradient(shift):
    return lambda x: jax.vjp(shift, x)[1](jnp.tanh(x))[0]


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("made", [lambda shift: shift, gradient], ids=["value", "gradient"])
def test_a_shift_and_its_gradient_are_one_permute_of_what_is_shifted(name, made):
    fn = made(SHIFTS[name])
    plan = checked(fn, (numbers(16, 3),), (ROWS,), out_shardings=ROWS)
    assert moves(plan) == [("collective_permute", "Y")]
    assert [row["wire_bytes"] for row in plan.collectives_table] == [3 * 4]
    assert plan.verify().ok


@pytest.mark.parametrize(
    ("fn", "primitives"),
    [
        (lambda x: jnp.tanh(jnp.pad(x, ((1, 0), (0, 0))))[:-1], ["pad", "tanh"]),
        (lambda x: jnp.pad(jnp.tanh(x[:-1]) * 2, ((1, 0), (0, 0))), ["tanh", "mul", "pad"]),
        (lambda x: jnp.exp(x[2:])[::3], ["slice", "exp"]),
        (lambda x: jnp.pad(jnp.tanh(x[:3]), ((0, 2), (0, 0))), ["slice", "tanh", "pad"]),  # more
        (
            lambda x: jnp.tanh(jnp.pad(x, ((1, 0), (0, 0))) + x[:1])[:-1],
            ["pad", "slice", "broadcast_in_dim"],
        ),
    ],
)
def test_what_is_one_behind_pointwise_operators(fn, primitives):
    graph = normalise(trace(fn, numbers(16, 3)))
    assert [node.primitive for node in graph.walk()][: len(primitives)] == primitives
    np.testing.assert_array_equal(evaluate(graph, numbers(16, 3))[0], fn(numbers(16, 3)))


def test_what_others_read_stays_in_its_place():
    def fn(x):
        y = jnp.tanh(jnp.pad(x, ((1, 0), (0, 0))))
        return y[:-1], y.sum()

    assert next(n.primitive for n in normalise(trace(fn, numbers(16, 3))).walk()) == "pad"
    got = evaluate(normalise(trace(fn, numbers(16, 3))), numbers(16, 3))
    for found, want in zip(got, fn(numbers(16, 3)), strict=True):
        np.testing.assert_array_equal(found, want)


def test_random_chains_with_pointwise_operators_give_the_same_numbers(show):
    rng, joined = np.random.default_rng(SEED), 0
    values = np.arange(-6, 7, dtype=np.float32)
    for _ in range(60):
        steps, want = [], values
        for _ in range(int(rng.integers(2, 5))):
            name, numbers = random_step(rng, want.size)
            point = list(POINTWISE)[int(rng.integers(len(POINTWISE)))]
            steps.append((name, numbers, point))
            want = sliced(want, *numbers) if name == "slice" else padded(want, *numbers)
            want = POINTWISE[point](want)

        def fn(x, steps=steps):
            for name, numbers, point in steps:
                x = lax.slice(x, *numbers) if name == "slice" else lax.pad(x, FILL, *numbers)
                x = POINTWISE[point](x)
            return x

        graph = normalise(trace(fn, values))
        np.testing.assert_array_equal(run(graph, values), want)
        joined += 2 * len(steps) - len(list(graph.walk()))
    show(f"{joined} slices and pads were joined, seed {SEED}")
    assert joined > 20


def test_a_shift_with_an_operator_inside_sends_what_is_shifted():
    def fn(x):
        return jnp.pad(jnp.tanh(x[1:]), ((0, 1), (0, 0)))

    plan = checked(fn, (numbers(16, 3),), (ROWS,), out_shardings=ROWS)
    assert [row["wire_bytes"] for row in plan.collectives_table] == [3 * 4]
    assert plan.verify().ok


ZERO = np.float32(0)
NOT_TURNED = {
    "elements apart": (4, 2, ((0, 1, 1), (0, 0, 0)), ((2, 0, 0), (0, 0, 0))),
    "the others apart": (4, 2, ((0, 2, 0), (0, 0, 0)), ((2, -1, 1), (0, 0, 0))),
    "not to the end": (6, 2, ((0, 2, 0), (0, 0, 0)), ((2, 0, 0), (0, 0, 0))),
}


@pytest.mark.parametrize("name", NOT_TURNED)
def test_ends_beside_zeros_that_are_no_rotation(name):
    rows, n, first, second = NOT_TURNED[name]

    def turned(x):
        return lax.pad(x[n : 2 * n], ZERO, first) + lax.pad(x[:n], ZERO, second)

    x = numbers(rows, 3)
    plan = checked(turned, (x,), (P("Y"),))
    np.testing.assert_array_equal(plan.lower()(x), turned(x))
