"""Numbers that are changed, and changed back: shifted indices, what they select, one member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardalg.merge.proofs.integers import Number
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import FirstMember, MaskIndexed, Offset
from shardalg.verify.contents import Contents, Held, Selected
from shardalg.verify.move import CheckedInstruction, Result, Stated, filled_with, moves
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
    task = Selected(step.attributes, step.operands[1].changes)
    selected = filled_with(step, 0 if step.attributes.fill is None else None)
    return _changed(step, task, selected, _by_same_indices(step))


def _changed(
    step: CheckedInstruction,
    task: Attributes | Selected,
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


def _is_whole(held: Held) -> bool:
    return _place(held) == Held(Number(), held.size, held.size)


def _place(held: Held) -> Held:
    return replace(held, fill=None, gap=None)
