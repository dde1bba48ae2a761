"""Other dimensions of the same elements: as one, and cut again."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from shardalg.merge.proofs.integers import Number, equal
from shardalg.spmd.instructions import Regroup, leading
from shardalg.verify.contents import Held
from shardalg.verify.move import CheckedInstruction, Result, Stated, moves, nothing_beyond
from shardalg.verify.report import Decided


@moves(Regroup)
def _regroup(step: CheckedInstruction[Regroup]) -> Result:
    """Flat elements of each group of dimensions, and then those of the ones in their place."""
    dims: list[Held] = []
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


def _flat(step: CheckedInstruction, group: list[Held]) -> tuple[Held, list[Stated]]:
    """The dimensions of a group as one."""
    first = leading(tuple(held.size for held in group))
    inner, led = prod(held.size for held in group[first + 1 :]), group[first]
    others = all(
        (held.start, held.length, held.base, held.wanted) == (Number(), held.size, 1, ())
        for held in (*group[:first], *group[first + 1 :])
    )
    words = "of dimensions that become others only the first is held in part"
    stated = [*nothing_beyond(step, led), ("delivers", Decided(words, others and led.base == 1))]
    return Held(led.start * inner, led.length * inner, led.size * inner), stated


def _rows(
    step: CheckedInstruction, flat: Held, sizes: tuple[int, ...], first: int
) -> tuple[list[Held], list[Stated]]:
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
    dims = [Held(Number(), size, size) for size in sizes]
    row = flat.start // inner
    if first > leading(sizes):
        for d in range(leading(sizes), first):
            own = row // prod(sizes[d + 1 : first + 1])
            dims[d] = Held(own if d == leading(sizes) else own % sizes[d], 1, sizes[d])
        row = row % sizes[first]
    dims[first] = Held(row, flat.length // inner, sizes[first])
    return dims, stated
