"""Rows of uneven results, which JAX arrays cannot be."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import StrategyError

MESH = sa.Mesh({"X": 2, "Y": 4})


def plan_of(shape, spec, **more):
    x = jax.ShapeDtypeStruct(shape, "float32")
    given = {"mesh": MESH, "in_shardings": (spec,), "out_shardings": spec}
    return sa.plan(lambda x: x * 2, x, **{**given, **more})


@pytest.mark.parametrize(
    ("shape", "spec", "row"),
    [
        # blocks of 3 of 10 do not make up the 5 that are handed out: all are gathered
        ((10, 6), P(("X", "Y")), ("Y", 4, 2 * 6 * 4, 5 * 6 * 4, 7 * 2 * 6 * 4)),
        ((10, 6), P("Y", "X"), ("Y", 4, 3 * 3 * 4, 10 * 3 * 4, 3 * 3 * 3 * 4)),
        ((3,), P("X"), ("X", 2, 2 * 4, 3 * 4, 2 * 4)),
    ],
    ids=str,
)
def test_an_uneven_result_is_a_row(shape, spec, row):
    plan = plan_of(shape, spec)
    (found,) = plan.collectives().to_dict("records")
    columns = ("mesh_axes", "group_size", "operand_bytes", "result_bytes", "wire_bytes")
    assert (found["kind"], found["op"], found["executions"]) == ("border", "border", 1)
    assert tuple(found[column] for column in columns) == row
    assert f"with sharding {plan.program.result_shardings[0].text()} is returned" in found["why"]
    left = plan.lower()(jnp.ones(shape)).addressable_shards[0].data
    assert left.nbytes == found["result_bytes"]
    with pytest.raises(StrategyError, match="not a collective of this plan, which has 0"):
        plan.explain(0)


def test_even_results_and_named_sizes_have_no_row():
    assert plan_of((16, 6), P(("X", "Y"))).collectives().empty
    (b,) = sa.dims("B", hint=(10,))
    assert plan_of((b, 6), P("Y")).collectives().empty
