"""Public names, their parameters and members, and columns of public tables are as recorded.

A name that is missing breaks a user's program. A new name is recorded on purpose:
`python -m tests.test_recorded_names` writes the record again.
"""

import inspect
import json
from functools import cache
from pathlib import Path

import pytest

import shardalg as sa
from tests.test_api_pages import members
from tests.test_public_tables import TABLES, B, planned

RECORD = Path(__file__).with_name("recorded_names.json")
PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameters(call):
    """Return the parameters of a call; a `*` separates the keyword-only ones."""
    found = inspect.signature(call).parameters.values()
    placed = [p.name for p in found if p.kind in PLACED]
    others = [p.name for p in found if p.kind not in PLACED]
    return ", ".join([*placed, *(["*"] if others else []), *sorted(others)])


@cache
def names():
    """Return each public name with the parameters of its call, and a class with its members."""
    found = {}
    for name in sorted(sa.__all__):
        value = getattr(sa, name)
        found[name] = {}
        if inspect.isclass(value):
            methods = {m: inspect.getattr_static(value, m) for m in sorted(members(value))}
            found[name]["members"] = {
                m: parameters(method) if inspect.isfunction(method) else ""
                for m, method in methods.items()
            }
        elif callable(value):
            found[name]["parameters"] = parameters(value)
    return found


def columns(numbers, named):
    """Return the columns of each public table."""
    return {name: list(table(numbers, named).columns) for name, table in TABLES.items()}


def plans():
    """Return a plan in numbers and one in named sizes, whose tables are recorded."""
    mesh = {"X": 2, "Y": 4}
    return planned(sa.Mesh(mesh), 64), planned(sa.Mesh(mesh, symbolic=True), B)


@pytest.mark.parametrize("name", sorted(sa.__all__))
def test_a_public_name_is_as_recorded(name):
    record = json.loads(RECORD.read_text())["names"]
    assert names()[name] == record[name]


def test_no_recorded_name_is_missing():
    assert set(json.loads(RECORD.read_text())["names"]) == set(sa.__all__)


def test_columns_are_as_recorded():
    assert columns(*plans()) == json.loads(RECORD.read_text())["columns"]


if __name__ == "__main__":
    record = {"names": names(), "columns": columns(*plans())}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
