"""The steps by which axes came to values, back to the annotations."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.errors import StrategyError
from shardalg.report.chains import explanation
from tests.report.planned import plan_on, planned


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
    assert explanation(sharded, name).steps["why"] == ("nothing reaches it",)


def test_an_unknown_value_names_those_near_it():
    _, _, sharded = planned("ffn", "2D finalized")
    with pytest.raises(StrategyError, match="'ffn_hiden'; near it are 'ffn_hidden'"):
        explanation(sharded, "ffn_hiden")


def test_axes_that_came_in_different_steps_have_chains_of_their_own():
    """The result of a product has X from one operand and Y from the other."""
    _, graph, sharded = plan_on(
        lambda x: jnp.dot(jax.nn.relu(x), jnp.ones((64, 8)) * x[0, 0]), (16, 64), P("X", "Y")
    )
    found = explanation(sharded, graph.values[graph.results[0]].name)
    assert [row["axes"] for row in found if row["depth"] == 0] == ["X"]
    assert found.steps.rows[-1][-1] == "argument x"
    product = planned("ffn", "2D finalized")[2]
    name = next(
        product.graph.values[n.results[0]].name
        for n in product.graph.nodes
        if n.primitive == "dot_general"
    )
    steps = explanation(product, name).steps
    assert set(",".join(steps["axes"]).split(",")) == {"X", "Y"}
    assert set(filter(None, steps["annotation"])) == {
        str(a) for a in explanation(product, name).annotations
    }


def test_a_carry_is_explained_by_the_body_argument_it_follows():
    def scanned(x):
        return jax.lax.scan(lambda c, _: (c.T @ c, None), x, None, length=3)[0]

    _, graph, sharded = plan_on(scanned, (16, 16), P("X"))
    looped = [r for r in sharded.history if r.kind == "loop"]
    for reason in looped:
        found = explanation(sharded, graph.values[reason.value].name)
        assert "which the loop carries" in found.steps["why"][0]
        assert [str(place) for place in found.annotations] == ["argument x"]
