"""Exit statuses of the commands, and their messages: the user's lines, options, line breaks."""

import argparse

import pytest

from shardalg.cli import main
from shardalg.plan.commands.messages import in_options

ARGS = "\ndef args():\n    return (jax.ShapeDtypeStruct((8,), 'float32'),)\n"
PROGRAMS = {
    "an exception": ("def f(x):\n    raise KeyError('no such luck')\n", "KeyError: 'no such luck'"),
    "in a helper": (
        "def deep(x):\n    return x / 0 if False else 1 // 0\n\ndef f(x):\n    return deep(x)\n",
        "ZeroDivisionError",
    ),
    "under jit": ("@jax.jit\ndef f(x):\n    raise OSError(2, 'gone', 'disk')\n", "gone"),
    "in a loop": (
        "def f(x):\n    def body(c, _):\n        raise RuntimeError('in the body')\n"
        "    return jax.lax.scan(body, x, None, length=3)[0]\n",
        "in the body",
    ),
    "recursion": ("def f(x):\n    return f(x)\n", "endless recursion in f"),
    "two that call each other": (
        "def g(x):\n    return f(x)\n\ndef f(x):\n    return g(x)\n", "call each other"
    ),
    "shapes": ("def f(x):\n    return x @ jax.numpy.ones((3, 3))\n", "JAX cannot trace f"),
    "the module": ("1 / 0\n", "ZeroDivisionError"),
    "the arguments": ("def f(x): return x\n\ndef args():\n    return [][3]\n", "IndexError"),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", [["plan"], ["timeline"], ["compare-xla"], ["run"]], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_fails_is_status_3_with_the_user_s_lines(
    name, command, tmp_path, monkeypatch, capsys
):
    source, words = PROGRAMS[name]
    more = "" if "def args" in source else ARGS
    (tmp_path / "faulty.py").write_text(f"import jax\n\n{source}{more}")
    monkeypatch.chdir(tmp_path)
    assert main([*command, "faulty.py:f", "--mesh", "d=8"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert "faulty.py" in shown.err
    files = [line for line in shown.err.splitlines() if line.lstrip().startswith("File ")]
    assert all("faulty.py" in line for line in files)
    assert len(shown.err.splitlines()) <= 25


def test_without_arguments_the_help_is_printed(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("usage", "plan", "prove", "strategies", "exit status"))


def test_a_caret_has_a_line_of_its_own(capsys):
    assert main(["prove", "[X, Z]", "[X]", "--shape", "64,128"]) == 2
    shown = capsys.readouterr().err
    assert "^" in [line.strip() for line in shown.splitlines()]
    assert "--mesh" in shown


MESSAGES = {
    "a mesh": ("pass mesh=sa.Mesh({'X': 8, 'Y': 16}).", "pass --mesh data=8,model=4."),
    "a number": ("devices=0: give more.", "--devices 0: give more."),
    "a prefix": ("mesh: 'X' in 'X'", "--mesh: 'X' in 'X'"),
    "two words": ("all_sizes=True needs", "--all-sizes True needs"),
    "another's word": ("AbstractMesh(devices=4)", "AbstractMesh(devices=4)"),
    "equal causes": (
        "no fit:\n  argument ps[0]: no 'q' of (8, 8)\n  argument ps[1]: no 'q' of (4,)",
        "no fit:\n  argument ps[0] and 1 more: no 'q' of (8, 8)",
    ),
    "equal lines": ("axis 'q'\naxis 'q'\naxis 'r'", "axis 'q'\naxis 'r'"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_in_the_words_of_the_options(name):
    message, expected = MESSAGES[name]
    options = argparse.Namespace(mesh=None, devices=8, all_sizes=False)
    assert in_options(message, options) == expected


def test_long_lines_are_wrapped():
    message = in_options("word " * 200, argparse.Namespace())
    assert max(map(len, message.splitlines())) <= 300
