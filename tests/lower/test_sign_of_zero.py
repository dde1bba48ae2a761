"""The sign of a zero that one device holds and hands on, here and in XLA's own partition.

A sum between devices starts from +0 on CPU, and adds the +0 of those that do not hold the element.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa

MESH = sa.Mesh({"X": 4})
ZEROS = np.full((8, 4), -0.0, np.float32)
IDS = np.array([3, 5], np.int32)

# Name to function and layout of its result.
LOST = {
    "lookup": (lambda x, ids: 1 / x[ids], P()),
    "lookup that clips": (lambda x, ids: 1 / x.at[ids].get(mode="clip"), P()),
    "lookup that fills": (lambda x, ids: 1 / x.at[ids].get(mode="fill", fill_value=1), P()),
    "a row everywhere": (lambda x, ids: 1 / x[5], P()),
}
KEPT = {
    "rows everywhere": (lambda x, ids: 1 / x[2:5], P()),
    "a box written": (lambda x, ids: 1 / lax.dynamic_update_slice(x, x[:2], (ids[0], 0)), P("X")),
    "rows put": (lambda x, ids: 1 / x.at[ids].set(-0.0), P("X")),
    "rows added": (lambda x, ids: 1 / x.at[ids].add(-0.0), P("X")),
}
SUMMED_WHERE_XLA_GATHERS = {
    "a box": (lambda x, ids: 1 / lax.dynamic_slice(x, (ids[0], 0), (2, 4)), P()),
    "parts of a row": (lambda x, ids: 1 / x[5], P("X")),
}


def ours(fn, out):
    plan = sa.plan(
        fn, jnp.asarray(ZEROS), IDS, mesh=MESH, in_shardings=(P("X"), P()), out_shardings=out
    )
    return np.asarray(plan.lower()(ZEROS, IDS))


def of_xla(fn, out):
    given, made = (
        jax.tree.map(lambda spec: NamedSharding(MESH.to_jax(), spec), side)
        for side in ((P("X"), P()), out)
    )
    return np.asarray(jax.jit(fn, in_shardings=given, out_shardings=made)(ZEROS, IDS))


@pytest.mark.parametrize("name", LOST)
def test_where_xlas_partition_makes_it_positive(name):
    """It sums what the holder selects, as we do: on one device all are `-inf`."""
    fn, out = LOST[name]
    assert (np.asarray(fn(jnp.asarray(ZEROS), IDS)) == -np.inf).all()
    for got in (of_xla(fn, out), ours(fn, out)):
        assert (got == np.inf).all()


@pytest.mark.parametrize("name", KEPT)
def test_where_no_sum_is_made(name):
    """Nor where XLA makes one, of the box that it writes."""
    assert (ours(*KEPT[name]) == -np.inf).all()


@pytest.mark.xfail(strict=True, reason="XLA gathers here; the sum that is made instead gives +0")
@pytest.mark.parametrize("name", SUMMED_WHERE_XLA_GATHERS)
def test_where_xla_gathers_the_operand(name):
    fn, out = SUMMED_WHERE_XLA_GATHERS[name]
    assert (of_xla(fn, out) == -np.inf).all()
    assert (ours(fn, out) == -np.inf).all()


def test_verify_says_that_the_sign_is_taken_on_trust():
    plan = sa.plan(lambda x: x[5], jnp.asarray(ZEROS), mesh=MESH, in_shardings=P("X"))
    (claim,) = [c for c in plan.verify().claims if c.claim == "arithmetic"]
    assert claim.status == "trusted"
    assert "a sum that is zero is +0" in claim.words
