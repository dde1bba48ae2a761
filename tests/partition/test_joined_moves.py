"""A value that is moved on by its only reader goes there on the shortest way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import with_sharding_constraint as wsc
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.oracle import siblings
from tests.partition.planned import check_equal, moves, numbers, planned

APART = sa.Options(switches=sa.Switches(join_formatting=False))
X, W = numbers(8, 8), numbers(8, 8, seed=1)


def through(*specs):
    """A function whose argument is annotated by one spec after the other, and the function bare."""

    def fn(x, place=wsc):
        y = jnp.tanh(x)
        for spec in specs:
            y = place(y, spec)
        return jnp.exp(y)

    return fn, lambda x: fn(x, lambda y, spec: y)


# the layouts of the argument, on the way and of the result, and what moves
CASES = {
    "gathered and cut": ((P("Y"), P(), P(None, "Y")), [("all_to_all", "Y")]),
    "there and back": ((P("Y"), P(), P("Y")), []),
    "and back twice": ((P("Y"), P(), P("Y"), P("X"), P("Y")), []),
}


def wire_bytes(plan):
    return int(plan.collectives()["wire_bytes"].sum()) if len(plan.collectives()) else 0


@pytest.mark.parametrize("name", CASES)
def test_what_is_moved_twice_is_moved_once(name):
    specs, moved = CASES[name]
    fn, bare = through(*specs)
    plan = planned(fn, (X,), specs[:1], out_shardings=specs[-1])
    apart = planned(fn, (X,), specs[:1], out_shardings=specs[-1], options=APART)
    check_equal(plan, bare, (X,))
    assert moves(plan) == moved
    assert wire_bytes(plan) < wire_bytes(apart)
    assert plan.verify().ok


def test_what_is_read_on_the_way_is_brought_there():
    def fn(x, place=wsc):
        whole = place(jnp.tanh(x), P())
        return place(whole, P(None, "Y")), jnp.exp(whole)

    plan = planned(fn, (X,), (P("Y"),), out_shardings=(P(None, "Y"), P()))
    check_equal(plan, lambda x: fn(x, lambda y, spec: y), (X,))
    assert moves(plan) == [("all_gather", "Y")]


def test_inside_a_loop():
    def fn(xs, place=wsc):
        def step(carry, x):
            return carry, place(place(jnp.tanh(x), P()), P(None, "Y"))

        return lax.scan(step, 0.0, xs)[1]

    xs = numbers(3, 8, 8)
    plan = planned(fn, (xs,), (P(None, "Y"),), out_shardings=P(None, None, "Y"))
    check_equal(plan, lambda xs: fn(xs, lambda y, spec: y), (xs,))
    assert {kind for kind, _ in moves(plan)} == {"all_to_all"}
    assert plan.verify().ok
    np.testing.assert_allclose(plan.lower()(xs), np.tanh(xs), rtol=1e-6)


def test_projections_that_are_annotated_whole_are_sent_as_they_are_read():
    """XLA (jax 0.10.2) scatters all three: 13,056 bytes."""
    program = siblings.Sibling("attention", 5020)
    specs = P(None, None, "y"), P("y", "x", None), P("x", "y", None), P("y"), P()
    mesh, ends = sa.Mesh(program.mesh), P("x", "y")
    plan = sa.plan(
        program.function, *program.types, mesh=mesh, in_shardings=specs, out_shardings=ends
    )
    assert wire_bytes(plan) <= 13056
    assert plan.verify().ok


def test_of_a_gradient():
    def loss(x, w, place=wsc):
        return jnp.sum(place(x @ w, P()) ** 2)

    specs = (P(None, "Y"), P("Y", None))
    plan = planned(jax.grad(loss), (X, W), specs, out_shardings=P(None, "Y"))
    check_equal(plan, jax.grad(lambda x, w: jnp.sum((x @ w) ** 2)), (X, W))
    assert plan.verify().ok
