"""Longer and shorter dimensions: which elements they then hold, and what stands elsewhere.

Other dimensions of the same elements: as one, and cut again.
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
    Result,
    Stated,
    X,
    filled_with,
    moves,
    nothing_beyond,
    numbers_at,
    with_dim,
)
from shardalg.verify.moves.masks import fillers
from shardalg.verify.report import Decided


@moves(Resize)
def _resize(step: CheckedInstruction[Resize]) -> Result:
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    if a.size <= held.length:
        return with_dim(step.given, a.dim, replace(held, length=a.size)), []
    whole = held.start == Number() and held.length == held.size and not held.wanted
    zeros = SUM if whole or fill_number(held.fill, step.made.dtype) == 0 else None
    made = with_dim(filled_with(step, SUM), a.dim, replace(held, length=a.size, fill=zeros))
    beyond = held.start + held.length + X
    goal = implies(held.exists(beyond), Compare(Number.of(-1), ">="))
    words = f"padding from {held.length} to {a.size} places covers no element that is held"
    return made, [("delivers", step.claim(words, goal, unknowns=(("x", a.size - held.length),)))]


@moves(Concatenate)
def _concatenate(step: CheckedInstruction[Concatenate]) -> Result:
    dim = step.attributes.dim
    first = step.given.dims[dim]
    length = first.length
    asked = {found.dims[dim].wanted for found in step.operands} - {()}
    words = "the pieces were fetched for one window"
    stated: list[Stated] = [("delivers", Decided(words, len(asked) <= 1))]
    for other in step.operands[1:]:
        held = other.dims[dim]
        at = first.start + length
        wanted = held.wanted or first.wanted
        first = replace(first, wanted=wanted)
        goal = implies(first.exists(at + X), equal(held.start, at))
        words = f"the piece from place {length} on follows the one before it"
        stated.append(("delivers", step.claim(words, goal, unknowns=(("x", held.length),))))
        same = replace(other, dims=step.given.dims) == replace(step.given, dims=step.given.dims)
        alike = all(replace(a, fill=b.fill) == b for i, (a, b) in enumerate(
            zip(other.dims, step.given.dims, strict=True)) if i != dim)  # fmt: skip
        stated.append(("delivers", Decided("the pieces are of one value", same and alike)))
        length += held.length
    fills = zip(*([held.fill for held in found.dims] for found in step.operands), strict=True)
    dims = tuple(
        replace(held, fill=held.fill if len(set(each)) == 1 else None)
        for held, each in zip(step.given.dims, fills, strict=True)
    )
    made = replace(step.given, dims=dims)
    return with_dim(made, dim, replace(first, length=length, fill=None)), stated


@moves(Dilate)
def _dilate(step: CheckedInstruction[Dilate]) -> Result:
    """Filled places between the elements, and around them."""
    a, held = step.attributes, step.given.dims[step.attributes.dim]
    fill = a.fill or step.filler
    # as many places around it as there are between two neighbours would be an element's, and so
    # would be the first one behind no element
    around = max(a.low, a.high if held.length else a.factor * a.high)
    plain, padded = held.base == 1 and around < a.factor, a.factor == held.base == 1
    whole = held.start == Number() and held.length == held.size
    if padded and whole and not held.wanted:
        held, plain = replace(held, fill=fill), True
    elif padded and _nothing_around(step.mesh, held, a):
        # A fetched piece keeps what is wanted of it: no wanted element belongs around it.
        held, plain = replace(held, fill=fill if held.fill == fill else None), True
    elif padded and (held.fill == fill or _full(step.mesh, held)) and not held.wanted:
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
    plain = plain and min(a.low, a.high) >= 0 and not step.given.awaits
    filled = with_dim(filled_with(step, fill), a.dim, made)
    return filled, [("delivers", Decided(words, plain)), *fillers(step)]


def _nothing_around(mesh: Mesh, held: DimensionContents, dilate: Dilate) -> bool:
    """Return whether no element that exists and is wanted belongs to the places that are added."""
    positions = np.arange(mesh.size)
    start = numbers_at(held.start, positions)
    low, high = np.zeros_like(start), np.zeros_like(start) + held.size
    for first, length in held.wanted:
        begin = numbers_at(first, positions)
        low, high = np.maximum(low, begin), np.minimum(high, begin + length)
    end = start + held.length
    before = np.maximum(start - dilate.low, low) < np.minimum(start, high)
    after = np.maximum(end, low) < np.minimum(end + dilate.high, high)
    return not bool((before | after).any())


def _full(mesh: Mesh, held: DimensionContents) -> bool:
    """Whether every place holds an element, on every device."""
    starts = numbers_at(held.start, np.arange(mesh.size))
    return bool(((starts >= 0) & (starts + held.length <= held.size)).all())


@moves(Regroup)
def _regroup(step: CheckedInstruction[Regroup]) -> Result:
    """Flat elements of each group of dimensions, and then those of the ones in their place."""
    dims: list[DimensionContents] = []
    words = "what becomes other dimensions waits for nothing in its own"
    stated: list[Stated] = [("delivers", Decided(words, not step.given.tasks))]
    rest = list(step.given.dims)
    groups = zip(step.attributes.groups, step.attributes.held_dims, strict=True)
    for (count, sizes), first in groups:
        group, rest = rest[:count], rest[count:]
        if len(group) != count or not (group and sizes):
            words = f"a group has {count} dimensions, which become others"
            return step.given, [("delivers", Decided(words, holds=False))]
        if len(group) > 1 or len(sizes) > 1:
            flat, claims = _flat(step, group)
            group, more = _rows(step, flat, sizes, first)
            stated += [*claims, *more]
        dims += group
    stated.append(("delivers", Decided("every dimension is in a group", not rest)))
    return replace(step.given, dims=tuple(dims), viewed=True), stated


def _flat(
    step: CheckedInstruction, group: list[DimensionContents]
) -> tuple[DimensionContents, list[Stated]]:
    """The dimensions of a group as one."""
    first = leading(tuple(held.size for held in group))
    inner, led = prod(held.size for held in group[first + 1 :]), group[first]
    others = all(
        (held.start, held.length, held.base, held.wanted) == (Number(), held.size, 1, ())
        for held in (*group[:first], *group[first + 1 :])
    )
    words = "of dimensions that become others only the first is held in part"
    stated = [*nothing_beyond(step, led), ("delivers", Decided(words, others and led.base == 1))]
    return DimensionContents(led.start * inner, led.length * inner, led.size * inner), stated


def _rows(
    step: CheckedInstruction, flat: DimensionContents, sizes: tuple[int, ...], first: int
) -> tuple[list[DimensionContents], list[Stated]]:
    """Return the dimensions of a run of flat elements, with `first` held in part.

    A device holds one element of each dimension before `first`. A run that ends after its row has
    elements of the next row there, which do not count as elements of the dimension.
    """
    inner = prod(sizes[first + 1 :])
    fits = flat.size == prod(sizes) and flat.length % inner == 0
    words = f"{flat.size} elements in {prod(sizes[: first + 1])} rows of {inner}"
    stated: list[Stated] = [("delivers", Decided(words, fits))]
    if inner > 1:
        words = f"{flat.start} is the start of a row"
        stated.append(("delivers", step.claim(words, equal(flat.start % inner, 0))))
    dims = [DimensionContents(Number(), size, size) for size in sizes]
    row = flat.start // inner
    if first > leading(sizes):
        for d in range(leading(sizes), first):
            own = row // prod(sizes[d + 1 : first + 1])
            dims[d] = DimensionContents(own if d == leading(sizes) else own % sizes[d], 1, sizes[d])
        row = row % sizes[first]
    dims[first] = DimensionContents(row, flat.length // inner, sizes[first])
    return dims, stated
