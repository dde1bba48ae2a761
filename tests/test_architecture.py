"""docs/architecture.md: its example runs, and every file that it names exists."""

import ast
import doctest
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_life_of_a_plan_is_as_printed():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "architecture", None, 0)
    told = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=told.append)
    assert result.attempted > 10
    assert not result.failed, "".join(told)


def test_every_file_that_it_names_exists():
    named = re.findall(r"`((?:[\w]+/)+[\w.]*)`", PAGE)
    places = [ROOT, ROOT / "shardalg"]
    missing = [n for n in named if not any((p / n).exists() for p in places)]
    assert named
    assert not missing


def test_every_room_is_in_the_picture():
    picture = PAGE[PAGE.index("```text") :].partition("```text")[2].partition("```")[0]
    rooms = {p.name for p in (ROOT / "shardalg").iterdir() if (p / "__init__.py").exists()}
    assert not {room for room in rooms if not re.search(rf"\b{room}\b", picture)}


def test_it_stays_two_pages():
    assert len(PAGE.split()) < 1500


def test_every_file_that_a_docstring_names_exists():
    """Paths are relative to the repository, to `shardalg`, or to the docstring's file."""
    places, missing = [ROOT, ROOT / "shardalg"], []
    for path in sorted((ROOT / "shardalg").rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        for name in re.findall(r"`([\w./]+\.py)\b", text):
            if not any((place / name).exists() for place in [*places, path.parent]):
                missing.append((str(path.relative_to(ROOT)), name))
    assert not missing
