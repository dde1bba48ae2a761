"""One price for every function: constants of chips, published runs, limits of a step."""

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.calibration.constants import CONSTANTS, Calibration
from shardalg.costs.hardware import FILES, from_json, load, names
from shardalg.errors import HardwareError
from shardalg.lab.evaluation.llama_step import LlamaSizes, plan_step
from shardalg.lab.evaluation.published_runs import published_runs

SMALL = LlamaSizes(
    layers=3, model_dim=256, hidden_dim=1024, heads=8, kv_heads=4, head_dim=32, vocab=2048,
    seq=256, batch=64,
)  # fmt: skip
FITTED = [name for name in names() if any(not one.borrowed for one in load(name).calibrations)]


@pytest.mark.parametrize("chip", FITTED)
def test_every_constant_has_its_rows_and_its_source(chip):
    for one in load(chip).calibrations:
        rows = one.provenance["rows"]
        assert one.provenance["source"]
        assert rows
        assert set(one.provenance["fitted"]) <= set(CONSTANTS)
        # What is neither fitted nor the data sheet's has its reason.
        held = {name for name, value in one.values if value != CONSTANTS[name].default}
        held -= {*one.provenance["fitted"], "pipelined", "traffic", "passes"}
        assert not held or one.provenance["held"]
        if chip != "tpu_v3":
            own = {n for n, chips in one.provenance["fitted"].items() if chips == [chip]}
            shared_memory = own - {"passes"} if "traffic" in own else own
            assert len(shared_memory) <= max(1, len(rows) / 4)


def test_rows_of_the_constants_are_the_published_runs():
    seen = Counter(
        name
        for chip in FITTED
        for one in load(chip).calibrations
        for name in one.provenance["rows"]
        if chip != "tpu_v3"
    )
    assert seen == Counter(run.name for run in published_runs() if not run.skip)
    assert all(run.source for run in published_runs())
    assert any(run.skip for run in published_runs())


# Median and largest error of each chip's rows with constants fitted on all other rows.
BOUNDS = {
    ("tpu_v4", "xla"): (0.05, 0.12),
    ("tpu_v5e", "xla"): (0.04, 0.12),
    ("tpu_v5p", "xla"): (0.04, 0.12),
    ("tpu_v6e", "xla"): (0.04, 0.12),
    ("tpu_7x", "xla"): (0.06, 0.15),
    ("h100", "xla"): (0.04, 0.12),
    ("h100", "pytorch"): (0.03, 0.15),
    ("a100_80gb", "pytorch"): (0.06, 0.15),
}


@pytest.mark.parametrize(("chip", "software"), BOUNDS)
def test_rows_that_were_left_out_are_foretold(chip, software, show):
    median, worst = load(chip).on(software).calibration.errors
    show(f"{chip} {software}: median {median:.1%}, worst {worst:.1%}")
    assert median <= BOUNDS[chip, software][0]
    assert worst <= BOUNDS[chip, software][1]


def test_the_recorded_error_of_a_run_is_that_of_its_price():
    """The error in the chip's file is the one that a user sees."""
    run = next(run for run in published_runs() if run.name == "h100 llama2-7b 4096 x1x8")
    recorded = load("h100").calibration.provenance["rows"][run.name]["error"]
    assert run.cost().step_time_s / run.step_s - 1 == pytest.approx(recorded, abs=1e-4)


@pytest.mark.slow
def test_more_slices_take_longer_as_was_measured():
    """16B on 1, 4 and 32 slices of v5e: 2.6 and 11.1 % more time, within 3 points."""
    runs = [run for run in published_runs() if run.name.startswith("v5e 16B")]
    assert [run.slices for run in runs] == [1, 4, 32]
    found = [run.cost().step_time_s for run in runs]
    for run, seconds in zip(runs, found, strict=True):
        measured = run.step_s / runs[0].step_s
        assert seconds / found[0] == pytest.approx(measured, abs=0.03)
    assert all(a < b for a, b in pairwise(found))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("remat", [False, "full", "minimal"])
@pytest.mark.parametrize("chip", ["h100", "tpu_v5e"])
def test_scanned_and_unrolled_layers_have_one_price(remat, chip):
    # In small layers the latency of an all-reduce per iteration would count.
    wide = {"model_dim": 1024, "hidden_dim": 4096, "head_dim": 128, "seq": 1024}
    mesh, sizes = sa.Mesh({"fsdp": 8}), replace(SMALL, remat=remat, layers=4, **wide)
    unrolled, scanned = (
        plan_step(replace(sizes, scan=scan), mesh).cost(chip).step_time_s for scan in (False, True)
    )
    assert scanned == pytest.approx(unrolled, rel=0.03)


MODELS = {
    "grouped keys": SMALL,
    "two matrices": replace(SMALL, gated=False, kv_heads=8),
    "tied": replace(SMALL, tied=True),
    "recomputed": replace(SMALL, remat="full"),
    "scanned": replace(SMALL, scan=True),
    "microbatches": replace(SMALL, microbatches=2, scan=True, remat="full"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_model_flops_are_six_per_parameter_and_attention(name):
    """No recomputation, no padding, no repeated work counts (PaLM, appendix B)."""
    sizes = MODELS[name]
    cost = plan_step(sizes, sa.Mesh({"fsdp": 8})).cost("h100")
    # Norms have parameters too, but no product with them.
    assert cost.limits.model_flops == pytest.approx(sizes.step_flops, rel=0.01)
    assert 0 < cost.mfu < cost.hfu < 1
    tokens = sizes.batch * sizes.seq
    assert cost.tokens_per_s(tokens) == tokens / cost.step_time_s
    assert cost.days(1e9, tokens) == pytest.approx(1e9 / tokens * cost.step_time_s / 86400)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_a_step_add_up_to_it(name):
    cost = plan_step(MODELS[name], sa.Mesh({"fsdp": 8})).cost("h100")
    parts = cost.limits.seconds
    assert sum(parts.values()) == pytest.approx(cost.step_time_s, rel=1e-9)
    assert all(seconds >= 0 for seconds in parts.values())
    sent = sum(s for name, s in parts.items() if name.startswith("exposed communication"))
    assert sent == pytest.approx(sum(cost.exposed_s.values()))
    assert cost.limits.draw()._repr_png_()[:4] == b"\x89PNG"
    assert "matrix products" in repr(cost.limits)


@pytest.mark.parametrize("overlap", [None, "none", "full", "dependences"])
def test_the_parts_add_up_where_communication_is_longer_than_computation(overlap):
    """A step is at least its communication, so that more of it is exposed than elsewhere."""
    x, w = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((64, 8192), (8192, 8192)))
    plan = sa.plan(
        lambda x, w: x @ w,
        x,
        w,
        mesh=sa.Mesh({"X": 4, "Y": 4}),
        in_shardings=(P("X"), P("X", "Y")),
        roles=("data", "parameters"),
    )
    cost = plan.cost("v5p", overlap=overlap)
    parts = cost.limits.seconds
    assert sum(parts.values()) == pytest.approx(cost.step_time_s, rel=1e-9)
    assert all(seconds >= 0 for seconds in parts.values())
    sent = sum(s for name, s in parts.items() if name.startswith("exposed communication"))
    assert float(cost.communication_s) > float(cost.compute_s)
    local = sum(parts.values()) - sent
    assert local == pytest.approx(float(cost.compute_s), rel=1e-9)


def test_idle_devices_padding_and_bubbles_are_parts_of_their_own():
    mesh = sa.Mesh({"X": 4, "Y": 2})
    x, w = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((4096, 2048), (2048, 2048)))
    idle = sa.plan(jnp.matmul, x, w, mesh=mesh, in_shardings=(P("X"), P())).cost("h100").limits
    # Y splits nothing, so that half of the devices could do other work.
    assert idle.seconds["idle devices along Y"] == pytest.approx(idle.step_s / 2, rel=1e-9)
    odd = jax.ShapeDtypeStruct((4097, 2048), "bfloat16")
    padded = sa.plan(jnp.matmul, odd, w, mesh=sa.Mesh({"X": 8}), in_shardings=(P("X"), P())).cost(
        "h100"
    )
    assert padded.limits.seconds["padding"] > 0

    def step(w, x):
        pipe = sa.pipeline(lambda w, x: jnp.tanh(x @ w), stages=4, microbatches=8)
        return jax.grad(lambda w: (pipe(w, x) ** 2).sum())(w)

    shapes = (4, 1, 512, 512), (512, 512)
    given = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    plan = sa.plan(step, *given, mesh=sa.Mesh({"L": 4}), in_shardings=(P("L"), None))
    found = plan.cost("h100").limits
    # Three of eleven trips of each stage have no microbatch.
    assert 0.1 < found.seconds["pipeline bubbles"] / found.step_s <= 3 / 11


def product():
    x = jax.ShapeDtypeStruct((4096, 4096), "bfloat16")
    return sa.plan(lambda x: x @ x, x, mesh=sa.Mesh({"X": 8}), in_shardings=(P("X"),))


def test_a_single_product_does_not_run_at_the_peak():
    plan = product()
    cost = plan.cost("h100:8")
    assert cost.mfu < load("h100").calibration["matrix_efficiency"] < 1
    at_the_peak = plan.cost("h100:8", software="datasheet")
    assert at_the_peak.step_time_s < cost.step_time_s
    assert at_the_peak.expected_error is at_the_peak.interval is None
    slower = plan.cost("h100:8", software="pytorch")
    assert slower.step_time_s > cost.step_time_s


def test_the_text_has_the_interval_and_where_the_constants_are_from():
    plan = product()
    cost = plan.cost("h100:8")
    low, high = cost.interval
    median, worst = cost.expected_error
    assert low < cost.step_time_s < high
    assert low == pytest.approx(cost.step_time_s / (1 + worst))
    assert f"xla, 7 published runs: median {median:.1%}, worst {worst:.1%}" in repr(cost)
    assert "nothing reserved" in repr(cost)
    borrowed = plan.cost("h200")
    assert borrowed.expected_error == (2 * median, 2 * worst)
    assert "not calibrated: twice the errors of 7 published runs on h100" in repr(borrowed)
    assert "share_of_step" in cost._repr_html_()


@pytest.mark.parametrize(
    ("chip", "mesh", "written"),
    [("h100", {"X": 4, "Y": 8}, "h100:4x8"), ("v5e", {"X": 4, "Y": 4}, "v5e:4x4")],
)
def test_a_chip_alone_is_arranged_as_its_vendor_sells_it(chip, mesh, written):
    x = jax.ShapeDtypeStruct((4096, 4096), "bfloat16")
    plan = sa.plan(lambda x: x @ x.T, x, mesh=sa.Mesh(mesh), in_shardings=(P("X", "Y"),))
    alone, full = plan.cost(chip), plan.cost(written)
    assert alone.step_time_s == full.step_time_s
    assert f"joined as {load(chip).name}:{written.partition(':')[2]}" in repr(alone)
    # No slice has three chips, so that each axis has links of its own.
    odd = sa.plan(lambda x: x @ x.T, x, mesh=sa.Mesh({"X": 3}), in_shardings=(P("X"),))
    assert "each mesh axis on links of its own" in repr(odd.cost("v5e"))


def test_formulas_have_the_measured_shares():
    b, m = sa.dims("B M", hint=(64, 256))
    x, w = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((b, m), (m, m)))
    plan = sa.plan(
        lambda w, x: jnp.tanh(x @ w).sum(), w, x,
        mesh=sa.Mesh({"X": 4}, symbolic=True), in_shardings=(P("X"), P("X")),
    )  # fmt: skip
    formula = plan.cost("h100").step_time_s
    for point in ({"B": 128, "M": 256, "X": 4}, {"B": 64, "M": 512, "X": 8}):
        assert plan.holds(**point)
        there = plan.at(**point).cost("h100").step_time_s
        value = formula.subs({s: point[s.name] for s in formula.free_symbols})
        assert float(value) == pytest.approx(there, rel=1e-12)


def test_a_replaced_figure_replaces_its_source(tmp_path):
    fast = replace(load("tpu_v5e"), link_bytes_per_s=4.5e10)
    rows = [row for row in fast.table() if row["figure"] == "link_bytes_per_s"]
    used = [row for row in rows if row["used"]]
    assert [row["value"] for row in used] == [4.5e10]
    assert used[0]["source"] == "replaced by the user"
    again = from_json(json.loads(json.dumps(fast.to_json())))
    assert again.link_bytes_per_s == 4.5e10
    # Constants are shares of the figures that they were fitted on, unless they are asked for.
    assert fast.calibration == again.calibration == Calibration()
    assert fast.on("xla").calibration == load("tpu_v5e").calibration
    smaller = replace(load("tpu_v5e"), hbm_bytes=8e9)
    assert smaller.calibration == load("tpu_v5e").calibration


@pytest.mark.slow
def test_constants_from_a_users_own_steps():
    plans = [plan_step(replace(SMALL, batch=n), sa.Mesh({"fsdp": 8})) for n in (16, 32, 64, 128)]
    truth = load("h100").calibration.changed(matrix_efficiency=0.55)
    slow = replace(load("h100"), calibration=truth)
    steps = [(plan, plan.cost(slow).step_time_s) for plan in plans]
    found = sa.calibrate(steps, hardware="h100")
    own = found.apply("h100:8")
    assert own.chip.calibration["matrix_efficiency"] == pytest.approx(0.55, rel=1e-4)
    assert max(map(abs, found.left_out.values())) < 1e-4
    assert plans[0].cost(own).step_time_s == pytest.approx(steps[0][1], rel=1e-4)
    assert own.chip.on("xla").calibration == load("h100").calibration


def test_bad_constants_and_steps_are_refused():
    plan = product()
    with pytest.raises(HardwareError, match=r"no constants of 'tpu_v5e' under software 'pytorch'"):
        plan.cost("v5e", software="pytorch")
    with pytest.raises(HardwareError, match="calibrate of plans needs hardware"):
        sa.calibrate([(plan, 1.0), (plan, 1.0)])
    for seconds in (0, -1.0, math.nan, "1 s", None):
        with pytest.raises(sa.TableError, match=r"step 1 took .* s: write a number above 0"):
            sa.calibrate([(plan, 1.0), (plan, seconds)], hardware="h100")
    with pytest.raises(HardwareError, match="no measured step ran on 'tpu_v5e', but on h100"):
        sa.calibrate([(plan, 1e-3), (plan, 1e-3)], hardware="h100").apply("v5e")
    with pytest.raises(HardwareError, match="has the constant 'speed'"):
        Calibration("xla", (("speed", 1.0),))
    with pytest.raises(HardwareError, match=r"traffic is nan; write 0\.0 to 5\.0"):
        Calibration("xla", (("traffic", math.nan),))


@pytest.mark.parametrize(
    ("software", "message"),
    [
        (3, "'software' is 3; write constants by software"),
        ({"like": "h900"}, "'software' is like 'h900'; write a chip's name alone"),
        ({"like": "h100", "xla": {}}, "write a chip's name alone"),
        ({"xla": 1}, "calibration 'xla' is 1; write"),
        ({"xla": {"values": {}, "provenance": {"rows": {"a": {}}}}}, "rows without a number"),
        ({"xla": {"values": {"speed": 1}, "provenance": {}}}, "has the constant 'speed'"),
    ],
)
def test_bad_files_of_constants_are_refused(software, message):
    data = json.loads((FILES / "h100.json").read_text())
    with pytest.raises(HardwareError, match=message):
        from_json({**data, "software": software})


@pytest.mark.parametrize(("shape", "measured"), [((2048, 8192), 680e-6), ((256, 256), 8e-6)])
def test_gathers_on_a_line_take_what_was_measured(shape, measured):
    """'How to Scale Your Model', sharding chapter: four v5e chips of a slice without a ring."""
    x = jax.ShapeDtypeStruct(shape, "bfloat16")
    mesh = sa.Mesh({"X": 8, "Y": 4})
    plan = sa.plan(lambda x: x, x, mesh=mesh, in_shardings=(P("Y"),), out_shardings=P())
    cost = plan.cost(sa.Topology("v5e", shape=(8, 4)))
    assert cost.communication_s == pytest.approx(measured, rel=0.05)
    assert cost.step_time_s == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("tokens", [0, -1, math.inf, math.nan, "many", True, None])
def test_numbers_of_tokens_are_checked(tokens):
    cost = product().cost("h100:8")
    with pytest.raises(sa.TableError, match=r"tokens_per_step=.* above 0"):
        cost.tokens_per_s(tokens)
    with pytest.raises(sa.TableError, match=r"tokens=.* above 0"):
        cost.days(tokens, 1000)


def test_a_step_that_does_nothing_has_no_parts():
    x = jax.ShapeDtypeStruct((64, 64), "bfloat16")
    cost = sa.plan(lambda x: x, x, mesh=sa.Mesh({"X": 8}), in_shardings=(P("X"),)).cost("h100")
    assert cost.step_time_s == 0
    assert cost.mfu == cost.hfu == 0
    assert not len(cost.limits.table())
    assert cost.limits.draw()._repr_png_()
    assert cost.tokens_per_s(1000) == math.inf
    assert cost.days(1e9, 1000) == 0
