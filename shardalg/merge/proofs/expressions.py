"""Statements about whole numbers, written as Python expressions, as z3 formulas.

`"m >= 1, 0 <= r < m"` is a list of conditions; names are unknown whole numbers. Besides `+ - *`,
comparisons, `and or not` and `a if c else b` there are `x // m` (rounded down), `x % m`,
`ceil(x, m)` (the quotient rounded up), `min`, `max`, `clip(x, low, high)` and `implies(a, b)`.

A quotient becomes an unknown of its own with the two inequalities that define it for `m >= 1`:
`m*q <= x < m*q + m`. The solver handles these far better than its own division.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import z3

from shardalg.errors import ProofError

Value: TypeAlias = z3.ExprRef


@dataclass(frozen=True)
class Condition:
    """A formula, and the definitions of the quotients that stand in it."""

    formula: z3.BoolRef
    definitions: tuple[z3.BoolRef, ...]


def conditions(text: str) -> tuple[Condition, ...]:
    """The conditions of a text, in their order.

    Raises:
      ProofError: text outside the small language of this module.

    >>> first, second = conditions("d // m == q, r < m")
    >>> first.formula, second.formula, second.definitions
    (d // m == q, r < m, ())
    >>> print(*first.definitions)
    Implies(m >= 1, And(m*d // m <= d, d < m*d // m + m))
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as fault:
        raise ProofError(f"{text!r} is no list of conditions: {fault.msg}.") from None
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return tuple(_condition(text, part) for part in parts)


def _condition(text: str, node: ast.expr) -> Condition:
    reader = _Reader(text)
    return Condition(reader.truth(node), tuple(reader.definitions.values()))


class _Reader:
    """Reads one condition; quotients that read alike are one unknown."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.definitions: dict[str, z3.BoolRef] = {}

    def read(self, node: ast.AST) -> Value:
        """A node of the expression as a z3 term."""
        rule = _NODES.get(type(node))
        if rule is None:
            raise self.unknown(node)
        return rule(self, node)

    def number(self, node: ast.AST) -> z3.ArithRef:
        """A node that has to be a whole number."""
        value = self.read(node)
        if not z3.is_int(value):
            raise self.unknown(node, "is a condition, not a number")
        return value

    def truth(self, node: ast.AST) -> z3.BoolRef:
        """A node that has to be a condition."""
        value = self.read(node)
        if not z3.is_bool(value):
            raise self.unknown(node, "is a number, not a condition")
        return value

    def quotient(self, node: ast.expr, x: Value, m: Value, *, up: bool = False) -> Value:
        """A new unknown, defined as `x / m` rounded down or up."""
        name = ast.unparse(node)
        q = z3.Int(name)
        inside = (m * q >= x, m * q - m < x) if up else (m * q <= x, x < m * q + m)
        self.definitions[name] = z3.Implies(m >= 1, z3.And(*inside))
        return q

    def unknown(self, node: ast.AST, fault: str = "is nothing that proofs read") -> ProofError:
        """The error that names a node which the language does not have."""
        return ProofError(
            f"{ast.unparse(node)!r} in {self.text!r} {fault}. Write conditions on whole numbers "
            f"with + - * // %, comparisons, and, or, not, a if c else b, {', '.join(_ARITY)}."
        )


def _binary(reader: _Reader, node: ast.BinOp) -> Value:
    x, y = reader.number(node.left), reader.number(node.right)
    if isinstance(node.op, ast.FloorDiv):
        return reader.quotient(node, x, y)
    if isinstance(node.op, ast.Mod):
        return x - y * reader.quotient(ast.BinOp(node.left, ast.FloorDiv(), node.right), x, y)
    if type(node.op) not in _OPERATORS:
        raise reader.unknown(node)
    return _OPERATORS[type(node.op)](x, y)


def _compare(reader: _Reader, node: ast.Compare) -> Value:
    of_truths = isinstance(reader.read(node.left), z3.BoolRef)
    known = _EQUALITIES if of_truths else _COMPARISONS
    if any(type(op) not in known for op in node.ops):
        raise reader.unknown(node)
    read = reader.truth if of_truths else reader.number
    values = [read(part) for part in (node.left, *node.comparators)]
    pairs = zip(itertools.pairwise(values), node.ops, strict=True)
    found = [known[type(op)](x, y) for (x, y), op in pairs]
    return found[0] if len(found) == 1 else z3.And(*found)


def _unary(reader: _Reader, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.USub):
        return -reader.number(node.operand)
    if isinstance(node.op, ast.Not):
        return z3.Not(reader.truth(node.operand))
    raise reader.unknown(node)


def _bool(reader: _Reader, node: ast.BoolOp) -> Value:
    join = z3.And if isinstance(node.op, ast.And) else z3.Or
    return join(*(reader.truth(part) for part in node.values))


def _choice(reader: _Reader, node: ast.IfExp) -> Value:
    values = reader.number(node.body), reader.number(node.orelse)
    return z3.If(reader.truth(node.test), *values)


def _call(reader: _Reader, node: ast.Call) -> Value:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _ARITY or node.keywords:
        raise reader.unknown(node)
    if len(node.args) != _ARITY[name]:
        raise reader.unknown(node, f"has {len(node.args)} arguments for {_ARITY[name]}")
    if name == "implies":
        return z3.Implies(*map(reader.truth, node.args))
    values = map(reader.number, node.args)
    if name == "ceil":
        return reader.quotient(node, *values, up=True)
    return _CHOICES[name](*values)


def _constant(reader: _Reader, node: ast.Constant) -> Value:
    if type(node.value) is not int:
        raise reader.unknown(node)
    return z3.IntVal(node.value)


def _min(x: Value, y: Value) -> Value:
    return z3.If(x <= y, x, y)


def _max(x: Value, y: Value) -> Value:
    return z3.If(x >= y, x, y)


_NODES: dict[type, Callable[..., Value]] = {
    ast.BinOp: _binary,
    ast.BoolOp: _bool,
    ast.Call: _call,
    ast.Compare: _compare,
    ast.Constant: _constant,
    ast.IfExp: _choice,
    ast.Name: lambda reader, node: z3.Int(node.id),
    ast.UnaryOp: _unary,
}
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_EQUALITIES = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_COMPARISONS = {
    **_EQUALITIES,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITY = {"ceil": 2, "min": 2, "max": 2, "clip": 3, "implies": 2}
_CHOICES: dict[str, Callable[..., Value]] = {
    "min": _min,
    "max": _max,
    "clip": lambda x, low, high: _max(low, _min(x, high)),
}
