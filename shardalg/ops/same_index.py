"""Which rows make a result element of the operands' elements of one index: no operators here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.ops.families.numbers import Number, at_numbers
from shardalg.ops.rule import Rule

OperandDim = tuple[int, int]
"""A dimension of an operand."""


def row_of(rows: Sequence[Rule], result: int) -> tuple[Rule, tuple[Index, ...]]:
    """The row that makes a result, and the result's indices."""
    rule = rows[result] if len(rows) > 1 else rows[0]
    return rule, rule.results[0 if len(rows) > 1 else result]


def moves_none(rule: Rule) -> bool:
    """Whether every result element is made of one element of each operand, and of nothing else."""
    selects = rule.guards or rule.symbols or rule.whole or rule.local or rule.prefix
    return not selects and rule.init is None and len(rule.terms) == 1 and not rule.reduced


def operands_along(rule: Rule, loop: str) -> dict[int, int | None] | None:
    """Per operand the dimension that is read at the loop's own number, None where none is.

    None for all if one is read elsewhere, or twice.

    >>> from shardalg.graph.ir import ValueType
    >>> from shardalg.ops.rows import rules
    >>> x = ValueType((4, 8), "float32")
    >>> (row,) = rules(Signature("add", (), (x, ValueType((4, 1), "float32")), (x,)))
    >>> operands_along(row, "d0"), operands_along(row, "d1")
    ({0: 0, 1: 0}, {0: 1, 1: None})
    """
    found: dict[int, int | None] = {}
    for operand, dims in sorted(rule.operands.items()):
        places = [(d, index) for d, index in enumerate(dims) if loop in index.variables]
        if len(places) > 1 or any(index != Index.of(loop) for _, index in places):
            return None
        found[operand] = places[0][0] if places else None
    return found


def number_along(
    signature: Signature,
    along: Mapping[int, int | None],
    numbers: Mapping[int, Number | None],
    fills: Mapping[OperandDim, Number | None],
) -> Number | None:
    """What stands in the result where operands have no element along a loop.

    Args:
      along: as `operands_along` gives it.
      numbers: operands all of whose elements are one number.
      fills: numbers that stand at places without elements.
    """
    given = {
        k: numbers.get(k) if dim is None or numbers.get(k) is not None else fills.get((k, dim))
        for k, dim in along.items()
    }
    known = {k: number for k, number in given.items() if number is not None}
    return at_numbers(signature, known) if len(known) == len(given) and known else None
