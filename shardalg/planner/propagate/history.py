"""What completion did, as objects: made when asked for, from the compact changes.

The merges that a completion rests on, found again by replaying its changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.planner.propagate.border import BorderChanges
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.fixpoint import Fixpoint, ShardingChange
from shardalg.planner.propagate.gspmd.step import Numbers, Offer, operand_offers, result_offers
from shardalg.planner.propagate.layouts import Layouts, extends
from shardalg.planner.propagate.operator_classes import Dims, OperatorClass
from shardalg.planner.propagate.sharded import Conflict, Merge, Reason


@dataclass(frozen=True, eq=False)
class Record:
    """A finished completion.

    Attributes:
      begin: the layout number per value before the first sweep; seeds: those of annotated values.
      border_changes: what changed at the ends.
      annotated: the values that have an annotation of their own.
    """

    graph: Graph
    fixpoint: Fixpoint
    begin: tuple[int, ...]
    seeds: dict[int, int]
    border_changes: BorderChanges
    annotated: frozenset[int] = frozenset()


def history(record: Record) -> tuple[Reason, ...]:
    """Every change of every value, in order."""
    return tuple(_reasons(record))


def _reasons(record: Record) -> Iterator[Reason]:
    fixpoint, layouts = record.fixpoint, record.fixpoint.layouts
    for value, number in record.seeds.items():
        own = value in record.annotated
        yield Reason(value, layouts.sharding(number), "annotated" if own else "annotated operand")
    steps, count = fixpoint.index, len(record.graph.values)
    known = layouts.shardings()
    nodes, names, tensors, kind_of_step = (
        steps.nodes,
        steps.names,
        steps.tensors,
        steps.kind_of_step,
    )
    roles = [kind.role for kind in steps.kinds]
    for change in fixpoint.changes:
        value, number, step, direction, sources, level = change
        if value >= count:
            continue
        if step is None:
            yield _without_step(record, change, known[number])
            continue
        values = tensors[step]
        taken = tuple([names[values[k]] for k in sources])
        layout, role = known[number], roles[kind_of_step[step]]
        yield Reason(value, layout, "completed", nodes[step], direction, taken, role, level)
    for value, kind, sources in record.border_changes.changes():
        yield Reason(value, layouts.sharding(fixpoint.numbers[value]), kind, sources=sources)


def _without_step(record: Record, change: ShardingChange, layout: Sharding) -> Reason:
    """Of an annotation that takes part from a later round on, a product, or a tuple's element."""
    if change.sources:
        names = record.fixpoint.index.names
        kind = change.direction or "loop"
        return Reason(change.value, layout, kind, sources=tuple(names[v] for v in change.sources))
    kind = "annotated" if change.value in record.annotated else "annotated operand"
    return Reason(change.value, layout, kind)


def conflicts(record: Record) -> tuple[Conflict, ...]:
    """Layouts that a step still all_offers for and that the free dimensions of its target do not have.

    They are what the order of steps decided, so where a cost may decide otherwise; each (value,
    layout) once. An annotated argument that was refined on the way counts with the layout that it
    had then: what it refused may have gone on from there.
    """
    found: dict[tuple[int, Dims], Conflict] = {}
    memo: dict[tuple[int, Numbers], tuple[tuple[int, str, Dims, Numbers], ...]] = {}
    fixpoint, layouts = record.fixpoint, record.fixpoint.layouts
    steps, final = fixpoint.index, list(fixpoint.numbers)
    for value, number in record.border_changes.restored:
        final[value] = number
    for position in range(len(steps.tensors)):
        numbers = steps.pick[position](final)
        key = (steps.kind_of_step[position], numbers)
        if key not in memo:
            memo[key] = tuple(_refused(steps.kind(position), numbers, fixpoint))
        for target, direction, dims, sources in memo[key]:
            value = steps.tensors[position][target]
            if value < len(record.graph.values) and (value, dims) not in found:
                found[value, dims] = Conflict(
                    value, steps.nodes[position], direction,
                    tuple([steps.names[steps.tensors[position][k]] for k in sources]),
                    layouts.sharding(final[value]),
                    layouts.sharding(layouts.number(layouts.shapes[final[value]], dims)),
                )  # fmt: skip
    return tuple(found.values())


def _refused(
    kind: OperatorClass, numbers: Numbers, fixpoint: Fixpoint
) -> Iterator[tuple[int, str, Dims, Numbers]]:
    """(target, direction, layout asked for, sources) that a target's free dimensions lack."""
    layouts = fixpoint.layouts
    for target, direction, dims, sources in fixpoint.all_offers(kind, numbers, layouts):
        number, dims = numbers[target], tuple(map(layouts.fused, dims))
        if layouts.fixed[number]:
            free = layouts.open[number]
            dims = tuple([digits if d in free else () for d, digits in enumerate(dims)])
        if not extends(layouts.dims[number], dims):
            yield target, direction, dims, sources


def merges(record: Record) -> tuple[Merge, ...]:
    """Every two layouts that were merged into one, in order, with the value they were merged on."""
    return tuple(_replayed(record))


def _replayed(record: Record) -> Iterator[Merge]:
    fixpoint, numbers = record.fixpoint, list(record.begin)
    steps, layouts = fixpoint.index, fixpoint.layouts
    for change in fixpoint.changes:
        value = change.value
        if change.step is None:
            numbers[value] = change.number
            continue
        if layouts.policy == "shardy" or change.level >= image.MERGING_LEVEL:
            key, kind = steps.pick[change.step](numbers), steps.kind(change.step)
            target = _target(steps.tensors[change.step], kind, change)
            shape = layouts.shapes[numbers[value]]
            named = steps.names[value]
            for parts in MERGED[layouts.policy](kind, key, layouts, TensorChange(target, change)):
                first, second, both = (Sharding(layouts.mesh, shape, dims) for dims in parts)
                yield named, first, second, both
        numbers[value] = change.number


class TensorChange(NamedTuple):
    """A change, and which of the operator's tensors has it."""

    target: int
    change: ShardingChange


def _target(tensors: Numbers, kind: OperatorClass, change: ShardingChange) -> int:
    side = kind.results if change.direction == image.FORWARD else kind.operands
    return next(k for k in side if tensors[k] == change.value)


def _merged(
    kind: OperatorClass, key: Numbers, layouts: Layouts, taken: TensorChange
) -> Iterator[tuple[Dims, Dims, Dims]]:
    """(first, second, merged) of the result_offers that a change took, in that order."""
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
    kind: OperatorClass, key: Numbers, layouts: Layouts, taken: TensorChange
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


def _offers_of(
    kind: OperatorClass, key: Numbers, layouts: Layouts, taken: TensorChange
) -> list[Offer]:
    target, change = taken
    all_offers = result_offers if change.direction == image.FORWARD else operand_offers
    order = change.sources
    found = [
        offer for offer in all_offers(kind, key, layouts, target) if set(offer[1]) <= set(order)
    ]
    return sorted(found, key=lambda offer: order.index(offer[1][0]))
