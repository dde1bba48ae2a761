"""The page `docs/sweeps.md`: its example, and its scripts with a pool and with Dask."""

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
@pytest.mark.parametrize("executor", ["ProcessPoolExecutor", "LocalCluster"])
def test_the_scripts_of_the_page_run(executor, tmp_path):
    scripts = re.findall(r"^```\n(import .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (script,) = (text for text in scripts if executor in text)
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "script.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    joined = "joined for each mesh as the vendor does"
    assert f"2 points on h100, {joined}: 0 by formula and 2 by a plan. 2 fit." in found.stdout
    assert len(json.loads((tmp_path / "sweep.json").read_text())["points"]) == 2
