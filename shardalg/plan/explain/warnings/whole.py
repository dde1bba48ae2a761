"""Warnings about operators that cannot be partitioned (SVD, a sort along its only dimension).

If such an operator has a batch dimension, the planner shards that. Otherwise every device gathers
the operand and computes the whole result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import MovedValue
from shardalg.costs.compute import signature_flops
from shardalg.graph.ir import Node
from shardalg.graph.ops.rows import rules
from shardalg.plan.explain.why_not import annotated_as
from shardalg.planner.stages import Stages
from shardalg.planner.trials import Trials
from shardalg.sizes.amounts import number
from shardalg.spmd.instructions import GATHERS
from shardalg.tables import bytes_text, seconds_text

SHARE = 0.1
"""An operator with a smaller share of the plan's bytes and flops has no warning."""
STACK = (
    "no sharding that was tried makes a step cheaper; not tried: stack equal operands and call it "
    "once under jax.vmap, so that devices share the work"
)


def whole_rows(trials: Trials) -> tuple[tuple[object, ...], ...]:
    """Return a row per operator that gathers much or repeats much work; none with named sizes.

    The remedy is a sharding of the operand that was planned and makes a step cheaper.
    """
    return () if trials.stages.is_named else tuple(_rows(trials))


def _rows(trials: Trials) -> Iterator[tuple[object, ...]]:
    """Yield a warning per operator that needs a dimension whole and gathers operands for it.

    It needs at least `SHARE` of the plan's bytes, or repeats as much of its flops.
    """
    stages = trials.stages
    # The gathers that each operator needs, by the operator's number.
    gathers: dict[int, list[MovedValue]] = {}
    for moved in stages.traffic.collectives:
        instruction = moved.step.instruction
        if instruction.node is not None and isinstance(instruction.attributes, GATHERS):
            gathers.setdefault(instruction.node, []).append(moved)
    flops = stages.cost.flops
    for node_index, node_gathers in gathers.items():
        node = stages.graph.nodes[node_index]
        rows = () if node.bodies else rules(node.signature) or ()
        found = [moved for moved in node_gathers if moved.value in node.operands]
        # An operator that shardalg only cannot partition yet gets its warning from `roundabout`. A
        # second one here would repeat it.
        if not found or not rows or not rows[0].whole:
            continue
        sent = sum(moved.step.count * moved.wire_bytes for moved in found)
        # Devices that compute the same block repeat all of its work except one share.
        repeating = _repeating(stages, node)
        # All devices together compute the operator `repeating` times, so `local` is one device's
        # share per execution.
        local = signature_flops(node.signature) * repeating / stages.mesh.size
        redundant = stages.graph.trip_count(node) * local * (1 - 1 / repeating)
        if sent >= SHARE * trials.now.wire_bytes or redundant >= SHARE * flops:
            yield _row(trials, node, found, (sent, redundant))


def _row(
    trials: Trials, node: Node, found: list[MovedValue], figures: tuple[float, float]
) -> tuple[object, ...]:
    """Return the warning about one operator.

    Args:
      found: the gathers of its operands. figures: bytes sent by these, and redundant flops.
    """
    stages, (sent, redundant) = trials.stages, figures
    devices = _repeating(stages, node)
    axes = ",".join(dict.fromkeys(a for m in found for a in stages.mesh.texts(m.digits)))
    text = (
        f"runs whole: {bytes_text(sent)} are gathered along {axes}, and {devices} devices repeat "
        "the same work"
    )
    trips = stages.graph.trip_count(node)
    remedy = _remedy(trials, found)
    return (node.primitive, node.source, trips, number(sent), text, remedy, number(redundant))


def _repeating(stages: Stages, node: Node) -> int:
    """Return the number of devices that compute the same block of the result."""
    layout = stages.sharded.shardings[node.results[0]]
    rule = (rules(node.signature) or ())[0]
    split = 1
    for index, digits in zip(rule.results[0], layout.dims, strict=True):
        # Axes on a loop that runs whole were gathered, so they do not divide the work.
        if not rule.whole & set(index.variables):
            split *= parts(digits)
    return stages.mesh.size // split


def _remedy(trials: Trials, found: list[MovedValue]) -> str:
    """Return the sharding of a gathered operand with the cheapest step, and its effect, as text.

    `STACK` is returned if no sharding makes a step cheaper than now.
    """
    stages, now = trials.stages, trials.now
    best = None
    for value in dict.fromkeys(moved.value for moved in found):
        for layout in _layouts(stages.sharded.shardings[value]):
            outcome = trials.outcome(annotated_as(stages, value, layout))
            # Every candidate is planned: replication can be cheaper than a gather in each call.
            if outcome.price < now.price and (best is None or outcome.price < best[0]):
                best = outcome.price, value, layout, outcome
    if best is None:
        return STACK
    _, value, layout, then = best
    return (
        f"annotate {stages.graph.values[value].name} as {layout.text()}: step "
        f"{seconds_text(now.step_time_s)} to {seconds_text(then.step_time_s)} on "
        f"{trials.machine}, sent "
        f"{bytes_text(now.wire_bytes)} to {bytes_text(then.wire_bytes)}, peak memory "
        f"{bytes_text(now.peak_memory_bytes)} to {bytes_text(then.peak_memory_bytes)}"
    )


def _layouts(layout: Sharding) -> Iterator[Sharding]:
    """Yield the replicated sharding, then those with all axes on one dimension that they divide.

    E.g. shape (8, 6) as [X, Y] with X=2, Y=2 -> [None, None], [(X, Y), None].
    """
    digits: Digits = tuple(digit for dim in layout.dims for digit in dim)
    # A replicated operand needs no gather in any call of the operator.
    none: tuple[Digits, ...] = tuple(() for _ in layout.dims)
    yield replace(layout, dims=none)
    for dim, size in enumerate(layout.shape):
        if digits and size % parts(digits) == 0:
            yield replace(layout, dims=(*none[:dim], digits, *none[dim + 1 :]))
