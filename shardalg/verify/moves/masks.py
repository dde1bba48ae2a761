"""Places without elements that are filled: which those are, and what stands there after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardalg.merge.proofs.integers import (
    All,
    Formula,
    Number,
    equal,
    implies,
    less,
    within,
)
from shardalg.ops.rule import USER
from shardalg.spmd.instructions import Choose, Dilate, Mask, MaskAt
from shardalg.verify.contents import partition_number, start_number
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
