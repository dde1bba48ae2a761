"""The examples of CONTRIBUTING.md run, and the names in it exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = [
    (section.splitlines()[0], code)
    for section in PAGE.split("\n## ")
    for code in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
]


def test_the_examples_are_found():
    assert [title for title, _ in EXAMPLES] == [
        "Add a chip",
        "Add a strategy",
        "Add an instruction",
        "Add a policy",
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("code", [code for _, code in EXAMPLES], ids=[t for t, _ in EXAMPLES])
def test_an_example_runs(code):
    # in a process of its own: what is registered here would be a kind for all tests
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr


def test_files_and_targets_exist():
    named = re.findall(r"`((?:shardalg|benchmarks|tests|docs)/[\w./]*)`", PAGE)
    inside = re.findall(r"`((?:spmd|lower|verify|costs|propagate)/[\w.]+\.py)`", PAGE)
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    paths = [*named, *(f"shardalg/{one}" for one in inside), *links]
    assert [p for p in paths if not (ROOT / p.partition("#")[0]).exists()] == []
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([\w-]+)", PAGE)
    assert [t for t in targets if not re.search(rf"^{t}:|\.PHONY:.* {t}\b", makefile, re.M)] == []
