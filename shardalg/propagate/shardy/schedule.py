"""When Shardy's step may extend a loop: a table of stages. No operator is named here.

Source: `op_priority_propagation.cc`: 0 pass-through operators whose operands have no other user,
1 all of them, 2 every operator along the loops that pass through, broadcasts only towards their
operand, 3 all loops, 4 broadcasts forward too.
"""

from __future__ import annotations

from shardalg.propagate.gspmd import priority
from shardalg.propagate.operator_classes import OperatorClass
from shardalg.propagate.shardy.factors import BACKWARD, BOTH, FORWARD

Directions = dict[str, int]
PASSING = {
    priority.POINTWISE: BOTH,
    priority.LAYOUT: BOTH,
    priority.LOOP: BOTH,
    priority.DYNAMIC_SLICE: FORWARD,
}
"""Roles of stages 0 and 1, and their directions."""
LAST_STAGE = 4


def directions(kind: OperatorClass, stage: int) -> Directions:
    """Per loop of a kind which sides may extend it at this stage; loops that none may are left out.

    >>> from shardalg.propagate.operator_classes import edge
    >>> kind = edge((8,), 1, 1, role="loop", alone=False)
    >>> directions(kind, 0), directions(kind, 1)
    ({}, {'d0': 3})
    """
    if kind.role == priority.EXIT:
        return dict.fromkeys(kind.sizes, BOTH)
    if kind.blocks.issuperset(kind.sizes):  # nothing but the sorted dimension
        return {}
    found = {loop: _direction(kind, loop, stage) for loop in kind.sizes}
    return {loop: way for loop, way in found.items() if way}


def _direction(kind: OperatorClass, loop: str, stage: int) -> int:
    towards_operand = BACKWARD if kind.role == priority.BROADCAST else BOTH
    way = PASSING.get(kind.role, 0) if stage >= 1 or kind.alone else 0
    if (stage >= 2 and loop in kind.through) or stage >= 3:
        way |= towards_operand
    return BOTH if stage >= LAST_STAGE else way
