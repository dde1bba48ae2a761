"""Places without elements that are filled: which those are, and what stands there after.

Numbers that are changed, and changed back: shifted indices, what they select, one member.
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
    Result,
    Stated,
    X,
    filled_with,
    finished,
    moves,
    nothing_beyond,
    with_dim,
)
from shardalg.verify.report import Decided


@moves(Offset)
def _offset(step: CheckedInstruction[Offset]) -> Result:
    """What stands where there is no element is shifted, too.

    A component is told by its number, which counts from the first place.
    """
    dims = tuple(replace(held, fill=None) for held in step.given.dims)
    made, stated = _changed(step, step.attributes, replace(step.given, dims=dims))
    if step.attributes.component is None:
        return made, stated
    words = "what is shifted is a component of whole indices"
    whole = bool(dims) and _is_whole(dims[-1])
    return made, [*stated, ("selected", Decided(words, whole))]


@moves(FirstMember)
def _first_member(step: CheckedInstruction[FirstMember]) -> Result:
    return _changed(step, step.attributes, filled_with(step, step.attributes.combine))


@moves(MaskIndexed)
def _mask_indexed(step: CheckedInstruction[MaskIndexed]) -> Result:
    """What has no index is selected by garbage: it is 0, or what is filled in."""
    task = PendingSelection(step.attributes, step.operands[1].changes)
    selected = filled_with(step, 0 if step.attributes.fill is None else None)
    return _changed(step, task, selected, _by_same_indices(step))


def _changed(
    step: CheckedInstruction,
    task: Attributes | PendingSelection,
    made: Contents,
    claims: Iterable[Stated] = (),
) -> Result:
    """A change of numbers, which is what the value waits for, or what its reader expects."""
    given = step.given
    if given.awaits and given.awaits[0] == task:
        return replace(made, awaits=given.awaits[1:]), list(claims)
    if given.awaits:
        return given, [("combine", Decided(f"{given.awaits[0]} comes first", holds=False))]
    return replace(made, changes=(*given.changes, task)), []


def _by_same_indices(step: CheckedInstruction[MaskIndexed]) -> Iterator[Stated]:
    """What selects places of a gathered value are whole indices, laid out as the value is."""
    for indices in step.operands[1:]:
        *spanned, components = indices.dims
        rows = list(zip(step.attributes.batch_dims, spanned, strict=True))
        alike = [_place(step.given.dims[dim]) == _place(held) for dim, held in rows]
        whole = _is_whole(components)
        ready = not (indices.awaits or indices.unreduced or indices.viewed)
        words = "the indices are those of the gather, laid out as its value is"
        yield "selected", Decided(words, all(alike) and whole and ready)


def _is_whole(held: DimensionContents) -> bool:
    return _place(held) == DimensionContents(Number(), held.size, held.size)


def _place(held: DimensionContents) -> DimensionContents:
    return replace(held, fill=None, gap=None)


def _masked(step: CheckedInstruction[Mask | MaskAt], inside: Formula, fill: str) -> Result:
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    stated = [*nothing_beyond(step, held), *fillers(step)]
    held = replace(held, wanted=())
    exists = within(held.start + X, 0, held.size)
    goal = All((implies(inside, exists), implies(exists, inside)))
    words = f"the mask keeps just the elements that exist of {held.size}"
    claim = step.claim(words, goal, unknowns=(("x", held.length),))
    given = filled_with(step, fill)
    return with_dim(given, a.dim, replace(held, fill=fill)), [*stated, ("mask", claim)]


def fillers(step: CheckedInstruction[Mask | MaskAt | Dilate]) -> Iterator[Stated]:
    """What fills is the identity of a way to combine, or a number that waits for nothing."""
    named = step.attributes.fill != USER
    ready = all(finished(held) and not held.dims for held in step.operands[1:])
    yield "delivers", Decided("what fills places is a number, finished", named and ready)


@moves(Mask)
def _mask(step: CheckedInstruction[Mask]) -> Result:
    """A mask behind the last element of a block."""
    a = step.attributes
    place = partition_number(a.digits) * a.block + X
    return _masked(step, less(place, a.size), a.fill)


@moves(MaskAt)
def _mask_at(step: CheckedInstruction[MaskAt]) -> Result:
    """A mask before the first and behind the last element."""
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    start, fill = start_number(a.start), a.fill or step.filler
    inside = within(start + X, 0, a.size)
    is_whole = held.start == Number() and held.length == held.size and held.base == 1
    if start == held.start or not is_whole or held.wanted:
        return _masked(step, inside, fill)
    made, stated = _masked(_read_from(step, start), inside, fill)
    words = "what the mask keeps of all elements are those that a block from its start on has"
    goal = implies(inside, equal(start + X, held.start + X))
    claim = step.claim(words, goal, unknowns=(("x", held.length),))
    return made, [*stated, ("mask", claim)]


def _read_from(step: CheckedInstruction[MaskAt], start: Number) -> CheckedInstruction[MaskAt]:
    """The step on what is said to begin elsewhere."""
    dim = step.attributes.dim
    moved = replace(step.given.dims[dim], start=start)
    return replace(step, operands=(with_dim(step.given, dim, moved), *step.operands[1:]))


def chosen(step: CheckedInstruction[Choose], number: int) -> Result:
    """What is left of the piece of an operand: the places at which it is the one to be taken."""
    a = step.attributes
    end = a.ends[number]
    inside = within(start_number(a.start) + X, end - a.sizes[number], end)
    held, place, made = step.given.dims[a.dim], start_number(a.start) + X, step.said.dims[a.dim]
    stated = list(nothing_beyond(step, held))
    exists = within(held.start + X, 0, held.size)
    there = equal(place, made.start + X)
    alike = All((there, implies(inside, exists), implies(exists, inside)))
    words = f"of operand {number} just the elements that exist of {held.size} are chosen"
    # places of the result that hold no element may hold anything
    goal = implies(made.exists(made.start + X), alike)
    claim = step.claim(words, goal, unknowns=(("x", held.length),))
    held = replace(held, fill="pick", wanted=())
    return with_dim(step.given, a.dim, held), [*stated, ("mask", claim)]
