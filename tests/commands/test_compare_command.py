"""`shardalg compare`: the ranking of `sa.compare`, in the words of the command line."""

import json

import pytest

import shardalg as sa
from shardalg.cli import main
from shardalg.plan.commands.comparing import recipe

STEP = """
import jax, jax.numpy as jnp
roles = ("parameters", "data")

def args():
    shapes = (512, 2048), (2048, 512), (4096, 512)
    up, down, x = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes)
    return {"up": up, "down": down}, x

def step(w, x):
    return jax.grad(lambda w: jnp.mean((jax.nn.gelu(x @ w["up"]) @ w["down"]) ** 2))(w)
"""


@pytest.fixture
def step(tmp_path):
    path = tmp_path / "step.py"
    path.write_text(STEP)
    return f"{path}:step"


def test_it_ranks_recipes_and_writes_a_page(step, capsys, tmp_path):
    page = tmp_path / "page.html"
    recipes = ["--recipe", "data:data", "--recipe", "fsdp:data+tensor:model"]
    given = [step, "--hardware", "h100:8", "--mesh", "data=4,model=2", *recipes]
    assert main(["compare", *given, "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Fastest that fits: ")
    assert "fsdp:data+tensor:model  data=4, model=2" in shown
    assert "<h1>" in page.read_text()
    assert main(["compare", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    steps = [row["step_s"] for row in found["strategies"]]
    assert steps == sorted(steps)
    assert {row["mesh_axes"] for row in found["axes"]} >= {"data", "model"}


def test_without_recipes_and_meshes_it_tries_three_on_all_meshes(step, capsys):
    assert main(["compare", step, "--hardware", "h100:8"]) == 0
    shown = capsys.readouterr().out
    for text in ("data:data", "fsdp:data ", "data=4, model=2", "data=2, model=4"):
        assert text in shown


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("fsdp:data", "sa.recipes.fsdp('data')"),
        ("zero2:a,b", "sa.recipes.zero(2, 'a', 'b')"),
        ("fsdp:data|tensor:model", "sa.recipes.fsdp('data') | sa.recipes.tensor('model')"),
    ],
)
def test_a_recipe_is_read(text, wanted):
    assert repr(recipe(text)) == wanted


@pytest.mark.parametrize("text", ["fspd:data", "fsdp", "fsdp:", "", ":data", "fsdp:data+"])
def test_a_text_that_is_no_recipe(text, step, capsys):
    with pytest.raises(sa.ShardalgError, match="is no kind with mesh axes"):
        recipe(text)
    assert main(["compare", step, "--hardware", "h100:8", "--recipe", text]) == 2
    assert "is no kind with mesh axes" in capsys.readouterr().err


def test_the_number_of_devices_must_be_known(step, capsys):
    assert main(["compare", step, "--hardware", "h100"]) == 2
    assert "give --hardware h100:64, or --mesh" in capsys.readouterr().err


def test_no_plan_is_an_exit_status(step):
    assert main(["compare", step, "--hardware", "h100:8", "--mesh", "data=7"]) == 1
