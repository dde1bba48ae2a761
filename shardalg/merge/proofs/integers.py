"""Statements about whole numbers: as text that becomes z3 formulas, and as plain values.

`conditions` reads text as `"m >= 1, 0 <= r < m"`: a list of conditions, in which names are unknown
whole numbers. The language has `+ - *`, comparisons, `and or not`, `a if c else b`, `x // m`
(rounded down), `x % m`, `ceil(x, m)` (the quotient rounded up), `min`, `max`, `clip(x, low, high)`
and `implies(a, b)`. A quotient becomes an unknown of its own, with the two inequalities that define
it for `m >= 1`: `m*q <= x < m*q + m`. The solver handles these far better than its own division.

An `IntegerClaim` says that a formula is true for all values of its unknowns. Its numbers are linear
in unknowns, in partition ids, and in quotients and remainders of numbers by constants. With
concrete sizes the claim is quantifier-free and linear. z3 decides it in milliseconds, for any
number of devices.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import z3

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ProofError

Value: TypeAlias = z3.ExprRef


@dataclass(frozen=True)
class IntegerFormula:
    """A formula, and the definitions of its quotients."""

    formula: z3.BoolRef
    definitions: tuple[z3.BoolRef, ...]


def conditions(text: str) -> tuple[IntegerFormula, ...]:
    """Return the conditions of a text, in their order.

    Raises:
      ProofError: the text is not in the small language of this module.

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
    # Conditions that are separated by commas are a tuple for Python.
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    terms = []
    for part in parts:
        reader = _ConditionReader(text)
        formula = reader.truth(part)
        terms.append(IntegerFormula(formula, tuple(reader.definitions.values())))
    return tuple(terms)


class _ConditionReader:
    """A reader of one condition on whole numbers, which translates it to z3.

    Each quotient becomes an unknown of its own; quotients with the same text are the same unknown.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.definitions: dict[str, z3.BoolRef] = {}

    def read(self, node: ast.AST) -> Value:
        """Return a node of the expression as a z3 term."""
        rule = _NODES.get(type(node))
        if rule is None:
            raise self.unknown(node)
        return rule(self, node)

    def number(self, node: ast.AST) -> z3.ArithRef:
        """Return the term of a node that must be a whole number."""
        value = self.read(node)
        if not z3.is_int(value):
            raise self.unknown(node, "is a condition, not a number")
        return value

    def truth(self, node: ast.AST) -> z3.BoolRef:
        """Return the term of a node that must be a condition."""
        value = self.read(node)
        if not z3.is_bool(value):
            raise self.unknown(node, "is a number, not a condition")
        return value

    def quotient(self, node: ast.expr, x: Value, m: Value, *, up: bool = False) -> Value:
        """Return a new unknown that is defined as `x / m`, rounded down or up."""
        # Unknowns with one name are one unknown for z3, so equal quotients need no equation.
        name = ast.unparse(node)
        q = z3.Int(name)
        inside = (m * q >= x, m * q - m < x) if up else (m * q <= x, x < m * q + m)
        self.definitions[name] = z3.Implies(m >= 1, z3.And(*inside))
        return q

    def unknown(self, node: ast.AST, fault: str = "is nothing that proofs read") -> ProofError:
        """Return the error that names a node outside the language."""
        return ProofError(
            f"{ast.unparse(node)!r} in {self.text!r} {fault}. Write conditions on whole numbers "
            f"with + - * // %, comparisons, and, or, not, a if c else b, {', '.join(_ARITY)}."
        )


def _binary(reader: _ConditionReader, node: ast.BinOp) -> Value:
    """Return the z3 term of a sum, difference, product, quotient or remainder.

    A quotient becomes a new unknown with the two inequalities that define it (`quotient`), which
    the solver handles better than its own division.
    """
    x, y = reader.number(node.left), reader.number(node.right)
    if isinstance(node.op, ast.FloorDiv):
        return reader.quotient(node, x, y)
    if isinstance(node.op, ast.Mod):
        # x % y = x - y * (x // y), so a remainder needs the same unknown as the quotient.
        return x - y * reader.quotient(ast.BinOp(node.left, ast.FloorDiv(), node.right), x, y)
    if type(node.op) not in _OPERATORS:
        raise reader.unknown(node)
    return _OPERATORS[type(node.op)](x, y)


def _compare(reader: _ConditionReader, node: ast.Compare) -> Value:
    """Return the z3 term of a chain of comparisons, such as `0 <= r < m`.

    Conditions can be compared by == and != only, numbers by all comparisons.
    """
    is_of_conditions = isinstance(reader.read(node.left), z3.BoolRef)
    z3_operators = _EQUALITIES if is_of_conditions else _COMPARISONS
    # Such as `is` and `in`, or an order of conditions.
    if any(type(op) not in z3_operators for op in node.ops):
        raise reader.unknown(node)
    read_side = reader.truth if is_of_conditions else reader.number
    # As in Python, `a <= b < c` means `a <= b` and `b < c`: one comparison per neighbouring pair.
    values = [read_side(part) for part in (node.left, *node.comparators)]
    pairs = zip(itertools.pairwise(values), node.ops, strict=True)
    comparisons = [z3_operators[type(op)](x, y) for (x, y), op in pairs]
    return comparisons[0] if len(comparisons) == 1 else z3.And(*comparisons)


def _unary(reader: _ConditionReader, node: ast.UnaryOp) -> Value:
    """Return the term of a negation."""
    if isinstance(node.op, ast.USub):
        return -reader.number(node.operand)
    if isinstance(node.op, ast.Not):
        return z3.Not(reader.truth(node.operand))
    raise reader.unknown(node)


def _bool(reader: _ConditionReader, node: ast.BoolOp) -> Value:
    """Return the term of conditions that are joined by `and` or `or`."""
    join = z3.And if isinstance(node.op, ast.And) else z3.Or
    return join(*(reader.truth(part) for part in node.values))


def _choice(reader: _ConditionReader, node: ast.IfExp) -> Value:
    """Return the term of `a if c else b`."""
    values = reader.number(node.body), reader.number(node.orelse)
    return z3.If(reader.truth(node.test), *values)


def _call(reader: _ConditionReader, node: ast.Call) -> Value:
    """Return the z3 term of a call of ceil, min, max, clip or implies.

    Raises:
      ProofError: the function is another one, or has a wrong number of arguments.
    """
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _ARITY or node.keywords:
        raise reader.unknown(node)
    # `_ARITY` has the number of arguments by function.
    if len(node.args) != _ARITY[name]:
        raise reader.unknown(node, f"has {len(node.args)} arguments for {_ARITY[name]}")
    # `implies` takes conditions, the other functions take numbers.
    if name == "implies":
        return z3.Implies(*map(reader.truth, node.args))
    values = map(reader.number, node.args)
    if name == "ceil":
        return reader.quotient(node, *values, up=True)
    return _CHOICES[name](*values)


def _constant(reader: _ConditionReader, node: ast.Constant) -> Value:
    """Return the term of a whole number; True and False are none."""
    if type(node.value) is not int:
        raise reader.unknown(node)
    return z3.IntVal(node.value)


def _min(x: Value, y: Value) -> Value:
    """Return the term of the smaller number."""
    return z3.If(x <= y, x, y)


def _max(x: Value, y: Value) -> Value:
    """Return the term of the larger number."""
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


@dataclass(frozen=True, slots=True)
class PartitionId:
    """The partition id with these digits, on the claim's device or on a member of its group.

    Attributes:
      member: the name of a device of the group; "" is the claim's device itself.
    """

    digits: Digits
    member: str = ""


@dataclass(frozen=True, slots=True)
class FloorQuotient:
    """`floor(number / by)`."""

    number: Number
    by: int


@dataclass(frozen=True, slots=True)
class Remainder:
    """`number mod by`, in `[0, by)`."""

    number: Number
    by: int


Atom = str | PartitionId | FloorQuotient | Remainder


@dataclass(frozen=True)
class Number:
    """A number `sum coefficient * atom + constant`.

    >>> x, y = Number.of("x"), Number.of("y")
    >>> print((x * 3 + y - 1) // 2 + x - 4)
    (3*x+y-1)//2+x-4
    >>> x + y == y + x
    True
    """

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Numbers are nested and are keys of caches: see `algebra/derived_layouts.py`.
        object.__setattr__(self, "_hash", hash((self.terms, self.constant)))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def of(value: Number | Atom | int) -> Number:
        """Return a number, an unknown, a partition id or an int as a number."""
        if isinstance(value, Number):
            return value
        return Number((), value) if isinstance(value, int) else Number(((value, 1),))

    def __add__(self, other: Number | Atom | int) -> Number:
        """Return the sum: coefficients of equal atoms are added, and zeros are left out.

        An atom is an unknown, a partition id, a quotient or a remainder. For example, (2*x + 1) +
        (-2*x + y) is y + 1.
        """
        other = Number.of(other)
        total = dict(self.terms)
        for atom, coefficient in other.terms:
            total[atom] = total.get(atom, 0) + coefficient
        # Sorted, so that equal sums are equal values.
        ordered = sorted(((a, c) for a, c in total.items() if c), key=lambda term: str(term[0]))
        return Number(tuple(ordered), self.constant + other.constant)

    def __mul__(self, factor: int) -> Number:
        terms = tuple((a, c * factor) for a, c in self.terms if factor)
        return Number(terms, self.constant * factor)

    def __sub__(self, other: Number | Atom | int) -> Number:
        return self + Number.of(other) * -1

    def __floordiv__(self, by: int) -> Number:
        # Constants are divided at once, so that an atom always has unknowns.
        """Return the quotient rounded down: a number without unknowns, or else a new atom."""
        if by == 1:
            return self
        return Number.of(FloorQuotient(self, by)) if self.terms else Number((), self.constant // by)

    def __mod__(self, by: int) -> Number:
        return Number.of(Remainder(self, by)) if self.terms else Number((), self.constant % by)

    def replaced(self, change: Callable[[Atom], Number | None]) -> Number:
        """Return the number with atoms replaced, also inside quotients and remainders.

        For example, with x replaced by 2*y, the number 3*x + (x+1)//4 becomes 6*y + (2*y+1)//4.

        Args:
          change: returns the new value of an atom, or None if the atom stays.
        """
        total = Number((), self.constant)
        for atom, coefficient in self.terms:
            new_value = change(atom)
            # A quotient or remainder has a number inside, whose atoms may change although it stays
            # itself. Dividing again evaluates it if it has become a constant.
            if new_value is None and isinstance(atom, FloorQuotient | Remainder):
                new_inside = atom.number.replaced(change)
                new_value = (
                    new_inside // atom.by
                    if isinstance(atom, FloorQuotient)
                    else new_inside % atom.by
                )
            # A value that replaces an atom may be a sum, which is multiplied by the atom's
            # coefficient.
            total += (Number.of(atom) if new_value is None else new_value) * coefficient
        return total

    def atoms(self) -> Iterator[str | PartitionId]:
        """Yield every unknown and partition id, also inside quotients and remainders."""
        for atom, _ in self.terms:
            if isinstance(atom, FloorQuotient | Remainder):
                yield from atom.number.atoms()
            else:
                yield atom

    def at(self, values: Mapping[Atom, Any]) -> Any:
        """Return the value of this number at values of its unknowns and partition ids.

        Args:
          values: an int, or an array of ints, by unknown or partition id. Arrays give an array.
        """
        total = self.constant
        for atom, coefficient in self.terms:
            # Quotients and remainders are not in `values`: they are evaluated from the number
            # inside.
            if isinstance(atom, FloorQuotient):
                total += coefficient * (atom.number.at(values) // atom.by)
            elif isinstance(atom, Remainder):
                total += coefficient * (atom.number.at(values) % atom.by)
            else:
                total += coefficient * values[atom]
        return total

    def __str__(self) -> str:
        """Return the number as text, such as `3*x+y-1`."""
        text = "".join(
            ("+" if c > 0 else "-") + ("" if abs(c) == 1 else f"{abs(c)}*") + _text(atom)
            for atom, c in self.terms
        )
        return (text + (f"{self.constant:+d}" if self.constant or not text else "")).lstrip("+")


def _text(atom: Atom) -> str:
    """Return the text of an atom: a partition id, a named unknown, a quotient or a remainder."""
    if isinstance(atom, PartitionId):
        # For example `pe(4:2,1:4)`: the partition id of device e with two digits, as stride:size.
        digit_texts = ",".join(f"{d.stride}:{d.size}" for d in atom.digits)
        return f"p{atom.member}({digit_texts})"
    if isinstance(atom, str):
        return atom
    return f"({atom.number}){'//' if isinstance(atom, FloorQuotient) else '%'}{atom.by}"


def number(index: Index, values: Mapping[str, Number]) -> Number:
    """Return the value of an index expression at numbers for its names; a division rounds down.

    >>> print(number((Index.of("o") * 2 - 1) // 3, {"o": Number.of("p") * 4}))
    (8*p-1)//3
    """
    total = numerator(index, values) // index.div
    return total % index.mod if index.mod else total


def numerator(index: Index, values: Mapping[str, Number]) -> Number:
    """Return the value of an index expression before its division and its remainder."""
    total = Number((), index.constant)
    for name, coefficient in index.terms:
        total += values[name] * coefficient
    return total


@dataclass(frozen=True, slots=True)
class Compare:
    """The formula `number == 0` or `number >= 0`, by `relation`."""

    number: Number
    relation: str


@dataclass(frozen=True, slots=True)
class All:
    """The conjunction of formulas."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """The disjunction of formulas."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of a formula."""

    formula: Formula


Formula = Compare | All | Either | Not


def equal(left: Number, right: Number | int) -> Formula:
    """Return the formula `left == right`."""
    return Compare(left - right, "==")


def less(left: Number, right: Number | int) -> Formula:
    """Return the formula `left < right`."""
    # Numbers are whole, so the strict inequality is `left + 1 <= right`.
    return Compare(Number.of(right) - left - 1, ">=")


def within(value: Number, low: Number | int, high: Number | int) -> Formula:
    """Return the formula `low <= value < high`."""
    return All((Compare(value - low, ">="), less(value, high)))


def implies(given: Formula, shown: Formula) -> Formula:
    """Return the formula that `given` implies `shown`."""
    return Either((Not(given), shown))


@dataclass(frozen=True)
class IntegerClaim:
    """The claim that `goal` is true on every device, for all values of the unknowns.

    Attributes:
      words: the statement in words.
      unknowns: (name, end): the range of the unknown is `[0, end)`.
      members: (name, digits): any device that differs from the claim's device in `digits` alone.

    Raises:
      ProofError: an unknown has no range, or a member has no digits.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> p = Number.of(PartitionId(mesh.digits("yx")))
    >>> print(IntegerClaim("ids are in range", mesh, within(p, 0, 8)).text())
    ids are in range
    """

    words: str
    mesh: Mesh
    goal: Formula
    unknowns: tuple[tuple[str, int], ...] = ()
    members: tuple[tuple[str, Digits], ...] = ()

    def __post_init__(self) -> None:
        """Raise ProofError unless the claim defines every unknown and every device of its goal.

        An unknown needs a range (`unknowns`). A partition id of another device needs its digits
        (`members`).
        """
        unknown_names = {name for name, _ in self.unknowns}
        # "" is the claim's own device, which needs no definition.
        device_names = {"", *(name for name, _ in self.members)}
        # An atom is the name of an unknown, or a partition id with the name of its device.
        for atom in atoms(self.goal):
            if (
                atom not in unknown_names
                if isinstance(atom, str)
                else atom.member not in device_names
            ):
                raise ProofError(
                    f"the claim {self.words!r} uses {_text(atom)}, which it does not define: add "
                    "it to unknowns or members."
                )

    @property
    def digits(self) -> Digits:
        """All digits in the claim, each once: of partition ids in the goal, and of the members."""
        ids = (a.digits for a in atoms(self.goal) if not isinstance(a, str))
        return tuple({d: None for row in (*ids, *(m for _, m in self.members)) for d in row})

    def text(self) -> str:
        """Return the statement in words."""
        return self.words


def atoms(formula: Formula) -> Iterator[str | PartitionId]:
    """Yield every unknown and partition id in a formula, as often as it occurs."""
    # Only comparisons have numbers; the other formulas join formulas (`All`, `Either`) or negate
    # one.
    if isinstance(formula, Compare):
        yield from formula.number.atoms()
    elif isinstance(formula, Not):
        yield from atoms(formula.formula)
    else:
        for part in formula.parts:
            yield from atoms(part)
