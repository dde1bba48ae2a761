"""Every notebook runs from first cell to last, and is stored with its outputs."""

import ast
import os
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

import shardalg as sa

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONG = ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14")
"""Executed by `make test-slow` and `make notebooks`: 8 to 30 seconds each."""
EXECUTED = [
    pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem[:2] in LONG else [])
    for p in NOTEBOOKS
]
LOGIC = (ast.For, ast.While, ast.If)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell):
    """Return the kinds of a cell's outputs: MIME types, "text" of a stream, "error"."""
    found = set()
    for output in cell.outputs:
        stream = {"stream": {"text"}, "error": {"error"}}
        found |= stream.get(output.output_type, set(output.get("data", ())))
    return found


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", EXECUTED)
def test_it_runs_and_puts_out_what_is_committed(path, monkeypatch, own_devices):
    monkeypatch.setenv("XLA_FLAGS", own_devices["XLA_FLAGS"])
    committed, fresh = read(path), read(path)
    for cell in code_cells(fresh):
        cell.outputs = []
    resources = {"metadata": {"path": os.fspath(FOLDER)}}
    NotebookClient(fresh, timeout=300, kernel_name="python3", resources=resources).execute()
    for before, after in zip(code_cells(committed), code_cells(fresh), strict=True):
        assert kinds(before) == kinds(after), before.source
        assert "error" not in kinds(after)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_as_it_ran(path):
    counts = [cell.execution_count for cell in code_cells(read(path))]
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_holds_no_logic(path):
    """Functions in notebooks are only planned ones: a user's models."""
    assert not [node for node in nodes(path) if isinstance(node, LOGIC)]
    assert max(len(cell.source.splitlines()) for cell in code_cells(read(path))) <= 18


def lines_above_picture(cells):
    """Return how many lines of text are shown above the first picture; collapsed ones are not."""
    count = 0
    for cell in cells:
        if not cell.metadata.get("jupyter", {}).get("source_hidden"):
            count += len(cell.source.splitlines())
        if cell.cell_type == "code" and "image/png" in kinds(cell):
            return count
    return None


OLD_FORM = ("04",)
"""Notebooks that mix checks with results, and end without a list of next calls."""
PICTURE_LATER = ("04", "14")
"""Notebooks whose first picture needs the results of their sections."""
FOLDED = {"hide-cell", "hide-input", "hide-output"}


def tags(cell):
    return FOLDED & set(cell.metadata.get("tags", ()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_answer_and_a_picture_are_on_the_first_screen(path):
    cells = read(path).cells
    assert cells[0].source.startswith("# ")
    if path.stem[:2] not in PICTURE_LATER:
        assert lines_above_picture(cells) <= 40


def test_notebooks_have_twelve_open_code_cells_on_average(show):
    opened = [
        sum(not tags(cell) & {"hide-cell", "hide-input"} for cell in code_cells(read(path)))
        for path in NOTEBOOKS
    ]
    show(sum(opened) / len(opened))
    assert sum(opened) <= 12 * len(opened)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_open_table_has_more_than_twelve_rows(path):
    shown = [
        cell for cell in code_cells(read(path)) if not tags(cell) & {"hide-cell", "hide-output"}
    ]
    rows = [
        "".join(output.get("data", {}).get("text/html", "")).count("<tr")
        for cell in shown
        for output in cell.outputs
    ]
    assert path.stem[:2] in OLD_FORM or max(rows, default=0) <= 13


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_checks_are_folded(path):
    """A picture or a table is not between asserts: these are in cells of their own, folded."""
    mixed = [cell.source for cell in code_cells(read(path)) if asserts(cell) and not tags(cell)]
    assert path.stem[:2] in OLD_FORM or not mixed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_ends_with_what_the_reader_can_do(path):
    assert path.stem[:2] in OLD_FORM or "## What you can do now" in read(path).cells[-1].source


def nodes(path):
    """All that the code cells say, parsed."""
    return [n for cell in code_cells(read(path)) for n in ast.walk(ast.parse(cell.source))]


def foreign_names(found):
    """Return names that are not public: imports of shardalg's folders, and unknown names of it."""
    for node in found:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("shardalg."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardalg"):
            yield node.module
        elif isinstance(node, ast.Attribute) and not unhidden(node):
            yield ast.unparse(node)


def unhidden(node):
    """Return True if users meet the attribute; of `sa` and its folders, if it is public."""
    if node.attr.startswith("_"):
        return False
    room = {"sa": sa, **{f"sa.{n}": getattr(sa, n) for n in ("models", "paper", "examples")}}
    owner = room.get(ast.unparse(node.value))
    return owner is None or node.attr in owner.__all__


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_uses_public_names_alone(path):
    assert not list(foreign_names(nodes(path)))


def test_names_that_are_not_public_are_seen():
    lines = "import shardalg as sa", "from shardalg.algebra import mesh", "sa.nothing(plan._sharded)"
    text = "\n".join((*lines, "sa.plan()"))
    found = list(foreign_names(ast.walk(ast.parse(text))))
    assert sorted(found) == ["plan._sharded", "sa.nothing", "shardalg.algebra"]


def sections(notebook):
    """Return the code cells under each heading of the second level."""
    found = {}
    title = ""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found.setdefault(title, []).append(cell)
        elif titles := re.findall(r"^## (.*)$", cell.source, re.MULTILINE):
            title = titles[-1]
    return found


def asserts(cell):
    return any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(cell.source)))


def is_empty_table(output):
    data = output.get("data", {})
    text = "".join(data.get("text/plain", ""))
    bodies = re.findall(r"<tbody>(.*?)</tbody>", "".join(data.get("text/html", "")), re.DOTALL)
    return "Empty DataFrame" in text or any("<tr" not in body for body in bodies)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_an_empty_table(path):
    shown = [output for cell in code_cells(read(path)) for output in cell.outputs]
    assert not [output for output in shown if is_empty_table(output)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_section_asserts_what_it_says(path):
    parts = sections(read(path))
    silent = [title for title, cells in parts.items() if title and not any(map(asserts, cells))]
    assert parts.keys() - {""}
    assert not silent


def test_an_empty_table_is_seen():
    empty = pd.DataFrame(columns=["claim"])
    for frame, seen in ((empty, True), (pd.DataFrame({"claim": ["merge"]}), False)):
        for kind, text in (("text/plain", repr(frame)), ("text/html", frame._repr_html_())):
            assert is_empty_table({"data": {kind: text}}) == seen
