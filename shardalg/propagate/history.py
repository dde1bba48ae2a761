"""What completion did, as objects: made when asked for, from the compact trail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.propagate.border import Settled
from shardalg.propagate.gspmd.fixpoint import Change, Fixpoint
from shardalg.propagate.gspmd.step import Numbers
from shardalg.propagate.layouts import extends
from shardalg.propagate.operator_classes import Dims, OperatorClass
from shardalg.propagate.sharded import Conflict, Reason


@dataclass(frozen=True, eq=False)
class Record:
    """A finished completion.

    Attributes:
      begin: the layout number per value before the first sweep; seeds: those of annotated values.
      settled: what changed at the ends.
      annotated: the values that have an annotation of their own.
    """

    graph: Graph
    fixpoint: Fixpoint
    begin: tuple[int, ...]
    seeds: dict[int, int]
    settled: Settled
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
    for change in fixpoint.trail:
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
    for value, kind, sources in record.settled.changes():
        yield Reason(value, layouts.sharding(fixpoint.numbers[value]), kind, sources=sources)


def _without_step(record: Record, change: Change, layout: Sharding) -> Reason:
    """Of an annotation that takes part from a later round on, a product, or a tuple's element."""
    if change.sources:
        names = record.fixpoint.index.names
        kind = change.direction or "loop"
        return Reason(change.value, layout, kind, sources=tuple(names[v] for v in change.sources))
    kind = "annotated" if change.value in record.annotated else "annotated operand"
    return Reason(change.value, layout, kind)


def conflicts(record: Record) -> tuple[Conflict, ...]:
    """Layouts that a step still asks for and that the free dimensions of its target do not have.

    They are what the order of steps decided, so where a cost may decide otherwise; each (value,
    layout) once. An annotated argument that was refined on the way counts with the layout that it
    had then: what it refused may have gone on from there.
    """
    found: dict[tuple[int, Dims], Conflict] = {}
    memo: dict[tuple[int, Numbers], tuple[tuple[int, str, Dims, Numbers], ...]] = {}
    fixpoint, layouts = record.fixpoint, record.fixpoint.layouts
    steps, final = fixpoint.index, list(fixpoint.numbers)
    for value, number in record.settled.restored:
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
    for target, direction, dims, sources in fixpoint.asks(kind, numbers, layouts):
        number, dims = numbers[target], tuple(map(layouts.fused, dims))
        if layouts.fixed[number]:
            free = layouts.open[number]
            dims = tuple([digits if d in free else () for d, digits in enumerate(dims)])
        if not extends(layouts.dims[number], dims):
            yield target, direction, dims, sources
