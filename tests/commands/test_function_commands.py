"""`shardalg plan`, `explain` and `compare-xla` of functions in files of the user's own."""

import json

import pytest

import shardalg as sa
from shardalg.cli import main
from shardalg.xla import aot

MODULE = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def layer(w, x):
    return jnp.maximum(x @ w["in"], 0) @ w["out"]


def args():
    s = jax.ShapeDtypeStruct
    w = {"in": s((128, 512), "float32"), "out": s((512, 128), "float32")}
    return w, s((8, 32, 128), "float32")


in_shardings = ({"in": P("X", "Y"), "out": P("Y", "X")}, P("X", None, "Y"))
"""
SPECS = MODULE.replace("(8, 32, 128)", "(16, 32, 128)").replace("def layer", "def unused")
MESH = ["--mesh", "X=2,Y=4"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "specs.py").write_text(SPECS)
    (tmp_path / "broken.py").write_text(
        "def args():\n    return 1 / 0\n\n\ndef f(x):\n    return x\n"
    )
    (tmp_path / "whole.py").write_text(MODULE.replace("float32", "int32"))
    chip = sa.Hardware("integers", (("int8", 1e12),))
    (tmp_path / "integers.json").write_text(json.dumps(chip.to_json()))
    (tmp_path / "cut.json").write_text('{"schema": "shardalg.hardware/1", "name')
    (tmp_path / "bare.py").write_text("def f(x):\n    return x\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys, *arguments):
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_what_is_printed_is_the_plans(here, capsys):
    import jax  # noqa: F401 - loaded before the file is run, as in a session

    found = json.loads(printed(capsys, "plan", "mine.py:layer", *MESH, "--json"))
    shown = printed(capsys, "plan", "mine.py:layer", *MESH, "--verify", "--hardware", "h100")
    module = {}
    exec(MODULE, module)  # the same text, in Python
    specs = module["in_shardings"]
    mesh = sa.Mesh({"X": 2, "Y": 4})
    plan = sa.plan(module["layer"], *module["args"](), mesh=mesh, in_shardings=specs)
    rows = plan.collectives()
    assert [row["wire_bytes"] for row in found["collectives"]] == rows["wire_bytes"].tolist()
    assert found["cost"]["peak_memory_bytes"] == plan.cost("tpu_v3").peak_memory_bytes
    assert found["mesh"] == {"X": 2, "Y": 4}
    assert str(plan.overview("h100")).splitlines()[0] in shown
    assert "Report(ok" in shown


def test_arguments_from_a_file_of_their_own(here, capsys):
    own = json.loads(printed(capsys, "plan", "mine.py:layer", *MESH, "--json"))
    other = ("plan", "mine.py:layer", *MESH, "--args", "specs.py", "--json")
    larger = json.loads(printed(capsys, *other))
    assert larger["cost"]["flops"] == pytest.approx(2 * own["cost"]["flops"], rel=0.01)


def test_files_that_are_written(here, capsys):
    printed(capsys, "plan", "mine.py:layer", *MESH, "--html", "o.html", "--save", "p.json")
    assert (here / "o.html").read_text().startswith("<!doctype html>")
    assert sa.load_plan(here / "p.json").mesh == sa.Mesh({"X": 2, "Y": 4})


def test_why_a_collective_is_there(here, capsys):
    shown = printed(capsys, "explain", "mine.py:layer", "0", *MESH)
    assert shown.startswith("all_gather of x along Y")
    assert "argument x" in printed(capsys, "explain", "mine.py:layer", "x", *MESH) or shown


WRONG = {
    "no colon": (["mine.py"], "'mine.py' is not a function: write module:function"),
    "no such file": (["other.py:layer"], "other.py: no such file"),
    "no such module": (["no.such:layer"], "module no.such: there is no module no"),
    "no module name": (["a-b:layer"], "'a-b' is not a module"),
    "a word off": (["mine.py:later"], "no function 'later'; did you mean layer"),
    "not a function": (["mine.py:in_shardings"], "no function 'in_shardings'"),
    "no arguments": (["bare.py:f"], "bare.py defines no args()"),
    "no specs": (["mine.py:layer", "--args", "no.py"], "no.py: no such file"),
    "mesh": (["mine.py:layer", "--mesh", "X"], "mesh: 'X' in 'X'; write NAME=SIZE"),
    "no mesh": (["mine.py:layer"], "needs a mesh"),
    "chip": (["mine.py:layer", "--mesh", "X=2,Y=4", "--hardware", "h1000"], "h1000"),
    "item type": (
        ["mine.py:layer", *MESH, "--hardware", "integers.json"],
        "no peak for products of float32 (dot_general at mine",
    ),
    "axis": (["mine.py:layer", "--mesh", "Z=8"], "X"),
    "no tiling": (["mine.py:layer", *MESH, "--hardware", "v3:4x4"], "does not tile Topology"),
    "no topology": (["mine.py:layer", *MESH, "--hardware", "v3:2by2"], "as in 'v3:8x8'"),
    "no chip in a row": (["mine.py:layer", *MESH, "--hardware", "v3:0x2"], "numbers of at least 1"),
    "a chip cut short": (
        ["mine.py:layer", *MESH, "--hardware", "cut.json"],
        "Is the file cut short? Write it again",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_one_line(here, capsys, name):
    arguments, words = WRONG[name]
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") <= (1 if name != "axis" else 4)  # an axis: a line per kind of cause


@pytest.mark.parametrize(
    "arguments",
    [("timeline",), ("explain", "0"), ("compare-xla",), ("run",)],
    ids=lambda arguments: arguments[0],
)
def test_a_chip_that_is_asked_for_has_a_peak_for_every_product(here, capsys, arguments):
    command, *rest = arguments
    assert main([command, "mine.py:layer", *rest, *MESH, "--hardware", "integers.json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "no peak for products of float32 (dot_general at mine" in shown.err
    assert "cast the operands to one of int8" in shown.err


def test_products_of_integers_do_not_refuse_a_plan(here, capsys):
    shown = printed(capsys, "plan", "whole.py:layer", *MESH, "--hardware", "tpu_v3")
    assert "Not calibrated: products of int32 (dot_general at whole.py:" in shown


AOT = {
    "nowhere": ([], "Pass a chip and its shape: --hardware v3:8x8"),
    "a chip alone": (["--hardware", "v3"], "'v3' is no topology: write the chip and its shape"),
    "no such chip": (["--hardware", "v9:2x2"], "no hardware 'v9': the names are a100_40gb"),
    "no tiling": (["--hardware", "v3:4x4"], "give axes whose sizes are products of these"),
    "no compiler": (["--hardware", "v3:2x2"], "pip install 'shardalg[tpu]'"),
}


@pytest.mark.parametrize("name", AOT)
def test_what_nothing_compiles_for_is_one_line(here, capsys, monkeypatch, name):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(aot, "find_spec", lambda name: None)
    arguments, words = AOT[name]
    assert main(["aot", "mine.py:layer", *MESH, *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert shown.err.count("\n") == 1


def test_a_page_that_cannot_be_written_loses_no_work(here, capsys):
    """A plan without collectives is printed before its page fails."""
    (here / "alone.py").write_text(
        "import numpy as np\ndef f(x): return x + 1\ndef args(): return (np.ones(8, 'f4'),)\n"
    )
    assert main(["plan", "alone.py:f", "--mesh", "X=2", "--html", "no/folder.html"]) == 2
    shown = capsys.readouterr()
    assert shown.out.endswith("\n\nNo collectives.\n")
    assert "no/folder.html: No such file or directory. Give a file" in shown.err
