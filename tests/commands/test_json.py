"""Commands with --json: one JSON document, one type per key, units in the keys of numbers."""

import json
import re

import numpy as np
import pytest

from shardalg.cli import COMMANDS, main
from shardalg.lab.explore.explore import Exploration
from shardalg.plan.plan import Plan
from shardalg.plan.search.bound_certificate import Certificate
from shardalg.plan.search.minimising.factor_graph import FactorGraph
from shardalg.plan.search.minimising.minimum import minimum
from shardalg.xla.aot import Compiled
from shardalg.xla.aot_answer import BesideCompiler, Figures

SOURCE = """import jax
from jax.sharding import PartitionSpec as P

def f(w, x):
    return jax.nn.relu(x @ w) @ w.T

def args():
    return jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((64, 8), "float32")

def arrays():
    return jax.numpy.ones((8, 16)), jax.numpy.ones((64, 8))

in_shardings = (P("m"), P("d"))
roles = ("parameters", "data")
rules = [("mlp", "m"), ("embed", "d")]

def named():
    return {"w": ((8, 16), "float32", ("embed", "mlp"))}
"""
MESH = ["--mesh", "d=2,m=2"]
SMALL = ["--sizes", "layers=2", "--strategy", "finalized", "--batch", "16"]
CASES = {
    "plan": ["here.py:f", *MESH, "--verify"],
    "explain": ["here.py:f", "0", *MESH],
    "explain a value": ["here.py:f", "x", *MESH],
    "timeline": ["here.py:f", *MESH],
    "compare": ["here.py:f", *MESH, "--hardware", "v5p", "--recipe", "tensor:m"],
    "search": ["here.py:f", "--hardware", "h100:4", "--memory", "80 GB", "--axes", "1"],
    "compare-xla": ["here.py:f", *MESH],
    "aot": ["here.py:f", *MESH, "--hardware", "v3:2x1"],
    "run": ["here.py:f", *MESH, "--steps", "2", "--out", "out.npz"],
    "run on a chip's plan": ["here.py:f", *MESH, "--hardware", "h100"],
    "calibrate": ["--quick", "--devices", "2"],
    "explore": ["--model", "tiny", "--quick", "--strategy", "finalized", "--devices", "0"],
    "strategies": ["--devices", "8", "--hardware", "v3", *SMALL],
    "paper": ["--column", "narrow-bench.c4"],
    "prove": ["[X, None]", "[None, Y]", "--shape", "8,8", "--mesh", "X=2,Y=2"],
    "lemmas": [],
    "rules": ["lint", "here.py:named", *MESH],
    "certificate": ["check", "search.json"],
    "check": ["here.contract.toml"],
    "audit": ["here.py:f", *MESH],
}
CONTRACT = """version = 1
function = "here.py:f"
mesh = "d=2,m=2"

[[statement]]
at_most = "sent_bytes"
bound = 1e9

[[statement]]
no = "all_to_all"
"""
OF_A_PLAN = ("plan", "explain", "timeline", "compare-xla", "aot", "run", "explore", "strategies")
COUNTS = re.compile(
    "devices|processes|stages?|executions|collectives|group_size|changed_dims|step|trip|left|"
    "batch|samples|microbatches|rounds|table|num_values|d|m|X|Y|cores|depth|level|claims|proved|trusted|"
    "merges|merges_proved|statements|num_statements|.*_count"
)
UNITS = re.compile(
    r"(.*_)?(bytes|s|ms|gb|GB|flops|pct|points|share|error|seconds|seconds_per_sample|mfu)(_per_step)?|"
    r"peak_flops_per_s\..*|.*_per_s"
)


def answered(self, topology):
    """Return the answer of a compiler, which is not installed here."""
    planned = Figures(10, 5, 2.0, 1.5, {("all_gather", "m"): (1, 4)})
    return BesideCompiler("here", planned, Compiled(1.0, None, 12, flops=3.0), Compiled(1.0))


def numbers(data, name=""):
    """Yield each number with its key."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from numbers(value, key)
    elif isinstance(data, list):
        for value in data:
            yield from numbers(value, name)
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield name, data


def tables(data):
    """Yield each list of rows."""
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    if isinstance(data, list) and data and isinstance(data[0], dict):
        yield data
    for value in values:
        yield from tables(value)


def test_every_command_is_here():
    assert {name.split(" ")[0] for name in CASES} == set(COMMANDS)


LONG = ("strategies", "explore")  # they plan a whole model, strategy by strategy


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in CASES]
)
def test_the_output_is_one_document(name, tmp_path, monkeypatch, capsys):
    (tmp_path / "here.py").write_text(SOURCE)
    (tmp_path / "here.contract.toml").write_text(CONTRACT)
    costs = FactorGraph([np.array([2.0, 1.0])])
    Certificate("two labels", costs, minimum(costs)).save(tmp_path / "search.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(Plan, "aot", answered)
    monkeypatch.setattr(Exploration, "derived", lambda self: ())
    command = name.split(" ")[0]
    assert main([command, *CASES[name], "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    for rows in tables(data):
        for key in {key for row in rows for key in row}:
            kinds = {type(row[key]) for row in rows if key in row} - {type(None)}
            assert len({float if kind is int else kind for kind in kinds}) <= 1, key
    bare = {key for key, _ in numbers(data) if not UNITS.fullmatch(key)}
    assert {key for key in bare if not COUNTS.fullmatch(key)} == set()
    if command in OF_A_PLAN:
        check_machine(data["strategies"][0] if command == "explore" else data)
    if name == "plan":
        assert data["capacity_bytes"] > data["cost"]["peak_memory_bytes"] > 0
        assert (data["devices"], data["machine"]) == (
            4,
            "4 x tpu_v3 (the default chip; devices of the mesh), each mesh axis on links of its "
            "own",
        )


def check_machine(data):
    """Assert that the chip, the devices and the capacity have one type in every command."""
    assert data["fits"] is True
    assert type(data["capacity_bytes"]) is int
    assert data["capacity_bytes"] > 0
    assert data["machine"].startswith(f"{data['devices']} x ")
    assert re.search(r"\((the default chip|as asked for|devices of this job)", data["machine"])


@pytest.mark.slow
def test_local_processes_print_one_document(tmp_path, monkeypatch, capfd):
    (tmp_path / "here.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "here.py:f", *MESH, "--processes", "2", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert (data["processes"], len(data["steps"])) == (2, 1)
