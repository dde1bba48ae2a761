"""Products that are made in another layout than their result has for its readers.

Source: `insert_explicit_reshards.cc`, processDot, which runs behind the propagation: where the
operands agree, and the result has on one dimension the very digits over which they are summed, it
is made as the operands have this dimension, and is moved then. So all of it is summed by one
all-reduce, and the larger operand stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardalg.algebra.digits import Digits, overlap
from shardalg.propagate.gspmd import priority
from shardalg.propagate.gspmd.index import Index
from shardalg.propagate.layouts import Layouts
from shardalg.propagate.operator_classes import OperatorClass
from shardalg.propagate.shardy.factors import Numbers, Tensor, joined, split


def made_as_operands(
    index: Index, layouts: Layouts, numbers: list[int]
) -> Iterator[tuple[int, int, int]]:
    """(step, value, layout) of each product that is made in another layout."""
    for step, values in enumerate(index.tensors):
        kind = index.kind(step)
        if kind.role == priority.CONTRACTION and len(values) == 3:
            here = index.pick[step](numbers)
            made = None if layouts.fixed[here[2]] else _made(kind, here, layouts)
            if made is not None and made != here[2]:
                yield step, values[2], made


def _made(kind: OperatorClass, numbers: Numbers, layouts: Layouts) -> int | None:
    """The layout of a product's result as its operands have it; None where it is as it is."""
    left, right, result = (split(kind, k, layouts, number) for k, number in enumerate(numbers))
    if not _agree(left, right):
        return None
    moved = [loop for loop in result if _own(left, right, loop) != result[loop].digits]
    if len(moved) != 1:
        return None
    (loop,) = moved
    digits, held = _own(left, right, loop), result[loop].digits
    if not (digits and held and held == _summed(left, right, result)):
        return None
    elements = max(kind.elements[k] for k, side in enumerate((left, right)) if loop in side)
    if kind.elements[2] > elements:
        return None
    result[loop] = result[loop]._replace(digits=digits)
    return layouts.number(layouts.shapes[numbers[2]], joined(kind, 2, result, layouts))


def _own(left: Tensor, right: Tensor, loop: str) -> Digits:
    """The digits of a loop in the operand that has it."""
    part = left.get(loop) or right.get(loop)
    return part.digits if part is not None else ()


def _summed(left: Tensor, right: Tensor, result: Tensor) -> Digits:
    """The digits over which a product is summed."""
    loops = [loop for loop in left if loop in right and loop not in result]
    return tuple(digit for loop in loops for digit in left[loop].digits)


def _agree(left: Tensor, right: Tensor) -> bool:
    """Whether common loops are on the same digits, and the others on different ones."""
    common = [loop for loop in left if loop in right]
    if any(left[loop].digits != right[loop].digits for loop in common):
        return False
    alone = [[d for n, p in t.items() if n not in common for d in p.digits] for t in (left, right)]
    return not any(overlap(a, b) for a in alone[0] for b in alone[1])
