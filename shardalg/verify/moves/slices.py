"""Instructions that take a part of a block."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from shardalg.algebra.digits import overlap, parts
from shardalg.graph.ops.rule import PICK, SUM
from shardalg.merge.proofs.integers import All, Compare, Number, equal, implies
from shardalg.spmd.instruction import Along
from shardalg.spmd.instructions import DynamicSlice, OwnerSelect, Slice, SliceAt
from shardalg.verify.contents import (
    DimensionContents,
    partition_number,
    start_number,
    unordered_digits,
)
from shardalg.verify.move import (
    CheckedInstruction,
    Goal,
    Result,
    keep_equal_fills,
    members_agree,
    moves,
    with_dim,
)
from shardalg.verify.report import Decided


def cut_places(step: CheckedInstruction[Along], start: Number, size: int) -> Result:
    """Return the contents of places `[start, start + size)` of a dimension, with a claim.

    The claim is that these places are inside the operand. A slice beyond its end would be clamped,
    and have other elements.

    Args:
      start: a formula in the device's partition ids.
    """
    span = step.operand.dims[step.attributes.dim]
    result = with_dim(step.operand, step.attributes.dim, span.part(start, size))
    goal = All((Compare(start, ">="), Compare(Number.of(span.length - size) - start, ">=")))
    words = f"[{start}, +{size}) is inside {span.length} places"
    return result, [("delivers", step.claim(words, goal))]


@moves(DynamicSlice)
def _dynamic_slice(step: CheckedInstruction[DynamicSlice]) -> Result:
    """Return the contents after each device cuts its own block out of a dimension, and the claims.

    Places of the result that have no element may become 0.
    """
    a, span = step.attributes, step.operand.dims[step.attributes.dim]
    start, size = partition_number(a.digits) * a.block, step.declared_contents.dims[a.dim].size
    # Of a padded operand the lowering reads the first `size` places and pads the block with zeros
    # (`lower/emit/slices.py`), so no element may be behind these places.
    if not a.block <= size < span.length:
        return cut_places(step, start, a.block)
    result, claims = cut_places(
        replace(step, operands=(keep_equal_fills(step, SUM),)), start, a.block
    )
    if span.base == 1 and span.start == Number() and span.size <= size:
        return result, claims
    words = f"no element is behind the first {size} places"
    behind = Compare(span.start + Number.of(size - span.size), ">=")
    first = step.claim(words, behind) if span.base == 1 else Decided(words, holds=False)
    return result, [*claims, ("delivers", first)]


@moves(Slice)
def _slice(step: CheckedInstruction[Slice]) -> Result:
    return cut_places(step, Number((), step.attributes.start), step.attributes.size)


@moves(SliceAt)
def _slice_at(step: CheckedInstruction[SliceAt]) -> Result:
    return cut_places(step, start_number(step.attributes.start), step.attributes.size)


@moves(OwnerSelect)
def _owner_select(step: CheckedInstruction[OwnerSelect]) -> Result:
    """Return the contents after one element of a sharded dimension is selected, and the claims.

    The partition that has the element keeps it, and all others have 0. The result is a partial sum.
    """
    a, operand = step.attributes, step.operand
    span, own = operand.dims[a.dim], partition_number(a.digits)
    here = All((equal(span.start + a.place, a.index * span.base), span.exists(Number.of(a.index))))
    goal = implies(equal(own, a.owner), here)
    words = f"element {a.index} is place {a.place} on partition {a.owner}"
    inside = 0 <= a.place < span.length and 0 <= a.owner < parts(a.digits)
    fresh = not any(overlap(*pair) for pair in product(a.digits, operand.unreduced))
    # If the operand is no partial sum, one member has the element and all others have 0, so the
    # pending sum only picks the element. Otherwise it adds numbers of several members.
    alone = operand.combine == PICK or not operand.unreduced
    added = operand.combine == SUM or alone
    sums = added and not operand.changes and not operand.awaits
    claims: list[Goal] = [
        ("delivers", step.claim(words, goal)),
        ("delivers", Decided("exactly one partition has the place", inside)),
        ("combine", Decided("the results are partial sums of the value", fresh and sums)),
        *members_agree(step, a.digits, (a.dim,)),
    ]
    pending = unordered_digits((*operand.unreduced, *a.digits))
    result = replace(keep_equal_fills(step, 0), unreduced=pending, combine=PICK if alone else SUM)
    return with_dim(result, a.dim, DimensionContents(Number.of(a.index), 1, span.size)), claims
