"""Warnings about idle mesh axes, and about loops over stacks of layers that devices share.

A remedy is an annotation that uses the axis and was planned. A loop has both prices: the stack
gathered before the loop, and one layer fetched per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from math import prod
from typing import Any

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.analyses.mesh_axes import Idle, idle, redundant_flops
from shardalg.graph.ir import Node
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import Rule
from shardalg.plan.explain.why_not import annotated_as
from shardalg.planner.padded_samples import stacks
from shardalg.planner.stages import Stages
from shardalg.planner.trials import TrialOutcome, Trials
from shardalg.sizes.amounts import number
from shardalg.tables import bytes_text, counted, flops_text, seconds_text

SHARE = 0.1
"""Gathered stacks with a smaller share of the peak memory have no warning."""


def stack_rows(trials: Trials) -> tuple[tuple[object, ...], ...]:
    """Return a warning per loop over stacked layers that are sharded over the number of layers.

    Such a stack is gathered before the loop, or one layer per iteration. Both ways are planned, to
    compare their prices. Plans with named sizes get no warnings.
    """
    other = trials.other_layers
    return () if other is None else tuple(_stack_rows(trials, other))


def _stack_rows(trials: Trials, other: TrialOutcome) -> Iterator[tuple[object, ...]]:
    """Yield a warning per scan whose gathered stacks are a large share of the peak memory.

    Args:
      other: the figures of the plan with `Options.stream_layers` flipped. One of the two plans
        gathers stacks before the loop, and the other one layer per iteration.
    """
    stages = trials.stages
    sent_by_value: dict[int, float] = {}
    for moved in stages.traffic.collectives:
        amount = moved.step.count * number(moved.wire_bytes)
        sent_by_value[moved.value] = sent_by_value.get(moved.value, 0) + amount
    # The share of the stacks in the peak is that of the plan that gathers them whole before the
    # loop. That may be the plan at hand, or the one with the switch flipped.
    gathered = trials.now if not stages.streams else other
    for node in stages.graph.nodes_of(["scan"]):
        sharded_stacks = [
            (stack, layer)
            for stack, layer in stacks(stages.graph, node)
            # A stack that is whole along its layers is not gathered, so fetching saves nothing.
            if stages.sharded.shardings[stack].dims[0]
        ]
        stack_bytes = sum(_whole(stages, stack) for stack, _ in sharded_stacks)
        if sharded_stacks and stack_bytes >= SHARE * gathered.peak_memory_bytes:
            sent_bytes = sum(
                sent_by_value.get(value, 0) for pair in sharded_stacks for value in pair
            )
            yield _stack_row(
                trials,
                node,
                [stack for stack, _ in sharded_stacks],
                (stack_bytes, sent_bytes, other),
            )


def _stack_row(
    trials: Trials, node: Node, found: list[int], figures: tuple[int, float, TrialOutcome]
) -> tuple[object, ...]:
    """Return the row of the warning about one scan over stacked layers.

    The scan gathers the stack before the loop, or fetches one layer per iteration, by the option
    `stream_layers`. The remedy names the other value of the option and its effect on the step.

    Args:
      found: the numbers of the stacked values in the graph.
      figures: bytes of the gathered stacks, bytes sent for them, and the figures of the plan with
        the other value of the option.
    """
    stages, (held, sent, other) = trials.stages, figures
    names = ", ".join(stages.graph.values[stack].name for stack in found)
    if stages.streams:
        text = (
            f"fetches one layer per iteration: gathered before the loop, the layers of {names} "
            f"would take {bytes_text(held)} on every device"
        )
        remedy = "Options(stream_layers=False) gathers them before the loop"
    else:
        text = (
            f"stack: the layers of {names} are gathered before the loop, and take "
            f"{bytes_text(held)} on every device"
        )
        remedy = "Options(stream_layers=True) fetches one layer per iteration"
    trips = stages.graph.trip_count(node)
    remedy = f"{remedy}: {_change(trials, other)}"
    # The option is named even if it is not cheaper, because it saves memory or traffic at a price.
    if other.price >= trials.now.price:
        remedy = f"tried, but not cheaper: {remedy}"
    return (node.primitive, node.source, trips, sent, text, remedy, 0)


def _change(trials: Trials, then: TrialOutcome) -> str:
    """Return seconds, bytes sent and peak memory of the plan now and after a change, as text."""
    now = trials.now
    fits = "" if then.fits else ", which does not fit"
    return (
        f"step {seconds_text(now.step_time_s)} to {seconds_text(then.step_time_s)} on "
        f"{trials.machine}, sent "
        f"{bytes_text(now.wire_bytes)} to {bytes_text(then.wire_bytes)}, peak memory "
        f"{bytes_text(now.peak_memory_bytes)} to {bytes_text(then.peak_memory_bytes)}{fits}"
    )


def _whole(stages: Stages, stack: int) -> int:
    """Return the bytes of a stack on a device that has all of its layers."""
    layout, kind = stages.sharded.shardings[stack], stages.graph.values[stack].type
    return kind.shape[0] * prod(layout.shard_shape[1:]) * kind.itemsize


MOST_TRIED = 4
"""Trials plan the function again, so only the lines with the most redundant flops get them."""
MOST_LAYOUTS = 6
"""Even shardings that are planned per line; if none is cheaper, as many uneven ones."""


def idle_rows(trials: Trials) -> tuple[tuple[object, ...], ...]:
    """Return a row per source line and set of idle axes, the most redundant flops first.

    The remedy of the first `MOST_TRIED` rows is an annotation of the product's result or of an
    operand. It was planned and makes a step cheaper. The chosen one leaves the fewest redundant
    flops, then sends the fewest bytes.
    """
    stages = trials.stages
    graph = stages.graph
    found = sorted(
        idle(stages.program, graph), key=lambda one: (graph.nodes[one.node].source, one.axes)
    )
    # The layers of a model are operators of one source line: a row each would repeat one finding.
    lines = groupby(found, key=lambda one: (graph.nodes[one.node].source, one.axes))
    groups = sorted((tuple(group) for _, group in lines), key=lambda group: -redundant_flops(group))
    return tuple(
        _idle_row(trials, group, tried=place < MOST_TRIED) for place, group in enumerate(groups)
    )


def _idle_row(trials: Trials, group: Sequence[Idle], *, tried: bool) -> tuple[object, ...]:
    """Return the warning about operators of one source line that repeat work along equal axes.

    The remedy is that of the operator with the most redundant flops.

    Args:
      group: the operators, each with its idle axes (axes that shard none of its loops).
      tried: whether annotations are planned to find a remedy.
    """
    graph, first = trials.stages.graph, max(group, key=lambda one: one.redundant_flops)
    node, axes = graph.nodes[first.node], ",".join(first.axes)
    text = f"idle axis {axes}: its {parts(first.digits)} devices repeat the same work"
    remedy = (
        _remedy(trials, first)
        if tried
        else "nothing was tried here: see the remedies of the lines above"
    )
    count = sum(one.count for one in group)
    return (node.primitive, node.source, count, 0, text, remedy, number(redundant_flops(group)))


def _remedy(trials: Trials, one: Idle) -> str:
    """Return text: the annotation that removes the most repeated work, and its effect.

    It must make the step cheaper, too. Repeated work means that all devices along some mesh axes
    compute the same product. Even shardings along these axes are planned first. Uneven ones are
    planned if no even one makes a step cheaper.

    Args:
      one: the product, with the axes along which devices repeat it.
    """
    stages, now = trials.stages, trials.now
    before = redundant_flops(idle(stages.program, stages.graph))
    best: tuple[tuple[Any, Any], str] | None = None
    tried = 0
    for even in (True, False):
        for value, layout in islice(_layouts(stages, one, even=even), MOST_LAYOUTS):
            tried += 1
            other = trials.under(annotated_as(stages, value, layout))
            outcome = TrialOutcome.of(other)
            # All products count, because an annotation may leave another one with an idle axis.
            flops_after = redundant_flops(idle(other.program, other.graph))
            rank = flops_after, outcome.wire_bytes
            sent = f"{bytes_text(now.wire_bytes)} to {bytes_text(outcome.wire_bytes)} sent"
            # Less repeated work alone is no remedy: the annotation may cost more traffic.
            cheaper = flops_after < before and outcome.price < now.price
            if cheaper and (best is None or rank < best[0]):
                words = f"annotate {stages.graph.values[value].name} as {layout.text()}"
                best = (
                    rank,
                    f"{words}: {flops_text(before)} to {flops_text(flops_after)} repeated, {sent}",
                )
        if best is not None:
            return best[1]
    if not tried:
        return "no annotation was tried: no dimension of its result or operands is free"
    planned = f"{counted(tried, 'sharding')} of its result and operands"
    return f"{planned} {'was' if tried == 1 else 'were'} planned: none makes a step cheaper"


def _layouts(stages: Stages, one: Idle, *, even: bool) -> Iterator[tuple[int, Sharding]]:
    """Yield shardings of the result, then of operands, along the idle axes.

    A sharding has the value's own axes, and the idle ones in addition on one dimension.

    Args:
      one: the product with its idle axes.
      even: True for dimensions that the axes divide, False for the other dimensions.
    """
    node = stages.graph.nodes[one.node]
    (rule, *_) = rules(node.signature) or ()
    for value, dim in _places(node, rule):
        layout = stages.sharded.shardings[value]
        for digits in _choices(one.digits):
            longer = (*layout.dims[dim], *digits)
            used = {d for dims in layout.dims for d in dims}
            size = layout.shape[dim]
            # An uneven dimension of one element cannot be split, so it is left out.
            fits = size % parts(longer) == 0 if even else size % parts(longer) and size > 1
            if used.isdisjoint(digits) and size and fits:
                yield value, layout.with_dims((*layout.dims[:dim], longer, *layout.dims[dim + 1 :]))


def _choices(digits: Digits) -> tuple[Digits, ...]:
    return (digits,) if len(digits) == 1 else (digits, *((d,) for d in digits))


def _places(node: Node, rule: Rule) -> Iterator[tuple[int, int]]:
    """Yield (value, dimension) pairs: dimensions of the result, then contracting dimensions."""
    yield from ((node.results[0], dim) for dim in range(len(rule.results[0])))
    for operand, dims in rule.operands.items():
        for dim, index in enumerate(dims):
            if index.loop in rule.reduced:
                yield node.operands[operand], dim
