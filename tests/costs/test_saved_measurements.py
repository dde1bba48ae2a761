"""Measurements that were saved, fitted into hardware that every command takes by name."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.cli import main
from shardalg.costs.calibration.fit import rate_amounts, whole_step
from shardalg.costs.calibration.operator_rates import OperatorRates
from shardalg.costs.hardware import Hardware
from shardalg.costs.step_time import timed
from shardalg.errors import TableError
from shardalg.lower.isolated import Alone
from shardalg.lower.measure import Measurement, Memory, Timing
from shardalg.models.measured.saved_measurements import from_saved

RATES = {
    "operator_flops_per_s.matmul.float32.small": 1e9,
    "operator_flops_per_s.matmul.float32.medium": 4e9,
    "operator_flops_per_s.pointwise.float32": 5e8,
    "operator_s": 1e-5,
    "collective_s.all_reduce.X": 3e-5,
    "collective_s.all_reduce.Y": 5e-5,
    "collective_bytes_per_s.all_reduce.X": 2e8,
    "collective_bytes_per_s.all_reduce.Y": 9e8,
    "collective_s.all_gather.X": 2e-5,
    "collective_bytes_per_s.all_gather.X": 3e8,
}
KNOWN = Hardware(
    "known", hbm_bytes=1e9, hbm_bytes_per_s=7e8, operators=OperatorRates((*RATES.items(),))
)


def step(x, w, v):
    def loss(w, v):
        return ((jnp.tanh(x @ w) @ v) ** 2).mean()

    return jax.grad(loss, (0, 1))(w, v)


def plan(batch, width):
    shapes = (batch, width), (width, 2 * width), (2 * width, width)
    structs = [jax.ShapeDtypeStruct(s, "float32") for s in shapes]
    specs = P("X"), P("X", "Y"), P("Y", "X")
    return sa.plan(step, *structs, mesh=sa.Mesh({"X": 2, "Y": 2}), in_shardings=specs)


def measured(made):
    """Return times as if it had run on four devices with cores of their own, at known rates."""
    taken = rate_amounts(made.program, made.graph, finely=True)
    prices = timed(made.program, made.graph, KNOWN)
    kinds = ("contraction", "all_reduce", "all_gather")
    pairs = [(p, t) for p, t in zip(prices, taken, strict=True) if p.kind in kinds and t.amounts]
    alone = tuple(
        Alone(f"%{i}", p.kind, p.axes, (), 1, Timing((p.seconds,)), amounts=t.amounts)
        for i, (p, t) in enumerate(pairs)
    )
    whole = Timing((sum(p.seconds * p.step.count for p in prices),))
    none = Memory(0, 0, 0, 0)
    return Measurement(
        whole, whole, none, none, 0.0, "", "chip", repr(made.mesh), "0", devices=4,
        device_bytes=1e9, amounts=whole_step(taken), alone=alone,
    )  # fmt: skip


SIZES = ((8, 16), (64, 64), (256, 64), (128, 128))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    for number, size in enumerate(SIZES):
        measured(plan(*size)).save(folder / f"m{number}.json")
    return sorted(folder.iterdir())


def test_the_rates_that_were_put_in_come_out(files, tmp_path, monkeypatch, capsys):
    found = from_saved(files)
    figures = dict(found.hardware.operators.figures)
    assert {name: figures[name] for name in RATES} == pytest.approx(RATES, rel=1e-4)
    assert found.hardware.hbm_bytes_per_s == pytest.approx(7e8, rel=1e-4)
    assert found.hardware.hbm_bytes == 1e9
    assert max(map(abs, found.fit.left_out.values())) < 1e-4
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["calibrate", *map(str, files), "--name", "ours"]) == 0
    shown = capsys.readouterr().out
    assert "m0: step" in shown
    assert "left_out_error" in shown
    assert "use it as --hardware ours" in shown
    other = plan(32, 32)  # of sizes that were not measured
    assert other.cost("ours").step_time_s == pytest.approx(other.cost(KNOWN).step_time_s, rel=1e-4)


def test_what_was_not_measured_is_as_slow_as_the_slowest_that_was():
    rates = KNOWN.operators
    assert rates.collective("all_reduce", ("X",)) == (3e-5, 2e8)
    assert rates.collective("all_reduce", ("Z",)) == (5e-5, 2e8)
    assert rates.collective("all_to_all", ("X",)) is None
    assert rates.flops_per_s("matmul", "float32", "medium") == 4e9
    assert rates.flops_per_s("matmul", "bfloat16", "large") == 1e9


def test_formulas_have_the_size_class_of_the_hints():
    (batch,) = sa.dims("B", hint=64)
    formula = plan(batch, 64).cost(KNOWN).step_time_s
    (symbol,) = formula.free_symbols
    assert float(formula.subs({symbol: 64})) == pytest.approx(plan(64, 64).cost(KNOWN).step_time_s)


def test_one_size_tells_no_time_per_execution(files):
    """All of it is then in the rate, and the figure that cannot be told is named."""
    found = from_saved(files[1:2])
    assert "collective_s.all_gather.X" in found.untold
    assert "not told apart: " in repr(found)
    assert max(map(abs, found.fit.errors.values())) < 1e-6


def test_a_real_measurement_is_fitted(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s).astype("float32") for s in ((64, 32), (32, 64), (64, 32))]
    plan(64, 32).lower().measure(*args, repeats=5, isolate=True).save(tmp_path / "m.json")
    content = json.loads((tmp_path / "m.json").read_text())
    assert content["devices"] == 4
    assert content["cores"] >= 1
    names = {name for one in content["alone"] for name in one["amounts"]}
    assert {"collective_s.all_reduce.X", "operator_flops_per_s.matmul.float32.small"} <= names
    assert main(["calibrate", str(tmp_path / "m.json"), "--name", "own_fit"]) == 0
    assert "each foretold by the others" in capsys.readouterr().out
    own = sa.Hardware.load("own_fit")
    assert own.cores == content["cores"]
    assert 0 < plan(64, 32).cost("own_fit").step_time_s < 10


def changed(**fields):
    return lambda content: {**content, **fields}


def in_ours(**fields):
    return lambda content: {**content, "ours": {**content["ours"], **fields}}


def without(name):
    return lambda content: {k: v for k, v in content.items() if k != name}


WRONG = {
    "schema": (changed(schema="x/1"), "schema 'x/1', but 'shardalg.measurement/1' is read"),
    "no amounts": (without("amounts"), "amounts is missing: measure and save it again"),
    "nothing taken": (changed(amounts={}), "step takes nothing: measure it again"),
    "unknown figure": (changed(amounts={"speed": 1.0}), r"step takes \['speed'\]"),
    "no unit": (changed(ours={"time": [1.0]}), "step has no 'seconds' and 'busy_s', .* found time"),
    "NaN": (in_ours(seconds=[float("nan")]), "step: seconds = nan; all are finite numbers"),
    "one of many": (in_ours(seconds=[1.0, -1.0, 2.0]), "seconds = -1.0"),
    "no number": (changed(amounts={"operator_s": "3"}), "operator_s = '3'"),
    "no runs": (in_ours(seconds=[]), "step: no runs"),
    "few rows": (changed(alone=[]), "1 measured rows cannot tell 1 figures apart"),
    "a list": (lambda content: [content], "schema 'list'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_fitted_is_said(name, files, tmp_path, capsys, monkeypatch):
    change, words = WRONG[name]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(change(json.loads(files[1].read_text()))))
    with pytest.raises(TableError, match=words):
        from_saved([path])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    assert main(["calibrate", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "own").exists()


def test_cut_files_and_two_machines(files, tmp_path):
    cut = tmp_path / "cut.json"
    cut.write_text(files[0].read_text()[:-100])
    for path in (cut, tmp_path / "none.json"):
        with pytest.raises(TableError, match=r"no measurement .* cut short\?"):
            from_saved([path])
    replace(measured(plan(8, 16)), device="other").save(tmp_path / "other.json")
    with pytest.raises(TableError, match=r"more than one machine .*chip.*other"):
        from_saved([files[0], tmp_path / "other.json"])
    with pytest.raises(TableError, match="no measurements"):
        from_saved([])
