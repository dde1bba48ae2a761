"""The README's example runs and prints what stands below it; what it links to exists."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
LINKS = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]


def printed(folder):
    """What the example prints, as a file of its own."""
    path = Path(folder) / "ffn.py"
    path.write_text(BLOCKS[0][1])
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        [sys.executable, path], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return [line.rstrip() for line in run.stdout.splitlines()]


def test_the_example_prints_what_the_readme_shows(tmp_path):
    assert [kind for kind, _ in BLOCKS] == ["python", "text"]
    assert printed(tmp_path) == BLOCKS[1][1].splitlines()


def test_the_example_is_short():
    lines = [line for line in BLOCKS[0][1].splitlines() if line and "import" not in line]
    assert len(lines) <= 15


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_to_files(link):
    assert (ROOT / link).exists()


if __name__ == "__main__":  # python -m tests.test_readme: write the README's output again
    with tempfile.TemporaryDirectory() as folder:
        lines = "\n".join(printed(folder)) + "\n"
    (ROOT / "README.md").write_text(README.replace(BLOCKS[1][1], lines))
