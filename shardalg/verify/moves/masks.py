"""Fills of places without elements, and changes of numbers that are undone later.

Such changes are shifted indices, the selections by them, and values of one member only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardalg.graph.ops.rule import USER
from shardalg.merge.proofs.integers import All, Formula, Number, equal, implies, less, within
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import (
    Choose,
    Dilate,
    FirstMember,
    Mask,
    MaskAt,
    MaskIndexed,
    Offset,
)
from shardalg.verify.contents import (
    Contents,
    DimensionContents,
    PendingSelection,
    partition_number,
    start_number,
)
from shardalg.verify.move import (
    CheckedInstruction,
    Goal,
    Result,
    X,
    all_existing_wanted,
    is_finished,
    keep_equal_fills,
    moves,
    with_dim,
)
from shardalg.verify.report import Decided


@moves(Offset)
def _offset(step: CheckedInstruction[Offset]) -> Result:
    """Return the contents after a shift of integers by the partition id, and the claims to prove.

    The numbers in the padding are shifted, too, so no fill stays known. If only one component of
    gather indices is shifted, each device must hold all components.
    """
    dims = tuple(replace(span, fill=None) for span in step.operand.dims)
    result, claims = _apply_change(step, step.attributes, replace(step.operand, dims=dims))
    if step.attributes.component is None:
        return result, claims
    words = "the shifted component is one of whole indices"
    is_whole = bool(dims) and _is_whole(dims[-1])
    return result, [*claims, ("selected", Decided(words, is_whole))]


@moves(FirstMember)
def _first_member(step: CheckedInstruction[FirstMember]) -> Result:
    return _apply_change(step, step.attributes, keep_equal_fills(step, step.attributes.combine))


@moves(MaskIndexed)
def _mask_indexed(step: CheckedInstruction[MaskIndexed]) -> Result:
    """Return the contents after a mask of a gathered value, and the claims that it is right.

    The mask keeps the places whose indices are in the device's block. All other places become 0, or
    the mask's fill if no device has the index.
    """
    task = PendingSelection(step.attributes, step.operands[1].changes)
    result = keep_equal_fills(step, 0 if step.attributes.fill is None else None)
    return _apply_change(step, task, result, _by_same_indices(step))


def _apply_change(
    step: CheckedInstruction,
    task: Attributes | PendingSelection,
    result: Contents,
    claims: Iterable[Goal] = (),
) -> Result:
    """Return the contents after an instruction that changes numbers, and the claims of the change.

    A change is, for example, a mask or a shift of indices. There are two cases. If an operator's
    local result needs changes (`awaits`), `task` must be the first of them, and is removed from
    them. Otherwise `task` is recorded as a change of an operand (`changes`), which the operator
    that reads the operand must expect.

    Args:
      task: the change.
      result: the contents after the change, except `awaits` and `changes`.
      claims: the claims under which the change is right, in the first case.
    """
    # Changes do not commute: a mask after a sum would delete parts of it. So they must be made in
    # the order in which the operator's row requires them.
    operand = step.operand
    if operand.awaits and operand.awaits[0] == task:
        return replace(result, awaits=operand.awaits[1:]), list(claims)
    if operand.awaits:
        words = f"{operand.awaits[0]} is applied first"
        return operand, [("combine", Decided(words, holds=False))]
    return replace(result, changes=(*operand.changes, task)), []


def _by_same_indices(step: CheckedInstruction[MaskIndexed]) -> Iterator[Goal]:
    """Yield the claim that a mask reads the same indices as the gather whose result it masks.

    Along its batch dimensions, the array of indices must have the sharding of the gathered value.
    Each device must hold all components of each index. The indices must be no partial sums and no
    reshaped view, and no change of them (such as a shift) may still be required.
    """
    for indices in step.operands[1:]:
        *spanned, components = indices.dims
        rows = list(zip(step.attributes.batch_dims, spanned, strict=True))
        has_sharding = [_place(step.operand.dims[dim]) == _place(span) for dim, span in rows]
        is_whole = _is_whole(components)
        is_complete = not (indices.awaits or indices.unreduced or indices.viewed)
        words = "the indices are the gather's, and have the layout of its value"
        yield "selected", Decided(words, all(has_sharding) and is_whole and is_complete)


def _is_whole(span: DimensionContents) -> bool:
    return _place(span) == DimensionContents(Number(), span.size, span.size)


def _place(span: DimensionContents) -> DimensionContents:
    """Return a dimension's contents without its fills, so that comparisons ignore padding values.

    A fill is the number that a device holds where the dimension has no element.
    """
    return replace(span, fill=None, gap=None)


def _apply_mask(step: CheckedInstruction[Mask | MaskAt], inside: Formula, fill: str) -> Result:
    """Return the contents after a mask, and the claim that it keeps exactly the existing elements.

    Args:
      inside: the formula that the mask keeps place `x`; fill: the content of all other places.
    """
    a, span = step.attributes, step.operand.dims[step.attributes.dim]
    # A device may have fetched only some ranges of elements (`wanted`). The first claim is that
    # these ranges contain all elements of its block. Such ranges restrict nothing, so the result
    # has none.
    claims = [*all_existing_wanted(step, span), *fillers(step)]
    span = replace(span, wanted=())
    # Both directions are claimed: a mask that keeps too little deletes elements, and one that keeps
    # too much leaves garbage in the padding, whose fill is recorded as known below.
    exists = within(span.start + X, 0, span.size)
    goal = All((implies(inside, exists), implies(exists, inside)))
    words = f"the mask keeps exactly the elements that exist of {span.size}"
    claim = step.claim(words, goal, unknowns=(("x", span.length),))
    operand = keep_equal_fills(step, fill)
    return with_dim(operand, a.dim, replace(span, fill=fill)), [*claims, ("mask", claim)]


def fillers(step: CheckedInstruction[Mask | MaskAt | Dilate]) -> Iterator[Goal]:
    """Yield the claim that a padding's fill is known: the identity of a combination, or a scalar.

    A scalar is an operand of the instruction. It must be complete, with no change pending.
    """
    named = step.attributes.fill != USER
    complete = all(is_finished(fill) and not fill.dims for fill in step.operands[1:])
    words = "the fill is a number without pending changes"
    yield "delivers", Decided(words, named and complete)


@moves(Mask)
def _mask(step: CheckedInstruction[Mask]) -> Result:
    """Return the contents after a `Mask`, and the claims to prove.

    A `Mask` overwrites the padding at the end of a sharded dimension. E.g. if a dimension of size 7
    is in 4 blocks of 2, it overwrites the second place of the last block.
    """
    a = step.attributes
    # Place X of a device's block has element `partition id * block + X` of the dimension. The mask
    # keeps the places whose element number is below the size.
    place = partition_number(a.digits) * a.block + X
    return _apply_mask(step, less(place, a.size), a.fill)


@moves(MaskAt)
def _mask_at(step: CheckedInstruction[MaskAt]) -> Result:
    """Return the contents after a mask of all places that have no element, and the proof's claims.

    Place `x` of a device's buffer has element `start(p) + x` of the dimension, where p is the
    partition id. Places whose element number is below 0 or not below `size` are masked.
    """
    a, span = step.attributes, step.operand.dims[step.attributes.dim]
    start = start_number(a.start)
    # Masked places get the identity of a reduction (`a.fill`, such as "sum"), or the value of the
    # mask's second operand. The contents then record this operand's name (`step.filler`).
    fill = step.filler if a.fill is None else a.fill
    is_kept = within(start + X, 0, a.size)
    # The usual case: a device's buffer begins at the element that the mask counts from. (If neither
    # case holds, the claim of `_apply_mask` fails, which is the verdict on a wrong mask.)
    is_whole = span.start == Number() and span.length == span.size and span.base == 1
    if start == span.start or not is_whole or span.wanted:
        return _apply_mask(step, is_kept, fill)
    # The other case: each device has the whole dimension, of which the mask overwrites all elements
    # outside of its block. The result is a block from `start` on if every kept element has the same
    # place in both, which the last claim shows.
    shifted = with_dim(step.operand, a.dim, replace(span, start=start))
    result, claims = _apply_mask(
        replace(step, operands=(shifted, *step.operands[1:])), is_kept, fill
    )
    words = "the elements that the mask keeps are those of a block from its start on"
    goal = implies(is_kept, equal(start + X, span.start + X))
    claim = step.claim(words, goal, unknowns=(("x", span.length),))
    return result, [*claims, ("mask", claim)]


def chosen_part(step: CheckedInstruction[Choose], number: int) -> Result:
    """Return the contents of operand `number` as far as a `Choose` takes them, and claims to prove.

    A `Choose` makes a block of a concatenation: each place is from the operand that has the
    element. All other places of the operand count as filled with "pick".
    """
    a = step.attributes
    end = a.ends[number]
    # In the concatenation, the tensors follow each other in the order of the operands, so this one
    # has the elements from `end - size` to `end`.
    is_in_operand = within(start_number(a.start) + X, end - a.sizes[number], end)
    span, place, result = (
        step.operand.dims[a.dim],
        start_number(a.start) + X,
        step.declared_contents.dims[a.dim],
    )
    claims = list(all_existing_wanted(step, span))
    exists = within(span.start + X, 0, span.size)
    is_same_place = equal(place, result.start + X)
    is_right = All((is_same_place, implies(is_in_operand, exists), implies(exists, is_in_operand)))
    words = f"exactly the elements that exist of {span.size} are chosen of operand {number}"
    # Places of the result without an element may hold anything.
    goal = implies(result.exists(result.start + X), is_right)
    claim = step.claim(words, goal, unknowns=(("x", span.length),))
    span = replace(span, fill="pick", wanted=())
    return with_dim(step.operand, a.dim, span), [*claims, ("mask", claim)]
