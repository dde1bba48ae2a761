"""The merges that a completion rests on, found again by replaying its changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding
from shardalg.propagate.gspmd import priority
from shardalg.propagate.gspmd.fixpoint import Change
from shardalg.propagate.gspmd.step import Numbers, Offer, offers, wishes
from shardalg.propagate.history import Record
from shardalg.propagate.layouts import Layouts
from shardalg.propagate.operator_classes import Dims, OperatorClass
from shardalg.propagate.sharded import Merge


def merges(record: Record) -> tuple[Merge, ...]:
    """Every two layouts that were merged into one, in order, with the value they were merged on."""
    return tuple(_replayed(record))


def _replayed(record: Record) -> Iterator[Merge]:
    fixpoint, numbers = record.fixpoint, list(record.begin)
    steps, layouts = fixpoint.index, fixpoint.layouts
    for change in fixpoint.trail:
        value = change.value
        if change.step is None:
            numbers[value] = change.number
            continue
        if layouts.policy == "shardy" or change.level >= priority.MERGING_LEVEL:
            key, kind = steps.pick[change.step](numbers), steps.kind(change.step)
            target = _target(steps.tensors[change.step], kind, change)
            shape = layouts.shapes[numbers[value]]
            named = steps.names[value]
            for parts in MERGED[layouts.policy](kind, key, layouts, Taken(target, change)):
                first, second, both = (Sharding(layouts.mesh, shape, dims) for dims in parts)
                yield named, first, second, both
        numbers[value] = change.number


class Taken(NamedTuple):
    """A change, and which of the operator's tensors has it."""

    target: int
    change: Change


def _target(tensors: Numbers, kind: OperatorClass, change: Change) -> int:
    side = kind.results if change.direction == priority.FORWARD else kind.operands
    return next(k for k in side if tensors[k] == change.value)


def _merged(
    kind: OperatorClass, key: Numbers, layouts: Layouts, taken: Taken
) -> Iterator[tuple[Dims, Dims, Dims]]:
    """(first, second, merged) of the offers that a change took, in that order."""
    number = key[taken.target]
    for dims, origin in _offers_of(kind, key, layouts, taken):
        if len(origin) == 2:
            first, second = (kind.project(k, taken.target, layouts.dims[key[k]]) for k in origin)
            yield first, second, dims
        free = layouts.open[number]
        asked = tuple(d if i in free else () for i, d in enumerate(dims)) if free else dims
        new = layouts.improve(number, dims, True, False)
        if new != number and layouts.tiles[number] > 1:
            both = layouts.merged(kind.shapes[taken.target], layouts.dims[number], asked)
            if both == layouts.dims[new]:
                yield layouts.dims[number], asked, both
        number = new


def _extended(
    kind: OperatorClass, key: Numbers, layouts: Layouts, taken: Taken
) -> Iterator[tuple[Dims, Dims, Dims]]:
    """What Shardy's step added to other dimensions of a tensor that was partitioned already.

    A dimension that only took more digits was refined, which is no merge.
    """
    target, change = taken
    old, new = layouts.dims[key[target]], layouts.dims[change.number]
    refined = tuple(b if a else () for a, b in zip(old, new, strict=True))
    added = tuple(() if a else b for a, b in zip(old, new, strict=True))
    if any(refined) and any(added):
        yield refined, added, new


MERGED = {"gspmd": _merged, "shardy": _extended}
"""Per policy, (first, second, merged) of what a change took."""


def _offers_of(kind: OperatorClass, key: Numbers, layouts: Layouts, taken: Taken) -> list[Offer]:
    target, change = taken
    asks = offers if change.direction == priority.FORWARD else wishes
    order = change.sources
    found = [offer for offer in asks(kind, key, layouts, target) if set(offer[1]) <= set(order)]
    return sorted(found, key=lambda offer: order.index(offer[1][0]))
