"""Indices that count along their own dimension: `x[arange(n), i]` is local where both are split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.partition.planned import checked, moves, numbers

LABELS = np.array([3, 0, 15, 9, 1, -2, -16, 7], np.int32)
X, Y = P("X"), P("Y")


def rows(i):
    return jnp.arange(len(i))


def check(fn, arguments, specs, out):
    plan = checked(fn, arguments, specs, out_shardings=out)
    assert plan.verify().ok
    for result, want in zip(
        jax.tree.leaves(plan.lower()(*arguments)), jax.tree.leaves(fn(*arguments)), strict=True
    ):
        np.testing.assert_allclose(result, want, rtol=1e-6)
    return plan


CASES = {
    "jnp.arange": (lambda x, i: jnp.asarray(x)[rows(i), i], (8, 16)),
    "np.arange": (lambda x, i: jnp.asarray(x)[np.arange(8), i], (8, 16)),
    "rows": (lambda x, i: jnp.asarray(x)[rows(i), i], (8, 16, 3)),
    "set": (lambda x, i: jnp.asarray(x).at[rows(i), i].set(1.0), (8, 16)),
    "add": (lambda x, i: jnp.asarray(x).at[rows(i), i].add(2.0, mode="drop"), (8, 16)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_nothing_moves_where_rows_and_indices_are_split_alike(name):
    fn, shape = CASES[name]
    assert moves(check(fn, (numbers(*shape), LABELS), (Y, Y), Y)) == []


def test_the_other_dimension_may_count_and_two_may():
    def second(x, i):
        return jnp.asarray(x)[i, rows(i)]

    def both(x, i):
        a, b = i.shape
        return jnp.asarray(x)[jnp.arange(a)[:, None], jnp.arange(b)[None], i]

    assert moves(check(second, (numbers(16, 8), LABELS), (P(None, "Y"), Y), Y)) == []
    spec = P("Y", "X")
    arguments = numbers(4, 6, 9), np.random.default_rng(0).integers(0, 9, (4, 6))
    assert moves(check(both, arguments, (spec, spec), spec)) == []


def test_what_counts_in_another_dimension_is_no_batch():
    """Tested with the first 4 of 8 rows, and with rows in another order."""

    def first(x, i):
        return jnp.asarray(x)[jnp.arange(4), i[:4]]

    def reversed_rows(x, i):
        return jnp.asarray(x)[rows(i)[::-1], i]

    for fn in (first, reversed_rows):
        assert moves(check(fn, (numbers(8, 16), LABELS), (Y, Y), P())) != []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [
    lambda n: jnp.arange(n).astype(jnp.int8).astype(jnp.int32),
    lambda n: jax.lax.iota(jnp.uint8, n).astype(jnp.int32),
])  # fmt: skip
def test_integers_that_wrap_around_do_not_count(count):
    labels = np.random.default_rng(0).integers(0, 4, 300)
    plan = check(lambda x, i: x[count(300), i], (numbers(300, 4), labels), (X, X), X)
    assert moves(plan) != []


@pytest.mark.slow
def test_the_gradient_of_a_cross_entropy_moves_numbers_per_row():
    def loss(logits, labels):
        logits = jnp.asarray(logits)
        picked = logits[rows(labels), labels % 16]
        return (jax.nn.logsumexp(logits, -1) - picked).mean()

    spec = P("Y", "X")
    plan = check(jax.grad(loss), (numbers(8, 16), LABELS), (spec, Y), spec)
    assert {row["mesh_axes"] for row in plan.collectives_table} == {"X"}
    assert all(row["operand_bytes"] == 2 * 4 for row in plan.collectives_table)
