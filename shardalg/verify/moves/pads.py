"""Instructions that make dimensions longer or shorter, and reshapes between groups of dimensions.

The claims say which elements a dimension then holds, and the content of all other places.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.graph.ops.rule import SUM
from shardalg.merge.proofs.integers import Compare, Number, equal, implies
from shardalg.spmd.instructions import Concatenate, Dilate, Regroup, Resize, leading
from shardalg.verify.contents import DimensionContents, fill_number
from shardalg.verify.move import (
    CheckedInstruction,
    Goal,
    Result,
    X,
    all_existing_wanted,
    keep_equal_fills,
    moves,
    numbers_at,
    with_dim,
)
from shardalg.verify.moves.masks import fillers
from shardalg.verify.report import Decided


@moves(Resize)
def _resize(step: CheckedInstruction[Resize]) -> Result:
    """Return the contents of a dimension that is cut, or padded with 0, at its end.

    The claim is that the padding overwrites no element.
    """
    a, span = step.attributes, step.operand.dims[step.attributes.dim]
    if a.size <= span.length:
        return with_dim(step.operand, a.dim, replace(span, length=a.size)), []
    # The fill of a dimension is one number for all its places without an element. So it is known to
    # be 0 only if the places before the new padding are elements, or 0 as well.
    whole = span.start == Number() and span.length == span.size and not span.wanted
    zeros = SUM if whole or fill_number(span.fill, step.declared.dtype) == 0 else None
    result = with_dim(keep_equal_fills(step, SUM), a.dim, replace(span, length=a.size, fill=zeros))
    beyond = span.start + span.length + X
    # No element may exist at these places, so existence has to imply a contradiction (-1 >= 0).
    goal = implies(span.exists(beyond), Compare(Number.of(-1), ">="))
    words = f"padding from {span.length} to {a.size} places overwrites no element"
    return result, [("delivers", step.claim(words, goal, unknowns=(("x", a.size - span.length),)))]


@moves(Concatenate)
def _concatenate(step: CheckedInstruction[Concatenate]) -> Result:
    """Return the contents of concatenated pieces, and the claims to prove.

    Each piece must continue the one before it: the elements of the second start where the elements
    of the first end. Along all other dimensions, the pieces must be equal.
    """
    dim = step.attributes.dim
    # `first` starts where the whole concatenation starts; `length` is that of the pieces so far.
    first = step.operand.dims[dim]
    length = first.length
    # Elements outside of a `wanted` range are not held. The result can state one such range only.
    requested = {found.dims[dim].wanted for found in step.operands} - {()}
    words = "all pieces have the same wanted range"
    claims: list[Goal] = [("delivers", Decided(words, len(requested) <= 1))]
    for other in step.operands[1:]:
        span = other.dims[dim]
        end = first.start + length
        wanted = span.wanted or first.wanted
        first = replace(first, wanted=wanted)
        # The claim is needed only where the piece has an element that exists.
        goal = implies(first.exists(end + X), equal(span.start, end))
        words = f"the piece at place {length} continues the piece before it"
        claims.append(("delivers", step.claim(words, goal, unknowns=(("x", span.length),))))
        # The result is one local value, which has only one pending sum and one list of changes.
        agree_elsewhere = replace(other, dims=step.operand.dims) == replace(
            step.operand, dims=step.operand.dims
        )
        pairs = enumerate(zip(other.dims, step.operand.dims, strict=True))
        have_equal_dims = all(
            replace(a, fill=b.fill) == b for number, (a, b) in pairs if number != dim
        )
        words = "the pieces agree except along the concatenated dimension"
        claims.append(("delivers", Decided(words, agree_elsewhere and have_equal_dims)))
        length += span.length
    # The result has the padding of every piece, so its fill is known only if all pieces share it.
    fills = zip(*([span.fill for span in found.dims] for found in step.operands), strict=True)
    dims = tuple(
        replace(span, fill=span.fill if len(set(each)) == 1 else None)
        for span, each in zip(step.operand.dims, fills, strict=True)
    )
    result = replace(step.operand, dims=dims)
    return with_dim(result, dim, replace(first, length=length, fill=None)), claims


@moves(Dilate)
def _dilate(step: CheckedInstruction[Dilate]) -> Result:
    """Return the contents after places are inserted between the elements and around them.

    A `Dilate` inserts `factor - 1` places between neighbours, `low` before the block and `high`
    behind it. The claim is that no inserted place is the place of another element. In `span`, place
    x holds element `(start + x) / base`, `fill` is the number at places without an element, and
    only elements in the ranges `wanted` are held.
    """
    a, span = step.attributes, step.operand.dims[step.attributes.dim]
    fill = step.filler if a.fill is None else a.fill
    # Elements are `factor` places apart, also across blocks. `factor` places around the block would
    # thus reach the place of a neighbour's element. An empty block has no element of its own, so
    # that the neighbour's element is next to it: no place may be added behind.
    around = max(a.low, a.high if span.length else a.factor * a.high)
    # With fewer places around it, no place of another element is reached. A dimension can be
    # dilated only once (`base` is 1 before).
    fits = span.base == 1 and around < a.factor
    # With factor 1, places are only added at the ends, and may be any number in three cases.
    only_ends = a.factor == span.base == 1
    whole = span.start == Number() and span.length == span.size
    # If no device's block has padding, the fill of this padding does not matter.
    starts = numbers_at(span.start, np.arange(step.mesh.size))
    is_full = bool(((starts >= 0) & (starts + span.length <= span.size)).all())
    if only_ends and whole and not span.wanted:
        span, fits = replace(span, fill=fill), True
    elif only_ends and _nothing_around(step.mesh, span, a):
        # The block holds no element beyond its wanted ranges, so new places outside of these ranges
        # overwrite nothing, and the ranges stay as they are.
        span, fits = replace(span, fill=fill if span.fill == fill else None), True
    elif only_ends and (span.fill == fill or is_full) and not span.wanted:
        # By the formula `start + x`, the new places would hold elements of the neighbour blocks. A
        # wanted range of the block's own elements excludes them.
        span, fits = replace(span, fill=fill, wanted=((span.start, span.length),)), True
    result = replace(
        span,
        start=span.start * a.factor - a.low,
        length=a.length(span.length),
        base=a.factor,
        gap=fill,
    )
    words = "no filled place is an element's, and no change is pending"
    fits = fits and min(a.low, a.high) >= 0 and not step.operand.awaits
    filled = with_dim(keep_equal_fills(step, fill), a.dim, result)
    return filled, [("delivers", Decided(words, fits)), *fillers(step)]


def _nothing_around(mesh: Mesh, span: DimensionContents, dilate: Dilate) -> bool:
    """Return whether a dilation overwrites no element when it adds places around a block.

    The added places have the numbers of elements of neighbour blocks. They must not be among the
    elements that the device holds. This is checked in numbers for every device.

    Args:
      span: the block's elements along the dimension.
      dilate: the instruction, with the numbers of places that it adds.
    """
    positions = np.arange(mesh.size)
    start = numbers_at(span.start, positions)
    # An element outside a wanted range is not held, so nothing is lost if its place is overwritten.
    low, high = np.zeros_like(start), np.zeros_like(start) + span.size
    for first, length in span.wanted:
        begin = numbers_at(first, positions)
        low, high = np.maximum(low, begin), np.minimum(high, begin + length)
    end = start + span.length
    before = np.maximum(start - dilate.low, low) < np.minimum(start, high)
    after = np.maximum(end, low) < np.minimum(end + dilate.high, high)
    return not bool((before | after).any())


@moves(Regroup)
def _regroup(step: CheckedInstruction[Regroup]) -> Result:
    """Return the contents after a reshape of groups of dimensions, and the claims to prove.

    Each group is flattened in row-major order, and split into its new dimensions (`sizes`). One of
    these may be sharded: `held_dim` is its number within the group. The result is a view: its
    dimensions are no longer those of the graph value.
    """
    dims: list[DimensionContents] = []
    words = "no change is pending on the regrouped dimensions"
    claims: list[Goal] = [("delivers", Decided(words, not step.operand.tasks))]
    other_dims = list(step.operand.dims)
    groups = zip(step.attributes.groups, step.attributes.held_dims, strict=True)
    for (count, sizes), held_dim in groups:
        group, other_dims = other_dims[:count], other_dims[count:]
        if len(group) != count or not (group and sizes):
            words = f"a group of {count} dimensions exists and becomes at least one dimension"
            return step.operand, [("delivers", Decided(words, holds=False))]
        # Only the first dimension longer than 1 of a group may be sharded, so that a device has a
        # single run of the flat elements. A dimension that stays as it is needs no such claim.
        if len(group) > 1 or len(sizes) > 1:
            flat, flattening = _flatten(step, group)
            group, splitting = _split_rows(step, flat, sizes, held_dim)
            claims += [*flattening, *splitting]
        dims += group
    claims.append(("delivers", Decided("every dimension is in a group", not other_dims)))
    return replace(step.operand, dims=tuple(dims), viewed=True), claims


def _flatten(
    step: CheckedInstruction, group: list[DimensionContents]
) -> tuple[DimensionContents, list[Goal]]:
    """Return a group of dimensions flattened into one in row-major order, and the claims to prove.

    Only the first dimension that is larger than 1 may be sharded. Otherwise a device's elements are
    no single run of the flat dimension.
    """
    first = leading(tuple(span.size for span in group))
    inner, led = prod(span.size for span in group[first + 1 :]), group[first]
    # Every other dimension must be whole (from element 0, its whole length, not dilated, no range
    # left out), so that flat elements have no gaps.
    others = all(
        (span.start, span.length, span.base, span.wanted) == (Number(), span.size, 1, ())
        for span in (*group[:first], *group[first + 1 :])
    )
    words = "only the first of the regrouped dimensions is sharded"
    claims = [
        *all_existing_wanted(step, led),
        ("delivers", Decided(words, others and led.base == 1)),
    ]
    return DimensionContents(led.start * inner, led.length * inner, led.size * inner), claims


def _split_rows(
    step: CheckedInstruction, flat: DimensionContents, sizes: tuple[int, ...], first: int
) -> tuple[list[DimensionContents], list[Goal]]:
    """Return the dimensions into which a run of flat elements is split, and the claims to prove.

    The new dimensions have the global sizes `sizes`. A device holds a part of dimension `first`,
    one index of each dimension before it, and all indices of the dimensions after it. If the run
    goes past the end of dimension `first`, the elements past the end are not its elements.

    Args:
      flat: the run of elements of the flattened dimension that a device holds.
      first: the number of the new dimension that the devices share out.
    """
    # The new dimensions behind `first` are whole rows of `inner` elements. For sizes (4, 3), where
    # `first` is dimension 0, a run of 6 flat elements from element 6 on is rows 2 and 3:
    #   .. [6 7 8 | 9 10 11]     start 6 // 3 = 2, length 6 // 3 = 2
    inner = prod(sizes[first + 1 :])
    fits = flat.size == prod(sizes) and flat.length % inner == 0
    words = f"{flat.size} elements in {prod(sizes[: first + 1])} rows of {inner}"
    claims: list[Goal] = [("delivers", Decided(words, fits))]
    if inner > 1:
        words = f"{flat.start} is the start of a row"
        claims.append(("delivers", step.claim(words, equal(flat.start % inner, 0))))
    dims = [DimensionContents(Number(), size, size) for size in sizes]
    row = flat.start // inner
    if first > leading(sizes):
        # Before `first`, the block has one index of each dimension, which is a digit of the row
        # number. Dimensions before the first one that is larger than 1 (`leading`) have index 0.
        for d in range(leading(sizes), first):
            own = row // prod(sizes[d + 1 : first + 1])
            dims[d] = DimensionContents(own if d == leading(sizes) else own % sizes[d], 1, sizes[d])
        row = row % sizes[first]
    dims[first] = DimensionContents(row, flat.length // inner, sizes[first])
    return dims, claims
