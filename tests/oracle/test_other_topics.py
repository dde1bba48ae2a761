"""The recorded programs beyond matrix products: right, proved, and their bytes beside XLA's."""

import jax
import numpy as np
import pytest

from benchmarks import oracle_bytes
from shardalg.spmd.host.simulate import simulate
from tests.oracle import corpus
from tests.oracle.test_oracle import worst

TOPICS = ("conv", "pool", "format", "embedding", "norm", "reduce_sort", "moe", "pipeline")
TOPICS += ("reshard", "completion")
# A manual region runs on no single device: tests/partition/test_manual.py.
MANUAL = {"shard_map_subgraph"}
NAMES = [name for name in corpus.names(*TOPICS) if name not in MANUAL]
# Where ours sends more than XLA, and why; a program that gets better must leave this list.
MORE_BYTES = {
    "hybrid_moe_layer_grad": "what is gathered forward is gathered again backward, and freed",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_right_against_one_device_and_proved(name):
    values = oracle_bytes.arguments(name)
    plan = oracle_bytes.plan(name, "float32")
    want = oracle_bytes.one_device(name, values)
    lowered = [np.asarray(result) for result in jax.tree.leaves(plan.lower()(*values))]
    assert worst(simulate(plan.program, plan.graph, *values), want) < 1e-5
    assert worst(lowered, want) < 1e-5
    report = plan.verify()
    assert report.ok, report.refuted


def test_bytes_beside_xlas(show):
    table = oracle_bytes.table(NAMES)
    show(table)
    more = {row["program"] for row in table if row["bytes_ratio"] > 1}
    assert more == set(MORE_BYTES), more ^ set(MORE_BYTES)
    assert all(ratio <= 1 for ratio in table["kept_bytes_ratio"])
    assert all(ratio <= 1 for ratio in table["flops_ratio"])
    assert all(row["why"] for row in table if row["bytes_ratio"] != 1)


def test_a_program_on_which_xla_is_wrong_is_right():
    """Spatial and feature dimensions sharded together: XLA's result is off by 3 times itself."""
    (wrong,) = (n for n in NAMES if corpus.facts(n)["numerics"].get("xla_correct") is False)
    values = oracle_bytes.arguments(wrong)
    lowered = oracle_bytes.plan(wrong, "float32").lower()(*values)
    want = oracle_bytes.one_device(wrong, values)
    assert worst([np.asarray(r) for r in jax.tree.leaves(lowered)], want) < 1e-5
