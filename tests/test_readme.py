"""The README's examples run and print the text below them; its links exist."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardalg.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
CONSOLES = re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
LINKS = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]

NAMES = ["your model", "numbers", "named sizes", "strategies"]
EXAMPLES = [(code, text) for (_, code), (_, text) in zip(BLOCKS[::2], BLOCKS[1::2], strict=True)]


def printed(folder, code, env):
    """Return the output of an example, as a file of its own; without environment, in this one."""
    path = Path(folder) / "ffn.py"
    path.write_text(code)
    run = subprocess.run(
        [sys.executable, path], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return [line.rstrip() for line in run.stdout.splitlines()]


def test_every_example_has_its_output():
    assert [kind for kind, _ in BLOCKS] == ["python", "text"] * len(EXAMPLES)


@pytest.mark.parametrize(("code", "shown"), EXAMPLES, ids=NAMES)
def test_an_example_prints_what_the_readme_shows(code, shown, tmp_path, own_devices):
    assert printed(tmp_path, code, own_devices) == shown.splitlines()


def answered(console):
    """Yield the commands of a block, each with the output below it."""
    lines = []
    for command in re.findall(r"^\$ .*", console, re.MULTILINE):
        program, *arguments = shlex.split(command[2:])
        assert program == "shardalg"
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            main(arguments)
        lines += [command, *shown.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def without_times(text):
    """Return the text without parts that differ from machine to machine."""
    return re.sub(r"[\d.]+ (?=µs|ms)|(?<=z3 )[\d.]+", "#", text)


@pytest.mark.parametrize("console", CONSOLES)
def test_a_command_prints_what_the_readme_shows(console):
    assert without_times(answered(console)) == without_times(console)


@pytest.mark.parametrize(("code", "shown"), EXAMPLES, ids=NAMES)
def test_an_example_is_short(code, shown):
    lines = [line for line in code.splitlines() if line and "import" not in line]
    assert len(lines) <= 15


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_to_files(link):
    assert (ROOT / link).exists()


if __name__ == "__main__":  # python -m tests.test_readme: write the README's outputs again
    text = README
    with tempfile.TemporaryDirectory() as folder:
        for code, shown in EXAMPLES:
            lines = "\n".join(printed(folder, code, None)) + "\n"
            head = f"```python\n{code}```\n\nprints\n\n```text\n"
            text = text.replace(f"{head}{shown}```", f"{head}{lines}```")
    for console in CONSOLES:
        text = text.replace(f"```console\n{console}", f"```console\n{answered(console)}")
    (ROOT / "README.md").write_text(text)
