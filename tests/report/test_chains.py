"""The steps by which axes came to values, back to the annotations."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.errors import StrategyError
from shardalg.plan.explain.explained import explanation
from shardalg.planner.propagate import Strategy
from tests.report.planned import MESH, plan_function, plan_on, planned


def test_an_explanation_leads_back_to_an_annotation():
    _, graph, sharded = planned("ffn", "2D finalized")
    relu = next(n for n in graph.nodes if n.primitive == "max")
    chain = explanation(sharded, graph.values[relu.operands[0]].name).steps
    assert chain["depth"][0] == 0
    assert chain["sharding"][0] == "[X, None, Y]"
    assert "annotated" in chain["why"][-1]
    assert len(set(zip(chain["value"], chain["sharding"], strict=True))) == len(chain)


def test_an_annotated_value_explains_itself():
    _, _, sharded = planned("ffn", "2D finalized")
    assert explanation(sharded, "x").steps.rows[0][1:4] == ("x", "[X, None, Y]", "annotated")


def test_a_value_that_nothing_reaches_is_replicated():
    _, graph, sharded = plan_on(lambda x: (x, jnp.arange(3.0) * 2), (16, 64), P("X"))
    name = next(graph.values[n.results[0]].name for n in graph.nodes if n.primitive == "mul")
    assert explanation(sharded, name).steps["why"] == ("no annotation propagates to it",)


def test_an_unknown_value_names_those_near_it():
    _, _, sharded = planned("ffn", "2D finalized")
    with pytest.raises(StrategyError, match=r"'ffn_hiden'\. Similar names: 'ffn_hidden'"):
        explanation(sharded, "ffn_hiden")


def test_axes_that_came_in_different_steps_have_chains_of_their_own():
    """An argument with an open dimension takes Y from the weight; X it has from its annotation."""
    x, w = (jax.ShapeDtypeStruct((16, 16), "float32") for _ in "xw")
    given = Strategy(MESH, in_shardings=(P("X", P.UNCONSTRAINED), P("Y")))
    sharded = plan_function(lambda x, w: x @ w, (x, w), given)[2]
    found = explanation(sharded, "x")
    columns = ("depth", "value", "mesh_axes", "op", "level", "annotation")
    assert found.steps.select(*columns).rows == (
        (0, "x", "Y", "dot_general", 1, ""),
        (1, "w", "Y", "", 0, "argument w"),
        (0, "x", "X", "", 0, "argument x"),
    )
    assert [str(place) for place in found.annotations] == ["argument w", "argument x"]


def test_a_carry_is_explained_by_the_body_argument_it_follows():
    def scanned(x):
        return jax.lax.scan(lambda c, _: (c.T, None), x, None, length=3)[0]

    _, graph, sharded = plan_on(scanned, (16, 16), P("X"))
    looped = [r for r in sharded.history if r.kind == "loop"]
    assert len(looped) == 2
    for reason in looped:
        found = explanation(sharded, graph.values[reason.value].name)
        assert "which the loop carries" in found.steps["why"][0]
        assert [str(place) for place in found.annotations] == ["argument x"]
