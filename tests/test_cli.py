"""The command: options, and errors as one line that says what to do."""

import re
import subprocess
import sys

import pytest

import shardalg
from shardalg.cli import main

PROVE = ["prove", "[X]", "[X]", "--shape", "8"]
RANK = ["strategies", "--hardware", "v3"]
WRONG = {
    "unknown command": (["explains"], "invalid choice: 'explains'"),
    "unknown option": (["explore", "--size", "3"], "unrecognized arguments: --size 3"),
    "devices no number": (["explore", "--devices", "many"], "invalid int value: 'many'"),
    "devices negative": (["explore", "--devices", "-1"], "at least 0, got -1"),
    "unknown model": (["explore", "--model", "bert"], "no model 'bert'; the models are tiny"),
    "unknown size": (["explore", "--sizes", "Q=3"], "no size Q; its sizes are B, S, M"),
    "size without number": (["explore", "--sizes", "B=,S=4"], "sizes: 'B=' in 'B=,S=4'"),
    "size twice": (["explore", "--sizes", "B=2,B=4"], "NAME=SIZE, each name once"),
    "size zero": (["explore", "--sizes", "B=0"], "must be integers of at least 1, got {'B': 0}"),
    "mesh without size": (["explore", "--mesh", "X"], "mesh: 'X' in 'X'; write NAME=SIZE"),
    "mesh of one axis": (["explore", "--mesh", "X=8"], r"two axes, got Mesh\(X=8\)"),
    "mesh of three": (["explore", "--mesh", "X=2,Y=2,Z=2"], "Give one such as X=2,Y=4"),
    "axis of size zero": (["explore", "--mesh", "X=0,Y=4"], "X"),
    "no shape": (["prove", "[X]", "[X]"], "the following arguments are required: --shape"),
    "one sharding": (["prove", "[X]", "--shape", "8"], "are required: second"),
    "shape of words": ([*PROVE[:3], "--shape", "8,x"], "shape: 'x' in '8,x'; write sizes as in"),
    "shape with a gap": ([*PROVE[:3], "--shape", "8,,4"], "shape: '' in '8,,4'"),
    "shape negative": ([*PROVE[:3], "--shape=-8"], "shape: '-8'"),
    "axis names without a mesh": (PROVE, "names axes and states no mesh; give --mesh"),
    "unknown axis": ([*PROVE, "--mesh", "Z=8"], r"axis 'X' is not an axis of Mesh\(Z=8\)"),
    "malformed mesh": ([*PROVE, "--mesh", "X:2"], "mesh: 'X:2' in 'X:2'; write NAME=SIZE"),
    "three meshes": ([*PROVE, *["--mesh", "X=8"] * 3], "--mesh is given 3 times"),
    "meshes of other sizes": ([*PROVE, "--mesh", "X=8", "--mesh", "X=4"], "on different devices"),
    "unknown relation": ([*PROVE, "--relation", "splits"], "invalid choice: 'splits'"),
    "unknown policy": ([*PROVE, "--policy", "xla"], "invalid choice: 'xla'"),
    "malformed sharding": (["prove", "[X", *PROVE[2:], "--mesh", "X=8"], "column 3"),
    "malformed HLO": (["prove", "{devices=[8]<=[8]", *PROVE[2:], "--mesh", "X=8"], "column 18"),
    "HLO of other rank": (["prove", "{devices=[4,2]<=[8]}", *PROVE[2:]], "2 dimensions are tiled"),
    "no notation": (["prove", "X", *PROVE[2:]], "'X' is no sharding. Write one as"),
    "axis twice": (["prove", "[X, X]", "[X]", "--shape", "8,8", "--mesh", "X=8"], "used twice"),
    "no seeds": (["lemmas", "--seeds", "0"], "--seeds 0: give a number of at least 1"),
    "seeds no number": (["lemmas", "--seeds", "x"], "invalid int value: 'x'"),
    "unknown column": (
        ["paper", "--column", "c1"],
        "no column 'c1'; write one of dense-bench.c1 to",
    ),
    "unknown table": (["paper", "--table", "1"], "no table 1 of measurements: Tables 2 to 8 are"),
    "table no number": (["paper", "--table", "two"], "invalid int value: 'two'"),
    "column of another table": (
        ["paper", "--table", "3", "--column", "unet-bench.c1"],
        "unet-bench.c1 is of Table 8, not of Table 3",
    ),
    "model of no layers": (
        [*RANK, "--devices", "8", "--sizes", "layers=0"],
        "integers of at least 1, got {'layers': 0}",
    ),
    "no devices": ([*RANK, "--devices", "0"], "--devices 0: give a number of at least 1"),
    "other devices": (
        ["strategies", "--hardware", "v3:2x2", "--devices", "9"],
        r"has 8 devices, not 9: give --devices 8",
    ),
    "batch of nothing": (
        [*RANK, "--devices", "8", "--batch", "8,0"],
        "argument --batch: 0: write a number above 0",
    ),
    "memory of no size": ([*RANK, "--devices", "8", "--memory", "nan"], "nan: write a number"),
    "what is kept": (
        [*RANK, "--devices", "8", "--remat", "full,all"],
        "argument --remat: 'all': write one of none, full, minimal",
    ),
    "no folder for a ranking": (
        [*RANK, "--devices", "8", "--html", "no/such/file"],
        "error: no/such/file: No such file or directory. Give a file that can",
    ),
    "no folder for a figure": (["paper", "--figure", "no/such/file"], "error: no/such/file: No"),
    "no folder for a proof": ([*PROVE, "--smt2", "no/such/file"], "error: no/such/file: No such"),
    "no folder for a trace": (
        ["timeline", "no_module:f", "--trace", "no/such/file"],
        "error: no/such/file: No such file",
    ),
    "a folder for a file": (["paper", "--figure", "."], "error: .: Is a directory. Give"),
    "unknown strategy": (["explore", "--strategy", "best"], "no strategy 'best'; Table 1 has"),
}


def status(arguments):
    """Return the exit status of the command, however it ends."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_one_line(arguments, message, capsys):
    assert status(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first = shown.err.splitlines()[0]
    assert first.startswith("shardalg")
    assert ": error: " in first
    assert re.search(message, shown.err), shown.err


def test_a_folder_that_cannot_be_written_is_one_line_at_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert status(["explore", "--out", str(tmp_path / "file" / "folder")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search("file/folder: .*[.] Give a file that can be read or written", shown.err)


def test_version(capsys):
    assert status(["--version"]) == 0
    assert capsys.readouterr().out == f"shardalg {shardalg.__version__}\n"


def test_a_wrong_option_does_not_wait_for_jax():
    code = (
        "import sys; from shardalg.cli import main\n"
        "try: main(['explore', '--devices', 'x'])\n"
        "except SystemExit: print('jax' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
