"""Recorded gradients of mixtures of experts, of a manual region and of a loop: right, and bytes."""

import jax
import numpy as np
import pytest

import shardalg as sa
from benchmarks import oracle_bytes
from shardalg.spmd.host.simulate import simulate
from tests.oracle import corpus
from tests.oracle.test_oracle import worst

NAMES = corpus.gradients()
BESIDE = ["hybrid_moe_layer_grad", "pipeline_gpipe_grad"]
"""Those that were recorded with their programs."""


def as_jax_runs_it(name, values):
    """Run on one device; a manual region needs all of its own."""
    if name != "shard_map_subgraph_grad":
        return oracle_bytes.one_device(name, values)
    chosen = oracle_bytes.case(name, "float32")
    with jax.set_mesh(chosen.mesh.to_jax()):
        return jax.tree.leaves(jax.jit(chosen.function)(*values))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_right_and_proved(name):
    values = oracle_bytes.arguments(name)
    plan, want = oracle_bytes.plan(name, "float32"), as_jax_runs_it(name, values)
    lowered = [np.asarray(result) for result in jax.tree.leaves(plan.lower()(*values))]
    assert worst(simulate(plan.program, plan.graph, *values), want) < 1e-5
    assert worst(lowered, want) < 1e-5
    assert plan.verify().ok, plan.verify().refuted


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", [*NAMES, *BESIDE])
@pytest.mark.parametrize("compiler", ["cpu_gspmd", "cpu_shardy"])
def test_no_more_bytes_than_either_partitioner(name, compiler):
    """Copies kept for the backward pass, as XLA keeps them."""
    row = oracle_bytes.compare(name, compiler)
    assert row["kept_bytes_ratio"] <= 1, row
    assert row["flops_ratio"] <= 1, row
    assert row["bytes_ratio"] <= 1 or name == "hybrid_moe_layer_grad", row


def test_the_loops_sums_wait_if_told():
    """XLA reduces the gradients of every microbatch; together they are a fraction of that."""
    chosen = oracle_bytes.case("accumulation_loop")
    once = sa.Options(switches=sa.Switches(defer_in_loops=True))
    sent = oracle_bytes.our_wire_bytes(oracle_bytes.plan_of(chosen, once).program)
    assert sent < 0.5 * corpus.wire_bytes("accumulation_loop")
