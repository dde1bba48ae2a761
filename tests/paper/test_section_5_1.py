"""GSPMD (arXiv:2105.04663), section 5.1: which collectives each 2D strategy needs, derived.

Per layer and phase, (kind, axis) to how many. The paper: attempt 1 has subgrouped all-reduces and
no resharding; attempt 2 gathers weights along X before each layer, reduce-scatters their gradients
along X, and all-reduces BSM along Y; finalized gathers BSM along Y and has a reduce-scatter along Y
in place of each all-reduce. An activation gathered in the forward pass is gathered again in the
backward one (dy is the other one).
"""

from collections import Counter
from dataclasses import replace

import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.models import table1, training
from shardalg.models.transformer import WIDE_64B, Config

AG, AR, RS = "all_gather", "all_reduce", "reduce_scatter"
# (strategy, part) -> forward and backward collectives.
COLLECTIVES = {
    ("attempt 1", "ffn"): ({(AR, "X"): 1, (AR, "Y"): 1}, {(AR, "X"): 1, (AR, "Y"): 1}),
    ("attempt 1", "attention"): ({(AR, "X"): 3, (AR, "Y"): 1}, {(AR, "X"): 1, (AR, "Y"): 1}),
    ("attempt 2", "ffn"): (
        {(AG, "X"): 2, (AR, "Y"): 1},
        {(AG, "X"): 2, (RS, "X"): 2, (AR, "Y"): 1},
    ),
    ("attempt 2", "attention"): (
        {(AG, "X"): 4, (AR, "Y"): 1},
        {(AG, "X"): 4, (RS, "X"): 4, (AR, "Y"): 1},
    ),
    ("finalized", "ffn"): (
        {(AG, "X"): 2, (AG, "Y"): 1, (RS, "Y"): 1},
        {(AG, "X"): 2, (AG, "Y"): 2, (RS, "X"): 2, (RS, "Y"): 1},
    ),
    ("finalized", "attention"): (
        {(AG, "X"): 4, (AG, "Y"): 1, (RS, "Y"): 1},
        {(AG, "X"): 4, (AG, "Y"): 2, (RS, "X"): 4, (RS, "Y"): 1},
    ),
}
TOY = (sa.Mesh({"X": 2, "Y": 4}), Config())
PAPER = (sa.Mesh({"X": 8, "Y": 16}), WIDE_64B)


def planned(strategy, config, part):
    chosen = training.part(part)
    return sa.plan(
        chosen.function(config),
        *chosen.arguments(config),
        strategy=strategy,
        roles=chosen.roles(),
    )


def collectives(plan, *, role=None):
    """Forward and backward: (kind, axes) to executions."""
    phases = {"forward": Counter(), "backward": Counter()}
    for row in plan.collectives_table:
        if role in (None, row["role"]):
            phases[row["phase"]][row["kind"], row["axes"]] += row["count"]
    return phases["forward"], phases["backward"]


@pytest.mark.parametrize(("mesh", "config"), [TOY, PAPER], ids=["toy", "paper"])
@pytest.mark.parametrize(("name", "part"), COLLECTIVES)
def test_collectives_are_the_papers(name, part, mesh, config):
    strategy = table1.STRATEGIES[name](mesh, config, f"{part}_gradient")
    assert collectives(planned(strategy, config, f"{part}_gradient")) == COLLECTIVES[name, part]


@pytest.mark.parametrize("part", ["ffn", "attention"])
def test_what_moves_in_which_role(part):
    """Along X weights (as bf16) and their gradients move, along Y activations."""
    mesh, config = TOY
    strategy = table1.finalized(mesh, config, f"{part}_gradient")
    plan = planned(strategy, config, f"{part}_gradient")
    axes = {(row["axes"], row["role"]) for row in plan.collectives_table}
    assert axes == {("X", "weight"), ("X", "gradient"), ("Y", "activation")}


def test_a_layer_is_its_parts_and_the_statistics_of_its_norms():
    """Norms need no annotation; over a sharded M their two means are small all-reduces."""
    mesh, config = TOY
    plan = planned(table1.finalized(mesh, config, "layer"), config, "layer")
    forward, _ = collectives(plan)
    ffn, attention = (COLLECTIVES["finalized", part][0] for part in ("ffn", "attention"))
    assert forward == Counter(ffn) + Counter(attention) + Counter({(AR, "Y"): 4})


@pytest.mark.parametrize(
    ("change", "lost", "gained"),
    [
        # BSM of x no longer along Y, as in attempt 2: x needs no gathering, nor does its gradient.
        ({"x": P("X", None, None)}, {(AG, "Y"): 1}, {}),
        # BSM of y no longer along Y: its partial sums are all-reduced.
        ({"y": P("X", None, None)}, {(RS, "Y"): 1}, {(AR, "Y"): 1}),
        # W_in not along X: nothing to gather.
        ({"w_in": P(None, "Y")}, {(AG, "X"): 1}, {}),
    ],
)
def test_changing_one_annotation_changes_the_collectives(change, lost, gained):
    mesh, config = TOY
    strategy = table1.finalized(mesh, config, "ffn")
    weights, x = strategy.in_shardings
    given = {**weights, "x": x, "y": strategy.out_shardings, **change}
    arguments = ({name: given[name] for name in weights}, given["x"])
    changed = replace(strategy, in_shardings=arguments, out_shardings=given["y"])
    before, after = (
        collectives(planned(s, config, "ffn"))[0] for s in (strategy, changed)
    )
    assert before - after == Counter(lost)
    assert after - before == Counter(gained)


def test_bytes_at_the_papers_sizes():
    """Finalized feed-forward, forward: ring bytes of a device, from the shapes by hand."""
    mesh, c = PAPER
    X, Y, bf16 = 8, 16, 2
    plan = planned(table1.finalized(mesh, c, "ffn"), c, "ffn")
    sent = Counter()
    for row in plan.collectives_table:
        sent[row["kind"], row["axes"]] += row["count"] * row["wire_bytes"]
    weight, activation = c.M * c.H // Y * bf16, c.B // X * c.S * c.M * bf16
    assert sent == {
        (AG, "X"): 2 * weight * (X - 1) // X,
        (AG, "Y"): activation * (Y - 1) // Y,
        (RS, "Y"): activation * (Y - 1) // Y,
    }
