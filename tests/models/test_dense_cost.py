"""`DenseTransformer.cost`: linear in layers, and published rows predicted."""

from dataclasses import replace

import pytest

import shardalg as sa
from shardalg.costs.calibration.by_cause import amounts, step_time_s
from shardalg.costs.calibration.fit import Free, Measured, fit
from shardalg.costs.hardware import load
from shardalg.models.deeper import machine_for, totals_of, work_of
from shardalg.models.measured.measurements import calibrate, from_row, measured, read

SMALL = sa.models.DenseTransformer(
    layers=7, model_dim=256, hidden_dim=1024, heads=8, head_dim=32, vocab=512, seq=128, batch=64,
    optimizer="adam",
)  # fmt: skip
DEEP = (
    ("finalized", {"X": 2, "Y": 4}, "v3", {"optimizer": "adafactor"}),
    ("fsdp", {"fsdp": 8}, "h100", {"attention": "fused", "microbatches": 4}),
    ("fsdp", {"slice": 2, "fsdp": 4}, "v5e", {"remat": "full", "gated": True}),
    ("fsdp_tensor", {"fsdp": 4, "tensor": 4}, "v5p", {"remat": "minimal", "kv_heads": 4}),
    # whose peak is elsewhere than that of two and three layers
    ("finalized", {"X": 2, "Y": 4}, "v3", {"remat": "full", "microbatches": 4, "seq": 16}),
    ("fsdp", {"fsdp": 8}, "h100", {"remat": "full", "seq": 16, "vocab": 4096}),
)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("strategy", "mesh", "chip", "changed"), DEEP)
def test_two_shallow_plans_are_the_deep_one(strategy, mesh, chip, changed):
    """Seconds of every cause, operations, bytes and the peak of memory."""
    model, laid = replace(SMALL, **changed), sa.Mesh(mesh)
    on = machine_for(laid, chip)
    plans, few = {7: model.plan(laid, strategy)}, model.shallow_plans(laid, strategy)
    deep, totals = work_of(7, plans, on), totals_of(7, plans, on)
    shallow, followed = work_of(7, few, on), totals_of(7, few, on)
    assert deep.rows.keys() == shallow.rows.keys()
    for key, row in deep.rows.items():
        assert shallow.rows[key] == pytest.approx(row, rel=1e-9), key
    assert followed.useful_flops == pytest.approx(totals.useful_flops, rel=1e-12)
    assert followed.memory.peak_bytes == totals.memory.peak_bytes
    assert followed.memory.by_class == totals.memory.by_class


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cores", [2, 64])
def test_devices_that_share_cores_take_turns(cores):
    """Seconds, memory and cores equal the plan's own cost."""
    peaks, model, mesh = (("bfloat16", 6e10), ("float32", 8e10)), replace(SMALL, layers=2), {"X": 8}
    laptop = sa.Hardware(
        "laptop", peaks, hbm_bytes=2.4e10, hbm_bytes_per_s=7e10, link_bytes_per_s=8e9, cores=cores
    )
    found, planned = model.cost(mesh, laptop), model.plan(mesh).cost(laptop)
    assert found.step_time_s == pytest.approx(planned.step_time_s, rel=0.15)
    assert found.hardware == planned.hardware
    assert found.hardware.hbm_bytes == 3e9
    assert found.peak_memory_bytes == planned.peak_memory_bytes
    assert found.flops_utilization < 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chip", ["v3", "v5p", "h100"])
def test_nothing_hidden_is_no_faster_than_what_was_measured(chip):
    """Links of TPU v3 were measured to take longer than at their speed."""
    model = replace(SMALL, layers=2)
    full, measured, none = (
        model.cost({"X": 2, "Y": 4}, chip, overlap=overlap).step_time_s
        for overlap in ("full", "measured", "none")
    )
    assert full <= measured <= none


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("strategy", "mesh", "chip", "changed"), DEEP)
def test_the_price_of_the_model_is_that_of_its_plan(strategy, mesh, chip, changed):
    """One cost path: of the model, of its plan, and of the work that constants are fitted on."""
    model, laid = replace(SMALL, layers=3, **changed), sa.Mesh(mesh)
    on = machine_for(laid, chip)
    plan = model.plan(laid, strategy)
    cost = plan.cost(on)
    assert model.cost(laid, on, strategy=strategy).step_time_s == cost.step_time_s
    done = amounts(plan.program, plan.graph, on)
    assert step_time_s(done, on.chip.calibration) == pytest.approx(cost.step_time_s, rel=1e-12)


@pytest.mark.slow
def test_overlap():
    costs = [
        SMALL.cost({"fsdp": 64}, "a100_80gb", strategy="fsdp", overlap=overlap).step_time_s
        for overlap in ("full", "measured", "none")
    ]
    assert costs[0] < costs[1] == pytest.approx(costs[2])
    with pytest.raises(sa.HardwareError, match="overlap='some': write 'measured'"):
        SMALL.cost({"fsdp": 64}, "a100_80gb", strategy="fsdp", overlap="some")


def test_a_topology_and_a_chip_alone_are_one_machine():
    of_chip = SMALL.cost({"slice": 2, "fsdp": 16}, "v5e", strategy="fsdp")
    topology = sa.Topology("tpu_v5e", chips=16, slices=2)
    assert (
        of_chip.step_time_s
        == SMALL.cost({"slice": 2, "fsdp": 16}, topology, strategy="fsdp").step_time_s
    )
    assert "dcn" in of_chip.seconds_by_cause


@pytest.mark.slow
def test_what_the_host_keeps_is_not_on_the_device():
    kept, offloaded, full = (
        replace(SMALL, remat=remat).cost({"fsdp": 4}, "v5e", strategy="fsdp")
        for remat in ("minimal", "minimal_offloaded", "full")
    )
    assert offloaded.peak_memory_bytes == full.peak_memory_bytes < kept.peak_memory_bytes
    assert offloaded.flops == kept.flops < full.flops
    plan = replace(SMALL, layers=2, remat="minimal_offloaded").plan({"fsdp": 4}, "fsdp")
    assert "device_put" in set(plan.warnings()["op"])


def test_as_many_heads_of_keys_as_of_queries_are_the_model_without_them():
    some, all_heads = (replace(SMALL, layers=2, kv_heads=n) for n in (None, SMALL.heads))
    ours, theirs = (model.cost({"fsdp": 4}, "v5p", strategy="fsdp") for model in (some, all_heads))
    assert ours.totals == theirs.totals


ROW = {
    "chip": "h100", "layers": 1, "model_dim": 64, "hidden_dim": 128, "heads": 2, "vocab": 64,
    "seq": 16, "batch": 8, "gpus": 8, "step_time_s": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"step_time_s": None, "step_time": 1.0},
            r"row 0: .*'step_time' has no unit: write step_time_s",
        ),
        ({"step_time_s": float("nan")}, r"row 0: a measured row has one of step_time_s.*got \[\]"),
        ({"step_time_s": float("inf")}, r"row 0: .*step_time_s = inf: write a number above 0"),
        ({"mesh": "fsdp8"}, r"row 0: .*mesh = 'fsdp8': write sizes by axis"),
        ({"mesh": 8}, r"row 0: .*mesh = 8: write sizes by axis"),
        ({"mesh": {"fsdp": "8"}}, r"row 0: .*write sizes by axis"),
        ({"slices": "2"}, r"row 0: .*slices = '2': write a whole number"),
        ({"heads": "2"}, r"row 0: .*heads = '2': write a whole number"),
        ({"per_device_batch": "x"}, r"row 0: .*per_device_batch = 'x': write a number above 0"),
        ({"model": ["a"]}, r"row 0: model = \['a'\]: write a name"),
        ({"activation_checkpointing": "no"}, r"row 0: .* = 'no': write True or False"),
        ({"ffn_matrices": 4}, r"row 0: .*ffn_matrices = 4: write 2, or 3"),
        ({"ffn_matrices": "3"}, r"row 0: .*ffn_matrices = '3': write 2, or 3"),
        ({"chip": 5}, r"row 0: a measured row has chip = 5"),
        ({"gated": "no"}, r"row 0: gated is True or False"),
        ({"remat": ["full"]}, r"row 0: remat \['full'\]: write False or one of"),
        ({"heads": 3, "kv_heads": 2}, r"row 0: 3 heads do not go evenly to 2 heads"),
        ({"tokens_per_s": 5.0}, r"row 0: a measured row has one of step_time_s, tokens_per_s"),
        ({"layers": None}, r"row 0: a measured row lacks layers"),
        ({"chip": None}, r"row 0: a measured row has chip = None"),
        ({"seq": 0}, r"row 0: a measured row has seq = 0: write a number above 0"),
    ],
)
def test_refused_rows(changed, message):
    with pytest.raises(sa.TableError, match=message):
        calibrate([{**ROW, **changed}])


def test_refused_tables(tmp_path):
    with pytest.raises(sa.TableError, match="1 measured steps cannot tell 1 constants apart"):
        calibrate([ROW])
    with pytest.raises(sa.HardwareError, match=r"constants \['speed'\]: give some of matrix_eff"):
        calibrate([ROW, ROW], ["speed"])
    for twice in (["exposed", "exposed"], "exposed", [["exposed"]], []):
        with pytest.raises(sa.HardwareError, match="each once"):
            calibrate([ROW, ROW, ROW], twice)
    for given in ({"passes": "2"}, {"passes": None}, 3):
        with pytest.raises(sa.HardwareError, match="calibration 'calibrated'"):
            calibrate([ROW, ROW, ROW], ["exposed"], given=given)
    with pytest.raises(sa.TableError, match=r"row 0: model = 'a': .*'dims'"):
        calibrate({"rows": [{**ROW, "model": "a"}], "dims": 4})
    with pytest.raises(sa.TableError, match="a table of measurements is a list of rows"):
        calibrate(7)
    cut = tmp_path / "cut.json"
    cut.write_text('{"rows": [')
    long = tmp_path / "long.csv"
    long.write_text("chip,seq\nh100,1,2")
    with pytest.raises(sa.TableError, match="row 0 has more cells"):
        calibrate(long)
    with pytest.raises(sa.TableError, match=r"cut.json: no table of measurements"):
        calibrate(cut)


def test_columns_that_are_filled_in_part_say_the_same(tmp_path):
    """A pandas table fills them with NaN and makes whole numbers floats, and so is its CSV file."""
    import pandas as pd

    changes = ({}, {"kv_heads": 1}, {"remat": "full", "gated": True}, {"batch": 16})
    rows = [{**ROW, "head_dim": 32, **more} for more in changes]
    rows[3] = {**rows[3], "step_time_s": None, "tokens_per_s": 512}
    frame, path = pd.DataFrame(rows), tmp_path / "steps.csv"
    assert {str(frame[name].dtype) for name in ("kv_heads", "tokens_per_s")} == {"float64"}
    frame.to_csv(path, index=False)
    same = read(rows)
    assert same[3].step_time_s == 0.5
    for table in (frame, frame.convert_dtypes(), path, frame.to_dict("records")):
        assert read(table) == same


@pytest.mark.sampled(2)
@pytest.mark.parametrize("changed", [{"chip": "h900"}, {"mesh": {"W": 8}}, {"gpus": 12}])
def test_what_planning_refuses_names_the_row(changed):
    with pytest.raises(sa.ShardalgError, match=r"^row 1: "):
        calibrate([ROW, {**ROW, **changed}], ["exposed"])


@pytest.mark.slow
def test_each_row_has_its_own_error():
    """Rows of one chip, mesh and length are named by their differences, or numbered."""
    changes = ({}, {"batch": 16}, {"optimizer": "sgd"}, {"remat": "full"}, {"microbatches": 2})
    rows = [{**ROW, "head_dim": 32, **more, "step_time_s": 0.1} for more in (*changes, {})]
    found = calibrate(rows, ["traffic"])
    assert len(found.left_out) == len(found.errors) == len(rows)
    assert found.left_out.keys() == found.calibrations["h100"].provenance["rows"].keys()
    assert any("batch=16" in name for name in found.left_out)
    twice = [Measured("one", "h100", measured(from_row(rows[0])).amounts, 0.1)] * 2
    with pytest.raises(sa.TableError, match=r"measured steps of one name, 'one'"):
        fit(twice, {"h100": load("h100").calibration}, [Free(("traffic",), ("h100",))])


@pytest.mark.slow
def test_tables_of_all_kinds_give_the_same(tmp_path):
    """Rows, a pandas table and a CSV file; the constants that made the times come back."""
    import pandas as pd

    rows, ships = [], load("h100").calibration
    for batch, seq in ((8, 16), (16, 32), (64, 64)):
        row = {**ROW, "batch": batch, "seq": seq, "head_dim": 32, "optimizer": "adam"}
        done = measured(from_row(row)).amounts
        rows.append({**row, "step_time_s": step_time_s(done, ships)})
    held = {k: v for k, v in ships.values if k != "traffic"}
    path = tmp_path / "steps.csv"
    frame = pd.DataFrame(rows)
    frame.to_csv(path, index=False)
    for table in (rows, frame, path):
        found = calibrate(table, ["traffic"], given=held)
        assert found.calibrations["h100"]["traffic"] == pytest.approx(ships["traffic"], rel=1e-4)
        assert max(map(abs, found.left_out.values())) < 1e-3
