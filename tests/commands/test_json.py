"""Commands with --json: one JSON document, one type per key, units in the keys of numbers."""

import json

import pytest

from shardalg.cli import main

SOURCE = """import jax
from jax.sharding import PartitionSpec as P

def f(w, x):
    return jax.nn.relu(x @ w) @ w.T

def args():
    return jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((64, 8), "float32")

in_shardings = (P("m"), P("d"))
"""
MESH = ["--mesh", "d=2,m=2"]
COMMANDS = {
    "plan": ["plan", "here.py:f", *MESH, "--json", "--verify"],
    "explain": ["explain", "here.py:f", "0", *MESH, "--json"],
    "explain a value": ["explain", "here.py:f", "x", *MESH, "--json"],
    "timeline": ["timeline", "here.py:f", *MESH, "--json"],
    "compare-xla": ["compare-xla", "here.py:f", *MESH, "--json"],
    "prove": ["prove", "[X, None]", "[None, Y]", "--shape", "8,8", "--mesh", "X=2,Y=2", "--json"],
    "lemmas": ["lemmas", "--json"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_output_is_one_document(name, tmp_path, monkeypatch, capsys):
    (tmp_path / "here.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    assert main(COMMANDS[name]) == 0
    data = json.loads(capsys.readouterr().out)
    for rows in (value for value in data.values() if isinstance(value, list) and value):
        if isinstance(rows[0], dict):
            for key in rows[0]:
                kinds = {type(row[key]) for row in rows} - {type(None)}
                assert len({float if kind is int else kind for kind in kinds}) <= 1, key
    if name == "plan":
        assert data["fits"] is True
        assert data["capacity_bytes"] > data["cost"]["peak_memory_bytes"] > 0
        assert (data["devices"], data["machine"]) == (
            4, "4 x tpu_v3 (the default chip; devices of the mesh)"
        )  # fmt: skip
