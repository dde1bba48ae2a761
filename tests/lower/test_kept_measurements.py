"""Stored measurements: a file of a measurement, and a user's own hardware."""

import json
from importlib.metadata import version

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.cli import main


def lowered(n):
    x = jax.ShapeDtypeStruct((n,), "float32")
    mesh = sa.Mesh({"X": 2})
    return sa.plan(lambda x: x.sum(), x, mesh=mesh, in_shardings=(P("X"),)).lower()


def test_a_measurement_in_a_file(tmp_path):
    made = lowered(8).measure(np.ones(8, "float32"), repeats=3)
    made.save(tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())
    assert found["ours"]["seconds"] == list(made.ours.seconds)
    assert found["ours"]["warm_up_s"] == made.ours.warm_up_s > 0
    assert found["versions"]["jax"] == version("jax")
    assert (found["mesh"], found["device"]) == ("Mesh(X=2)", "cpu")
    assert len(found["digest"]) == 64
    again, other = (lowered(n).measure(np.ones(n, "float32"), repeats=1) for n in (8, 16))
    assert again.digest == made.digest != other.digest


def test_this_machine_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(sa.HardwareError, match="no hardware 'mine'"):
        sa.Hardware.load("mine")
    assert main(["calibrate", "--name", "mine", "--devices", "2", "--quick"]) == 0
    assert "use it as --hardware mine" in capsys.readouterr().out
    own = sa.Hardware.load("mine")
    figures = json.loads((tmp_path / "shardalg" / "hardware" / "mine.json").read_text())["figures"]
    assert own.peak("float32") == figures["peak_flops_per_s.float32"][0]["value"]
    plan = sa.plan(
        lambda x: x @ x, np.ones((8, 8), "float32"), mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),)
    )
    assert plan.cost("mine").hardware == own.shared(2)
    with pytest.raises(sa.HardwareError, match="mine"):  # among the names that there are
        sa.Hardware.load("other")


@pytest.mark.parametrize("name", ["tpu_v3", "H100", "../x", ""])
def test_names_that_hardware_cannot_have(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["calibrate", "--name", name, "--devices", "1"]) == 2
    assert "cannot name hardware of your own" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))
