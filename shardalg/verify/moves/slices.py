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
    a, dim_contents = step.attributes, step.operand.dims[step.attributes.dim]
    start, size = partition_number(a.digits) * a.block, step.declared_contents.dims[a.dim].size
    # Of a padded operand the lowering reads the first `size` places and pads the block with zeros
    # (`lower/emit/slices.py`), so no element may be behind these places.
    if not a.block <= size < dim_contents.length:
        return cut_places(step, start, a.block)
    result, claims = cut_places(
        replace(step, operands=(keep_equal_fills(step, SUM),)), start, a.block
    )
    if dim_contents.base == 1 and dim_contents.start == Number() and dim_contents.size <= size:
        return result, claims
    words = f"no element is behind the first {size} places"
    ends_in_time = Compare(dim_contents.start + Number.of(size - dim_contents.size), ">=")
    end_claim = (
        step.claim(words, ends_in_time) if dim_contents.base == 1 else Decided(words, holds=False)
    )
    # The lowering reads only the first `size` places, so an element behind them would be lost.
    return result, [*claims, ("delivers", end_claim)]


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
    dim_contents, partition = operand.dims[a.dim], partition_number(a.digits)
    is_the_element = All(
        (
            equal(dim_contents.start + a.place, a.index * dim_contents.base),
            dim_contents.exists(Number.of(a.index)),
        )
    )
    goal = implies(equal(partition, a.owner), is_the_element)
    words = f"element {a.index} is place {a.place} on partition {a.owner}"
    exists = 0 <= a.place < dim_contents.length and 0 <= a.owner < parts(a.digits)
    is_new_axis = not any(overlap(*pair) for pair in product(a.digits, operand.unreduced))
    # If the operand is no partial sum, one member has the element and all others have 0, so the
    # pending sum only picks the element. Otherwise it adds numbers of several members.
    is_only_picked = operand.combine == PICK or not operand.unreduced
    is_sum = operand.combine == SUM or is_only_picked
    are_partial_sums = is_sum and not operand.changes and not operand.awaits
    claims: list[Goal] = [
        ("delivers", step.claim(words, goal)),
        ("delivers", Decided("exactly one partition has the place", exists)),
        (
            "combine",
            Decided("the results are partial sums of the value", is_new_axis and are_partial_sums),
        ),
        *members_agree(step, a.digits, (a.dim,)),
    ]
    pending = unordered_digits((*operand.unreduced, *a.digits))
    result = replace(
        keep_equal_fills(step, 0), unreduced=pending, combine=PICK if is_only_picked else SUM
    )
    return with_dim(
        result, a.dim, DimensionContents(Number.of(a.index), 1, dim_contents.size)
    ), claims
