"""One element of a dimension that is cut is a partial sum of its holder alone."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.instructions import OwnerSelect
from tests.partition.planned import MESH, check_equal, checked, instructions, kinds, moves, numbers

BOTH, NONE = P(("X", "Y")), P()
# name -> function, shape and layout of x, layout of the result, what is sent
CASES = {
    "row": (lambda x: x[0], (16, 8), P("Y"), NONE, [("all_reduce", "Y")]),
    "last": (lambda x: x[-1], (17, 8), P("Y"), NONE, [("all_reduce", "Y")]),
    "row, cut": (lambda x: x[3], (16, 8), P("Y"), P("Y"), [("reduce_scatter", "Y")]),
    "last token": (lambda x: x[:, -1], (4, 16, 8), P("X", "Y"), P("X"), [("all_reduce", "Y")]),
    "element": (lambda x: x[5, 7], (16, 8), P("Y", "X"), NONE, [("all_reduce", "X,Y")]),
    "beside": (lambda x: x[:, 2:7:2], (16, 8), P("Y"), P("Y"), []),
}


@pytest.mark.parametrize("name", CASES)
def test_the_holder_hands_it_on(name):
    fn, shape, spec, out, sent = CASES[name]
    plan = checked(fn, (numbers(*shape),), (spec,), out_shardings=out)
    assert sorted(moves(plan)) == sorted(sent)
    assert ("OwnerSelect" in kinds(plan)) == bool(sent)
    assert plan.verify().ok
    x = numbers(*shape)
    if shape[0] % 2 == 0:
        np.testing.assert_array_equal(plan.lower()(x), fn(x))


def test_its_gradient_sends_nothing():
    def total(x):
        return jnp.sum(x[:, 0] ** 2)

    plan = checked(jax.grad(total), (numbers(4, 16, 8),), (P("X", "Y"),), out_shardings=P("X", "Y"))
    assert moves(plan) == [("all_reduce", "Y")]
    assert plan.verify().ok


def test_booleans_are_no_sums():
    plan = checked(lambda x: x[0], (numbers(16, 8) > 0,), (P("Y"),), out_shardings=NONE)
    assert "OwnerSelect" not in kinds(plan)
    assert plan.verify().ok


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(8))
def test_any_elements(seed):
    draw = random.Random(seed)
    shape = tuple(draw.choice((5, 8, 12, 17)) for _ in range(3))
    at = tuple(
        draw.choice((slice(None), slice(1, None, 2), draw.randrange(size))) for size in shape
    )
    dims = draw.sample(range(3), 2)
    mapping = [dims.index(d) if d in dims else -1 for d in range(3)]
    x = numbers(*shape, seed=seed, dtype=draw.choice((np.float32, np.int32)))

    def fn(x):
        return jnp.sum(sa.mesh_split(x * 2, MESH, mapping)[at] ** 2, keepdims=True)

    plan = sa.plan(fn, x, mesh=MESH)
    check_equal(plan, lambda x: jnp.sum((x * 2)[at] ** 2, keepdims=True), (x,))
    assert plan.verify().ok, (seed, at, mapping)
    for step in instructions(plan.program.block):
        if isinstance(step.attributes, OwnerSelect):
            assert plan.program.locals[step.results[0]].shape[step.attributes.dim] == 1
