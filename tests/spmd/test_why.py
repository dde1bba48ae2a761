"""Reasons of instructions are values: readers use fields, and words are printed last."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.explain.disagreements import disagreement
from shardalg.planner.stages import planned
from shardalg.spmd.instruction import Collective, Purpose, Why
from tests import small_step


def told(plan):
    """Return the two sides of every collective of a new equal plan, without words."""
    stages = planned(plan.traced, plan.annotations, plan.options)
    return [disagreement(stages.sharded, stages.traffic, m) for m in stages.traffic.collectives]


def test_explanations_do_not_read_the_words(monkeypatch):
    plan = small_step.plan()
    first = told(plan)
    monkeypatch.setattr(Why, "__str__", lambda why: 1 / 0)
    assert told(plan) == first


def test_steps_between_two_layouts_are_one_chain_of_their_own():
    """Two results, each brought to its layout in several steps: two chains."""
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    given, wanted = P("X", ("Y", "Z")), P(("Y", "X"), None)
    plan = sa.plan(
        lambda x, y: (x, y), x, x, mesh=sa.Mesh({"X": 2, "Y": 2, "Z": 2}),
        in_shardings=(given, given), out_shardings=(wanted, wanted),
    )  # fmt: skip
    moves = [i.why for i in plan.program.block.instructions if isinstance(i.attributes, Collective)]
    assert {why.purpose for why in moves} == {Purpose.RESULT}
    chains = {why.chain: [one for one in moves if one.chain == why.chain] for why in moves}
    assert len(moves) > len(chains) == 2
    for steps in chains.values():
        assert all(one.path[1] == other.path[0] for one, other in pairwise(steps))
        assert all(one.is_chained(other) for one in steps for other in steps)
    first, other = (steps[0] for steps in chains.values())
    assert not first.is_chained(other)


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (Why(), ""),
        (Why(Purpose.RESULT), "the result is"),
        (Why(Purpose.GIVES, "add"), "add gives"),
    ],
)
def test_words(why, words):
    assert str(why) == words


def test_steps_name_both_layouts():
    mesh = sa.Mesh({"X": 2})
    ends = tuple(sa.Sharding.from_spec(spec, mesh, (8,)) for spec in (P("X"), P()))
    assert str(Why(Purpose.NEEDS, "add").along(ends, 3)) == "add needs: [X] to [None]"
