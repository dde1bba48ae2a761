"""`shardalg rules lint`: the findings of `rules.lint`, and an exit status for CI."""

import json

import pytest

from shardalg.cli import main

MODEL = """
import jax.numpy as jnp
import shardalg as sa
rules = [("batch", ("data", "expert")), ("tokens", "data")]

def arrays():
    return {
        "w": ((64, 64), (None, None)),
        "x": ((4096, 64), ("batch", None)),
        "tokens": ((4096, 64), ("tokens", None)),
    }

def layer(w, x):
    return jnp.tanh(sa.annotate(x, "tokens") @ w)

def two():
    return {}, {}
"""
YAML = "logical_axis_rules: [['batch', ['data', 'expert']], ['tokens', ['data', 'expert']]]\n"
MESH = ["--mesh", "data=2,expert=4"]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


def test_findings_and_their_repairs(model, capsys):
    given = ["rules", "lint", f"{model}:arrays", *MESH, "--function", f"{model}:layer"]
    assert main([*given, "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["findings"]
    assert (one["kind"], one["axis"], one["bytes"]) == ("replicated_by_omission", "expert", 393216)
    assert one["repair"] == "('tokens', ('data', 'expert')) instead of ('tokens', 'data')"


def test_rules_from_a_file_without_findings(model, tmp_path, capsys):
    path = tmp_path / "base.yml"
    path.write_text(YAML)
    given = ["rules", "lint", f"{model}:arrays", *MESH, "--rules", str(path)]
    assert main([*given, "--function", f"{model}:layer"]) == 0
    assert capsys.readouterr().out.startswith("no findings in 2 rules for 3 arrays")


@pytest.mark.parametrize(
    ("place", "more", "words"),
    [
        ("arrayz", MESH, "has no function 'arrayz'; did you mean arrays"),
        ("two", MESH, "returns 2 values. Return one dict of arrays"),
        ("arrays", [*MESH, "--rules", "no.yml"], "no.yml: no file of logical-axis rules"),
        ("arrays", [*MESH, "--function", "nothing"], "'nothing' is not a function"),
        ("arrays", ["--mesh", "data"], "--mesh"),
    ],
)
def test_wrong_use_is_named(model, place, more, words, capsys):
    assert main(["rules", "lint", f"{model}:{place}", *more]) == 2
    assert words in capsys.readouterr().err


def test_a_module_without_rules(tmp_path, capsys):
    path = tmp_path / "bare.py"
    path.write_text("def arrays():\n    return {}\n")
    assert main(["rules", "lint", f"{path}:arrays", *MESH]) == 2
    assert "defines no `rules`. Define them there, or give --rules" in capsys.readouterr().err
