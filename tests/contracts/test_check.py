"""`shardalg check` and the plug-in of pytest, on repositories as a user has them."""

import doctest
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest

import shardalg as sa
from shardalg.cli import main
from shardalg.plan.contracts.contract_file import read_file

MODEL = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

def step(w, x):
    def loss(w):
        return (jnp.tanh(x @ w["up"]) @ w["down"]).mean()
    value, slope = jax.value_and_grad(loss)(w)
    return value, jax.tree.map(lambda a, g: a - 0.1 * g, w, slope)

def args():
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    return {"up": f32(64, 256), "down": f32(256, 64)}, f32(128, 64)

in_shardings = ({"up": P("data", "model"), "down": P("model", "data")}, P("data"))
out_shardings = (P(), {"up": P("data", "model"), "down": P("model", "data")})
roles = ("parameters", "data")
"""
CONTRACT = """
version = 1
function = "model.py:step"
mesh = "data=2,model=4"

[[statement]]
no = "all_gather"
axis = "model"
role = "weight"

[[statement]]
at_most = "peak_bytes"
bound = "4*64*256*4"

[[statement]]
at_most = "executions"
bound = 8
kind = "all_gather"

[[statement]]
some = "reduce_scatter"
role = "gradient"

[[statement]]
sharded = "parameters"
axis = "data"

[[statement]]
no_idle_devices = true

[[statement]]
unchanged = "step.plan.json"
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "step.contract.toml").write_text(CONTRACT)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "step.contract.toml", "--update"]) == 0
    return tmp_path


def test_a_contract_that_holds(repository, capsys):
    capsys.readouterr()
    assert main(["check", "step.contract.toml", "step.plan.json"]) == 0
    out = capsys.readouterr().out
    assert "7 statements: 7 hold" in out
    assert "the plan is the one that was saved" in out
    # A file's text gives the same contract.
    given = read_file(repository / "step.contract.toml")
    again = repository / "again.toml"
    again.write_text(given.text)
    assert read_file(again) == given


def test_a_misspelt_name_is_an_error(repository, capsys):
    path = repository / "model.py"
    path.write_text(MODEL.replace("in_shardings =", "in_sharding ="))
    assert main(["check", "step.contract.toml"]) == 2
    assert "defines in_sharding: write in_shardings, or rename it" in capsys.readouterr().err
    assert main(["check", "step.contract.toml", "--update", "--hlo", "step.txt"]) == 2
    assert "--update writes plan files" in capsys.readouterr().err


def test_errors_name_their_file(repository, capsys):
    path = repository / "step.contract.toml"
    path.write_text(CONTRACT.replace('axis = "model"', 'axis = "modle"'))
    assert main(["check", "step.contract.toml"]) == 2
    assert "step.contract.toml: axis is 'modle'. Did you mean model?" in capsys.readouterr().err


def test_edits_that_do_not_matter_change_nothing(repository):
    path = repository / "model.py"
    path.write_text("# a comment\n\n" + MODEL.replace("    def loss", "    # why\n    def loss"))
    assert main(["check", "step.contract.toml"]) == 0


def test_a_broken_contract_names_line_and_repair(repository, capsys):
    path = repository / "model.py"
    path.write_text(MODEL.replace('P("model", "data")}, P("data"))', 'P("data")}, P("data"))'))
    capsys.readouterr()
    assert main(["check", "step.contract.toml"]) == 1
    out = capsys.readouterr().out
    assert "refuted: unchanged since step.plan.json" in out
    assert main(["check", "step.contract.toml", "--github"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("::error file=") for line in lines)
    assert main(["check", "step.contract.toml", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["files"][0]
    broken = [one for one in found["statements"] if one["verdict"] == "refuted"]
    assert not found["ok"]
    assert broken
    assert any("step.plan.json" in one["at"] for one in broken)
    # --update accepts the change of the plan, and says what changed.
    main(["check", "step.contract.toml", "--update"])
    assert "updated" in capsys.readouterr().out
    assert main(["check", "step.plan.json"]) == 0


def test_named_sizes_are_proved_or_refuted(repository, capsys):
    named = MODEL.replace("f32(128, 64)", "f32(B, 64)").replace(
        "import jax\n", "import jax\nimport shardalg as sa\nB, = sa.dims('B', hint=(128,))\n", 1
    )
    (repository / "model.py").write_text(named)
    top = CONTRACT.partition("[[statement]]")[0] + 'where = ["2 divides B"]\n'
    (repository / "named.toml").write_text(f"""{top}
[[statement]]
no = "all_gather"
axis = "model"
role = "weight"

[[statement]]
at_most = "sent_bytes"
bound = "500*B"
""")
    capsys.readouterr()
    assert main(["check", "named.toml"]) == 1
    out = capsys.readouterr().out
    assert "proved: no all_gather along model of the role weight. For all sizes where" in out
    assert "2 divides B" in out
    assert "refuted: bytes sent per device and step by collective at most 500*B. At B=" in out


def test_hlo_of_the_users_own_jit(repository, capsys):
    code = """
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
        import jax, model
        from jax.sharding import AxisType, NamedSharding
        mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        put = lambda tree: jax.tree.map(lambda s: NamedSharding(mesh, s), tree)
        step = jax.jit(model.step, in_shardings=put(model.in_shardings),
                       out_shardings=put(model.out_shardings))
        open("step.hlo", "w").write(step.lower(*model.args()).compile().as_text())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=repository)
    capsys.readouterr()
    assert main(["check", "step.contract.toml", "--hlo", "step.hlo"]) in (1, 4)
    out = capsys.readouterr().out
    assert "executions per step of all_gather at most 8" in out
    assert "HLO text has no peak_bytes" in out


def test_the_page_about_ci_says_what_happens(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs/ci.md").read_text()
    files = re.findall(r"<!-- file: (\S+) -->\n```\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in files] == ["model.py", "step.contract.toml"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "step.contract.toml", "--update"]) == 0
    capsys.readouterr()
    assert main(["check", "step.contract.toml"]) == 0
    command, shown = re.search(r"\$ (shardalg check \S+)\n(.*?)```", page, re.DOTALL).groups()
    assert command == "shardalg check step.contract.toml"
    assert capsys.readouterr().out == shown


def test_the_page_about_ci_runs():
    page = Path(__file__).parents[2] / "docs/ci.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted >= 6
    assert not found.failed


WRONG = (
    ("", "no version"),
    ('version = "1"', "has version = '1': write the line version = 1"),
    ("version = 2\n", "later shardalg"),
    ("version = 1\n", "no \\[\\[statement\\]\\]"),
    ("version = 1\n[[statement]]\n", "give one"),
    ("version = 1\n[[statement]]\nno = 'all_gather'\nsome = 'all_gather'\n", "give one"),
    ("version = 1\n[[statement]]\nno = 'all_gather'\naxes = 'x'\n", "axis"),
    ("version = 1\n[[statement]]\nat_most = 'peak'\nbound = 1\n", "peak_bytes"),
    ("version = 1\n[[statement]]\nat_most = 'peak_bytes'\n", "needs a bound"),
    ("version = 1\n[[statement]]\nsharded = 'parameters'\n", "needs an axis"),
    ("version = 1\n[[statement]]\nno_idle_devices = 3\n", "write true"),
    ("version = 1\nfunctoin = 'a'\n[[statement]]\nno = 'all_gather'\n", "function"),
    ("version = 1\nstatement = 3\n", "no \\[\\[statement\\]\\]"),
    ("version = 1\n[[statement]]\nno = 3\n", "no text"),
    ("version = 1\nwhere = 'x'\n[[statement]]\nno = 'all_gather'\n", "list of texts"),
    ("version = 1\n[[statement", "cut short"),
)


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_wrong_files_are_errors_with_status_2(tmp_path, text, words, capsys):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(sa.ContractError, match=words):
        sa.load_contract(path)
    assert main(["check", str(path)]) == 2
    assert "wrong.toml" in capsys.readouterr().err


def test_missing_and_foreign_files(tmp_path, capsys):
    for name in ("no.toml", "no.json", "no.txt"):
        assert main(["check", str(tmp_path / name)]) == 2
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert main(["check", str(tmp_path / "bytes.toml")]) == 2
    (tmp_path / "none.toml").write_text("version = 1\n[[statement]]\nno = 'all_gather'\n")
    assert main(["check", str(tmp_path / "none.toml")]) == 2
    assert "names no function" in capsys.readouterr().err


@pytest.mark.slow
def test_pytest_collects_contract_files(repository):
    path = repository / "step.contract.toml"
    path.write_text(CONTRACT.replace("bound = 8", "bound = 1"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed, 6 passed" in done.stdout, done.stdout + done.stderr
    assert "refuted: executions per step of all_gather" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_plug_in_is_quick_to_import():
    code = (
        "import pytest, sys;"
        "import shardalg.plan.contracts.pytest_plugin;"
        "heavy = [m for m in ('jax', 'z3', 'sympy', 'pandas', 'numpy') if m in sys.modules];"
        "print(heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_program_that_ends_the_process_is_no_success(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(("import sys; sys.exit(0)", "def args(): raise SystemExit(0)")):
        (tmp_path / f"ends{number}.py").write_text(f"{text}\ndef step(x): return x\n")
        (tmp_path / "c.contract.toml").write_text(
            f'version = 1\nfunction = "ends{number}.py:step"\nmesh = "data=2"\n'
            '[[statement]]\nno = "all_gather"\n'
        )
        assert main(["check", "c.contract.toml"]) == 3
        assert "ends the process" in capsys.readouterr().err


def test_statements_that_are_about_nothing_are_errors():
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    plan = sa.plan(lambda x: x + 1, x, mesh=sa.Mesh({"data": 2}), roles=("data",))
    with pytest.raises(sa.ContractError, match="which no argument has: the arguments have data"):
        plan.require(sa.sharded("optimizer_state", "data"))
    with pytest.raises(sa.ContractError, match="false at the hints"):
        plan.require(sa.no("all_gather"), where=["2 >= 3"])
    with pytest.raises(sa.ContractError, match="a bound is a finite number"):
        sa.at_most(peak_bytes=float("inf"))


def test_an_error_in_one_file_leaves_the_others_checked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(
        "import jax\n\ndef step(x):\n    return x + 1\n\n"
        "def args():\n    return (jax.ShapeDtypeStruct((8, 8), 'float32'),)\n"
    )
    head = 'version = 1\nfunction = "model.py:step"\nmesh = "data=2"\n[[statement]]\n'
    (tmp_path / "good.contract.toml").write_text(f'{head}no = "all_gather"\n')
    (tmp_path / "typo.contract.toml").write_text(f'{head}no = "all_gathr"\n')
    files = ["typo.contract.toml", "good.contract.toml"]
    assert main(["check", *files]) == 2
    out = capsys.readouterr().out
    assert "typo.contract.toml: error: " in out
    assert "good.contract.toml: 1 statement: 1 holds" in out
    assert main(["check", *files, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["files"]
    assert [one["ok"] for one in found] == [False, True]
    assert "Did you mean all_gather" in found[0]["error"]
    # A text of XLA for another function says nothing about this one.
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    for shape, status in (((8, 8), 0), ((32, 8), 2)):
        given = jax.ShapeDtypeStruct(shape, "float32")
        jitted = jax.jit(lambda x: x + 1, in_shardings=rows, out_shardings=rows)
        (tmp_path / "step.hlo").write_text(jitted.lower(given).compile().as_text())
        assert main(["check", "good.contract.toml", "--hlo", "step.hlo"]) == status
    assert "the HLO text is of another function" in capsys.readouterr().err
