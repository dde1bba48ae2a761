"""Memory of a plan over time as data for its page: a curve per class, and the values alive."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from shardalg.costs.analyses.alive_over_time import alive_curve
from shardalg.costs.memory import Scan
from shardalg.costs.walk import walk

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.plan.plan import Plan
    from shardalg.spmd.instruction import Instruction

MOST_POINTS = 240
"""More points than pixels would only make the page larger."""
SMALLEST = 1 / 2000
"""Values with a smaller share of the peak are summed in the list of values alive."""
CLASSES = {
    "parameters": "parameters",
    "optimizer_state": "optimizer state",
    "data": "data",
    "unknown": "arguments",
    "constants": "constants",
    "results": "results",
    "activations": "activations",
    "gradients": "gradients",
    "transients": "intermediate values",
}
"""Classes of values in the order in which the page stacks them, with their names on the page."""


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes alive on one device at some instructions of a plan's program.

    Attributes:
      capacity: bytes of memory of a device.
      peak: number of the point with the most bytes alive.
      totals: bytes alive at each point.
      by_class: the bytes of each class of values at each point, by the class's name on the page.
      phases: phase of the instruction at each point: "forward", "backward", "update" or "".
      values: rows (name, number of its class, bytes, first point, last point) of the large values.
      instructions: number of instructions of the program.
    """

    capacity: int
    peak: int
    totals: tuple[int, ...]
    by_class: Mapping[str, tuple[int, ...]]
    phases: tuple[str, ...]
    values: tuple[tuple[str, int, int, int, int], ...]
    instructions: int


def memory_curve(plan: Plan, cost: Cost) -> MemoryCurve:
    """Return the memory of a plan over time, at most `MOST_POINTS` points of it.

    Each point is the instruction with the most bytes alive among some consecutive instructions, so
    that the peak is one of them.

    Args:
      cost: the plan's cost, whose chip decides the capacity, and whether values are recomputed.
    """
    program, graph, traced = plan.program, plan.graph, plan._traced
    rebuild = cost.hardware.rebuilds
    curve = alive_curve(program, graph, donated=traced.donated, rebuild=rebuild)
    count = len(curve.totals)
    width = max(1, -(-count // MOST_POINTS))
    starts = range(0, count, width)
    kept = [max(range(at, min(at + width, count)), key=curve.totals.__getitem__) for at in starts]
    scan = Scan(program, graph, traced.roles, rebuild)
    classes, changes = [*CLASSES], {name: [0] * (len(kept) + 1) for name in CLASSES}
    made = {r: step.instruction for step in walk(program) for r in step.instruction.results}
    rows: defaultdict[tuple[str, int, int, int], int] = defaultdict(int)
    for life in curve.lifetimes:
        # Values that are alive only between two points of the page are at none of them.
        first, end = bisect_left(kept, life.first), bisect_right(kept, life.last)
        if first >= end:
            continue
        name = scan.memory_class(life.value)
        # Without roles of the arguments, the class of every computed value is unknown too.
        if name == "unknown" and scan.border.get(life.value) != "argument":
            name = "transients"
        changes[name][first] += life.bytes
        changes[name][end] -= life.bytes
        if life.bytes >= SMALLEST * curve.totals[curve.peak]:
            key = _name(plan, scan, made, life.value), classes.index(name), first, end - 1
            rows[key] += life.bytes
    sums = {name: tuple(accumulate(found[:-1])) for name, found in changes.items()}
    block = program.block.instructions
    return MemoryCurve(
        int(cost.hardware.hbm_bytes),
        kept.index(curve.peak),
        tuple(curve.totals[k] for k in kept),
        {CLASSES[name]: found for name, found in sums.items() if any(found)},
        tuple(block[k - 1].phase if k else "" for k in kept),
        tuple((name, kind, size, *span) for (name, kind, *span), size in rows.items()),  # type: ignore[misc]
        count - 1,
    )


def _name(plan: Plan, scan: Scan, made: Mapping[int, Instruction], value: int) -> str:
    """Return the name of a local value, or the instruction and the line that compute it."""
    if plan.program.locals[value].origin is not None:
        return scan.name(value)
    instruction = made.get(value)
    if instruction is None or instruction.node is None:
        return f"value %{value}"
    node = plan.graph.nodes[instruction.node]
    kind = getattr(instruction.attributes, "sent_as", "") or "block"
    return f"{kind} for {node.primitive} at {node.source or 'an unknown line'}"
