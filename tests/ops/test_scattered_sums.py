"""Updates of rows of zeros that are added to a table are added to the table directly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardalg.graph.evaluate import evaluate
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace

X = np.arange(24, dtype="float32").reshape(4, 6)
ROWS = np.array([[1.5, -2, 0, 7, 1e30, -np.inf]], "float32")
TWO = np.concatenate([ROWS, ROWS + 1])


def sliced(x, u, at):
    """Return the gradient of a slice of its own for every row."""
    starts = (at + jnp.arange(4)) % 3
    cut = jax.vmap(lambda row, start: jax.lax.dynamic_slice(row, (start,), (2,)))
    return x + jax.vjp(cut, x, starts)[1](jnp.broadcast_to(u[0, :2], (4, 2)))[0]


def batched(x, u, at):
    zeros = jnp.zeros_like(x)
    return jax.vmap(lambda z, u, i: z.at[i].add(u))(zeros, u[0, :4], at + jnp.arange(4)) + x


def met(x, u, at):
    """Two updates of one row: `x + (u + v)` rounds otherwise than `(x + u) + v`."""
    return x + jnp.zeros_like(x).at[jnp.stack([at, at])].add(u)


def apart(x, u, at):
    two = jnp.stack([at, at + 1])
    return x + jnp.zeros_like(x).at[two].add(u, unique_indices=True)


def onto_ones(x, u, at):
    return x + jnp.ones_like(x).at[at].add(u[0])


def read_twice(x, u, at):
    rows = jnp.zeros_like(x).at[at].add(u[0])
    return (x + rows) * rows


def wider(x, u, at):
    return x + jnp.zeros_like(x[:1]).at[at - 1].add(u[0])


BOTH, ONE = ["scatter-add", "add"], ["scatter-add"]
CASES = {sliced: ONE, batched: ONE, apart: ONE, met: BOTH, onto_ones: BOTH, read_twice: BOTH}
CASES[wider] = ["add"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_one_node_where_no_updates_meet(fn):
    u, at = (TWO if fn in (met, apart) else ROWS), np.int32(1)
    graph = normalise(trace(fn, X, u, at))
    tables = [n for n in graph.nodes if n.signature.results[0] == graph.values[0].type]
    assert [n.primitive for n in tables if n.primitive in BOTH] == CASES[fn]
    np.testing.assert_array_equal(evaluate(graph, X, u, at)[0], fn(X, u, at))
