"""The history of a completion, built on demand from the list of its changes.

Reasons, conflicts and merges are found by replaying the changes.
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
    """A finished completion, from which the history of its changes is derived.

    Attributes:
      begin: per value, the number of its layout (in `Layouts`) before the first sweep.
      seeds: the layout numbers of annotated values, by value.
      border_changes: the changes of arguments, results and loop carries after the sweeps.
      annotated: the values that have an annotation of their own.
    """

    graph: Graph
    fixpoint: Fixpoint
    begin: tuple[int, ...]
    seeds: dict[int, int]
    border_changes: BorderChanges
    annotated: frozenset[int] = frozenset()


def history(record: Record) -> tuple[Reason, ...]:
    """Return the reasons of all changes of all values, in order."""
    return tuple(_reasons(record))


def _reasons(record: Record) -> Iterator[Reason]:
    """Yield the reason of each change of a sharding in the order in which completion made them.

    First come the annotations, then the changes by operators, then those at the borders of the
    function and of its loops, where annotations are restored.
    """
    fixpoint, layouts = record.fixpoint, record.fixpoint.layouts
    # A seed is a value that has a sharding before completion starts, by number of the layout.
    for value, number in record.seeds.items():
        is_annotated = value in record.annotated
        kind = "annotated" if is_annotated else "annotated operand"
        yield Reason(value, layouts.sharding(number), kind)
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
        # Stand-ins of results and places in tuples are no values of the user's function.
        if value >= count:
            continue
        # A change without a step copies the sharding of a tuple's element.
        if step is None:
            yield _without_step(record, change, known[number])
            continue
        values = tensors[step]
        # Sources are positions among the tensors of the step. A tensor is a place, and `names` has
        # the value of each place.
        source_values = tuple([names[values[k]] for k in sources])
        layout, role = known[number], roles[kind_of_step[step]]
        yield Reason(
            value=value,
            layout=layout,
            kind="completed",
            node=nodes[step],
            direction=direction,
            sources=source_values,
            role=role,
            level=level,
        )
    for value, kind, sources in record.border_changes.changes():
        yield Reason(value, layouts.sharding(fixpoint.numbers[value]), kind, sources=sources)


def _without_step(record: Record, change: ShardingChange, layout: Sharding) -> Reason:
    """Return the reason of a change of a sharding that no operator caused.

    The causes are an annotation, a product that is computed in another sharding than its result
    has, and an element of a loop's tuple that follows the other elements.
    """
    # A product or a loop's tuple took the sharding from other values; an annotation has no sources.
    if change.sources:
        names = record.fixpoint.index.names
        kind = change.direction or "loop"
        return Reason(change.value, layout, kind, sources=tuple(names[v] for v in change.sources))
    kind = "annotated" if change.value in record.annotated else "annotated operand"
    return Reason(change.value, layout, kind)


def conflicts(record: Record) -> tuple[Conflict, ...]:
    """Return the shardings offered by neighbours that values did not take, despite free dimensions.

    The order in which operators were visited decided these conflicts, so a choice by cost could
    differ. Each pair (value, sharding) occurs once. An annotated argument may have further axes
    during propagation, and loses them afterwards. The offers are computed with these axes.
    """
    found: dict[tuple[int, Dims], Conflict] = {}
    memo: dict[tuple[int, Numbers], tuple[tuple[int, str, Dims, Numbers], ...]] = {}
    fixpoint, layouts = record.fixpoint, record.fixpoint.layouts
    steps, final = fixpoint.index, list(fixpoint.numbers)
    # A refused offer may have passed through an argument before its annotation was restored. So
    # the offers are computed again from the shardings at the end of the sweeps.
    for value, number in record.border_changes.restored:
        final[value] = number
    for position in range(len(steps.tensors)):
        # Equal operators with equal shardings refuse the same offers.
        numbers = steps.pick[position](final)
        key = (steps.kind_of_step[position], numbers)
        if key not in memo:
            memo[key] = tuple(_refused(steps.kind(position), numbers, fixpoint))
        for target, direction, dims, sources in memo[key]:
            value = steps.tensors[position][target]
            # Larger numbers are places in tuples, which are no values of the user's function.
            if value < len(record.graph.values) and (value, dims) not in found:
                found[value, dims] = Conflict(
                    value=value, node=steps.nodes[position], direction=direction,
                    sources=tuple([steps.names[steps.tensors[position][k]] for k in sources]),
                    kept=layouts.sharding(final[value]),
                    refused=layouts.sharding(layouts.number(layouts.shapes[final[value]], dims)),
                )  # fmt: skip
    return tuple(found.values())


def _refused(
    kind: OperatorClass, numbers: Numbers, fixpoint: Fixpoint
) -> Iterator[tuple[int, str, Dims, Numbers]]:
    """Yield the shardings that a step proposed, and that its tensors refused.

    Each is (number of the tensor, direction, proposed sharding, the tensors that proposed it).

    Args:
      kind: the class of the step's operator.
      numbers: layout numbers of the step's tensors at the end of the sweeps.
    """
    layouts = fixpoint.layouts
    for target, direction, dims, sources in fixpoint.all_offers(kind, numbers, layouts):
        number, dims = numbers[target], tuple(map(layouts.fused, dims))
        # An annotation closes the other dimensions, so an offer to them is no conflict.
        if layouts.fixed[number]:
            free = layouts.open[number]
            dims = tuple([digits if d in free else () for d, digits in enumerate(dims)])
        if not extends(layouts.dims[number], dims):
            yield target, direction, dims, sources


def merges(record: Record) -> tuple[Merge, ...]:
    """Return the merges of two shardings into one, in order, each with its value."""
    return tuple(_replayed(record))


def _replayed(record: Record) -> Iterator[Merge]:
    """Yield the merges of a completion, by applying its changes again in their order.

    A merge is (value, first sharding, second sharding, merged sharding).

    Args:
      record: the changes of the completion, and the layout numbers (`begin`) before it.
    """
    # A step's offers depend on the layouts at its time, of which only the changes are recorded.
    fixpoint, numbers = record.fixpoint, list(record.begin)
    steps, layouts = fixpoint.index, fixpoint.layouts
    for change in fixpoint.changes:
        value = change.value
        # A change without a step copies a sharding, and merges nothing.
        if change.step is None:
            numbers[value] = change.number
            continue
        # Below this level GSPMD does not merge; Shardy has no such levels.
        if layouts.policy == "shardy" or change.level >= image.MERGING_LEVEL:
            key, kind = steps.pick[change.step](numbers), steps.kind(change.step)
            side = kind.results if change.direction == image.FORWARD else kind.operands
            # The number of the changed tensor among those of the step.
            target = next(k for k in side if steps.tensors[change.step][k] == value)
            shape = layouts.shapes[numbers[value]]
            named_value = steps.names[value]
            # GSPMD and Shardy combine offers by different rules, hence two functions.
            merges_of = MERGED[layouts.policy]
            for merged in merges_of(kind, key, layouts, TensorChange(target, change)):
                first, second, both = (Sharding(layouts.mesh, shape, dims) for dims in merged)
                yield named_value, first, second, both
        numbers[value] = change.number


class TensorChange(NamedTuple):
    """A change of a sharding, and the position of the changed tensor among the tensors of its step.

    Attributes:
      target: the position; a step's operands come before its results.
      change: the change.
    """

    target: int
    change: ShardingChange


def _merged(
    kind: OperatorClass, key: Numbers, layouts: Layouts, taken: TensorChange
) -> Iterator[tuple[Dims, Dims, Dims]]:
    """Yield (first, second, merged) for each pair of shardings that a GSPMD step merged.

    The step changed one tensor. It may have merged several offers of other tensors into it, one
    after the other, or two offers with each other.

    Args:
      kind: the operator class of the step.
      key: the layout numbers of the step's tensors before the change.
      taken: the change of one of these tensors.
    """
    # A change may have taken several offers. They are taken again in their order, because a merge
    # depends on the layout before it.
    number = key[taken.target]
    # An offer from two sources is itself a merge, before the value takes it.
    for dims, origin in _offers_of(kind, key, layouts, taken):
        if len(origin) == 2:
            first, second = (kind.project(k, taken.target, layouts.dims[key[k]]) for k in origin)
            yield first, second, dims
        free = layouts.open[number]
        offered = tuple(d if i in free else () for i, d in enumerate(dims)) if free else dims
        # A merge takes a common refinement (`merging`), and never drops a digit (`replace`).
        new = layouts.improve(number, dims, merging=True, replace=False)
        if new != number and layouts.tiles[number] > 1:
            both = layouts.merged(kind.shapes[taken.target], layouts.dims[number], offered)
            if both == layouts.dims[new]:
                yield layouts.dims[number], offered, both
        number = new


def _extended(
    kind: OperatorClass, key: Numbers, layouts: Layouts, taken: TensorChange
) -> Iterator[tuple[Dims, Dims, Dims]]:
    """Yield (old dimensions, added dimensions, both) if a change by Shardy merges two shardings.

    It is a merge if some dimensions of the tensor were sharded before and others become sharded. If
    only sharded dimensions get more digits, the change is a refinement, and nothing is yielded.

    For example, [X, -] -> [X, Y] yields ([X, -], [-, Y], [X, Y]).

    Args:
      key: the layout numbers of the step's tensors before the change.
      taken: the number of the changed tensor in the step, and the change.
    """
    target, change = taken
    old, new = layouts.dims[key[target]], layouts.dims[change.number]
    refined = tuple(after if before else () for before, after in zip(old, new, strict=True))
    added = tuple(() if before else after for before, after in zip(old, new, strict=True))
    if any(refined) and any(added):
        yield refined, added, new


MERGED = {"gspmd": _merged, "shardy": _extended}
"""Per partitioner, the generator of (first, second, merged) of the offers that a change took."""


def _offers_of(
    kind: OperatorClass, key: Numbers, layouts: Layouts, taken: TensorChange
) -> list[Offer]:
    """Return the proposed shardings that a change combined, in the order in which it took them.

    Args:
      kind, key: the class of the step's operator, and the layout numbers of the step's tensors.
      taken: the change.
    """
    target, change = taken
    # The record of a change has its sources only, so all offers are computed again.
    find_offers = result_offers if change.direction == image.FORWARD else operand_offers
    sources = change.sources
    offers = find_offers(kind, key, layouts, target)
    # An offer is (sharding, its sources). It was used if the change names all of its sources.
    used = [offer for offer in offers if set(offer[1]) <= set(sources)]
    return sorted(used, key=lambda offer: sources.index(offer[1][0]))
