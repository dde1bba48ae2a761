"""Examples of the README and of the how-to pages print the text below them; links exist."""

import contextlib
import io
import re
import runpy
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import pytest

from shardalg.cli import main
from shardalg.lab.evaluation.comparison import compare
from shardalg.lab.evaluation.predicted_figure import published_rows, step_times
from shardalg.lab.evaluation.published import columns

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs" / "howto").glob("*.md")))
QUICK = ("README", "your_model")
"""Pages whose examples run in every suite; those of the others are slow."""


def blocks(page, kinds):
    """Return pairs (kind, text) of the code blocks of a page."""
    return re.findall(rf"^```({kinds})\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def links(page):
    """Return the links of a page to files, without anchors."""
    found = re.findall(r"\]\(([^)]+)\)", page.read_text())
    return [link.partition("#")[0] for link in found if "://" not in link and link[0] != "#"]


def examples(page):
    """Return pairs (code, output) of a page."""
    found = blocks(page, "python|text")
    assert [kind for kind, _ in found] == ["python", "text"] * (len(found) // 2), page
    return [(code, text) for (_, code), (_, text) in zip(found[::2], found[1::2], strict=True)]


def case(page, *values):
    marks = [] if page.stem in QUICK else [pytest.mark.slow]
    return pytest.param(*values, id=page.stem, marks=marks)


EXAMPLES = [case(page, *example) for page in PAGES for example in examples(page)]
CONSOLES = [case(page, text) for page in PAGES for _, text in blocks(page, "console")]


def printed(folder, code, env):
    """Return the output of an example, as a file of its own; without environment, in this one."""
    path = Path(folder) / "ffn.py"
    path.write_text(code)
    run = subprocess.run(
        [sys.executable, path], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return [line.rstrip() for line in run.stdout.splitlines()]


@pytest.mark.parametrize(("code", "shown"), EXAMPLES)
def test_an_example_prints_the_text_below_it(code, shown, tmp_path, own_devices):
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("console", CONSOLES)
def test_a_command_prints_the_text_below_it(console):
    assert without_times(answered(console)) == without_times(console)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_are_short(page):
    for code, _ in examples(page):
        lines = [line for line in code.splitlines() if line and "import" not in line]
        assert len(lines) <= (12 if page == README else 16)


def test_the_readme_is_one_short_page():
    lines = README.read_text().splitlines()
    assert len(lines) <= 180
    assert lines[2].startswith("**Find out")
    ((code, shown),) = examples(README)
    assert max(map(len, (*code.splitlines(), *shown.splitlines()))) <= 100


@pytest.mark.slow
def test_the_accuracy_in_the_readme_is_that_of_the_figure(show):
    found = {**step_times(compare(columns())), **published_rows()}
    errors = [abs(p.error) for points in found.values() for p in points if not p.fitted]
    show(f"{len(errors)} held out")
    said = f"median of {statistics.median(errors):.1%} and are at most {max(errors):.1%}"
    assert said.replace("%", " %") in README.read_text()


@pytest.mark.slow
def test_the_pictured_decoder_has_one_billion_parameters():
    params, *_ = runpy.run_path(str(ROOT / "docs" / "examples" / "decoder.py"))["args"]()
    assert 0.9e9 < sum(leaf.size for leaf in jax.tree.leaves(params)) < 1.05e9


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    for link in links(page):
        assert (page.parent / link).exists(), link


if __name__ == "__main__":  # python -m tests.test_readme [PAGE...]: write the outputs again
    wanted = set(sys.argv[1:]) or {page.stem for page in PAGES}
    for page in (page for page in PAGES if page.stem in wanted):
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            for code, shown in examples(page):
                lines = "\n".join(printed(folder, code, None)) + "\n"
                head = f"```python\n{code}```\n\nprints\n\n```text\n"
                text = text.replace(f"{head}{shown}```", f"{head}{lines}```")
        for _, console in blocks(page, "console"):
            text = text.replace(f"```console\n{console}", f"```console\n{answered(console)}")
        page.write_text(text)
