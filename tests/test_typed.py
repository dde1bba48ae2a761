"""A user's type checker sees typed public names, although they load late."""

import ast
import subprocess
import sys
from pathlib import Path

import shardalg

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "shardalg" / "__init__.pyi"
SCRIPT = """
import jax
import shardalg as sa
from jax.sharding import PartitionSpec as P

x = jax.ShapeDtypeStruct((8, 16), "float32")
plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
reveal_type(plan)
reveal_type(plan.collectives())
reveal_type(plan.verify().ok)
reveal_type(plan.cost("h100"))
reveal_type(sa.halo(sa.Window(size=3), size=8, parts=2))
sa.Mesh(4)
"""
SHOWN = ("shardalg.plan.plan.Plan", "Frame", "bool", "Cost", "shardalg.algebra.halos.halo.Halo")


def test_the_stub_names_what_is_public_and_where_from():
    found = {
        (node.module, name.name)
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    named = {(at, name) for at, names in shardalg._PUBLIC.items() for name in names}
    rooms = {("shardalg", room) for room in ("lab", "models")}
    assert found == named | rooms | {("shardalg.plan.strategies", "recipes")}
    assert (ROOT / "shardalg" / "py.typed").exists()


def test_a_script_of_a_user_is_checked(tmp_path):
    """The settings and the cache of `make lint` are used."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    revealed = [line.split('"')[1] for line in run.stdout.splitlines() if "Revealed" in line]
    assert len(revealed) == len(SHOWN), run.stdout + run.stderr
    assert all(seen.endswith(shown) for seen, shown in zip(revealed, SHOWN, strict=True)), revealed
    (wrong,) = [line for line in run.stdout.splitlines() if "error:" in line]
    assert "script.py:13" in wrong
    assert "incompatible type" in wrong
