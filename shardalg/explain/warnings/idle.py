"""Idle axes as warnings: what they cost, and the annotation that uses them, found by replanning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.analyses.idle_axes import Idle, idle, redundant_flops
from shardalg.costs.cost import number
from shardalg.explain.trials import Outcome, Trials
from shardalg.explain.why_not import annotated_as
from shardalg.graph.ir import Node
from shardalg.io.units import bytes_text, flops_text
from shardalg.ops.rows import rules
from shardalg.ops.rule import Rule
from shardalg.planning.stages import Stages

MOST_TRIED = 4
"""Of so many source lines, those with the most redundant flops, annotations are tried."""


def idle_rows(trials: Trials) -> tuple[tuple[object, ...], ...]:
    """A row of `plan.warnings()` per source line and idle axes, the costliest first.

    For the first `MOST_TRIED` the remedy is an annotation of the product's result or of an operand
    that has been planned: the one after which the plan repeats the fewest flops, then sends the
    fewest bytes.
    """
    stages = trials.stages
    graph = stages.graph
    found = sorted(
        idle(stages.program, graph), key=lambda one: (graph.nodes[one.node].source, one.axes)
    )
    lines = groupby(found, key=lambda one: (graph.nodes[one.node].source, one.axes))
    groups = sorted((tuple(group) for _, group in lines), key=lambda group: -redundant_flops(group))
    return tuple(
        _row(trials, group, tried=place < MOST_TRIED) for place, group in enumerate(groups)
    )


def _row(trials: Trials, group: Sequence[Idle], *, tried: bool) -> tuple[object, ...]:
    graph, first = trials.stages.graph, max(group, key=lambda one: one.redundant_flops)
    node, axes = graph.nodes[first.node], ",".join(first.axes)
    text = f"idle axis {axes}: {parts(first.digits)} devices along it compute the same"
    remedy = _remedy(trials, first) if tried else "as of the lines above: nothing was tried here"
    count = sum(one.count for one in group)
    return (node.primitive, node.source, count, 0, text, remedy, number(redundant_flops(group)))


def _remedy(trials: Trials, one: Idle) -> str:
    """The annotation that uses the axes, in words, with what it does to the plan."""
    stages = trials.stages
    before = redundant_flops(idle(stages.program, stages.graph))
    best: tuple[tuple[Any, Any], str] | None = None
    for value, layout in _layouts(stages, one):
        other = trials.under(annotated_as(stages, value, layout))
        outcome, left = Outcome.of(other), redundant_flops(idle(other.program, other.graph))
        name = stages.graph.values[value].name
        sent = f"{bytes_text(trials.now.wire_bytes)} to {bytes_text(outcome.wire_bytes)} sent"
        words = (
            f"annotate {name} as {layout.text()}: {flops_text(before)} to "
            f"{flops_text(left)} repeated, {sent}"
        )
        if left < before and (best is None or (left, outcome.wire_bytes) < best[0]):
            best = (left, outcome.wire_bytes), words
    return best[1] if best else "no annotation of its operands or result uses the axis"


def _layouts(stages: Stages, one: Idle) -> Iterator[tuple[int, Sharding]]:
    """Layouts of the result, then of operands, in which the idle axes split a dimension evenly."""
    node = stages.graph.nodes[one.node]
    (rule, *_) = rules(node.signature) or ()
    for value, dim in _places(node, rule):
        layout = stages.sharded.shardings[value]
        for digits in _choices(one.digits):
            longer = (*layout.dims[dim], *digits)
            used = {d for dims in layout.dims for d in dims}
            if used.isdisjoint(digits) and layout.shape[dim] % parts(longer) == 0:
                yield value, layout.with_dims((*layout.dims[:dim], longer, *layout.dims[dim + 1 :]))


def _choices(digits: Digits) -> tuple[Digits, ...]:
    return (digits,) if len(digits) == 1 else (digits, *((d,) for d in digits))


def _places(node: Node, rule: Rule) -> Iterator[tuple[int, int]]:
    """Dimensions of the result, and those of operands along which it sums."""
    yield from ((node.results[0], dim) for dim in range(len(rule.results[0])))
    for operand, dims in rule.operands.items():
        for dim, index in enumerate(dims):
            if index.loop in rule.reduced:
                yield node.operands[operand], dim
