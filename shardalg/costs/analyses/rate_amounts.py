"""What a program takes of each figure of `OperatorRates`: measured seconds are fitted to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shardalg.costs.calibration.operator_rates import (
    MATMUL,
    POINTWISE,
    OperatorRates,
    operator_class,
    size_class,
)
from shardalg.costs.collectives import RING_BYTES
from shardalg.costs.compute import operand_type, shaped_flops
from shardalg.costs.hardware import Hardware
from shardalg.costs.step_time import Timed, timed
from shardalg.graph.ir import Graph
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram

MEMORY = "hbm_bytes_per_s"


class Taken(NamedTuple):
    """An instruction, how often it runs, and what each time takes: flops, bytes, executions."""

    instruction: int
    times: int
    amounts: Mapping[str, float]


def rate_amounts(program: SpmdProgram, graph: Graph, *, finely: bool) -> tuple[Taken, ...]:
    """Of every instruction, by the `id` that it has.

    The seconds that it takes where one unit of a figure takes a second, and of all others none.

    Args:
      finely: by size classes of all contractions, and by the axes of collectives; else products of
        bfloat16 stand apart, and kinds of collectives.
    """
    plain = timed(program, graph, Hardware("nothing takes time"))
    rates = dict.fromkeys(_rates(program, graph, plain, finely=finely), math.inf)
    sent = dict.fromkeys(_sent(plain, finely=finely))
    free = {**rates, "operator_s": 0.0}
    free |= {f"collective_s.{detail}": 0.0 for detail in sent}
    free |= {f"collective_bytes_per_s.{detail}": math.inf for detail in sent}
    found: list[dict[str, float]] = [{} for _ in plain]
    for name in (*free, MEMORY):
        figures = {**free, name: 1.0} if name != MEMORY else free
        memory = 1.0 if name == MEMORY else math.inf
        unit = Hardware(
            "unit", hbm_bytes_per_s=memory, operators=OperatorRates((*figures.items(),))
        )
        for each, price in zip(found, timed(program, graph, unit), strict=True):
            if price.seconds:
                each[name] = price.seconds
    rows = zip(plain, found, strict=True)
    return tuple(Taken(id(p.step.instruction), p.step.count, each) for p, each in rows)


def whole_step(taken: Iterable[Taken]) -> dict[str, float]:
    """What a device takes in a step."""
    total: Counter[str] = Counter()
    for one in taken:
        for name, amount in one.amounts.items():
            total[name] += one.times * amount  # type: ignore[assignment]
    return dict(total)


def _sent(prices: Sequence[Timed], *, finely: bool) -> Iterable[str]:
    """Kinds of collectives, and the axes that they go along."""
    for price in prices:
        if price.kind in RING_BYTES:
            yield f"{price.kind}.{','.join(price.axes)}" if finely else price.kind


def _rates(
    program: SpmdProgram, graph: Graph, prices: Sequence[Timed], *, finely: bool
) -> Iterable[str]:
    """Figures of the classes of operators that a program has."""
    held = program.locals
    for price in prices:
        instruction = price.step.instruction
        if type(instruction.attributes) is not Apply or instruction.node is None:
            continue
        signature = graph.nodes[instruction.node].signature
        operator, dtype = operator_class(signature), operand_type(signature)
        own = operator != POINTWISE if finely else (operator, dtype) == (MATMUL, "bfloat16")
        name = f"operator_flops_per_s.{operator}.{dtype if own else 'float32'}"
        if finely and operator != POINTWISE:
            values = (*instruction.operands, *instruction.results)
            flops = shaped_flops(signature, tuple(held[v].shape for v in values))
            name += f".{size_class(flops)}"
        yield name
