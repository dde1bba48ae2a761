"""Loops over stacks whose layers are divided among devices, as warnings, with both prices."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from shardalg.explain.trials import Outcome, Trials
from shardalg.graph.ir import Node
from shardalg.io.units import bytes_text, seconds_text
from shardalg.planning.layer_stacks import stacks
from shardalg.planning.stages import Stages
from shardalg.sizes.amounts import number

SHARE = 0.1
"""Share of the peak from which gathered stacks have a warning."""


def stack_rows(trials: Trials) -> tuple[tuple[object, ...], ...]:
    """Rows of `plan.warnings()`, one per loop; not with named sizes.

    The plan whose loops read stacks the other way is made for its price.
    """
    other = trials.other_layers
    return () if other is None else tuple(_rows(trials, other))


def _rows(trials: Trials, other: Outcome) -> Iterator[tuple[object, ...]]:
    stages = trials.stages
    moved: dict[int, float] = {}
    for one in stages.traffic.collectives:
        moved[one.value] = moved.get(one.value, 0) + one.step.count * number(one.wire_bytes)
    gathered = trials.now if not stages.streams else other
    for node in stages.graph.nodes_of(["scan"]):
        found = [
            (stack, layer)
            for stack, layer in stacks(stages.graph, node)
            if _is_divided(stages, stack)
        ]
        held = sum(_whole(stages, stack) for stack, _ in found)
        if found and held >= SHARE * gathered.peak_memory_bytes:
            sent = sum(moved.get(value, 0) for pair in found for value in pair)
            yield _row(trials, node, [stack for stack, _ in found], (held, sent, other))


def _row(
    trials: Trials, node: Node, found: list[int], figures: tuple[int, float, Outcome]
) -> tuple[object, ...]:
    stages, (held, sent, other) = trials.stages, figures
    names = ", ".join(stages.graph.values[stack].name for stack in found)
    if stages.streams:
        text = (
            f"fetches one layer per iteration: gathered before the loop, the layers of {names} "
            f"would be {bytes_text(held)} on every device"
        )
        remedy = "Options(stream_layers=False) gathers them before the loop"
    else:
        text = (
            f"stack: the layers of {names} are gathered before the loop, {bytes_text(held)} on "
            "every device"
        )
        remedy = "Options(stream_layers=True) fetches one layer per iteration"
    trips = stages.graph.trip_count(node)
    said = f"{remedy}: {_change(trials, other)}"
    if other.price >= trials.now.price:
        said = f"tried, and not cheaper: {said}"
    return (node.primitive, node.source, trips, sent, text, said, 0)


def _change(trials: Trials, then: Outcome) -> str:
    now = trials.now
    fits = "" if then.fits else ", which does not fit"
    return (
        f"a step {seconds_text(now.step_time_s)} to {seconds_text(then.step_time_s)} on "
        f"{trials.machine}, sent "
        f"{bytes_text(now.wire_bytes)} to {bytes_text(then.wire_bytes)}, peak "
        f"{bytes_text(now.peak_memory_bytes)} to {bytes_text(then.peak_memory_bytes)}{fits}"
    )


def _is_divided(stages: Stages, stack: int) -> bool:
    return bool(stages.sharded.shardings[stack].dims[0])


def _whole(stages: Stages, stack: int) -> int:
    """Bytes of a stack on a device that has all of its layers."""
    layout, kind = stages.sharded.shardings[stack], stages.graph.values[stack].type
    return kind.shape[0] * prod(layout.shard_shape[1:]) * kind.itemsize
