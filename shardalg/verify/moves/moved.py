"""Instructions that move, cut or join: what each makes of what its operands hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from shardalg.merge.proofs.integers import All, equal, implies, less, within
from shardalg.spmd.instructions import DynamicSlice, OwnerSelect, Regroup, Slice, SliceAt
from shardalg.verify.contents import Contents, DimensionContents
from shardalg.verify.move import MOVES, CheckedInstruction, Result, Stated, X
from shardalg.verify.moves import collectives, joins, masks, pads, slices
from shardalg.verify.report import Decided

PARTS = (DynamicSlice, OwnerSelect, Slice, SliceAt)
"""What takes a part of a dimension as it lies, places between its elements among it."""
REGISTERED = (collectives, joins, masks, pads, slices)
"""The modules whose functions are in `MOVES` once they are imported."""


# Pure, and the same instruction stands in many programs.
@lru_cache(maxsize=1 << 12)
def moved(step: CheckedInstruction) -> tuple[tuple[Contents, ...], list[Stated]]:
    """What the results hold, and the claims on which that rests.

    A local that a graph value is named for holds what its layout says; the claims show it. What
    number all elements are is not kept: a piece that arrives lies beside one that did not move.
    """
    step = replace(step, operands=tuple(replace(held, number=None) for held in step.operands))
    found, stated = MOVES[type(step.attributes)](step)
    stated = [*stated, *_side_by_side(step)]
    if step.made.named:
        found = [_settled(step, *result) for result in found]
    return tuple(made for made, _ in found), [*stated, *(s for _, more in found for s in more)]


def _side_by_side(step: CheckedInstruction) -> Iterator[Stated]:
    """Of a dimension with places between its elements nothing is taken but parts."""
    spoken = step.attributes.dims or range(len(step.given.dims))
    reads = [held.dims[dim] for held in step.operands for dim in spoken if dim < len(held.dims)]
    if not isinstance(step.attributes, PARTS) and any(held.base > 1 for held in reads):
        words = "the elements of what is moved stand side by side"
        yield "delivers", Decided(words, holds=False)


def _settled(step: CheckedInstruction, made: Contents, stated: list[Stated]) -> Result:
    """The result is what the program says of it: its layout, its partial sums, nothing to do."""
    said = step.said
    # only a regrouping itself ends a view, on the dimensions of the value that it makes
    alike = [held.size for held in made.dims] == [wanted.size for wanted in said.dims]
    alike = alike and all(held.base == 1 for held in made.dims)
    alike = alike and (not made.viewed or isinstance(step.attributes, Regroup))
    if not alike:
        return said, [*stated, ("delivers", Decided("dimensions are the value's own", holds=False))]
    for dim, (held, wanted) in enumerate(zip(made.dims, said.dims, strict=True)):
        words = f"dimension {dim} holds the elements from {wanted.start} on"
        stated = [*stated, *agreement(step, held, wanted, words)]
    pending, done = made.unreduced == said.unreduced, not made.awaits and not made.changes
    stated = [
        *stated,
        ("combine", Decided("just these partial sums are pending", pending)),
        ("delivers", Decided("nothing is left to be done to the numbers", done)),
    ]
    fills = tuple(
        replace(w, fill=h.fill) if (h.start, h.length) == (w.start, w.length) else w
        for h, w in zip(made.dims, said.dims, strict=True)
    )
    return replace(said, dims=fills, combine=made.combine), stated


def agreement(
    step: CheckedInstruction, held: DimensionContents, said: DimensionContents, words: str
) -> Iterator[Stated]:
    """`held` has every element that `said` puts somewhere, there; nothing to show if alike."""
    if (held.start, held.length, held.wanted) == (said.start, said.length, ()):
        return
    here = within(said.start + X, 0, said.size)
    shown = All((equal(held.start, said.start), less(X, held.length), held.exists(said.start + X)))
    yield "delivers", step.claim(words, implies(here, shown), unknowns=(("x", said.length),))
