"""Random bits are partitioned: every device draws its own block of one device's bits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.planner.partition.choose.node_classes import repeats

X = np.random.default_rng(0).normal(size=(10, 6, 5)).astype(np.float32)
KEY = np.array([3, 4], np.uint32)
MESH = sa.Mesh({"X": 4, "Y": 2})
SPEC = P("X", None, "Y")


def dropout(x, words):
    key = jax.random.wrap_key_data(words)
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)


def test_dropout_draws_blocks_and_moves_nothing():
    plan = sa.plan(dropout, X, KEY, mesh=MESH, in_shardings=(SPEC, P()), out_shardings=SPEC)
    assert not len(plan.collectives_table)
    assert plan.warnings().query("op not in ('jax.jit', 'uneven', 'unread')").empty
    assert "u32[3@X,6,3@Y] threefry2x32" in str(plan.program)
    np.testing.assert_array_equal(plan.lower()(X, KEY), jax.jit(dropout)(X, KEY))


def test_dropout_of_named_sizes_is_one_program_at_all_of_them():
    b, m = sa.dims("B M", hint=(8, 6))
    x = jax.ShapeDtypeStruct((b, 6, m), "float32")
    plan = sa.plan(dropout, x, KEY, mesh=MESH, in_shardings=(SPEC, P()), out_shardings=SPEC)
    assert not len(plan.collectives_table)
    assert {str(s) for s in plan.cost("tpu_v3").flops.free_symbols} == {"B", "M"}


def test_positions_along_one_dimension_are_no_repeated_value():
    """The positions are two results of one number; an argument in another sharding failed."""
    plan = sa.plan(lambda w: jax.random.bits(jax.random.wrap_key_data(w), (8,)), KEY, mesh=MESH)
    made = [n.signature for n in plan.graph.nodes if n.primitive == "positions"]
    assert [len(signature.operands) for signature in made] == [1]
    assert not any(map(repeats, made))
