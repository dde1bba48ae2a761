"""Instructions that move, cut or join data: the contents of their results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from shardalg.merge.proofs.integers import All, equal, implies, less, within
from shardalg.spmd.instructions import DynamicSlice, OwnerSelect, Regroup, Slice, SliceAt
from shardalg.verify.contents import Contents, DimensionContents
from shardalg.verify.move import MOVES, CheckedInstruction, Goal, Result, X
from shardalg.verify.moves import collectives, joins, masks, pads, slices
from shardalg.verify.report import Decided

PARTS = (DynamicSlice, OwnerSelect, Slice, SliceAt)
"""Instructions that take a part of a dimension unchanged, so that base dilation stays."""
REGISTERED = (collectives, joins, masks, pads, slices)
"""Modules that register their functions in `MOVES` when they are imported."""


# Pure, and many programs contain the same instruction.
@lru_cache(maxsize=1 << 12)
def check_move(step: CheckedInstruction) -> tuple[tuple[Contents, ...], list[Goal]]:
    """Return the contents of an instruction's results, and the claims that these are right.

    A result that is a graph value gets the contents that the program declares for it. If all
    elements of an operand equal one known number, this number is dropped: a block that is received
    from another device may have another number.
    """
    step = replace(step, operands=tuple(replace(each, number=None) for each in step.operands))
    contents_and_claims, claims = MOVES[type(step.attributes)](step)
    # A dilated dimension has gaps between its elements. The functions in `MOVES` compute places as
    # if there were none, which is right only for instructions that cut out a part.
    dims = step.attributes.dims or range(len(step.operand.dims))
    reads = [each.dims[dim] for each in step.operands for dim in dims if dim < len(each.dims)]
    if not isinstance(step.attributes, PARTS) and any(span.base > 1 for span in reads):
        words = "moved dimensions have no base dilation"
        claims = [*claims, ("delivers", Decided(words, holds=False))]
    if step.declared.named:
        contents_and_claims = [_as_declared(step, *result) for result in contents_and_claims]
    return tuple(result for result, _ in contents_and_claims), [
        *claims,
        *(s for _, more in contents_and_claims for s in more),
    ]


def _as_declared(step: CheckedInstruction, result: Contents, claims: list[Goal]) -> Result:
    """Return the declared contents of a result, and the claims that the computed ones equal them.

    The claims are: the dimensions agree, the same sums are pending, and no operation on the
    numbers, such as a mask, is still to be done.

    Args:
      result: the contents as computed; claims: the claims under which they are right.
    """
    declared = step.declared_contents
    # A reshaped view is the graph value again only after a `Regroup` back to the value's own
    # dimensions. Any other instruction would leave the elements in another order of dimensions.
    same_dims = [span.size for span in result.dims] == [wanted.size for wanted in declared.dims]
    same_dims = same_dims and all(span.base == 1 for span in result.dims)
    same_dims = same_dims and (not result.viewed or isinstance(step.attributes, Regroup))
    if not same_dims:
        return declared, [
            *claims,
            ("delivers", Decided("the dimensions are those of the graph value", holds=False)),
        ]
    for dim, (span, wanted) in enumerate(zip(result.dims, declared.dims, strict=True)):
        words = f"dimension {dim} holds the elements from {wanted.start} on"
        claims = [*claims, *agreement(step, span, wanted, words)]
    pending, done = result.unreduced == declared.unreduced, not result.awaits and not result.changes
    claims = [
        *claims,
        ("combine", Decided("exactly the declared partial sums are pending", pending)),
        ("delivers", Decided("no change of the numbers is pending", done)),
    ]
    # A fill belongs to the places without an element. These are the same places only if the
    # declared block starts where the actual one does, and has its length.
    fills = tuple(
        replace(w, fill=h.fill) if (h.start, h.length) == (w.start, w.length) else w
        for h, w in zip(result.dims, declared.dims, strict=True)
    )
    return replace(declared, dims=fills, combine=result.combine), claims


def agreement(
    step: CheckedInstruction, span: DimensionContents, declared: DimensionContents, words: str
) -> Iterator[Goal]:
    """Yield the claim that a dimension holds each element that is declared, at the same place.

    Equal dimensions need no claim.

    Args:
      span: the dimension as it is; declared: as the program declares it; words: for reports.
    """
    if (span.start, span.length, span.wanted) == (declared.start, declared.length, ()):
        return
    is_declared = within(declared.start + X, 0, declared.size)
    is_held = All(
        (equal(span.start, declared.start), less(X, span.length), span.exists(declared.start + X))
    )
    yield (
        "delivers",
        step.claim(words, implies(is_declared, is_held), unknowns=(("x", declared.length),)),
    )
