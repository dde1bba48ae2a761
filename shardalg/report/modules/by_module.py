"""Tables folded by module: one row for what a module does, alike layers as `layers[0:24]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from shardalg.errors import TableError
from shardalg.io.table import Table

Content = Mapping[tuple[Any, ...], tuple[Any, ...]]
"""Per key of a row, such as (kind, axes), what is summed."""


def check_by(by: str | None) -> bool:
    """Whether a table is asked for by module.

    Raises:
      TableError: it is asked for by something else.
    """
    if by not in (None, "module"):
        raise TableError(f"by={by!r}: tables are folded by 'module', or not at all (None).")
    return by is not None


def folded(
    found: Mapping[str, Content], compared: int | None = None
) -> list[tuple[str, tuple[Any, ...], tuple[Any, ...]]]:
    """(module, key, sums) with modules that are alike, and numbered one after another, as one.

    Args:
      found: module to what it does; sums of modules that are folded are those of all of them.
      compared: how many of the sums, the first ones, must be equal in modules that are alike; None:
        all.

    >>> layer = {("all_gather",): (2, 8)}
    >>> found = {f"net/layers_{i}/up": layer for i in range(3)} | {"net/head": {("psum",): (1, 4)}}
    >>> for row in folded(found):
    ...     print(*row)
    net/layers[0:3]/up ('all_gather',) (6, 24)
    net/head ('psum',) (1, 4)
    >>> [row[0] for row in folded({f"layers/{i}/up": layer for i in range(3)})]
    ['layers[0:3]/up']
    """
    rows = [(tuple(name.split("/")), dict(content)) for name, content in found.items()]
    return [
        ("/".join(path).replace("/[", "["), key, sums)
        for path, content in _fold(rows, compared)
        for key, sums in content.items()
    ]


Row = tuple[tuple[str, ...], dict[Any, tuple[Any, ...]]]


def _fold(rows: Iterable[Row], compared: int | None) -> list[Row]:
    """Rows below one module, those of children that are alike joined."""
    own: list[Row] = []
    below: dict[str, list[Row]] = {}
    for path, content in rows:
        if path:
            below.setdefault(path[0], []).append((path[1:], content))
        else:
            own.append(((), content))
    parts = {name: _fold(inner, compared) for name, inner in below.items()}
    for names in _runs(parts, compared):
        label = names[0] if len(names) == 1 else _label(names)
        alike = zip(*(parts[name] for name in names), strict=True)
        own += [((label, *same[0][0]), _added([what for _, what in same])) for same in alike]
    return own


def _added(contents: list[dict[Any, tuple[Any, ...]]]) -> dict[Any, tuple[Any, ...]]:
    return {
        key: tuple(map(sum, zip(*(content[key] for content in contents), strict=True)))
        for key in contents[0]
    }


def _runs(parts: Mapping[str, list[Row]], compared: int | None) -> list[list[str]]:
    """Children in order, those that follow each other in number and are alike together."""
    runs: list[list[str]] = []
    seen = {name: _seen(rows, compared) for name, rows in parts.items()}
    for name in sorted(parts, key=_order(parts)):
        base, number = _split(name)
        last = runs[-1][-1] if runs else ""
        follows = number is not None and _split(last) == (base, number - 1)
        if follows and seen[last] == seen[name]:
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def _seen(rows: list[Row], compared: int | None) -> list[Any]:
    """What must be equal in modules that are alike."""
    return [(path, {key: sums[:compared] for key, sums in what.items()}) for path, what in rows]


def _order(parts: Mapping[str, Any]) -> Any:
    """Families of numbered children where the first of them stands, by number."""
    first: dict[str, int] = {}
    for place, name in enumerate(parts):
        first.setdefault(_split(name)[0], place)
    return lambda name: (first[_split(name)[0]], _split(name)[1] or 0)


def _split(name: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(.*?)_?(\d+)", name)
    return (name, None) if found is None else (found[1], int(found[2]))


def _label(names: list[str]) -> str:
    base, first = _split(names[0])
    return f"{base}[{first}:{(first or 0) + len(names)}]"


def table(
    columns: tuple[str, ...], found: Mapping[str, Content], compared: int | None = None
) -> Table:
    """A row per module and key; "" is outside of all modules; `compared` as of `folded`."""
    rows = ((module, *key, *sums) for module, key, sums in folded(found, compared))
    return Table(columns, tuple(rows))


def summed(rows: Iterable[tuple[str, tuple[Any, ...], tuple[Any, ...]]]) -> dict[str, Content]:
    """Module to key to sums.

    >>> summed([("a", ("k",), (1, 2)), ("a", ("k",), (3, 4))])
    {'a': {('k',): (4, 6)}}
    """
    found: dict[str, dict[Any, tuple[Any, ...]]] = {}
    for module, key, amounts in rows:
        content = found.setdefault(module, {})
        before = content.get(key, (0,) * len(amounts))
        content[key] = tuple(a + b for a, b in zip(before, amounts, strict=True))
    return dict(found)
