"""Sizes as plain data, so that a file can hold them and no text is ever evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import sympy

from shardalg.algebra.dims import Expr, Size, SymbolError

Data = int | list[Any]


def to_data(size: Expr) -> Data:
    """A size as nested lists: `["size", name, hint]`, `["ratio", p, q]`, `["add", ...]`.

    >>> B, S = Size("B", 8), Size("S", 16)
    >>> to_data(7), to_data(B), to_data(2 * B)
    (7, ['size', 'B', 8], ['mul', 2, ['size', 'B', 8]])

    Raises:
      SymbolError: an operation that no size has, such as a root.
    """
    if isinstance(size, int):
        return size
    if size.is_Integer:
        return int(size)
    if isinstance(size, Size):
        return ["size", size.name, size.hint]
    if size.is_Rational:
        return ["ratio", int(size.p), int(size.q)]
    names = {kind: name for name, kind in _operations().items()}
    if size.func not in names:
        raise SymbolError(
            f"the size {size} cannot be saved: it has a {size.func.__name__}, and sizes are made "
            "of named sizes and numbers by + - * / and floor."
        )
    return [names[size.func], *map(to_data, size.args)]


def from_data(data: Data) -> Expr:
    """The size that `to_data` wrote.

    >>> B = Size("B", 8)
    >>> from_data(to_data(3 * B // 2 - 1)) == 3 * B // 2 - 1
    True
    """
    if isinstance(data, int):
        return data
    operation, *arguments = data
    if operation == "size":
        return Size(str(arguments[0]), int(arguments[1]))
    if operation == "ratio":
        return sympy.Rational(*map(int, arguments))
    return _operations()[operation](*map(from_data, arguments))


@cache
def _operations() -> Mapping[str, Callable[..., sympy.Expr]]:
    return {
        "add": sympy.Add,
        "mul": sympy.Mul,
        "pow": sympy.Pow,
        "floor": sympy.floor,
        "ceil": sympy.ceiling,
        "max": sympy.Max,
        "min": sympy.Min,
        "mod": sympy.Mod,
    }
