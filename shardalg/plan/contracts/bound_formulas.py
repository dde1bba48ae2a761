"""Formulas and conditions on named sizes from text, such as "4*M*F//X" and "X divides B"."""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Callable, Collection
from fractions import Fraction

from shardalg.errors import ContractError
from shardalg.sizes.facts import NONNEGATIVE, NONZERO, POSITIVE, WHOLE, ZERO, Fact
from shardalg.sizes.formula import Formula, FormulaError, ceiling, flooring, symbol
from shardalg.sizes.maximum import larger, smaller

MOST_CHARACTERS = 2_000
"""Longer text is no bound that a person wrote; reading it could take minutes."""
LARGEST_POWER = 16

_OPERATORS: dict[type, Callable[[Formula, Formula], Formula]] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
    ast.Div: lambda one, other: one / other,
    ast.FloorDiv: lambda one, other: flooring(one / other),
}
_CALLS: dict[str, Callable[..., Formula]] = {
    "ceil": ceiling,
    "floor": flooring,
    "max": larger,
    "min": smaller,
}
_COMPARISONS: dict[type, Callable[[Formula, Formula], Fact]] = {
    ast.LtE: lambda one, other: Fact(other - one, NONNEGATIVE),
    ast.GtE: lambda one, other: Fact(one - other, NONNEGATIVE),
    ast.Lt: lambda one, other: Fact(other - one, POSITIVE),
    ast.Gt: lambda one, other: Fact(one - other, POSITIVE),
    ast.Eq: lambda one, other: Fact(one - other, ZERO),
    ast.NotEq: lambda one, other: Fact(one - other, NONZERO),
}


def formula_of(bound: object, names: Collection[str]) -> Formula:
    """Return a bound as a formula: a number, or text such as "2*4*M*F*(X - 1)//(X*Y)".

    Text is read, never evaluated. It has numbers, names of sizes, `+ - * / // **`, and the
    functions ceil, floor, max and min.

    Args:
      names: the named sizes of the plan.

    Raises:
      ContractError: text that is no formula, or a name that the plan does not have.

    >>> formula_of("2*4*M*F*(X - 1)//(X*Y)", ("M", "F", "X", "Y")).at(dict(M=4, F=8, X=2, Y=3))
    42
    >>> formula_of(8e9, ())
    8000000000
    """
    if isinstance(bound, int | float) and not isinstance(bound, bool):
        if not math.isfinite(bound):
            raise ContractError(f"a bound is {bound!r}: give a finite number.")
        return Formula.of(_exact(bound))
    if not isinstance(bound, str):
        raise ContractError(
            f"a bound is {bound!r:.60}: give a number, or text with the names of sizes."
        )
    return _read(_parsed(bound), bound, names)


def fact_of(text: str, names: Collection[str]) -> Fact:
    """Return a condition on sizes: "X divides B", or a comparison such as "B >= 2*X".

    Args:
      names: the named sizes of the plan.

    Raises:
      ContractError: text that is no condition, or a name that the plan does not have.

    >>> fact_of("X divides B", ("B", "X")), fact_of("X >= 2", ("B", "X"))
    (B/X is whole, X - 2 >= 0)
    """
    if not isinstance(text, str):
        raise ContractError(f"a condition is {text!r:.60}: give text, such as 'X divides B'.")
    found = re.fullmatch(r"(.+?)\s+divides\s+(.+)", text.strip())
    if found:
        divisor, size = (_read(_parsed(side), text, names) for side in found.groups())
        return Fact(size / divisor, WHOLE)
    # A comparison becomes a fact about the difference of its sides: B >= 2*X is B - 2*X >= 0.
    tree = _parsed(text)
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        raise ContractError(
            f"{text!r} is no condition: write 'X divides B', or one comparison such as 'B >= 2*X'."
        )
    fact_from = _COMPARISONS.get(type(tree.ops[0]))
    if fact_from is None:
        raise ContractError(f"{text!r}: compare with <, <=, ==, !=, >= or >.")
    return fact_from(_read(tree.left, text, names), _read(tree.comparators[0], text, names))


def _exact(number: int | float) -> int | Fraction:
    """Return a number without rounding, as an int if it is whole."""
    exact = Fraction(number)
    return exact.numerator if exact.denominator == 1 else exact


def _parsed(text: str) -> ast.expr:
    """Return the syntax tree of an expression.

    Raises:
      ContractError: the text is too long, or no expression.
    """
    if len(text) > MOST_CHARACTERS:
        raise ContractError(f"{text[:40]!r}... has {len(text)} characters: at most 2,000 are read.")
    try:
        return ast.parse(text.strip(), mode="eval").body
    # Python reports brackets that are nested too deeply as MemoryError or RecursionError.
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ContractError(
            f"{text!r} is no formula of sizes: write, for example, 4*B*M//X."
        ) from None


def _read(tree: ast.expr, text: str, names: Collection[str]) -> Formula:
    """Return the formula of a syntax tree of Python; text is read, never evaluated.

    Args:
      tree: an expression: a number, a name, an operation, or a call of ceil, floor, max or min.
      text: the whole text, for errors.
      names: the names that may occur.

    Raises:
      ContractError: an unknown name, or syntax that is no arithmetic.
    """
    if isinstance(tree, ast.Constant):
        number = tree.value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if is_number and math.isfinite(number):  # type: ignore[arg-type]
            return Formula.of(_exact(number))  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        if tree.id not in names:
            raise ContractError(f"{text!r} has the name {tree.id!r}. {_near(tree.id, names)}")
        return symbol(tree.id)
    # Parts are read first, from the leaves upwards. A division by zero has no formula.
    try:
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return -_read(tree.operand, text, names)
        if isinstance(tree, ast.BinOp):
            if isinstance(tree.op, ast.Pow):
                return _power(_read(tree.left, text, names), tree.right, text)
            operator = _OPERATORS.get(type(tree.op))
            if operator is not None:
                return operator(_read(tree.left, text, names), _read(tree.right, text, names))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
            function, arguments = tree.func.id, [_read(arg, text, names) for arg in tree.args]
            if len(arguments) == {"ceil": 1, "floor": 1, "max": 2, "min": 2}.get(function):
                return Formula.of(_CALLS[function](*arguments))
    except (FormulaError, ZeroDivisionError) as error:
        raise ContractError(f"{text!r} has no formula: {error}") from None
    raise ContractError(
        f"{text!r} is no formula of sizes: {ast.unparse(tree)!r} is not read. Use numbers, names "
        "of sizes, + - * / // **, and ceil, floor, max, min."
    )


def _power(base: Formula, exponent: ast.expr, text: str) -> Formula:
    """Return a power whose exponent is a small whole number, multiplied out.

    Args:
      text: the whole text, for errors.

    Raises:
      ContractError: another exponent, or a power with too many digits or terms.
    """
    number = exponent.value if isinstance(exponent, ast.Constant) else None
    if type(number) is not int or not 0 <= number <= LARGEST_POWER:
        raise ContractError(f"{text!r}: an exponent is a whole number from 0 to {LARGEST_POWER}.")
    # Powers of powers would otherwise take minutes, or all memory.
    digits = sum(len(str(coefficient)) for coefficient in base.terms.values())
    if digits * number > MOST_CHARACTERS or len(base.terms) ** number > MOST_CHARACTERS:
        raise ContractError(f"{text!r} has a power with too many digits or terms.")
    return base**number


def _near(name: str, names: Collection[str]) -> str:
    """Return a sentence that names similar sizes, or all of them."""
    if not names:
        return "The plan has no named sizes: make it with sa.dims, or write a number."
    near = difflib.get_close_matches(name, names, 3)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"The plan's named sizes are {', '.join(sorted(names))}."
