"""Named sizes: sympy symbols with a hint, for tensor dimensions and mesh axes.

`to_data` and `from_data` convert sizes to and from plain data, so that a plan file can contain them
and no text is ever evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import sympy

from shardalg.errors import ShardalgError

Expr: TypeAlias = sympy.Expr | int


class SymbolError(ShardalgError, ValueError):
    """Error: a size has an invalid name or hint, or two sizes of one loop contradict each other."""


class Max(sympy.Max):
    """The maximum of expressions, which is evaluated only if all arguments are numbers.

    `sympy.Max` compares its arguments after each substitution, and decides some signs wrongly:
    sympy 1.14 takes `2/(X*Y) > 1` as true for positive integers.

    >>> X, Y = dims("X Y", hint=(4, 4))
    >>> largest = Max(sympy.ceiling(2 / (X * Y)), 2)
    >>> largest, largest.subs({X: 2, Y: 2}), Max(2, 3)
    (Max(2, ceiling(2/(X*Y))), 2, 3)
    """

    def __new__(cls, *args: Expr, evaluate: bool = True) -> sympy.Expr:
        """Return the maximum of the arguments as an expression.

        Sympy passes `evaluate`, which has no effect here.
        """
        # max(a, max(b, c)) = max(a, b, c), so one level of arguments is enough.
        flat: list[sympy.Expr] = []
        for arg in map(sympy.sympify, args):
            flat += arg.args if isinstance(arg, sympy.Max) else (arg,)
        if all(arg.is_number for arg in flat):
            return sympy.Max(*flat)
        return super().__new__(cls, *flat, evaluate=False)


class Size(sympy.Symbol):
    """A positive integer symbol with a hint: the number to trace and plan with.

    Two sizes `B` with different hints are different symbols. `sizes_of` raises if an expression has
    both.

    >>> B, S = dims("B S", hint=(64, 1024))
    >>> B.hint, 4 * B - B, (B * S).is_positive
    (64, 3*B, True)
    """

    __slots__ = ("hint",)
    hint: int

    def __new__(cls, name: str, hint: int) -> Size:
        """Return the symbol, without the checks of `dims`."""
        # `__xnew__` makes a new symbol; sympy's own cache would ignore the hint.
        size = sympy.Symbol.__xnew__(cls, name, positive=True, integer=True)
        size.hint = hint
        return size

    def __getnewargs_ex__(self) -> tuple[tuple[str, int], dict[str, object]]:
        return (self.name, self.hint), {}

    def _hashable_content(self) -> tuple[object, ...]:
        # sympy compares and hashes symbols by this tuple: the hint is a part of the identity.
        return (*super()._hashable_content(), self.hint)


def dims(names: str, *, hint: int | Sequence[int]) -> tuple[Size, ...]:
    """Return named dimension sizes, for shapes as `jax.ShapeDtypeStruct((B, S, 4 * M), ...)`.

    Args:
      names: separated by blanks or commas.
      hint: for each name, the size in elements at which functions are traced and planned; one
        number is used for all names.

    Raises:
      SymbolError: `names` is no text; a name is no identifier; a hint is no integer of at least 1;
        the numbers of hints and names differ; one name has two hints.

    >>> B, S, M = dims("B S M", hint=(64, 1024, 8192))
    >>> hint_of(4 * M), evaluate(B * S, {"B": 2})
    (32768, 2048)
    """
    if not isinstance(names, str):
        raise SymbolError(
            f"names are text, as in dims('B S', hint=(64, 1024)), got "
            f"{type(names).__name__}: {names!r}."
        )
    parts = names.replace(",", " ").split()
    hints = list(hint) if isinstance(hint, Sequence) else [hint] * len(parts)
    if len(parts) != len(hints) or not parts:
        raise SymbolError(
            f"dims({names!r}) has {len(parts)} names and {len(hints)} hints {tuple(hints)}: give "
            "one hint per name, as in dims('B S', hint=(64, 1024))."
        )
    faults = []
    for name, value in zip(parts, hints, strict=True):
        # A bool is an int in Python, but no size.
        is_size = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not is_size or re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            faults.append(f"{name}={value!r}")
    if faults:
        raise SymbolError(
            f"dims({names!r}) cannot name {', '.join(faults)}: a name is an identifier, a hint an "
            "integer of at least 1 (the size to trace and plan with)."
        )
    sizes = tuple(Size(n, h) for n, h in zip(parts, hints, strict=True))
    # Raise if one name has two hints, as in dims('B B', hint=(8, 16)).
    sizes_of(sizes)
    return sizes


def sizes_of(expressions: Iterable[Expr]) -> dict[str, Size]:
    """Return every named size that occurs in the expressions, by name, in the order of the names.

    Raises:
      SymbolError: one name has two hints, or a symbol was not made by `dims`.

    >>> B, S = dims("B S", hint=(64, 1024))
    >>> sizes_of([B * S, 7, S - 1])
    {'B': B, 'S': S}
    """
    # Numbers have no free symbols; a set visits repeated expressions once.
    symbols = {s for e in set(expressions) for s in getattr(e, "free_symbols", ())}
    # A fixed order, because the iteration order of a set of symbols changes from run to run.
    size_of: dict[str, Size] = {}
    for symbol in sorted(symbols, key=str):
        if not isinstance(symbol, Size):
            raise SymbolError(
                f"the symbol {symbol} has no hint: make it with dims({str(symbol)!r}, hint=...)."
            )
        first_size = size_of.setdefault(symbol.name, symbol)
        if first_size.hint != symbol.hint:
            raise SymbolError(
                f"the size {symbol.name} has two hints, {first_size.hint} and {symbol.hint}: "
                "dimensions and axes share one name space. Use one symbol, or two names."
            )
    return size_of


def evaluate(expression: Expr, values: Mapping[str, int]) -> int:
    """Return the value of an expression for given sizes; named sizes not given have their hints.

    Raises:
      SymbolError: the value is no integer, as `S/2` at an odd S.

    >>> B, S = dims("B S", hint=(64, 1024))
    >>> evaluate(B * (S - 1), {"S": 5}), evaluate(12, {})
    (256, 12)
    """
    if isinstance(expression, int):
        return expression
    sizes = sizes_of([expression])
    point = {s: sympy.Integer(values.get(name, s.hint)) for name, s in sizes.items()}
    number = expression.xreplace(point)
    if not number.is_Integer:
        sizes_text = ", ".join(f"{size}={number_}" for size, number_ in point.items())
        raise SymbolError(
            f"the size {expression} is {number} at {sizes_text}: no integer. Take others."
        )
    return int(number)


def hint_of(expression: Expr) -> int:
    """Return the value of an expression in which every named size has its hint.

    >>> hint_of(dims("M", hint=8)[0] * 4), hint_of(3)
    (32, 3)
    """
    return evaluate(expression, {})


def second_hints(sizes: Iterable[Size], *, multiples: bool = False) -> dict[str, int]:
    """Return a second number for each named size, at which a function can be traced again.

    Two traces show which sizes depend on each other: no two of these numbers are related by chance.
    The numbers are different primes, each at another ratio to its hint. With `multiples` they are
    multiples of the hints by different primes, for functions that need sizes to divide each other.

    >>> sizes = dims("B S M", hint=(64, 64, 100))
    >>> second_hints(sizes), second_hints(sizes, multiples=True)
    ({'B': 89, 'S': 107, 'M': 211}, {'B': 192, 'S': 320, 'M': 700})
    """
    sizes, prime = tuple(sizes), 2
    hint_of_name: dict[str, int] = {}
    for place, size in enumerate(sizes, 1):
        prime = int(sympy.nextprime(prime))
        number = size.hint * prime if multiples else size.hint + 1 + size.hint * place // len(sizes)
        # Different primes have no common factor, so that no size divides another one.
        while not multiples and (number in hint_of_name.values() or not sympy.isprime(number)):
            number += 1
        hint_of_name[size.name] = number
    return hint_of_name


Data = int | str | tuple["Data", ...]
"""A size in a file: a number, or the name of an operation with its arguments."""
LONGEST = 4096
"""The most bits of a number in a formula: a file could contain huge powers."""


def to_data(size: Expr) -> int | list[Any]:
    """Return a size as nested lists: `["size", name, hint]`, `["ratio", p, q]`, `["add", ...]`.

    >>> B, S = Size("B", 8), Size("S", 16)
    >>> to_data(7), to_data(B), to_data(2 * B)
    (7, ['size', 'B', 8], ['mul', 2, ['size', 'B', 8]])

    Raises:
      SymbolError: the size has an unsupported operation, such as a root.
    """
    if isinstance(size, int):
        return size
    # Numbers of sympy first: an Integer is a Rational, too.
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
    """Return the size that `to_data` wrote, given as nested tuples.

    Raises:
      SymbolError: an unknown operation, arguments of wrong types, a division by zero, or a number
        of more than `LONGEST` bits.

    >>> B = Size("B", 8)
    >>> from_data(("add", -1, ("mul", 3, ("size", "B", 8)))) == 3 * B - 1
    True
    """
    # Check before building anything: sympy evaluates powers of numbers at once.
    if _bits(data) > LONGEST:
        raise SymbolError(f"the size {data!r:.80} makes numbers of more than {LONGEST} bits.")
    try:
        size = _made(data)
    except (ZeroDivisionError, ValueError) as error:
        raise SymbolError(f"the size {data!r:.80} is none: {error}.") from None
    if isinstance(size, sympy.Basic) and not size.is_finite:
        raise SymbolError(f"the size {data!r:.80} is {size}, no number.")
    return size


def _made(data: Data) -> Expr:
    """Return the expression that plain data describe; see `from_data`, which checks their size."""
    if isinstance(data, int):
        return data
    operation, arguments = _parts(data)
    if operation == "size":
        return dims(arguments[0], hint=arguments[1])[0]
    if operation == "ratio":
        return sympy.Rational(*arguments)
    return _operations()[operation](*map(_made, arguments))


def _parts(data: Data) -> tuple[str, tuple[Any, ...]]:
    """Return the name of the operation in plain data, and its arguments.

    Raises:
      SymbolError: there is no such operation, or its arguments have a wrong number or type.
    """
    # The data may come from a file of any origin, so nothing about it is assumed.
    operation, *arguments = data if isinstance(data, tuple) and data else ("",)
    if not isinstance(operation, str):
        operation = ""
    types = tuple(map(type, arguments))
    is_valid = (
        types == _TAKES[operation]
        if operation in _TAKES
        else operation in _operations() and len(types) == _COUNTS.get(operation, max(1, len(types)))
    )
    if not is_valid or (operation == "size" and not str(arguments[0]).isidentifier()):
        raise SymbolError(f"{data!r:.80} is no size: an operation of numbers and named sizes.")
    return operation, tuple(arguments)


_TAKES = {"size": (str, int), "ratio": (int, int)}
_COUNTS = {"pow": 2, "floor": 1, "ceil": 1, "mod": 2}


def _bits(data: Data) -> int:
    """Return an upper bound of the number of bits of a size's value, without computing it.

    A reader of a file refuses sizes with too many bits, such as 2 to the power 10**9. For a
    fraction, the bits of numerator and denominator are added.
    """
    if isinstance(data, int):
        return data.bit_length()
    # A power multiplies bits, a product adds them, and each further term adds at most one.
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
    """Return the sympy function of each operation of saved sizes, by the operation's name."""
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
