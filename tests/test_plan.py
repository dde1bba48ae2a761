"""The Plan: every name of the public interface, on the train step of a tiny Transformer."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.hardware import load
from shardalg.errors import LoweringError, StrategyError
from shardalg.merge.proofs.prove import MergeClaim
from shardalg.plan.explain.warnings.roundabout import WARNING_COLUMNS
from tests import small_step
from tests.small_step import CONFIG, MESH, assert_close

PLAN_NAMES = (
    "replan", "shardings", "collectives", "program", "explain", "warnings", "verify", "cost",
    "lower", "one_shard", "aot", "save", "at", "constants", "conditions", "why_not", "diff",
)  # fmt: skip
MODULE_NAMES = (
    "Window", "halo",
    "host_devices", "Mesh", "Sharding", "mesh_split", "annotate", "merge", "compatible", "equal",
    "refines", "prove", "plan", "load_plan", "Strategy", "Options", "dims", "halo",
    "Window",
)  # fmt: skip


@pytest.fixture(scope="module")
def plan():
    return small_step.plan()


def test_the_names_that_users_rely_on(plan):
    assert not [name for name in PLAN_NAMES if not hasattr(plan, name)]
    assert not [name for name in MODULE_NAMES if not hasattr(sa, name)]
    assert set(MODULE_NAMES) <= set(dir(sa)) & set(sa.__all__)


def test_shardings(plan):
    table = plan.shardings()
    assert list(table.columns) == ["value", "global_shape", "sharding", "local_shape", "why"]
    assert table["value"].is_unique
    assert (table["why"].str.len() > 0).all()
    rows = table.set_index("value")
    assert tuple(rows.loc["params['embedding']"]) == ("f32[16,16]", "[Y, X]", "4x8", "annotated")
    moment = rows.loc["opt_state['moments']['layers'][1]['w_in']['row']"]
    assert (moment["sharding"], moment["local_shape"]) == ("[X]", "8")
    assert rows.loc["tokens", "sharding"] == "[X, None]"


def test_collectives(plan):
    table = plan.collectives()
    assert list(table.columns) == [
        "kind", "mesh_axes", "group_size", "executions", "operand_bytes", "result_bytes",
        "wire_bytes", "wire_bytes_per_step",
        "role", "phase", "region", "op", "module", "source", "why",
    ]  # fmt: skip
    assert set(table["phase"]) == {"forward", "backward", "update"}
    assert not set(table["role"]) & {"unknown", "data"}
    sizes = {"X": 2, "Y": 4, "X,Y": 8, "Y,X": 8}
    assert (table["group_size"] == table["mesh_axes"].map(sizes)).all()
    reduced = table[table["kind"] == "all_reduce"]
    ring = 2 * reduced["operand_bytes"] * (1 - 1 / reduced["group_size"])
    np.testing.assert_allclose(reduced["wire_bytes"].astype(float), ring)
    inside = table[table["op"] != "border"]
    assert inside["source"].str.fullmatch(r"\w+\.py:\d+").all()


def test_the_program_prints_with_and_without_source_lines(plan):
    plain, full = str(plan.program).splitlines(), plan.text().splitlines()
    assert plain[0] == "SpmdProgram on Mesh(X=2, Y=4), every device runs:"
    assert full[1] == plain[1] + " params['embedding']"

    def bare(lines):
        return [re.split(r"  #|(?<= constant) ", line)[0] for line in lines[43:]]

    assert bare(full) == bare(plain)
    assert any(line.endswith("f32[] constant 0.0") for line in full)
    assert re.fullmatch(
        r"SpmdProgram\(42 arguments, \d+ .* on Mesh\(X=2, Y=4\)\)", repr(plan.program)
    )


def test_explanations_end_at_annotations(plan):
    rows = list(plan.explain("dot_general:18@transformer.py:210"))
    assert [row["depth"] for row in rows] == sorted(row["depth"] for row in rows)
    assert (rows[-1]["value"], rows[-1]["why"]) == ("embedded", "annotated")
    assert all("through" in row["why"] for row in rows[:-1])


def test_values_without_a_name_are_pointed_out(plan):
    words = r"no value is called 'ffn_hiden'. Similar names: 'ffn_hidden'"
    with pytest.raises(StrategyError, match=words):
        plan.explain("ffn_hiden")


def test_nothing_is_warned_of(plan):
    table = plan.warnings()
    assert tuple(table.columns) == (*WARNING_COLUMNS, "wire_bytes")
    assert table.empty


def test_every_claim_is_proved_and_every_merge_for_all_sizes(plan):
    report = plan.verify()
    assert report.ok
    assert report.refuted == ()
    assert report.merges
    assert {(proof.status, proof.sizes) for proof in report.merges} == {("proved", "all")}
    assert set(report.df["status"]) == {"proved", "trusted"}
    assert set(report.df["claim"]) >= {"merge", "iterations", "reads", "writes", "delivers"}
    assert list(report.df.columns) == ["node", "claim", "status", "ms", "smt2", "statement"]
    asked = report.df[report.df["smt2"] != ""]
    assert asked["smt2"].str.contains("check-sat").all()
    assert set(asked["claim"]) >= {"merge", "iterations", "reads", "writes", "delivers"}
    assert report.summary() in repr(plan)


def test_a_merge_with_two_axes_swapped_is_refuted(plan):
    for proof in plan.verify().merges:
        right = proof.claim
        dims = [tuple(swapped(d) for d in digits) for digits in right.result.dims]
        wrong = replace(right, result=sa.Sharding(MESH, right.result.shape, tuple(dims)))
        refuted = sa.prove(wrong, "all")
        assert refuted.status == "refuted"
        assert refuted.witness is not None
    assert isinstance(wrong, MergeClaim)


def swapped(digit):
    x, y = MESH.digit("X"), MESH.digit("Y")
    return {x: y, y: x}[digit]


def test_cost(plan):
    cost = plan.cost("tpu_v3")
    assert cost.step_time_s == pytest.approx(cost.compute_s + sum(cost.exposed_s.values()))
    at_the_data_sheet = plan.cost("tpu_v3", software="datasheet")
    assert at_the_data_sheet.step_time_s == (
        at_the_data_sheet.compute_s + at_the_data_sheet.communication_s
    )
    assert cost.communication_s > 0
    table = plan.collectives()
    assert cost.wire_bytes == (table["wire_bytes"] * table["executions"]).sum()
    assert cost.peak_memory_bytes > sum(
        np.prod(s.shard_shape) * 4 for s in plan.program.argument_shardings
    )
    assert 0 < cost.flops_utilization < 1
    assert cost.flops * 8 >= cost.useful_flops > 0
    assert len(cost.table()) > 1
    assert plan.cost(load("tpu_v3")).step_time_s == cost.step_time_s


def test_lower_jit_and_measure():
    """The gradient of a feed-forward layer is used; tests/models run whole steps."""
    part = small_step.training.part("ffn_gradient")
    strategy = small_step.table1.finalized(MESH, CONFIG, part.name)
    plan = sa.plan(part.function(CONFIG), *part.arguments(CONFIG), strategy=strategy)
    arguments = part.random_arguments(CONFIG)
    wants = part.function(CONFIG)(*arguments)
    lowered = plan.lower()
    for run in (lowered, lowered.jit()):
        results = run(*arguments)
        assert jax.tree.structure(results) == jax.tree.structure(wants)
        assert_close(results, wants)
    assert results[1]["w_in"].sharding == NamedSharding(MESH.to_jax(), P("X", "Y"))
    measured = lowered.measure(*arguments, repeats=2)
    assert measured.max_relative_error < 1e-5
    assert measured.ours.median_s > 0
    assert f"plan {plan.verify().summary()}" in repr(measured)


def test_how_far_a_plan_was_proved_stands_in_what_it_lowers_to():
    plan = matmul_plan()
    assert "not verified" in repr(plan)
    assert plan.lower().verified == plan.verify().summary()
    assert plan.verify().summary() in repr(plan)


def test_a_plan_with_a_refuted_claim_is_not_lowered():
    plan = matmul_plan()
    claims = plan.verify().claims
    refuted = replace(claims[0], status="refuted")
    plan.__dict__["_report"] = replace(plan.verify(), claims=(refuted, *claims[1:]))
    with pytest.raises(LoweringError, match="1 refuted claims, the first"):
        plan.lower()


X, W = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (16, 4)))


def matmul_plan(**given):
    given = {"mesh": MESH, "in_shardings": (P("X", "Y"), P("Y", None)), **given}
    return sa.plan(lambda x, w: x @ w, X, W, **given)


def moved(plan):
    return plan.collectives()[["kind", "mesh_axes"]].to_numpy().tolist()


@pytest.mark.parametrize("out", [P("X", "Y"), NamedSharding(MESH.to_jax(), P("X", "Y"))], ids=type)
def test_out_shardings(out):
    assert moved(matmul_plan()) == [["all_reduce", "Y"]]
    assert moved(matmul_plan(out_shardings=out)) == [["reduce_scatter", "Y"]]


def test_shardings_of_ours_count_as_specs():
    ours = tuple(
        sa.Sharding.from_spec(spec, MESH, x.shape)
        for spec, x in ((P("X", "Y"), X), (P("Y", None), W))
    )
    assert matmul_plan(in_shardings=ours).text() == matmul_plan().text()


def test_one_entry_of_a_prefix_is_for_all_below_it():
    params = {"a": W, "b": W}
    plan = sa.plan(
        lambda p, x: x @ p["a"] + x @ p["b"], params, X, mesh=MESH, in_shardings=(P("Y"), P("X"))
    )
    assert plan.shardings().set_index("value").loc["p['b']", "sharding"] == "[Y, None]"


@pytest.mark.parametrize("spec", [None, P(P.UNCONSTRAINED, P.UNCONSTRAINED)], ids=["none", "open"])
def test_what_is_open_is_completed_and_what_is_closed_is_not(spec):
    plan = sa.plan(lambda x, y: x + y, X, X, mesh=MESH, in_shardings=(P("X", "Y"), spec))
    assert plan.shardings().set_index("value").loc["y", "local_shape"] == "4x4"
    plan = sa.plan(lambda x, y: x + y, X, X, mesh=MESH, in_shardings=(P("X", "Y"), P()))
    assert plan.shardings().set_index("value").loc["y", "local_shape"] == "8x16"


def test_arguments_keep_their_own_named_shardings():
    mesh = MESH.to_jax()
    x = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("X", "Y")))
    w = jax.ShapeDtypeStruct((16, 4), "float32", sharding=NamedSharding(mesh, P("Y", None)))
    plan = sa.plan(lambda x, w: x @ w, x, w)
    assert plan.mesh == MESH
    assert moved(plan) == [["all_reduce", "Y"]]
    assert moved(sa.plan(lambda x, w: x @ w, x, w, mesh=MESH, in_shardings=(P(), P()))) == []


def test_keyword_and_static_arguments_are_bound_by_partial():
    def fn(x, *, axis, scale):
        return x.sum(axis) * scale

    plan = sa.plan(partial(fn, axis=1, scale=2.0), X, mesh=MESH, in_shardings=(P("X", "Y"),))
    assert moved(plan) == [["all_reduce", "Y"]]
    np.testing.assert_allclose(plan.lower()(jnp.ones((8, 16))), np.full(8, 32.0))


def test_jitted_functions_are_unwrapped():
    jitted = jax.jit(lambda x, w: x @ w)
    plan = sa.plan(jitted, X, W, mesh=MESH, in_shardings=(P("X", "Y"), P("Y", None)))
    assert moved(plan) == [["all_reduce", "Y"]]


def test_replanning_keeps_the_trace_and_takes_sites(plan):
    other = sa.Strategy(sa.Mesh({"data": 4, "model": 2}), in_shardings=None)
    again = plan.replan(other)
    assert again.graph is plan.graph
    assert moved(again) == []
    sites = sa.Strategy(MESH, sites={"ffn_hidden": P("X", None, "Y")})
    rows = plan.replan(sites).shardings().set_index("value")
    assert rows.loc["ffn_hidden", "sharding"] == "[X, None, Y]"
    assert moved(plan.replan(small_step.strategy())) == moved(plan)


def test_replanning_on_another_mesh_of_the_same_devices_runs(plan):
    mesh = sa.Mesh({"X": 4, "Y": 2}, device_ids=(3, 1, 2, 0, 7, 6, 5, 4))
    again = plan.replan(small_step.strategy(mesh))
    assert again.verify().refuted == ()


def test_strict_refuses_a_fallback():
    def fn(x):
        return jax.ffi.ffi_call("twice", x)(x)

    given = {"mesh": MESH, "in_shardings": (P("X", "Y"),)}
    plan = sa.plan(fn, X, **given)
    assert plan.warnings()["wire_bytes"].sum() > 0
    with pytest.raises(StrategyError, match=r"strict=True.*\n(.*\n)*.*ffi_call.*\n(.*\n)*"):
        sa.plan(fn, X, **given, options=sa.Options(strict=True))


def test_roles_are_never_guessed():
    assert set(matmul_plan().collectives()["role"]) == {"unknown"}
    named = matmul_plan(roles=("data", "parameters"))
    assert set(named.collectives()["role"]) == {"activation"}


@pytest.mark.parametrize("sizes", [{"X": 1}, {"X": 1, "Y": 1}], ids=str)
def test_a_mesh_of_one_device(sizes):
    plan = sa.plan(
        lambda x, w: x @ w, X, W, mesh=sa.Mesh(sizes), in_shardings=(P("X"), P(None, "X"))
    )
    assert moved(plan) == []
    assert plan.verify().refuted == ()
    np.testing.assert_allclose(plan.lower()(jnp.ones((8, 16)), jnp.ones((16, 4))), 16.0)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (4, 0)], ids=str)
def test_sizes_0_and_1_run(shape):
    x = np.ones(shape, np.float32)
    plan = sa.plan(lambda x: (x + 1, x.sum(0)), x, mesh=MESH, in_shardings=(P("X", "Y"),))
    whole, total = plan.lower()(x)
    np.testing.assert_array_equal(whole, x + 1)
    np.testing.assert_array_equal(total, x.sum(0))
