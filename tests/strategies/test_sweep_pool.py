"""The page `docs/sweeps.md`: its example, and its script with a pool of processes."""

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()


def test_the_example_of_the_page_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "sweeps", None, 0)
    told = []
    result = doctest.DocTestRunner().run(example, out=told.append)
    assert result.attempted > 12
    assert not result.failed, "".join(told)


@pytest.mark.slow
def test_the_script_of_the_page_runs(tmp_path):
    (script,) = re.findall(r"^```\n(import multiprocessing.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "script.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "2 points on h100: 0 by formula and 2 by a plan. 2 fit." in found.stdout
    assert len(json.loads((tmp_path / "sweep.json").read_text())["points"]) == 2
