"""Cuts that move between dimensions of their own move in one all-to-all over all their axes."""

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import ShardalgError
from shardalg.spmd import instructions as p
from shardalg.verify.report import Report
from shardalg.verify.verify import Verifier

MESHES = ({"x": 2, "y": 2}, {"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2})
PAIRS = (
    (P("x", None, "y"), P(None, "x", None, "y")),
    (P("x", None, "y"), P(None, "y", None, "x")),
    (P(None, "x", None, "y"), P("x", None, "y", None)),
    (P(None, "x", "y"), P("x", None, None, "y")),
)


def sharded(spec, mesh, shape):
    return sa.Sharding.from_spec(spec, mesh, shape)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_the_path_sends_as_little_as_can_be_and_is_right(sizes, pair):
    mesh, shape = sa.Mesh(sizes), (8, 8, 8, 8)
    path = sa.reshard(*(sharded(spec, mesh, shape) for spec in pair))
    assert path.wire_bytes == path.least_wire_bytes
    assert sum(isinstance(step.attributes, p.AllToAlls) for step in path.steps) == 1
    assert path.verify().ok
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(path.simulate(x), x)
    (ran,) = path.lower()(x)
    np.testing.assert_array_equal(ran, x)


def test_three_at_once():
    mesh, shape = sa.Mesh({"x": 2, "y": 2, "z": 2}), (2,) * 6
    path = sa.reshard(
        sharded(P("x", None, "y", None, "z", None), mesh, shape),
        sharded(P(None, "y", None, "z", None, "x"), mesh, shape),
    )
    assert path.wire_bytes == path.least_wire_bytes == 8 * 4 * 7 // 8
    x = np.arange(64, dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(path.simulate(x), x)
    assert path.verify().ok


@pytest.mark.parametrize("n", [2, 8])
def test_the_bytes_follow_the_formula_of_one_all_to_all(n):
    mesh, shape = sa.Mesh({"x": n, "y": n}), (n,) * 4
    path = sa.reshard(*(sharded(spec, mesh, shape) for spec in PAIRS[0]))
    assert path.wire_bytes == 4 * n**4 // n**2 * (n * n - 1) // n**2


def test_in_a_program_it_is_one_collective():
    def fn(x):
        return jax.lax.with_sharding_constraint(jnp.tanh(x), PAIRS[0][1]) + 1

    mesh = sa.Mesh({"x": 2, "y": 2})
    x = jax.ShapeDtypeStruct((4, 4, 4, 4), "float32")
    with jax.set_mesh(mesh.to_jax(jax.devices()[:4])):
        plan = sa.plan(fn, x, mesh=mesh, in_shardings=(PAIRS[0][0],))
    (row,) = plan.collectives().to_dict("records")
    assert row["kind"] == "all_to_all"
    assert row["wire_bytes"] == 4 * 64 * 3 // 4
    assert plan.verify().ok
    values = np.random.default_rng(0).normal(size=(4,) * 4).astype(np.float32)
    np.testing.assert_allclose(plan.lower()(values), np.tanh(values) + 1, rtol=1e-5, atol=1e-6)


def test_verify_refuses_exchanges_that_are_not_the_layout():
    """Each exchange, and both in one dimension, are refused."""
    mesh, shape = sa.Mesh({"x": 2, "y": 2}), (4,) * 4
    path = sa.reshard(*(sharded(spec, mesh, shape) for spec in PAIRS[0]))
    (step,) = path.steps
    first, second = step.attributes.exchanges
    wrong = [
        p.AllToAlls((first,)),
        p.AllToAlls((p.AllToAll(1, 0, second.digits), p.AllToAll(3, 2, first.digits))),
        p.AllToAlls((p.AllToAll(3, 0, first.digits), p.AllToAll(1, 2, second.digits))),
    ]
    for attributes in wrong:
        assert not judged(path, attributes)
    for one in itertools.permutations((first, second)):
        assert judged(path, p.AllToAlls(one))


def judged(path, attributes):
    """Return True if `verify` accepts the path with another exchange in place of its own."""
    program, graph = path._made
    (step,) = program.block.instructions
    block = replace(program.block, instructions=(replace(step, attributes=attributes),))
    try:
        verifier = Verifier(graph, replace(program, block=block))
        return Report(tuple(verifier.judge(path.source.mesh))).ok
    except ShardalgError:
        return False
