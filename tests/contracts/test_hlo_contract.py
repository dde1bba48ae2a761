"""Contracts on HLO text that XLA made, against the counts of the plan and of XLA's own reader."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.lower.xla_dump.hlo_collectives import Dumping, collectives

MESH = {"data": 2, "model": 4}


def step(w, x):
    """Return the loss and new weights; the layers are a scan."""

    def loss(w):
        def layer(y, one):
            with jax.named_scope("mlp"):
                return jnp.tanh(y @ one), None

        y, _ = jax.lax.scan(layer, x, w)
        return (y**2).mean()

    value, slope = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * slope


@pytest.fixture(scope="module")
def texts():
    """Return XLA's final text of the step, and the texts before and after partitioning."""
    axes = (AxisType.Auto,) * 2
    mesh = jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=axes)

    def put(spec):
        return NamedSharding(mesh, spec)

    args = np.zeros((3, 64, 64), "f4"), np.zeros((16, 64), "f4")
    jitted = jax.jit(
        step, in_shardings=(put(P(None, "data", "model")), put(P("data"))),
        out_shardings=(put(P()), put(P(None, "data", "model"))),
    )  # fmt: skip
    with Dumping() as dumping:
        compiled = jitted.lower(*args).compile(compiler_options=dumping.options)
        dump = dumping.read()
    return compiled.as_text(), dump.before, dump.after


def test_statements_are_those_of_the_text(texts):
    text = texts[0]
    found = collectives(text, sa.Mesh(MESH), is_final=True)
    kinds = {one.kind for one in found}
    assert kinds, "XLA sends something"
    for kind in ("all_gather", "all_reduce", "all_to_all", "collective_permute"):
        rows = [one for one in found if one.kind == kind]
        count = sum(one.count for one in rows)
        total = sum(-int(-one.wire_bytes // 1) * one.count for one in rows)
        assert all(one.exact for one in rows), "a scan's length is known"
        report = sa.contract(
            sa.no(kind), sa.some(kind), sa.at_most(kind, executions=count),
            sa.at_most(kind, executions=count - 1), sa.at_most(kind, sent_bytes=total),
            sa.at_most(kind, sent_bytes=total - 1),
        ).hlo(text, MESH)  # fmt: skip
        oks = [one.ok for one in report.verdicts]
        assert oks == [not rows, bool(rows), True, False, True, False], kind
    after = sa.contract(sa.some("all_gather"), sa.some("all_reduce")).hlo(texts[2], MESH)
    assert any(one.ok for one in after.verdicts)


def test_axes_phases_and_modules_are_read_from_the_text(texts):
    gathered = {
        axis
        for one in collectives(texts[0], sa.Mesh(MESH), is_final=True)
        if one.kind == "all_gather"
        for axis in one.axes
    }
    for axis in MESH:
        verdict = sa.contract(sa.no("all_gather", axis=axis)).hlo(texts[0], MESH).verdicts[0]
        assert verdict.ok == (axis not in gathered)
    report = sa.contract(sa.some(phase="backward"), sa.some(module="mlp")).hlo(texts[0], MESH)
    assert report.ok, report


def test_what_the_text_does_not_say_is_not_decided(texts):
    statements = (
        sa.at_most(peak_bytes=1), sa.at_most(step_time_s=1), sa.sharded("parameters", "data"),
        sa.no_idle_devices(), sa.no("all_gather", role="weight"), sa.no(region="scan"),
    )  # fmt: skip
    report = sa.contract(*statements).hlo(texts[0], MESH)
    assert {one.verdict for one in report.verdicts} == {"not decided"}


def test_groups_in_every_notation_and_asynchronous_pairs():
    head = "HloModule f, num_partitions=8\n\nENTRY %main (x: f32[16]) -> f32[64] {\n"
    start = "  %x = f32[16]{0} parameter(0)\n"
    for groups in (
        "{{0,1,2,3},{4,5,6,7}}",
        "[2,4]<=[8]",
        "mesh['data'=2,'model'=4] {'model'}",
    ):
        plain = (
            f"{head}{start}  ROOT %g = f32[64]{{0}} all-gather(f32[16]{{0}} %x), "
            f"replica_groups={groups}, dimensions={{0}}, use_global_device_ids=true\n}}\n"
        )
        pair = (
            f"{head}{start}  %s = (f32[16]{{0}}, f32[64]{{0}}) all-gather-start(f32[16]{{0}} %x), "
            f"replica_groups={groups}, dimensions={{0}}\n"
            "  ROOT %g = f32[64]{0} all-gather-done((f32[16]{0}, f32[64]{0}) %s)\n}\n"
        )
        for text in (plain, pair):
            report = sa.contract(
                sa.no("all_gather", axis="model"), sa.no(axis="data"),
                sa.at_most("all_gather", sent_bytes="3*16*4"),
                sa.at_most("all_gather", sent_bytes="N*16*4", axis="model"),
            ).hlo(text, MESH, sizes={"N": 2})  # fmt: skip
            assert [one.ok for one in report.verdicts] == [False, True, True, False], text


GPU = """HloModule jit_step, is_scheduled=true, \
entry_computation_layout={(f32[16]{0})->f32[64]{0}}, num_partitions=8, \
frontend_attributes={fingerprint_before_lhs="9a1"}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(f32[] %a, f32[] %b)
}

ENTRY %main (x: f32[16]) -> f32[64] {
  %x = f32[16]{0} parameter(0), metadata={op_name="x"}
  %reduce = f32[16]{0} all-reduce-start(f32[16]{0} %x), channel_id=1, \
replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=%add, \
backend_config={"operation_queue_id":"0",\
"collective_backend_config":{"is_sync":false},"force_earliest_schedule":false}
  %ard = f32[16]{0} all-reduce-done(f32[16]{0} %reduce)
  %gather = (f32[16]{0}, f32[64]{0}) all-gather-start(f32[16]{0} %ard), channel_id=2, \
replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true
  ROOT %agd = f32[64]{0} all-gather-done((f32[16]{0}, f32[64]{0}) %gather)
}
"""
TPU = """HloModule jit_step, is_scheduled=true, \
entry_computation_layout={(f32[16]{0:T(128)})->f32[64]{0:T(128)}}, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}

ENTRY %main (x: f32[16]) -> f32[64] {
  %x = f32[16]{0:T(128)} parameter(0)
  %ar = f32[16]{0:T(128)S(1)} all-reduce(%x), channel_id=1, \
replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, to_apply=%add, \
backend_config={"flag_configs":[],"barrier_config":\
{"barrier_type":"CUSTOM","id":"0"},"used_scoped_memory_configs":[]}
  ROOT %ag = f32[64]{0:T(128)} all-gather(%ar), channel_id=2, \
replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, use_global_device_ids=true
}
"""


@pytest.mark.parametrize("text", [GPU, TPU], ids=["gpu", "tpu"])
def test_texts_of_gpus_and_tpus(text):
    """Both have a sum of 64 bytes over two devices, and a gather of 64 bytes from four."""
    contract = sa.contract(
        sa.at_most("all_reduce", sent_bytes=64, axis="data"),
        sa.at_most("all_gather", sent_bytes=3 * 64, axis="model"),
        sa.at_most(executions=2),
        sa.no("all_reduce", axis="model"),
        sa.no("all_gather", axis="data"),
        sa.at_most("all_reduce", sent_bytes=63),
        sa.at_most("all_gather", sent_bytes=3 * 64 - 1),
        sa.no("all_gather"),
    )
    verdicts = [one.verdict for one in contract.hlo(text, MESH).verdicts]
    assert verdicts == ["holds"] * 5 + ["refuted"] * 3
    cut = text[: text.index("ROOT %ag")]
    with pytest.raises(sa.ContractError):
        contract.hlo(cut, MESH)


def test_incomplete_or_foreign_text_is_an_error_and_never_holds(texts, show):
    contract = sa.contract(sa.no("collective_permute"))
    text, before, _ = texts
    with pytest.raises(sa.ContractError, match=r"not partitioned yet|for 1 devices"):
        contract.hlo(before, MESH)
    with pytest.raises(sa.ContractError, match="for 8 devices"):
        contract.hlo(text, {"data": 4})
    for wrong, message in (
        ("", "is empty"), ("a\0b", "is no text"), ("hello", "without an ENTRY"),
        (None, "give compiled"), ("HloModule f\n", "without an ENTRY"), (text[::-1], "HLO text"),
        (text.partition("\n")[2], "first line, HloModule ..., is missing"),
    ):  # fmt: skip
        with pytest.raises(sa.ContractError, match=message):
            contract.hlo(wrong, MESH)
    lines = text.splitlines()
    refused = 0
    for cut in range(1, len(lines) - 1):
        kept = "\n".join(lines[:cut])
        if "}" == lines[cut - 1].strip() and kept.count("ENTRY"):
            continue
        with pytest.raises(sa.ContractError):
            contract.hlo(kept, MESH)
        refused += 1
    show(f"{refused} texts that were cut short are refused")
    assert refused > 30
    with pytest.raises(sa.ContractError, match="axis"):
        sa.contract(sa.no(axis="expert")).hlo(text, MESH)
