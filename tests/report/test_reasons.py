import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.errors import StrategyError
from shardalg.report.reasons import explanation, warnings
from shardalg.report.tables import collectives, shardings
from tests.report.planned import MESH, plan_on, planned


def test_a_model_of_known_operators_gives_no_warning():
    program, graph, _ = planned("ffn_gradient", "2D finalized")
    assert len(warnings(program, graph)) == 0


def doubled(x):
    """In a region of its own, which names its own devices."""
    return jax.shard_map(lambda s: s * 2, mesh=MESH.to_jax(), in_specs=P(), out_specs=P())(x)


@pytest.mark.parametrize(
    ("fn", "op", "match"),
    [
        (doubled, "shard_map", "its region names its own devices"),
        (lambda x: jnp.cumsum(x, 1), "cumsum", "loop d1 is gathered"),
    ],
)
def test_a_fallback_is_listed_with_its_line_and_all_its_bytes(fn, op, match):
    program, graph, _ = plan_on(fn, (16, 64), P("X", "Y"))
    (row,) = warnings(program, graph)
    moved = collectives(program, graph)
    assert row["op"] == op
    assert match in row["warning"]
    assert row["source"].startswith("test_reasons.py:")
    gathers = [r["wire_bytes"] for r in moved if r["op"] == op]
    assert row["wire_bytes"] == sum(gathers) > 0


def test_a_loop_that_stays_whole_and_is_not_sharded_costs_nothing():
    program, graph, _ = plan_on(lambda x: jnp.cumsum(x, 1), (16, 64), P("X"))
    assert len(warnings(program, graph)) == 0


def test_an_explanation_leads_back_to_an_annotation():
    _, graph, sharded = planned("ffn", "2D finalized")
    relu = next(n for n in graph.nodes if n.primitive == "max")
    chain = explanation(sharded, graph.values[relu.operands[0]].name)
    assert chain["depth"][0] == 0
    assert chain["sharding"][0] == "[X, None, Y]"
    assert "annotated" in chain["why"][-1]
    assert len(set(zip(chain["value"], chain["sharding"], strict=True))) == len(chain)


def test_an_annotated_value_explains_itself():
    _, _, sharded = planned("ffn", "2D finalized")
    assert explanation(sharded, "x").rows[0][1:4] == ("x", "[X, None, Y]", "annotated")


def test_a_value_that_nothing_reaches_is_replicated():
    _, graph, sharded = plan_on(lambda x: (x, jnp.arange(3.0) * 2), (16, 64), P("X"))
    name = next(graph.values[n.results[0]].name for n in graph.nodes if n.primitive == "mul")
    assert explanation(sharded, name)["why"] == ("nothing reaches it",)


def test_an_unknown_value_names_those_near_it():
    _, _, sharded = planned("ffn", "2D finalized")
    with pytest.raises(StrategyError, match="'ffn_hiden'; near it are 'ffn_hidden'"):
        explanation(sharded, "ffn_hiden")


def test_the_table_of_shardings_has_every_value():
    _, graph, sharded = planned("ffn", "2D finalized")
    table = shardings(sharded)
    assert table["value"] == tuple(v.name for v in graph.values)
    (x,) = table.where(value="x")
    assert (x["sharding"], x["local_shape"]) == ("[X, None, Y]", "8x64x32")
