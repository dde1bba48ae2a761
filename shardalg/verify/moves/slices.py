"""Parts of a block, which lie inside it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from shardalg.algebra.digits import overlap, parts
from shardalg.graph.ops.rule import PICK, SUM
from shardalg.merge.proofs.integers import All, Compare, Number, equal, implies
from shardalg.spmd.instruction import Along
from shardalg.spmd.instructions import DynamicSlice, OwnerSelect, Slice, SliceAt
from shardalg.verify.contents import DimensionContents, as_set, partition_number, start_number
from shardalg.verify.move import (
    CheckedInstruction,
    Result,
    Stated,
    filled_with,
    members_agree,
    moves,
    with_dim,
)
from shardalg.verify.report import Decided


def _inside(step: CheckedInstruction[Along], start: Number, size: int) -> Stated:
    length = step.given.dims[step.attributes.dim].length
    goal = All((Compare(start, ">="), Compare(Number.of(length - size) - start, ">=")))
    return "delivers", step.claim(f"[{start}, +{size}) lies inside {length} places", goal)


def cut(step: CheckedInstruction[Along], start: Number, size: int) -> Result:
    """Places `[start, start + size)` of the dimension, which lie inside."""
    held = step.given.dims[step.attributes.dim]
    made = with_dim(step.given, step.attributes.dim, held.part(start, size))
    return made, [_inside(step, start, size)]


@moves(DynamicSlice)
def _dynamic_slice(step: CheckedInstruction[DynamicSlice]) -> Result:
    """A block, of which places behind the elements of the result's tensor may become 0."""
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    start, size = partition_number(a.digits) * a.block, step.said.dims[a.dim].size
    if not a.block <= size < held.length:
        return cut(step, start, a.block)
    made, stated = cut(replace(step, operands=(filled_with(step, SUM),)), start, a.block)
    if held.base == 1 and held.start == Number() and held.size <= size:
        return made, stated
    words = f"no element stands behind the first {size} places"
    behind = Compare(held.start + Number.of(size - held.size), ">=")
    first = step.claim(words, behind) if held.base == 1 else Decided(words, holds=False)
    return made, [*stated, ("delivers", first)]


@moves(Slice)
def _slice(step: CheckedInstruction[Slice]) -> Result:
    return cut(step, Number((), step.attributes.start), step.attributes.size)


@moves(SliceAt)
def _slice_at(step: CheckedInstruction[SliceAt]) -> Result:
    return cut(step, start_number(step.attributes.start), step.attributes.size)


@moves(OwnerSelect)
def _owner_select(step: CheckedInstruction[OwnerSelect]) -> Result:
    """One element, on the one partition that has it; the others have 0, so that the sum is it."""
    a, given = step.attributes, step.given
    held, own = given.dims[a.dim], partition_number(a.digits)
    here = All((equal(held.start + a.place, a.index * held.base), held.exists(Number.of(a.index))))
    goal = implies(equal(own, a.owner), here)
    words = f"element {a.index} is place {a.place} on partition {a.owner}"
    inside = 0 <= a.place < held.length and 0 <= a.owner < parts(a.digits)
    fresh = not any(overlap(*pair) for pair in product(a.digits, given.unreduced))
    alone = given.combine == PICK or not given.unreduced  # of what is whole, how does not matter
    added = given.combine == SUM or alone
    sums = added and not given.changes and not given.awaits
    stated: list[Stated] = [
        ("delivers", step.claim(words, goal)),
        ("delivers", Decided("one partition has the place", inside)),
        ("combine", Decided("what is made are partial sums of the value", fresh and sums)),
        *members_agree(step, a.digits, (a.dim,)),
    ]
    pending = as_set((*given.unreduced, *a.digits))
    made = replace(filled_with(step, 0), unreduced=pending, combine=PICK if alone else SUM)
    return with_dim(made, a.dim, DimensionContents(Number.of(a.index), 1, held.size)), stated
