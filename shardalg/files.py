"""Atomic writes of files, and checked reads of JSON data as values of declared types.

The types are the annotations of the dataclasses that the values become, so that each field is
declared once. An error names the place of a value that its type does not allow.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, make_dataclass
from functools import cache
from inspect import get_annotations
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shardalg.errors import PlanFileError, ShardalgError

WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def write_whole(target: Path, content: str | bytes) -> None:
    """Write a file atomically: a failure leaves the old file unchanged.

    The data are written to a temporary file in the same folder, which is then renamed. It has
    the permissions of the old file, else the default permissions. A symbolic link is kept, and
    the file that it points to is written. A target that is no regular file, such as a pipe or
    a device, is not replaced; the data are written into it.

    Args:
      content: text, written as UTF-8, or bytes.

    Raises:
      OSError: the folder does not exist or is not writable, the old file is read-only (also for
        a user who could replace it), or the links form a cycle. The error names the target.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        place = _behind_links(target)
        mode = place.stat().st_mode if place.exists() else None
        if mode is None or stat.S_ISREG(mode):
            _replace(place, data, mode)
        else:
            place.write_bytes(data)
    except OSError as error:
        if error.errno is None:
            raise
        # The user does not know the temporary file, so the error names the target.
        raise OSError(error.errno, error.strerror, str(target)) from None


def check_place(target: Path) -> None:
    """Check that a file can be written, before there are data to write.

    Raises:
      OSError: as in `write_whole`; also if the target is a folder.
    """
    # In `fault`, 0 means that there is no fault; any other number is an error of the system.
    place = _behind_links(target)
    # An existing file must be writable, but a new file needs only a folder that can be changed.
    if place.exists():
        fault = errno.EISDIR if place.is_dir() else 0 if os.access(place, os.W_OK) else errno.EACCES
    else:
        folder = place.parent
        fault = 0 if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES
        fault = fault if folder.is_dir() else errno.ENOENT
    if fault:
        raise OSError(fault, os.strerror(fault), str(target))


def _behind_links(target: Path) -> Path:
    """Return the path that symbolic links lead to.

    Raises:
      OSError: the links form a cycle.
    """
    place = Path(os.path.realpath(target))
    # `realpath` follows all links. It returns a link only if the links form a cycle.
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target))
    return place


def _replace(place: Path, data: bytes, mode: int | None) -> None:
    """Write a temporary file beside `place`, and rename it to `place`.

    Args:
      mode: the mode bits of the old file, which the new file gets; None if there is no old file.

    Raises:
      PermissionError: the old file is read-only.
    """
    # `os.access` is always true for root, so the permission bits are checked too.
    if mode is not None and not (mode & WRITABLE and os.access(place, os.W_OK)):
        raise PermissionError(errno.EACCES, "the file is read-only", str(place))
    # In the same folder, because a rename is atomic only within one file system.
    temporary = place.with_name(f".{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(data)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(place)
    finally:
        # After a successful rename, no temporary file is left to remove.
        temporary.unlink(missing_ok=True)


Reader = Callable[[Any], Any]

DEEPEST = 100  # levels of a file; a plan has about ten, a formula of sizes a few more
_LARGEST = 1 << 63
_NOT_FINITE = ("inf", "-inf", "nan")


class _WrongValue(Exception):
    """An error about a JSON value that its declared type does not allow.

    `place` is the path to the value, such as `[1]['size']`. Each enclosing reader adds its key.
    """

    def __init__(self, data: object, words: str) -> None:
        super().__init__(f"is {data!r:.60}, {words}")
        self.place = ""

    def inside(self, key: object) -> _WrongValue:
        """Return the same error with the key of an enclosing object in front of its path."""
        self.place = f"[{key!r}]{self.place}"
        return self


def read(kind: Any, data: object, where: str) -> Any:
    """Return JSON data as a value of a type, with all nested values checked.

    Args:
      kind: a type: int, bool, str, float, None, a Literal, a union, `tuple[...]` (a list in the
        file), `dict[str, ...]`, a named tuple (a list), or a dataclass (an object with its fields).
        A string as the type of a tuple's items means the enclosing union, so that a type can
        contain itself.
      where: name of the data in the error message.

    Raises:
      PlanFileError: the type does not allow a value; the message names its place.

    >>> read(tuple[tuple[str, int | None], ...], [["X", 2], ["Y", None]], "axes")
    (('X', 2), ('Y', None))
    >>> read(tuple[tuple[str, int], ...], [["X", 2], ["Y", True]], "axes")
    Traceback (most recent call last):
      ...
    shardalg.errors.PlanFileError: axes[1][1] is True, not a whole number.
    """
    try:
        return _reader(kind)(data)
    except _WrongValue as wrong:
        raise PlanFileError(f"{where}{wrong.place} {wrong}.") from None


def to_data(value: Any) -> Any:
    """Return plain data as JSON represents it: tuples as lists, and no infinity or NaN.

    JSON has no such numbers: they become {"float": text}, which `_float` reads. The values of
    lists and mappings are converted likewise; any other value is returned as it is.

    >>> to_data({"a": (1, float("inf"))})
    {'a': [1, {'float': 'inf'}]}
    """
    if isinstance(value, tuple | list):
        return [to_data(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_data(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def row_of(record: type, *, without: Sequence[str] = (), **instead: Any) -> GenericAlias:
    """Return the tuple type that has the types of a dataclass's fields, in order.

    Args:
      without: names of fields that are left out.
      instead: types that replace declared types, by field name. A file has, for example, the
        number of an object in place of the object.

    >>> from shardalg.graph.ir import RegionArgument
    >>> row_of(RegionArgument, kind=int, without=("call",))
    tuple[int, int, int]
    """
    hints = {**_types(record), **instead}
    return GenericAlias(tuple, tuple(hints[name] for name in _names(record) if name not in without))


def without(record: type, *names: str) -> type:
    """Return a dataclass like `record` without the fields `names`.

    A file has these fields in another place, or they are equal for all records of the file.
    """
    hints = _types(record)
    kept = [(name, hints[name]) for name in _names(record) if name not in names]
    return make_dataclass(f"{record.__name__}Row", kept, frozen=True)


def joined(*records: type) -> type:
    """Return a dataclass with the fields of all `records`.

    A file has them as one JSON object, where the program has several dataclasses.
    """
    hints = [pair for record in records for pair in get_annotations(record, eval_str=True).items()]
    return make_dataclass("Joined", hints, frozen=True)


def values(item: object, record: type) -> dict[str, Any]:
    """Return a dict from the field names of `record` to the attributes of `item`."""
    return {name: getattr(item, name) for name in _names(record)}


def check_depth(data: object) -> None:
    """Raise an error if data are nested too deeply, before recursive code reads them.

    Raises:
      PlanFileError: the data have more than `DEEPEST` levels.
    """
    # Level by level without recursion, because deep data would exceed the recursion limit.
    # `level` has the lists and dicts that are nested equally deep.
    level: list[object] = [data]
    for _ in range(DEEPEST):
        contents = (each.values() if isinstance(each, dict) else each for each in level)
        # The data themselves may be a single value, such as a number or a text.
        level = [
            item
            for items in contents
            if isinstance(items, Iterable) and not isinstance(items, str)
            for item in items
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise PlanFileError(
        f"lists are nested deeper than {DEEPEST} levels, so the file is not a plan of shardalg."
    )


def _types(record: type) -> dict[str, Any]:
    """Return the type of each field, including the fields of base classes."""
    bases = reversed(record.__mro__)
    return {k: v for base in bases for k, v in get_annotations(base, eval_str=True).items()}


def _names(record: type) -> list[str]:
    return [field.name for field in fields(record) if field.init]


@cache
def _reader(kind: Any) -> Reader:
    """Return a function that checks JSON data and returns it as a value of the type `kind`.

    The function raises `_WrongValue` if the type does not allow the data. Cached, because a type
    is read many times; see `read` for the types.
    """
    # E.g. dict[str, int] has the origin dict and the inner types (str, int).
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if origin in (Union, UnionType):
        return _union(inner)
    if origin is Literal:
        return _literal(inner)
    if origin is tuple:
        return _tuple(inner, _reader)
    if origin in (dict, Mapping):
        return _mapping(_reader(inner[1]))
    if is_dataclass(kind):
        return _record(kind)
    # The only other types are named tuples: a list in the file, with one item per field.
    items = _tuple(tuple(get_type_hints(kind).values()), _reader)
    return lambda data: kind(*items(data))


def _integer(data: Any) -> int:
    """Return JSON data if it is a whole number of at most 64 bits; else raise `_WrongValue`."""
    # `isinstance` would accept True, which is an int in Python.
    if type(data) is not int:
        raise _WrongValue(data, "not a whole number")
    if not -_LARGEST <= data < _LARGEST:
        raise _WrongValue(data, "a number that is too large")
    return data


def _text(data: Any) -> str:
    """Return JSON data if it is text that UTF-8 can encode; else raise `_WrongValue`."""
    if type(data) is not str:
        raise _WrongValue(data, "not a text")
    # A surrogate cannot be encoded as UTF-8, so such a text could not be written again.
    if not data.isascii() and any("\ud800" <= c <= "\udfff" for c in data):
        raise _WrongValue(data, "not a text: it contains half a character (a surrogate)")
    return data


def _float(data: Any) -> float:
    """Return a float; infinity and NaN, which JSON does not have, are `{"float": "inf"}`."""
    if isinstance(data, dict) and list(data) == ["float"] and data["float"] in _NOT_FINITE:
        # NaN must be the same object everywhere (`graph.plain`), because NaN != NaN.
        return math.nan if data["float"] == "nan" else float(data["float"])
    if type(data) is not float:
        raise _WrongValue(data, "not a number with a decimal point")
    return data


def _bool(data: Any) -> bool:
    """Return JSON data if it is true or false; else raise `_WrongValue`."""
    if type(data) is not bool:
        raise _WrongValue(data, "neither true nor false")
    return data


def _none(data: Any) -> None:
    """Raise `_WrongValue` if JSON data is not null."""
    if data is not None:
        raise _WrongValue(data, "not null")


_SCALARS: dict[Any, Reader] = {
    int: _integer, str: _text, float: _float, bool: _bool, NoneType: _none,
}  # fmt: skip
_WRITTEN: dict[Any, tuple[type, ...]] = {
    int: (int,), str: (str,), float: (float, dict), bool: (bool,), NoneType: (NoneType,),
}  # fmt: skip


def _starts(kind: Any) -> tuple[type, ...]:
    """Return the Python types that JSON data of the type `kind` can have.

    A tuple is a list in JSON, a named tuple is a list, and a dataclass is a dict.
    """
    if get_origin(kind) is Literal:
        return tuple({type(value) for value in get_args(kind)})
    return _WRITTEN.get(kind, (list,) if get_origin(kind) is tuple else (list, dict))


def _union(kinds: tuple[Any, ...]) -> Reader:
    """Return the reader of a union: it tries each type whose JSON form fits the data's class.

    Args:
      kinds: the types of the union. A type `tuple[..., "text"]` contains the union itself.
    """
    readers: dict[type, list[Reader]] = {}

    def read_union(data: Any) -> Any:
        """Return the value of the first reader that accepts the data.

        `readers` has, for each class of JSON data, the readers of the types that may fit.
        """
        # The last reader is called outside of the loop, so that its error names the place.
        candidates = readers.get(list if type(data) is tuple else type(data), ())
        for reader in candidates[:-1]:
            try:
                return reader(data)
            except _WrongValue:
                continue
        if not candidates:
            raise _WrongValue(data, f"not one of {', '.join(sorted(t.__name__ for t in readers))}")
        return candidates[-1](data)

    def reader_of_item(kind: Any) -> Reader:
        # A string means the union around it, whose reader does not exist yet when this one is
        # built.
        return read_union if isinstance(kind, str) else _reader(kind)

    for kind in kinds:
        is_tuple = get_origin(kind) is tuple
        reader = _tuple(get_args(kind), reader_of_item) if is_tuple else _reader(kind)
        # By class of the JSON data: a member of another class cannot fit, and trying it would give
        # an error about the wrong member.
        for python_type in _starts(kind):
            readers.setdefault(python_type, []).append(reader)
    return read_union


def _literal(values: tuple[Any, ...]) -> Reader:
    """Return the reader of a `Literal` type: it accepts only these values.

    Args:
      values: the arguments of the type.
    """
    # With the type, because True == 1 and 1 == 1.0 in Python.
    known = {(type(value), value) for value in values}

    def reader(data: Any) -> Any:
        if isinstance(data, list | dict) or (type(data), data) not in known:
            raise _WrongValue(data, f"not one of {list(values)}")
        return data

    return reader


def _tuple(kinds: tuple[Any, ...], reader_of: Callable[[Any], Reader]) -> Reader:
    """Return the reader of a tuple type.

    Args:
      kinds: the arguments of the type: `(T, ...)`, or one type per place.
      reader_of: returns the reader of an item's type.
    """
    # Any number of items of one type.
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        item_reader = reader_of(kinds[0])
        return lambda data: tuple([_at(i, item_reader, item) for i, item in enumerate(_list(data))])
    # Python gives () as the only argument of the type `tuple[()]`, which has no items.
    readers = [reader_of(kind) for kind in kinds if kind != ()]

    def read_fixed(data: Any) -> tuple[Any, ...]:
        """Return a list with one item per place as a tuple."""
        if len(_list(data)) != len(readers):
            raise _WrongValue(data, f"not {len(readers)} values")
        pairs = enumerate(zip(readers, data, strict=True))
        return tuple([_at(i, reader, item) for i, (reader, item) in pairs])

    return read_fixed


def _list(data: Any) -> list[Any]:
    """Return JSON data if it is a list; else raise `_WrongValue`."""
    if type(data) not in (list, tuple):
        raise _WrongValue(data, "not a list")
    return data


def _at(key: object, reader: Reader, item: Any) -> Any:
    """Return `reader(item)`; an error gets the item's key or index in front of its place."""
    try:
        return reader(item)
    except _WrongValue as wrong:
        raise wrong.inside(key) from None


def _mapping(each: Reader) -> Reader:
    """Return the reader of a JSON object with any keys; `each` reads its values."""

    def reader(data: Any) -> dict[str, Any]:
        if type(data) is not dict:
            raise _WrongValue(data, "not an object")
        return {_text(key): _at(key, each, item) for key, item in data.items()}

    return reader


def _record(kind: Any) -> Reader:
    """Return a reader of an object with exactly the fields of a dataclass.

    The dataclass checks its own values when it is built.
    """
    hints, names = _types(kind), _names(kind)
    readers = {name: _reader(hints[name]) for name in names}

    def reader(data: Any) -> Any:
        """Return a JSON object as an instance of the dataclass; else raise `_WrongValue`."""
        # A missing field has no value, and an unknown one means another version of the file.
        if type(data) is not dict or set(data) != set(names):
            raise _WrongValue(data, f"not an object with {', '.join(names)}")
        found = {name: _at(name, readers[name], data[name]) for name in names}
        try:
            return kind(**found)
        except ShardalgError as error:
            raise _WrongValue(data, f"which is not valid: {error}") from None

    return reader
