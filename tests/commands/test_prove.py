"""`shardalg prove`: every notation, the answer, the witness, the proof, the exit status."""

import re

import pytest

from shardalg.cli import main

MESH = ["--mesh", "X=2,Y=4"]
SHAPE = ["--shape", "64,128"]
X = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"
SAME = (
    "[X, None]",
    "P('X', None)",
    "[0, -1]",
    X,
    "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}",
    "{mesh['X'=2,'Y'=4], [{'X'},{}]}",
    '#sdy.sharding<@mesh, [{"X"}, {}]>',
)


def shown(capsys):
    """Return the labelled lines of the answer."""
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line[11:] for line in lines if not line.startswith(" ")}


@pytest.mark.parametrize("text", SAME)
def test_any_notation_of_either_side(text, capsys):
    assert main(["prove", text, "[X, None]", *SHAPE, *MESH, "--relation", "equal"]) == 0
    assert shown(capsys)["first"] == "[X, None] on Mesh(X=2, Y=4), blocks of (32, 128)"
    assert main(["prove", "[None, Y]", text, *SHAPE, *MESH]) == 0
    assert shown(capsys)["merged"] == "[X, Y] on Mesh(X=2, Y=4), blocks of (32, 32)"


@pytest.mark.parametrize("sizes", [[], ["--all-sizes"]])
def test_a_merge_and_its_proof(sizes, capsys):
    assert main(["prove", "[X, None]", "[None, Y]", *SHAPE, *MESH, *sizes]) == 0
    answer = shown(capsys)
    assert answer["question"] == "do they merge, at the shape (64, 128)?"
    assert re.fullmatch(r"holds, decided in \d+ µs", answer["verdict"])
    assert answer["because"].startswith("[X, None] and [None, Y] agree on the dimensions")
    scope = "for all sizes" if sizes else "for these sizes"
    assert re.fullmatch(rf"proved {scope} by z3 [\d.]+ in [\d.]+ ms", answer["proof"])


@pytest.mark.parametrize("sizes", [[], ["--all-sizes"]])
def test_a_refusal_has_a_witness_and_a_proof(sizes, capsys):
    assert main(["prove", "[X, None]", "[None, X]", *SHAPE, *MESH, *sizes]) == 1
    answer = shown(capsys)
    assert answer["verdict"].startswith("refused")
    assert "tile (0, 1) should be on 2 devices, but no device would hold it" in answer["because"]
    assert answer["proof"].startswith("proved")


def test_the_policy_decides_on_prefixes():
    question = ["prove", "[X, None]", "[(X, Y), None]", *SHAPE, *MESH]
    assert main(question) == 1
    assert main([*question, "--policy", "shardy"]) == 0


@pytest.mark.parametrize(("first", "second", "status"), [("(X, Y)", "X", 0), ("X", "(X, Y)", 1)])
def test_refinement(first, second, status):
    question = ["prove", f"[{first}, None]", f"[{second}, None]", *SHAPE, *MESH]
    assert main([*question, "--relation", "refines"]) == status


def test_hlo_text_needs_no_mesh(capsys):
    second = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
    assert main(["prove", X, second, *SHAPE]) == 0
    assert "8 unnamed devices" in shown(capsys)["first"]


@pytest.mark.parametrize("pair", [(X, "{replicated}"), ("{replicated}", X)])
def test_text_that_says_no_devices_is_on_those_of_the_other(pair, capsys):
    assert main(["prove", *pair, *SHAPE]) == 0
    answer = shown(capsys)
    assert "8 unnamed devices" in answer["first"]
    assert "8 unnamed devices" in answer["second"]


def test_two_meshes_over_the_same_devices(capsys):
    meshes = ["--mesh", "X=2,Y=3", "--mesh", "Y=3,X=2"]
    question = ["prove", "[Y, None]", "[None, X]", "--shape", "12,12", *meshes]
    assert main(question) == 0
    assert shown(capsys)["condition"] == "gcd(2, 3) = 1"
    assert main([*question, "--all-sizes"]) == 4
    unknown, proved = [line for line in capsys.readouterr().out.splitlines() if "z3" in line]
    assert unknown.startswith("proof      unknown for all sizes")
    assert proved.startswith("proof      proved for these sizes")


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    path = tmp_path / "no folder" / "proof.smt2"
    assert main(["prove", "[X, None]", "[None, Y]", *SHAPE, *MESH, "--smt2", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"shardalg prove: error: {path}: No such file or directory. Give a file")


def test_the_formulas_as_a_file(tmp_path, capsys):
    path = tmp_path / "proof.smt2"
    assert main(["prove", "[X, None]", "[None, Y]", *SHAPE, *MESH, "--smt2", str(path)]) == 0
    assert "(check-sat)" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr().err == ""
