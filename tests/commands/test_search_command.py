"""`shardalg search`: the answer on the command line, its files, and its errors."""

import pytest

from shardalg.cli import main

SOURCE = """import jax

def f(x, w):
    return jax.nn.relu(x @ w)

def args():
    return tuple(jax.ShapeDtypeStruct(s, "bfloat16") for s in ((4096, 512), (512, 512)))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "here.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)


def test_the_answer_the_page_and_the_certificate(tmp_path, capsys):
    files = ["--html", "a.html", "--certificate", "a.json.gz"]
    assert main(["search", "here.py:f", "--hardware", "h100:4", "--axes", "1", *files]) == 0
    assert "Fastest of 1 meshes" in capsys.readouterr().out
    page = (tmp_path / "a.html").read_text()
    assert "Layouts of the fastest plan" in page
    assert "[a, None]" in page
    assert main(["certificate", "check", "a.json.gz"]) == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--memory", "many"], "'many' is no number of bytes: write '80 GB'"),
        (["--memory", "0 GB"], "'0 GB' is no number of bytes"),
        (["--seconds", "-1"], "seconds is -1.0: give a number above 0"),
        (["--devices", "3"], "devices is 3, and Topology(h100:1x4) has 4"),
        (["--mesh", "a=2"], "meshes of the family do not have 4 devices"),
        (["--memory", "2 kB", "--axes", "1"], "no plan was found within 2 kB"),
    ],
)
def test_wrong_use_is_one_line(more, words, capsys):
    try:
        status = main(["search", "here.py:f", "--hardware", "h100:4", *more])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert words in capsys.readouterr().err
