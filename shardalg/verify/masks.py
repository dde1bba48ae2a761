"""Instructions that fill places without elements: which those are, and what stands there after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from shardalg.algebra.digits import overlap, parts
from shardalg.merge.proofs.integers import (
    All,
    Formula,
    Number,
    PartitionId,
    equal,
    implies,
    less,
    within,
)
from shardalg.ops.rule import SUM, USER
from shardalg.verify.contents import Held, as_set, fill_number, partition_number, start_number
from shardalg.verify.move import (
    Result,
    Stated,
    Step,
    X,
    filled_with,
    finished,
    members_agree,
    nothing_beyond,
    with_dim,
)
from shardalg.verify.report import Decided


def _masked(step: Step, inside: Formula, fill: str) -> Result:
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    stated = [*nothing_beyond(step, held), *_fillers(step)]
    held = replace(held, wanted=())
    exists = within(held.start + X, 0, held.size)
    goal = All((implies(inside, exists), implies(exists, inside)))
    words = f"the mask keeps just the elements that exist of {held.size}"
    claim = step.claim(words, goal, unknowns=(("x", held.length),))
    given = filled_with(step, fill_number(fill, step.made.dtype))
    return with_dim(given, a.dim, replace(held, fill=fill)), [*stated, ("mask", claim)]


def _fillers(step: Step) -> Iterator[Stated]:
    """What fills is the identity of a way to combine, or a number that waits for nothing."""
    named = step.attributes.fill != USER
    ready = all(finished(held) and not held.dims for held in step.operands[1:])
    yield "delivers", Decided("what fills places is a number, finished", named and ready)


def mask(step: Step) -> Result:
    """A mask behind the last element of a block."""
    a = step.attributes
    place = partition_number(a.digits) * a.block + X
    return _masked(step, less(place, a.size), a.fill)


def mask_at(step: Step) -> Result:
    """A mask before the first and behind the last element."""
    a = step.attributes
    inside = within(start_number(a.start) + X, 0, a.size)
    return _masked(step, inside, a.fill or step.filler)


def chosen(step: Step, number: int) -> Result:
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


def dilate(step: Step) -> Result:
    """Filled places between the elements, and around them."""
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    fill = a.fill or step.filler
    # as many places around it as there are between two neighbours would be an element's
    plain = held.base == 1 and max(a.low, a.high) < a.factor and min(a.low, a.high) >= 0
    if a.factor == held.base == 1 and held.start == Number() and held.length == held.size:
        held, plain = replace(held, fill=fill), True
    elif a.factor == held.base == 1 and (held.fill == fill or _full(held)) and not held.wanted:
        # beside a block, places that others hold are as good as none
        held, plain = replace(held, fill=fill, wanted=((held.start, held.length),)), True
    made = replace(
        held,
        start=held.start * a.factor - a.low,
        length=a.length(held.length),
        base=a.factor,
        gap=fill,
    )
    words = "the places that are filled are no element's, of a value that waits for nothing"
    plain = plain and not step.given.awaits
    return with_dim(step.given, a.dim, made), [("delivers", Decided(words, plain)), *_fillers(step)]


def pick(step: Step) -> Result:
    """One element, on the one partition that has it; the others have 0, so that the sum is it."""
    a, given = step.attributes, step.given
    held, own = given.dims[a.dim], partition_number(a.digits)
    here = All((equal(held.start + a.place, a.index * held.base), held.exists(Number.of(a.index))))
    goal = implies(equal(own, a.owner), here)
    words = f"element {a.index} is place {a.place} on partition {a.owner}"
    inside = 0 <= a.place < held.length and 0 <= a.owner < parts(a.digits)
    fresh = not any(overlap(*pair) for pair in product(a.digits, given.unreduced))
    added = given.combine == SUM or not given.unreduced  # of what is whole, how does not matter
    sums = added and not given.changes and not given.awaits
    stated = [
        ("delivers", step.claim(words, goal)),
        ("delivers", Decided("one partition has the place", inside)),
        ("combine", Decided("what is made are partial sums of the value", fresh and sums)),
        *members_agree(step, a.digits, (a.dim,)),
    ]
    pending = as_set((*given.unreduced, *a.digits))
    made = replace(filled_with(step, 0), unreduced=pending, combine=SUM, number=None)
    return with_dim(made, a.dim, Held(Number.of(a.index), 1, held.size)), stated


def _full(held: Held) -> bool:
    """Whether every place holds an element, on the last device too."""
    ids = (atom for atom in held.start.atoms() if isinstance(atom, PartitionId))
    last = held.start.at({atom: parts(atom.digits) - 1 for atom in ids})
    return last + held.length <= held.size
