"""Messages and plain data of the commands.

A message names options of the command line in place of Python arguments, and prints each cause
once.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shardalg.errors import CommandError
from shardalg.graph.user_frames import user_lines

if TYPE_CHECKING:
    from shardalg.tables import DataFrame, Table

WIDTH, MOST_FRAMES = 300, 8
_PHRASES = (
    (r"mesh=sa\.Mesh\(\{[^}]*\}\), a mesh of JAX, or a Strategy, or set one with jax\.set_mesh",
     "--mesh data=8,model=4, or give the arguments shardings"),
    (r"\bplan\(\) needs", "the plan needs"),
    (r"\bmesh=sa\.Mesh\([^)]*\)", "--mesh data=8,model=4"),
    (r"states no mesh; give the mesh\b", "states no mesh; give --mesh X=2,Y=4"),
    (r"\bOptions\(policy=[^)]*\)", "--policy"),
)  # fmt: skip


class Command(NamedTuple):
    """One subcommand of `shardalg`.

    Attributes:
      help: its line in `shardalg --help`.
      add_options: adds its options to its parser.
      run: runs it with the parsed options, and returns the exit status.
    """

    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]

    @staticmethod
    def of(module: Any) -> Command:
        """Return the command of a module with `HELP`, `add_options` and `run`."""
        return Command(module.HELP, module.add_options, module.run)


WRONG_USE, PROGRAM_FAILED = 2, 3
"""Exit statuses of an error in the command's input, and of one in the user's own code."""


class UserProgramError(CommandError):
    """An error of the user's own code, which is the cause of this exception."""


def in_options(message: str, options: argparse.Namespace) -> str:
    """Return a message that names options of the command line in place of Python arguments.

    >>> options = argparse.Namespace(command="plan", mesh=None, devices=0)
    >>> in_options("devices=0: give a number.", options)
    '--devices 0: give a number.'
    >>> in_options("mesh: 'X' in 'X'; write NAME=SIZE", options)
    "--mesh: 'X' in 'X'; write NAME=SIZE"
    """
    # The library writes messages for callers in Python, and a user of the command line sees no
    # Python arguments.
    for pattern, words in _PHRASES:
        message = re.sub(pattern, words, message)
    for name in vars(options):
        option = f"--{name.replace('_', '-')}"
        message = re.sub(rf"(?<![\w.,(-]){name}=(?=[\w'\"\[])", f"{option} ", message)
        message = re.sub(rf"(?m)^{name}: ", f"{option}: ", message)
    return once(message)


def once(message: str) -> str:
    r"""Return a message with each cause once, in lines of at most 300 characters.

    Lines "who: cause" whose causes differ only in numbers and lists become one line with the first
    cause.

    >>> once("no layout:\n  w[0]: 3 rows\n  w[1]: 4 rows\n  x: 3 columns")
    'no layout:\n  w[0] and 1 more: 3 rows\n  x: 3 columns'
    """
    lines_by_cause: dict[str, list[str]] = {}
    for line in dict.fromkeys(line.rstrip() for line in message.splitlines()):
        # Numbers and lists become "#", so that causes that differ only in them have equal keys.
        # Only indented lines name a place ("w[0]: cause"), other lines must be equal as a whole.
        who, colon, cause = line.partition(": ")
        key = (
            re.sub(r"\[[^]]*\]|\([\d, ]*\)|\d+", "#", cause) if line[:1] == " " and colon else line
        )
        lines_by_cause.setdefault(key, []).append(line)
    shown_lines = []
    for line, *other_lines in lines_by_cause.values():
        if other_lines:
            who, _, cause = line.partition(": ")
            line = f"{who} and {len(other_lines)} more: {cause}"
        shown_lines += (
            [line] if len(line) <= WIDTH else textwrap.wrap(line, 120, subsequent_indent="  ")
        )
    return "\n".join(shown_lines)


def failed(error: BaseException, what: str) -> str:
    """Return `what`, the user's lines of an error's traceback, and the error, as text."""
    lines = user_lines(error)
    if len(lines) > MOST_FRAMES:
        half = MOST_FRAMES // 2
        # The outermost and the innermost lines say most: those in between are counted.
        lines = [*lines[:half], f"  ... {len(lines) - 2 * half} more lines", *lines[-half:]]
    message = once(f"{type(error).__name__}: {error}")
    return "\n".join((what, *lines, *message.splitlines()[:8]))


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json to a command."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def print_json(data: Mapping[str, Any]) -> None:
    """Print plain data as JSON."""
    print(json.dumps({name: plain(value) for name, value in data.items()}, indent=1))


def records(table: Table | DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as plain data for JSON: a dict per row, with None for a gap.

    If one value of a column is text, all its values become text, so that each key has one type.
    Whole bytes are integers.

    >>> from shardalg.tables import Table
    >>> records(Table(("place", "wire_bytes"), ((3, 8), ("x", None))))
    [{'place': '3', 'wire_bytes': 8}, {'place': 'x', 'wire_bytes': None}]
    """
    names = tuple(table.columns)
    rows = [dict(zip(names, map(plain, row), strict=True)) for row in table.rows]
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows if row[name] is not None]
        # Readers of JSON expect one type per key.
        if any(isinstance(value, str) for value in values):
            for row in rows:
                row[name] = None if row[name] is None else str(row[name])
        elif all(isinstance(v, int) or (isinstance(v, float) and v.is_integer()) for v in values):
            # pandas stores whole numbers as floats if a value of the column is missing.
            if name.endswith("_bytes"):
                for row in rows:
                    row[name] = None if row[name] is None else int(row[name])
    return rows


def by_quantity(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows with their quantity appended to the keys in `names`, so that keys have units.

    >>> by_quantity([{"quantity": "step_time_s", "planned": 1.5, "mesh_axes": ""}], ["planned"])
    [{'quantity': 'step_time_s', 'planned_step_time_s': 1.5, 'mesh_axes': ''}]
    """
    return [
        {(f"{n}_{row['quantity']}" if n in names else n): plain(v) for n, v in row.items()}
        for row in rows
    ]


def plain(value: Any) -> Any:
    """Return a value for JSON: formulas and shardings as text, NaN and infinity as null.

    Mappings and lists are converted with all that they contain. Scalars of numpy and jax become
    numbers of Python.

    >>> plain(float("nan")) is None, plain((1, "a")), plain({"x": 2.5})
    (True, [1, 'a'], {'x': 2.5})
    """
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    # An integer of numpy or jax is no `int`: without `item` it would become a float below.
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int):
        return value
    # A value that is no number, such as a formula with names, is printed.
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    # JSON has no NaN or infinity.
    return number if number == number and abs(number) != float("inf") else None
