"""The text form of contracts: TOML files that stay in the user's repository.

A file is read by Python's own TOML reader; no text of it is evaluated. This one checks a train step
on a mesh, for all sizes of its named dimensions:

    version = 1
    function = "model.py:step"
    mesh = "data=8,model=4"
    where = ["data divides B"]

    [[statement]]
    no = "all_gather"
    axis = "model"
    phase = "backward"

    [[statement]]
    at_most = "peak_bytes"
    bound = 60e9
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardalg.errors import ContractError
from shardalg.plan.contracts.contract import Contract, contract
from shardalg.plan.contracts.sent_rows import near
from shardalg.plan.contracts.statements import (
    MEASURES,
    AtMost,
    NoCollective,
    NoIdleDevices,
    ShardedAlong,
    SomeCollective,
    Statement,
    arguments_of,
    at_most,
    no,
    no_idle_devices,
    sharded,
    some,
    unchanged,
)

VERSION = 1
LARGEST_FILE = 1_000_000
"""A file with more bytes is no contract that a person wrote."""
_FUNCTION_KEYS = ("function", "mesh", "args", "hardware", "policy")
_TOP_KEYS = ("version", *_FUNCTION_KEYS, "where", "for_all", "statement")
_SUBJECT_KEYS = ("axis", "phase", "role", "module", "region")
_KEYS = {
    "no": _SUBJECT_KEYS,
    "some": _SUBJECT_KEYS,
    "at_most": (
        "bound", "kind", *_SUBJECT_KEYS, "memory_class", "hardware", "software", "tolerance",
    ),
    "sharded": ("axis", "above_bytes"),
    "no_idle_devices": (),
    "unchanged": (),
}  # fmt: skip
ANY = "collective"
"""The kind that means every kind of collective."""


@dataclass(frozen=True)
class ContractFile:
    """A contract in a file, and the function that it is about.

    Attributes:
      contract: the statements.
      function: words of the commands' options: function, mesh, args, hardware, policy. Keys that
        the file lacks are absent.
    """

    contract: Contract
    function: Mapping[str, str]

    @property
    def text(self) -> str:
        """The TOML text of the file, from which `read_file` makes the same contract.

        First the keys of the whole contract, then a table `[[statement]]` per statement.
        """
        lines = [f"version = {VERSION}"]
        lines += [f"{key} = {_value(word)}" for key, word in self.function.items()]
        if self.contract.where:
            lines.append(f"where = [{', '.join(map(_value, self.contract.where))}]")
        if self.contract.for_all is not None:
            lines.append(f"for_all = [{', '.join(map(_value, self.contract.for_all))}]")
        for statement in self.contract.statements:
            lines += ["", "[[statement]]"]
            lines += [f"{key} = {_value(value)}" for key, value in _entries(statement).items()]
        return "\n".join(lines) + "\n"


def load_contract(path: str | Path) -> Contract:
    """Return the contract in a file.

    Files that it names, such as a plan that must be unchanged, are relative to its folder.

    Raises:
      ContractError: no such file, another version, or something that is no contract.
    """
    if not isinstance(path, str | os.PathLike):
        raise ContractError(f"path is {path!r:.60}: give the path of a contract file.")
    return read_file(Path(path)).contract


def read_file(path: Path) -> ContractFile:
    """Read a contract file (TOML): its statements, and the function that it is about.

    Raises:
      ContractError: as `load_contract`.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ContractError(f"{path}: {error.strerror}. Give a file that can be read.") from None
    if len(content) > LARGEST_FILE:
        raise ContractError(f"{path} has {len(content):,} bytes: a contract has at most a million.")
    try:
        data = tomllib.loads(content.decode())
    # Deep nesting in a file ends in RecursionError.
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ContractError(f"{path} is no TOML file, or it is cut short: {error}") from None
    return _of(data, path)


def _of(data: Mapping[str, Any], path: Path) -> ContractFile:
    """Return the contract of a parsed file.

    Args:
      data: the keys and values of the file.
      path: the file, for errors, and for the folder of files that statements name.

    Raises:
      ContractError: the content is no contract; the error names the entry.
    """
    # The version comes first, because the keys of another version are not known.
    version = data.get("version")
    if type(version) is not int:
        found = "no version" if version is None else f"version = {version!r:.20}"
        raise ContractError(f"{path} has {found}: write the line version = {VERSION}.")
    if version != VERSION:
        raise ContractError(
            f"{path} has version {version}, and this shardalg reads version {VERSION}: "
            + ("install a later shardalg." if version > VERSION else "write it again.")
        )
    _check_keys(data, _TOP_KEYS, str(path))
    function = {key: data[key] for key in _FUNCTION_KEYS if key in data}
    for key, word in function.items():
        if not isinstance(word, str):
            raise ContractError(f"{path}: {key} is {word!r:.60}: give text.")
    rows = data.get("statement")
    if not isinstance(rows, list) or not rows:
        raise ContractError(f"{path} has no [[statement]].")
    statements = [
        _statement(row, f"{path}, statement {number}") for number, row in enumerate(rows, 1)
    ]
    try:
        made = contract(
            *statements,
            where=_texts(data, "where") or (),
            for_all=_texts(data, "for_all"),
            folder=path.parent,
        )
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from None
    return ContractFile(made, function)


def _texts(data: Mapping[str, Any], key: str) -> list[str] | None:
    """Return a list of texts of a file; None if the file does not have it.

    Raises:
      ContractError: it is something else.
    """
    found = data.get(key)
    if found is not None and not (
        isinstance(found, list) and all(isinstance(word, str) for word in found)
    ):
        raise ContractError(f"{key} is {found!r:.60}: give a list of texts.")
    return found


def _statement(row: object, place: str) -> Statement:
    """Return a statement of a file.

    E.g. {"no": "all_gather", "axis": "model"} -> `no("all_gather", axis="model")`.

    Args:
      row: the keys and values of one `[[statement]]`.
      place: the file and the number of the statement, for errors.

    Raises:
      ContractError: unknown or missing keys; the error names the place.
    """
    if not isinstance(row, dict):
        raise ContractError(f"{place} is {row!r:.60}: write [[statement]] and its keys below.")
    # The key that names the kind of the statement; its value is the kind's first argument.
    kinds = [kind for kind in _KEYS if kind in row]
    if len(kinds) != 1:
        raise ContractError(
            f"{place} has {' and '.join(kinds) or 'none'} of {', '.join(_KEYS)}: give one."
        )
    kind = kinds[0]
    _check_keys(row, (kind, *_KEYS[kind]), place)
    given = {key: value for key, value in row.items() if key != kind}
    word = row[kind]
    # Errors of the functions do not know the file, so the place is added below.
    try:
        if kind in ("no", "some"):
            make = no if kind == "no" else some
            return make(None if word == ANY else _word(word), **given)
        if kind == "at_most":
            if word not in MEASURES:
                raise ContractError(f"at_most is {word!r}. {near(str(word), MEASURES)}")
            if "bound" not in given:
                raise ContractError("at_most needs a bound, such as bound = 60e9.")
            return at_most(given.pop("kind", None), **{word: given.pop("bound")}, **given)
        if kind == "sharded":
            if "axis" not in given:
                raise ContractError("sharded needs an axis, such as axis = 'data'.")
            return sharded(_word(word), given.pop("axis"), **given)
        if kind == "unchanged":
            return unchanged(_word(word))
        if word is not True:
            raise ContractError(f"no_idle_devices is {word!r}: write true.")
        return no_idle_devices()
    except ContractError as error:
        raise ContractError(f"{place}: {error}") from None


def _word(value: object) -> str:
    """Return a text of a file.

    Raises:
      ContractError: it is no text.
    """
    if not isinstance(value, str) or not value:
        raise ContractError(f"{value!r:.60} is no text in quotes.")
    return value


def _check_keys(row: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    """Raise an error for a key that is not known.

    Raises:
      ContractError: the error has similar keys.
    """
    for key in row:
        if key not in known:
            raise ContractError(f"{place} has the key {key!r}. {near(key, known)}")


def _entries(statement: Statement) -> dict[str, object]:
    """Return the keys and values of a statement in a file, as `_statement` reads them.

    Values that are the default are left out.
    """
    if isinstance(statement, NoCollective | SomeCollective):
        given = dict(arguments_of(statement.subject))
        kind = given.pop("kind", ANY)
        return {"no" if isinstance(statement, NoCollective) else "some": kind, **given}
    if isinstance(statement, AtMost):
        entries: dict[str, object] = {"at_most": statement.measure, "bound": statement.bound}
        entries |= arguments_of(statement.subject)
        # A statement of the two required values alone has all defaults.
        default = AtMost(statement.measure, statement.bound)
        for key in ("memory_class", "hardware", "software", "tolerance"):
            if getattr(statement, key) != getattr(default, key):
                entries[key] = getattr(statement, key)
        return entries
    if isinstance(statement, ShardedAlong):
        above = {"above_bytes": statement.above_bytes} if statement.above_bytes else {}
        return {"sharded": statement.role, "axis": statement.axis, **above}
    if isinstance(statement, NoIdleDevices):
        return {"no_idle_devices": True}
    return {"unchanged": statement.path}


def _value(value: object) -> str:
    """Return a value as TOML text: true, a number, or text in quotes.

    Quotes, backslashes and letters that cannot be printed are escaped.
    """
    # Before numbers, because True is an int in Python.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    quoted = str(value).replace("\\", "\\\\").replace('"', '\\"')
    escaped = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in quoted)
    return f'"{escaped}"'
