"""What commands print with --json: numbers with their unit in the key, one type per key."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json to a command."""
    parser.add_argument("--json", action="store_true", help="plain data instead of text")


def print_json(data: Mapping[str, Any]) -> None:
    """Print plain data as JSON."""
    print(json.dumps({name: plain(value) for name, value in data.items()}, indent=1))


def records(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame as plain data."""
    rows = table.to_dict("records")
    return [{name: plain(value) for name, value in row.items()} for row in rows]


def plain(value: Any) -> Any:
    """Return a value as JSON has it: formulas and layouts as text, what is not a number as null.

    >>> plain(float("nan")) is None, plain((1, "a")), plain({"x": 2.5})
    (True, [1, 'a'], {'x': 2.5})
    """
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if number == number and abs(number) != float("inf") else None
