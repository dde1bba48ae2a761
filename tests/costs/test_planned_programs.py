"""Costs of real programs: the feed-forward and attention layers under the strategies of Table 1."""

import pytest

from shardalg.costs import estimate
from shardalg.costs.hardware import load
from shardalg.graph.ops.roles import roles
from shardalg.models.training import part
from shardalg.show.tables import collectives
from tests.report.planned import CONFIG, MESH, STRATEGIES, planned


def cost_of(name, strategy):
    program, graph, _ = planned(name, strategy)
    leaf_roles = [
        role
        for role, arg in zip(part(name).roles(), part(name).arguments(CONFIG), strict=True)
        for _ in (arg.values() if isinstance(arg, dict) else [arg])
    ]
    return estimate(program, graph, load("tpu_v3"), roles=roles(graph, leaf_roles))


@pytest.mark.parametrize("name", ["ffn", "ffn_gradient", "attention_gradient"])
def test_finalized_computes_nothing_twice(name):
    cost = cost_of(name, "2D finalized")
    assert cost.flops * MESH.size == pytest.approx(cost.useful_flops, rel=0.002)


def test_attempt_1_repeats_its_attention_along_x():
    cost = cost_of("attention_gradient", "2D attempt 1")
    assert 1.1 < cost.flops * MESH.size / cost.useful_flops < 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_costs_add_up_and_every_byte_has_a_class(strategy):
    cost = cost_of("ffn_gradient", strategy)
    table = collectives(*planned("ffn_gradient", strategy)[:2])
    sent = sum(row["wire_bytes"] * row["executions"] for row in table)
    assert cost.wire_bytes == sent == sum(cost.table()["wire_bytes_per_step"])
    assert cost.compute_s + cost.communication_s == pytest.approx(sum(cost.table()["time_s"]))
    # The share of communication that was measured on this chip is larger than 1.
    assert cost.step_time_s == pytest.approx(cost.compute_s + sum(cost.exposed_s.values()))
    assert sum(cost.memory.by_class.values()) == cost.peak_memory_bytes
    assert "unknown" not in cost.memory.by_class
    weights = 2 * 4 * CONFIG.M * CONFIG.H
    assert cost.memory.by_class["parameters"] == weights // MESH.size


def test_memory_shrinks_from_attempt_to_attempt():
    """Section 5.1: attempt 2 still holds BSM whole along Y, the finalized strategy does not."""
    peaks = [cost_of("ffn_gradient", s).peak_memory_bytes for s in STRATEGIES]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 3
