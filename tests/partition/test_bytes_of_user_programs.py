"""Programs of users send no more bytes than with XLA's better partitioner, and are proved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.partition.planned import checked, moves, numbers

BOTH = P(("X", "Y"))


def coupling_flow(x, w1, w2):
    """Return the gradient of three couplings, each of which splits, changes and swaps halves."""

    def loss(w1, w2):
        z, volume = x, 0.0
        for k in range(3):
            a, b = jnp.split(z, 2, axis=-1)
            scale, shift = jnp.split(jnp.tanh(a @ w1[k]) @ w2[k], 2, axis=-1)
            b = b * jnp.exp(jnp.tanh(scale)) + shift
            volume = volume + jnp.tanh(scale).sum(-1)
            z = jnp.concatenate([b, a], -1)
        return jnp.mean((z**2).sum(-1) / 2 - volume)

    return jax.grad(loss, (0, 1))(w1, w2)


def step_on_merged_tokens(x, w1, w2):
    """Return weights after a step that merges the sharded batch and sequence by a reshape."""

    def loss(w1, w2):
        hidden = jax.nn.gelu(x @ w1).reshape(-1, w1.shape[1])
        return jnp.mean((hidden @ w2 - x.reshape(-1, x.shape[-1])) ** 2)

    first, second = jax.grad(loss, (0, 1))(w1, w2)
    return w1 - first / 8, w2 - second / 8


def search_by_sort(x, edges):
    return jnp.searchsorted(edges, x, method="sort")


def search_unrolled(x, edges):
    return jnp.searchsorted(edges, x, method="scan_unrolled")


def sort_of_both(x, y):
    return jnp.sort(jnp.concatenate([x, y]))


def largest_of_both(x, y):
    return lax.top_k(jnp.concatenate([x, y]), 5)


def halves_of_a_join(x, y):
    joined = jnp.concatenate([x, y], axis=1)
    first, second = joined[:, :6], joined[:, 10::2]
    return first * 2, second + 1


FLOW = (numbers(32, 16) / 4, numbers(3, 8, 32) / 64, numbers(3, 32, 16) / 64)
LINES = (numbers(64), np.sort(numbers(16)))
# name: (function, arguments, layouts, layouts of the results, bytes that XLA sends)
CASES = {
    "coupling flow": (coupling_flow, FLOW, (P("X", "Y"), P(), P()), None, 21_764),
    "searchsorted by sort": (search_by_sort, LINES, (P("X"), P()), P(), 128),
    "searchsorted by sort, both": (search_by_sort, LINES, (BOTH, P("X")), P(), 224),
    "searchsorted unrolled": (search_unrolled, LINES, (BOTH, P("X")), BOTH, 32),
    "sort of a join": (sort_of_both, (LINES[0], LINES[0]), (P("X"), P()), P(), 128),
    "top_k of a join": (largest_of_both, (LINES[0], LINES[0]), (BOTH, P("X")), P(), 320),
    "top_k of a join, half whole": (largest_of_both, (LINES[0], LINES[0]), (P("X"), P()), P(), 128),
    "slices of a join": (
        halves_of_a_join,
        (numbers(8, 8), numbers(8, 8)),
        (P("X"), P("X")),
        (P("X"), P("X")),
        0,
    ),
}
MESH = sa.Mesh({"X": 2, "Y": 2})


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_no_more_bytes_than_xla(name):
    fn, arguments, specs, out, most = CASES[name]
    plan = checked(fn, arguments, specs, out_shardings=out, mesh=MESH)
    assert sum(r["wire_bytes"] * r["executions"] for r in plan.collectives_table) <= most
    assert plan.verify().ok


TOKENS = (numbers(8, 16, 32) / 8, numbers(32, 64) / 64, numbers(64, 32) / 64)
# layouts of the two weights, and the bytes that XLA sends
WEIGHTS = [
    ((P("X", None), P("X", None)), 49_152),
    ((P(None, "X"), P("X", None)), 49_152),
    ((P(None, ("X", "Y")), P(("X", "Y"), None)), 44_032),
    ((P(), P()), 47_104),
]


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("weights", "most"), WEIGHTS, ids=str)
def test_merged_tokens_send_no_more_than_xla(weights, most):
    mesh, specs = sa.Mesh({"X": 2, "Y": 4}), (P("X", "Y"), *weights)
    plan = checked(step_on_merged_tokens, TOKENS, specs, out_shardings=weights, mesh=mesh)
    assert sum(r["wire_bytes"] * r["executions"] for r in plan.collectives_table) <= most
    assert plan.verify().ok


def test_a_slice_of_a_join_reads_the_joined_tensor():
    fn, arguments, specs, out, _ = CASES["slices of a join"]
    plan = checked(fn, arguments, specs, out_shardings=out, mesh=MESH)
    assert "concatenate" not in {node.primitive for node in plan.graph.nodes}
    assert not list(moves(plan))
