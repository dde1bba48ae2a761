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
from shardalg.lab import table1_strategies as table1
from shardalg.models import training
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
# What moves: along X weights (as bf16) and their gradients, all else are activations.
ROLES = {(AG, "X"): "weight", (RS, "X"): "gradient"}
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


def collectives(plan):
    """Forward and backward: (kind, axes) to executions; each role is the one that ROLES says."""
    phases = {"forward": Counter(), "backward": Counter()}
    for row in plan.collectives_table:
        moved = row["kind"], row["mesh_axes"]
        phases[row["phase"]][moved] += row["executions"]
        assert row["role"] == ROLES.get(moved, "activation"), row
    return phases["forward"], phases["backward"]


@pytest.mark.parametrize(("mesh", "config"), [TOY, PAPER], ids=["toy", "paper"])
@pytest.mark.parametrize(("name", "part"), COLLECTIVES)
def test_collectives_are_the_papers(name, part, mesh, config):
    strategy = table1.STRATEGIES[name](mesh, config, f"{part}_gradient")
    assert collectives(planned(strategy, config, f"{part}_gradient")) == COLLECTIVES[name, part]


def test_a_layer_is_its_parts_and_the_statistics_of_its_norms():
    """Norms need no annotation; over a sharded M their two means are small all-reduces."""
    mesh, config = TOY
    plan = planned(table1.finalized(mesh, config, "layer"), config, "layer")
    forward, _ = collectives(plan)
    ffn, attention = (COLLECTIVES["finalized", part][0] for part in ("ffn", "attention"))
    assert forward == Counter(ffn) + Counter(attention) + Counter({(AR, "Y"): 4})


def changed(strategy, change):
    """Return the strategy of a part with one named annotation replaced."""
    weights, *rest = strategy.in_shardings
    weights = {name: change.get(name, spec) for name, spec in weights.items()}
    arguments = (weights, change.get("x", rest[0]), *rest[1:])
    sites = {name: change.get(name, spec) for name, spec in strategy.sites.items()}
    results = strategy.out_shardings
    if "y" in change:
        results = (change["y"], *results[1:])
    return replace(strategy, in_shardings=arguments, out_shardings=results, sites=sites)


GATHERED_TWICE = {(AG, "X"): 1}, {(AG, "X"): 1}
NOTHING = {}, {}
# (strategy, part, the one annotation that changes): (forward, backward) lost, and gained.
CHANGES = [
    # BSM of x no longer along Y, as in attempt 2: it is not gathered, neither for y nor for dW.
    ("finalized", "ffn", {"x": P("X", None, None)}, ({(AG, "Y"): 1}, {(AG, "Y"): 1}), NOTHING),
    # BSM of x along Y in attempt 2: it is.
    ("attempt 2", "ffn", {"x": P("X", None, "Y")}, NOTHING, ({(AG, "Y"): 1}, {(AG, "Y"): 1})),
    # BSM of y no longer along Y: its partial sums are all-reduced.
    ("finalized", "ffn", {"y": P("X", None, None)}, ({(RS, "Y"): 1}, {}), ({(AR, "Y"): 1}, {})),
    # A weight not along X: nothing to gather, in either phase.
    ("finalized", "ffn", {"w_in": P(None, "Y")}, GATHERED_TWICE, NOTHING),
    ("finalized", "ffn", {"w_out": P("Y", None)}, GATHERED_TWICE, NOTHING),
    ("finalized", "attention", {"w_q": P(None, "Y", None)}, GATHERED_TWICE, NOTHING),
    ("finalized", "attention", {"w_o": P("Y", None, None)}, GATHERED_TWICE, NOTHING),
    ("attempt 2", "ffn", {"w_in": P(None, "Y")}, GATHERED_TWICE, NOTHING),
]


@pytest.mark.parametrize(("name", "part", "change", "lost", "gained"), CHANGES)
def test_changing_one_annotation_changes_the_collectives(name, part, change, lost, gained):
    mesh, config = TOY
    part = f"{part}_gradient"
    strategy = table1.STRATEGIES[name](mesh, config, part)
    before = collectives(planned(strategy, config, part))
    after = collectives(planned(changed(strategy, change), config, part))
    assert tuple(b - a for b, a in zip(before, after, strict=True)) == lost
    assert tuple(a - b for b, a in zip(before, after, strict=True)) == gained


@pytest.mark.parametrize(
    ("name", "part", "change"),
    [
        ("finalized", "ffn", {"ffn_hidden": P("X", None, None)}),
        ("finalized", "attention", {"attention_heads": P("X", None, None, None)}),
        ("attempt 1", "attention", {"attention_heads": P("X", None, "Y", None)}),
    ],
)
def test_changing_an_activation_moves_more_bytes(name, part, change):
    """A layout that does not fit its neighbours costs wire bytes: Table 1 is no accident."""
    mesh, config = TOY
    part = f"{part}_gradient"
    strategy = table1.STRATEGIES[name](mesh, config, part)
    plans = (planned(s, config, part) for s in (strategy, changed(strategy, change)))
    before, after = (
        sum(row["executions"] * row["wire_bytes"] for row in plan.collectives_table)
        for plan in plans
    )
    assert after > before


@pytest.mark.parametrize("name", table1.STRATEGIES)
def test_seven_annotations_per_layer(name):
    strategy = table1.STRATEGIES[name](*TOY)
    assert table1.count_annotations(TOY[1], strategy) <= 7


def test_bytes_at_the_papers_sizes():
    """Finalized feed-forward, forward: ring bytes of a device, from the shapes by hand."""
    mesh, c = PAPER
    X, Y, bf16 = 8, 16, 2
    plan = planned(table1.finalized(mesh, c, "ffn"), c, "ffn")
    sent = Counter()
    for row in plan.collectives_table:
        sent[row["kind"], row["mesh_axes"]] += row["executions"] * row["wire_bytes"]
    weight, activation = c.M * c.H // Y * bf16, c.B // X * c.S * c.M * bf16
    assert sent == {
        (AG, "X"): 2 * weight * (X - 1) // X,
        (AG, "Y"): activation * (Y - 1) // Y,
        (RS, "Y"): activation * (Y - 1) // Y,
    }
