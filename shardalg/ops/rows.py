"""The table: primitive to the family that builds its rows. Only families name operators."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardalg.graph.ir import Signature
from shardalg.ops.families import (
    block,
    contraction,
    convolution,
    data_formatting,
    indexing,
    joining,
    pointwise,
    window,
)
from shardalg.ops.families.building import Builder, has_zero
from shardalg.ops.loops import moved
from shardalg.ops.rule import PICK, SUM, Rule

FAMILIES = (pointwise, contraction, data_formatting, indexing, joining, window, convolution, block)
BUILDERS: dict[str, Builder] = {k: v for family in FAMILIES for k, v in family.ROWS.items()}


@lru_cache(maxsize=65536)
def rules(signature: Signature) -> tuple[Rule, ...] | None:
    """The rows of one primitive at given shapes; None if the table has none.

    With several rows, row k makes result k, and loops of one name are one loop.

    >>> from shardalg.graph.ir import ValueType
    >>> x = ValueType((4, 8), "float32")
    >>> print(*rules(Signature("add", (), (x, ValueType((4, 1), "float32")), (x,))))
    add: [d0, d1], [d0, 0] -> [d0, d1]
    """
    builder = BUILDERS.get(signature.primitive)
    if builder is None:
        return None
    rows = builder(signature)
    results = tuple(value.shape for value in signature.results)
    shaped = tuple(
        replace(
            row,
            operand_shapes=tuple(value.shape for value in signature.operands),
            result_shapes=results[k : k + 1] if len(rows) > 1 else results,
        )
        for k, row in enumerate(rows)
    )
    zeros = all(has_zero(t.dtype) for t in (*signature.operands, *signature.results))
    return shaped if zeros else tuple(replace(r, local=r.local | _summed(r)) for r in shaped)


def _summed(rule: Rule) -> frozenset[str]:
    """Loops that take a zero to cut: their padding, and what others have, is left out of a sum."""
    if rule.combine not in (SUM, PICK):
        return frozenset()
    carried = frozenset({rule.prefix[0]} if rule.prefix else ())
    windows = moved(rule) if rule.reduced else frozenset()
    return carried | windows | frozenset(rule.reduced)
