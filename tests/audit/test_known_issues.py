"""Reported wrong programs, rebuilt: each is refuted, and its idiom names the issue."""

import json

import pytest

import shardalg as sa
from shardalg.xla.audit.program_pair import read_pair
from shardalg.xla.audit.referee.field_verdict import field_verdict
from tests.audit.seeded_faults import faults
from tests.audit.test_recorded_pairs import pairs

ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""
DIMS = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=%add"
)
# The gradient of an embedding: tokens are sharded along 4 devices, and so is the vocabulary of the
# result. XLA takes the block of the vocabulary first, and then sums over the devices, in
# openxla/xla#42481; the right order is given in the same issue.
SPLIT = "{devices=[4,1]<=[4]}"
SCATTER_BEFORE = f"""HloModule jit_embedding, num_partitions=4

{ADD}
ENTRY %main (ids: s32[8,1], g: f32[8,4]) -> f32[16,4] {{
  %ids = s32[8,1]{{1,0}} parameter(0), sharding={SPLIT}
  %g = f32[8,4]{{1,0}} parameter(1), sharding={SPLIT}
  %zero = f32[] constant(0)
  %zeros = f32[16,4]{{1,0}} broadcast(%zero), dimensions={{}}
  ROOT %scatter = f32[16,4]{{1,0}} scatter(%zeros, %ids, %g), {DIMS}, sharding={SPLIT}
}}
"""
BLOCK = "(%{}, %start, %none), dynamic_slice_sizes={{4,4}}"
ALL = "(%{}), replica_groups=[1,4]<=[4], to_apply=%add"
ORDERS = {
    True: f"""  %all = f32[16,4]{{1,0}} all-reduce{ALL.format("scatter")}
  ROOT %block = f32[4,4]{{1,0}} dynamic-slice{BLOCK.format("all")}""",
    False: f"""  %block = f32[4,4]{{1,0}} dynamic-slice{BLOCK.format("scatter")}
  ROOT %all = f32[4,4]{{1,0}} all-reduce{ALL.format("block")}""",
}
# The gradient of each sample: jax.grad in shard_map sums over the devices, as the parameter is
# replicated (jax-ml/jax#36886). The program before partitioning is the one of jax.vmap.
SAMPLES = "lhs_contracting_dims={}, rhs_contracting_dims={}"
GRADS_BEFORE = f"""HloModule jit_grads, num_partitions=2

ENTRY %main (p: f32[2], x: f32[4,2]) -> f32[4,2] {{
  %p = f32[2]{{0}} parameter(0), sharding={{replicated}}
  %one = f32[] constant(1)
  %x = f32[4,2]{{1,0}} parameter(1), sharding={{devices=[2,1]<=[2]}}
  ROOT %dot = f32[4,2]{{1,0}} dot(%one, %x), {SAMPLES}, sharding={{devices=[2,1]<=[2]}}
}}
"""
SUMMED = {
    True: "copy(%dot)",
    False: "all-reduce(%dot), replica_groups={{0,1}}, to_apply=%add",
}


def scatter_pair(is_right):
    after = f"""HloModule jit_embedding, num_partitions=4

{ADD}
ENTRY %main_spmd (ids: s32[2,1], g: f32[2,4]) -> f32[4,4] {{
  %ids = s32[2,1]{{1,0}} parameter(0), sharding={SPLIT}
  %g = f32[2,4]{{1,0}} parameter(1), sharding={SPLIT}
  %zero = f32[] constant(0)
  %zeros = f32[16,4]{{1,0}} broadcast(%zero), dimensions={{}}
  %scatter = f32[16,4]{{1,0}} scatter(%zeros, %ids, %g), {DIMS}
  %starts = s32[4]{{0}} constant({{0, 4, 8, 12}})
  %partition-id = u32[] partition-id()
  %own = s32[1]{{0}} dynamic-slice(%starts, %partition-id), dynamic_slice_sizes={{1}}
  %start = s32[] reshape(%own)
  %none = s32[] constant(0)
{ORDERS[is_right]}
}}
"""
    return SCATTER_BEFORE, after


def grads_pair(is_right):
    after = f"""HloModule jit_grads, num_partitions=2

{ADD}
ENTRY %main_spmd (p: f32[2], x: f32[2,2]) -> f32[2,2] {{
  %p = f32[2]{{0}} parameter(0), sharding={{replicated}}
  %one = f32[] constant(1)
  %x = f32[2,2]{{1,0}} parameter(1), sharding={{devices=[2,1]<=[2]}}
  %dot = f32[2,2]{{1,0}} dot(%one, %x), {SAMPLES}
  ROOT %all = f32[2,2]{{1,0}} {SUMMED[is_right]}
}}
"""
    return GRADS_BEFORE, after


REBUILT = {"openxla/xla#42481": scatter_pair, "jax-ml/jax#36886": grads_pair}


@pytest.mark.parametrize(("issue", "make"), REBUILT.items())
def test_a_rebuilt_issue_is_refuted_and_named(issue, make):
    found = sa.audit_hlo(*make(is_right=False))
    assert found.verdict == "refuted"
    first = found.refuted[0]
    assert (first.opcode, first.instruction) == ("all-reduce", "all")
    assert first.issue.startswith(issue)
    assert first.witness
    assert f"known issue with this idiom: {issue}" in repr(found)
    rows = json.loads(found.to_json())["instructions"]
    assert first.issue in {row["issue"] for row in rows}


@pytest.mark.parametrize("make", REBUILT.values())
@pytest.mark.parametrize("is_right", [True, False])
def test_the_referee_agrees_on_rebuilt_issues(make, is_right):
    before, after = make(is_right=is_right)
    assert sa.audit_hlo(before, after).ok == is_right
    assert field_verdict(read_pair(before, after)).is_equal == is_right


def test_other_idioms_name_no_issue():
    given = pairs()["attn_final_fwd.shardy"]
    for fault in faults(given["after"], 8, 3, 1):
        found = sa.audit_hlo(given["before"], fault.text)
        assert not any(row.issue for row in found.refuted), fault.kind
