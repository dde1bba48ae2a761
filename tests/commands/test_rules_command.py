"""`shardalg rules`: the findings of `rules.lint` with an exit status for CI; rules of recipes."""

import json

import pytest
import yaml

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


STEP = """
import jax
import shardalg as sa
from jax.sharding import PartitionSpec as P

def loss(params, x):
    return (jax.nn.relu(x @ params["up"]) @ params["down"]).sum()

step = jax.grad(loss)
roles = ("parameters", "data")
strategy = sa.Strategy(sa.Mesh({"data": 4, "model": 2}), (P(None, "model"), P("data")))

def args():
    shapes = {"up": (64, 256), "down": (256, 64)}
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    return params, jax.ShapeDtypeStruct((128, 64), "float32")

def names():
    return {"up": ("embed", "mlp"), "down": ("mlp", "embed")}, ("batch", None)
"""
WRITE = ["--mesh", "data=4,model=2"]


@pytest.fixture
def step(tmp_path):
    path = tmp_path / "step.py"
    path.write_text(STEP)
    return str(path)


def test_the_rules_of_a_recipe_are_written(step, capsys):
    given = ["rules", "write", f"{step}:names", *WRITE, "--function", f"{step}:step"]
    given += ["--recipe", "fsdp:data+tensor:model"]
    want = {"embed": ["data"], "mlp": ["model"], "batch": ["data"]}
    assert main([*given, "--style", "maxtext"]) == 0
    assert dict(yaml.safe_load(capsys.readouterr().out)["logical_axis_rules"]) == want
    assert main([*given, "--json"]) == 0
    rules = json.loads(capsys.readouterr().out)["rules"]
    assert {rule["name"]: rule["axes"] for rule in rules} == want
    for style, name in (("linen", "logical_axis_rules"), ("haliax", "axis_mapping")):
        assert main([*given, "--style", style]) == 0
        made: dict = {}
        exec(capsys.readouterr().out, made)
        assert {n: [axis] for n, axis in dict(made[name]).items()} == want


def test_writing_rules_says_what_is_missing(step, capsys):
    """Without a recipe the strategy of the module is written: here two layouts for one name."""
    given = ["rules", "write", f"{step}:names", *WRITE]
    assert main(given) == 2
    assert "write needs --function" in capsys.readouterr().err
    assert main([*given, "--function", f"{step}:step"]) == 2
    assert "because the same rule for 'embed' applies to both" in capsys.readouterr().err
    assert main([*given, "--function", f"{step}:step", "--leave-out", "--style", "haliax"]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("warning: the rules leave these layouts out:\n  0/")
    assert told.out.startswith("axis_mapping = {")
    assert main([*given, "--function", f"{step}:step", "--recipe", "fsd:data"]) == 2
    assert "Did you mean fsdp?" in capsys.readouterr().err
