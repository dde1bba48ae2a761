"""Each benchmark's code runs on a tiny size and gives a well-formed table; nothing is timed."""

import json
import math

import jax
import pytest

from benchmarks import (
    __main__,
    algebra,
    collective_matmul,
    comparing,
    formatting,
    halos,
    hardware,
    holding,
    named_functions,
    oracle,
    oracle_time,
    planning,
    reshard_paths,
    result,
    scaling,
    searching,
    step_time,
    switches,
    symbols,
    systems,
)
from benchmarks.train_step import Step
from shardalg.costs.hardware import Hardware
from shardalg.models.transformer import Config
from shardalg.tables import Table

TINY = Config(B=4, S=4, M=16, H=32, N=4, D=4, V=16, L=2, dtype="float32")


@pytest.fixture
def said():
    return []


def finite(values):
    return all(isinstance(v, int | float) and math.isfinite(v) and v >= 0 for v in values)


def test_switches(said):
    done = switches.run(said.append, [("recurrent", switches.recurrent())])
    ratios = {row["options"]: row["bytes_ratio"] for row in done.table}
    assert ratios["hoist_gathers=True"] < 1
    assert "join_formatting=False" not in ratios
    assert said == ["recurrent"]


def test_searching():
    row = searching.searched("MLP")
    assert (row["refused"], row["peak_mib"] > 0) == ("", True)
    assert abs(row["gap"]) < 0.01


@pytest.mark.slow
def test_systems(said):
    done = systems.run(said.append, {"circular": systems.by_shift(2, is_gradient=True)})
    (row,) = done.table
    assert row["once_ratio"] < row["bytes_ratio"] <= 1
    assert row["claims"] > 100
    assert finite((row["plan_s"], row["prove_s"], row["gspmd_wire_bytes"]))


def test_comparing(said):
    done = comparing.run(said.append, comparing.TINY)
    first, second = done.table
    assert (first["call"], second["call"]) == ("sa.compare", "rules.lint")
    assert first["subject"] == "6 recipes, 1 layers, 64 devices"
    assert second["subject"] == "11 arrays, 5 rules, 0 findings"
    assert first["parameters"] == second["parameters"] > 0
    assert finite((first["traced_s"], first["processor_s"], second["processor_s"]))


def test_collective_matmul(said):
    names = [("feed-forward", "forward")]
    (row,) = collective_matmul.run(said.append, names, small=(2, 256, 64, 256)).table
    assert row["rings"] == 2
    assert row["wire_bytes"] == row["wire_bytes_gathered"]
    assert row["temp_bytes"] < row["temp_bytes_gathered"]
    assert row["relative_error"] < 1e-6
    assert row["proved"] > 50


def test_formatting(said):
    size = {"size": lambda type_: type_, "repeats": 1}
    done = formatting.run(said.append, ["normalisation, gradient"], **size)
    (row,) = done.table
    assert row["instructions"] < row["instructions_without"] <= row["xla_instructions"]
    assert row["memory_bytes"] < row["memory_bytes_without"]
    assert 0 < row["step_share"] < row["step_share_without"] < 1
    assert finite(v for v in row.values() if not isinstance(v, str))


@pytest.mark.slow
def test_halos(said):
    meshes = (2, 1, 2, 1, 1), (2, 4, 4, 4, 4)
    done = halos.run(said.append, meshes)
    assert len(done.table) == len(halos.PROGRAMS) * len(meshes)
    assert finite(v for row in done.table for v in row.values() if not isinstance(v, str))


@pytest.mark.slow
def test_hardware(said, monkeypatch):
    monkeypatch.setattr(hardware, "LAYER", TINY)
    chip = Hardware("toy", (("float32", 1e9),), 1e9, 1e9, 1e9)
    devices = jax.devices()[:2]
    done = hardware.run(said.append, ["Transformer layer"], devices=devices, chip=chip)
    assert [row["mesh"] for row in done.table] == ["Mesh(X=1, Y=2)", "Mesh(X=2, Y=1)"]
    for row in done.table:
        assert row["error"] == pytest.approx(row["predicted_ms"] / row["work_ms"] - 1)
        assert row["planned_bytes"] > 0 < row["compiled_bytes"]
    assert (done.name, done.summary["plans"]) == ("cpu", 2)
    assert [len(list(m.meshes(8))) for m in hardware.MODELS.values()] == [3] * 5


@pytest.mark.slow
def test_planning(said):
    sizes = tuple(zip("BSMHNDV", (4, 4, 16, 32, 4, 4, 16), strict=True))
    done = planning.run(said.append, (Step(1, True, sizes),), limit_s=120)
    (row,) = done.table
    assert row["form"] == "scanned"
    assert row["xla_ended"] == "yes"
    assert row["ratio"] == pytest.approx(row["xla_compile_s"] / row["replan_s"])
    assert finite(v for k, v in row.items() if k.endswith(("_s", "ratio")))
    assert row["instructions"] > row["layers"]
    assert row["reasons"] > row["nodes"]
    assert 1e7 < row["peak_rss_bytes"] < 1e9
    assert said


def test_planning_counts_a_compile_that_does_not_end_as_at_least_the_limit():
    seconds = {"wall": 0.5, "cpu": 0.25}
    facts = dict.fromkeys(("jax_trace", "trace", "graph", "first_plan", "replan"), seconds)
    row = planning.row(Step(64), facts | dict.fromkeys(planning.COUNTS, 1), 30)
    assert (row["ratio"], row["cpu_ratio"]) == (60, 120)
    assert row["xla_ended"].startswith("no")
    assert row["xla_stage_s"] is None


@pytest.mark.slow
def test_program_length_does_not_depend_on_the_number_of_devices(said):
    """The length changes by a step or two if another path is cheaper; times are not compared."""
    done = scaling.run(said.append, ((2, 2), (2, 4), (4, 4)), config=TINY)
    assert done.table["devices"] == (4, 8, 16)
    assert done.table["length_ratio"] == pytest.approx((1, 1, 1), rel=0.01)
    assert done.table["collectives"][0] > 0
    assert finite(done.table["plan_s"])
    assert finite(done.table["new_mesh_s"])


def test_step_time(said):
    done = step_time.run(said.append, ("ffn",), config=TINY, repeats=2)
    assert done.table["strategy"] == ("attempt 1", "attempt 2", "finalized")
    assert max(done.table["error"]) < 1e-5
    for name in ("time_ratio", "wire_bytes", "xla_wire_bytes", "temp_bytes"):
        assert finite(done.table[name]), name
    assert len(said) == 3


def test_oracle_time(said):
    done = oracle_time.run(said.append, {"maxpool_stride2_grad": {}}, repeats=2)
    (row,) = done.table
    assert row["error"] < 1e-5
    assert row["wire_bytes"] < row["xla_wire_bytes"]
    assert finite((row["time_ratio"], done.summary["geometric mean of time_ratio"]))


@pytest.mark.slow
def test_oracle(said):
    done = oracle.run(said.append)
    assert done.summary["largest flops_ratio"] <= 1.0
    assert len(done.table) == len(oracle.corpus.names())


def test_a_result_is_kept_as_json_and_markdown(tmp_path):
    table = Table(("case", "ratio"), (("a", 1 / 3), ("b", None)))
    kept = result.Result("thing", "What it is.", table, {"mean": 2 / 3}).save(tmp_path)
    content = json.loads(kept[0].read_text())
    assert content["rows"] == [{"case": "a", "ratio": 0.3333}, {"case": "b", "ratio": None}]
    assert content["summary"] == {"mean": 0.6667}
    assert content["machine"]["cores"] >= 1
    assert "| a | 0.3333 |" in kept[1].read_text()
    assert "- mean: 0.6667" in kept[1].read_text()


def test_an_unknown_benchmark_is_an_error(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["speed"])
    assert "no benchmark speed; there are planning, scaling" in capsys.readouterr().err


def test_every_benchmark_has_a_run():
    for module in __main__.BENCHMARKS.values():
        assert callable(__import__(module, fromlist=["run"]).run)


@pytest.mark.slow
def test_symbols_times_every_stage_and_every_sweep(said):
    config = Config(B=8, S=4, M=16, H=32, N=8, D=4, V=16, L=2, dtype="float32", scan=True)
    done = symbols.run(said.append, ((2, 4), (4, 2)), config=config, points=1000)
    stages = {row["stage"]: row for row in done.table}
    assert set(symbols.COUNTED) < set(stages)
    assert finite(row["ms"] for row in stages.values() if row["ms"] is not None)
    counted = sum(stages[name]["ms"] for name in symbols.COUNTED)
    assert done.summary["symbolic plan and all formulas after tracing, ms"] == counted
    sweeps = [row for name, row in stages.items() if name.startswith("sweep of")]
    assert len(sweeps) == 2 * len(symbols.SWEPT)
    assert all(row["points_per_s"] > 0 for row in sweeps)


def test_algebra(said):
    done = algebra.run(said.append, count=5, devices=4096)
    assert {"digit merge", "table merge, 4096 devices", "halo"} <= set(done.table["what"])
    assert finite(done.table["us"])
    for row in (row for row in done.table if row["sympy_us"] is not None):
        assert row["sympy_ratio"] == pytest.approx(row["sympy_us"] / row["us"])
    assert said


def test_reshard_paths(said):
    done = reshard_paths.run(said.append, ({"x": 4, "y": 2}, {"x": 2, "y": 4}), count=20)
    assert list(done.table["pairs"]) == [20, 110, 342, 20, 20, 20, *[20] * 6]
    assert finite(done.table["mean_ms"])
    assert set(done.table["more"]) == {0, None}, "of those that are compared none sends more"
    assert all(ratio >= 1 for ratio in done.table["of_bound"])
    assert len(said) == 12


@pytest.mark.slow
def test_holding(said):
    """No price by formula is wrong where a plan holds; the measured list is fixed."""
    assert len(named_functions.FUNCTIONS) == 30
    assert sum(named.is_training for named in named_functions.FUNCTIONS) == 15
    names = "embedding_step", "log_softmax_of_product", "sampling"
    chosen = [named for named in named_functions.FUNCTIONS if named.name in names]
    done = holding.run(said.append, chosen, count=3)
    assert said == [f"{name}, seed 0" for name in names]
    assert done.summary["holds, but a price differs"] == 0
    assert all(row["holds"] >= row["quick"] for row in done.table)
    for row in done.table:
        if row["regime"] != holding.ANY:
            assert row["right"] == row["holds"] == 1
