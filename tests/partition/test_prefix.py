"""Cumulative operators along a sharded dimension: one place per block is sent, nothing gathered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.partition.planned import checked, kinds, moves, numbers

FUNCTIONS = (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_place_of_every_block_is_carried(function, reverse):
    x, spec = numbers(3, 13) / 4, P(None, ("Y", "X"))

    def fn(x):
        return function(x, 1, reverse=reverse)

    plan = checked(fn, (x,), (spec,), out_shardings=spec)
    assert moves(plan) == [("all_gather", "Y,X")]
    (row,) = plan.collectives_table
    assert row["operand_bytes"] == 3 * 4
    assert ("Mask" in kinds(plan)) == reverse
    assert plan.verify().ok, plan.verify().refuted
    np.testing.assert_allclose(plan.lower()(x), fn(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_blocks_that_are_empty_or_one_place(size):
    x = numbers(size, 2, dtype=np.int32)
    for reverse in (False, True):
        plan = checked(
            lambda x, r=reverse: lax.cumsum(x, 0, reverse=r), (x,), (P("Y"),), out_shardings=P("Y")
        )
        assert plan.verify().ok, plan.verify().refuted


def test_partial_sums_pass_through_a_running_sum():
    def fn(x, w):
        return jnp.cumsum(x @ w, 0)

    arguments = numbers(9, 8), numbers(8, 3, seed=1)
    plan = checked(fn, arguments, (P("Y", "X"), P("X")), out_shardings=P("Y"))
    assert [kind for kind, _ in moves(plan)] == ["all_gather", "all_reduce"]
    assert plan.verify().ok


def test_gradient_of_a_running_sum():
    def loss(x):
        return (jnp.cumsum(x, 0) ** 2).sum()

    plan = checked(jax.grad(loss), (numbers(9, 3),), (P("Y"),), out_shardings=P("Y"))
    assert {"ExclusiveScan", "Mask"} <= kinds(plan)
    assert plan.verify().ok


@pytest.mark.parametrize("name", ["prod", "xor"])
def test_products_and_parities_are_combined_in_place(name):
    """Neither has a collective of its own in JAX: partial results are gathered and folded."""
    dtype = np.float32 if name == "prod" else np.int32
    x = numbers(9, 3, dtype=dtype) + dtype(5)

    def fn(x):
        return jnp.prod(x, 0) if name == "prod" else lax.reduce_xor(x, (0,))

    plan = checked(fn, (x,), (P("Y"),))
    assert moves(plan) == [("all_reduce", "Y")]
    assert plan.verify().ok
    np.testing.assert_array_equal(plan.lower()(x), fn(x))
