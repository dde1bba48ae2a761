"""Sizes as plain data, so that a file can hold them and no text is ever evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import sympy

from shardalg.algebra.dims import Expr, Size, SymbolError, dims

Data = int | str | tuple["Data", ...]
"""A size in a file: a number, or an operation with what it is of."""
LONGEST = 4096  # bits of a number that a formula may make


def to_data(size: Expr) -> int | list[Any]:
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
    """The size that `to_data` wrote, as nested tuples.

    Raises:
      SymbolError: no such operation, arguments that it does not take, or a number that it cannot
        make (a division by zero) or that has more than `LONGEST` bits.

    >>> B = Size("B", 8)
    >>> from_data(("add", -1, ("mul", 3, ("size", "B", 8)))) == 3 * B - 1
    True
    """
    if _bits(data) > LONGEST:
        raise SymbolError(f"the size {data!r:.80} makes numbers of more than {LONGEST} bits.")
    try:
        made = _made(data)
    except (ZeroDivisionError, ValueError) as error:
        raise SymbolError(f"the size {data!r:.80} is none: {error}.") from None
    if isinstance(made, sympy.Basic) and not made.is_finite:
        raise SymbolError(f"the size {data!r:.80} is {made}, no number.")
    return made


def _made(data: Data) -> Expr:
    if isinstance(data, int):
        return data
    operation, arguments = _parts(data)
    if operation == "size":
        return dims(arguments[0], hint=arguments[1])[0]
    if operation == "ratio":
        return sympy.Rational(*arguments)
    return _operations()[operation](*map(_made, arguments))


def _parts(data: Data) -> tuple[str, tuple[Any, ...]]:
    """Operation and arguments, as many and such as the operation takes."""
    operation, *arguments = data if isinstance(data, tuple) and data else ("",)
    if not isinstance(operation, str):
        operation = ""
    kinds = tuple(map(type, arguments))
    fits = (
        kinds == _TAKES[operation]
        if operation in _TAKES
        else operation in _operations() and len(kinds) == _COUNTS.get(operation, max(1, len(kinds)))
    )
    if not fits or (operation == "size" and not str(arguments[0]).isidentifier()):
        raise SymbolError(f"{data!r:.80} is no size: an operation of numbers and named sizes.")
    return operation, tuple(arguments)


_TAKES = {"size": (str, int), "ratio": (int, int)}
_COUNTS = {"pow": 2, "floor": 1, "ceil": 1, "mod": 2}


def _bits(data: Data) -> int:
    """At most how many bits numbers of this size have at the hints, fractions with both parts."""
    if isinstance(data, int):
        return data.bit_length()
    operation, arguments = _parts(data)
    if operation in _TAKES:
        return sum(n.bit_length() for n in arguments if isinstance(n, int))
    if operation == "pow":
        if type(arguments[1]) is not int:
            raise SymbolError(f"{data!r:.80} is no size: a power is a number.")
        return _bits(arguments[0]) * max(1, abs(arguments[1]))
    return sum(map(_bits, arguments)) + len(arguments)


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
