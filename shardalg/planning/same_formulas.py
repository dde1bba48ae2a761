"""Whether the formulas of a plan with named sizes are right for a plan that was made at a point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from shardalg.costs.cost import Cost
from shardalg.costs.symbolic import Symbolised
from shardalg.costs.walk import walk
from shardalg.sizes.formula import Formula, FormulaError
from shardalg.spmd.program import SpmdProgram

ROUNDED = 1e-9
"""Seconds are sums of floats: the order of summation changes their last digits."""


def formulas_hold(
    named: Symbolised, costs: tuple[Cost, Cost], here: SpmdProgram, point: Mapping[str, int]
) -> bool:
    """Return whether every price by formula equals the price of the plan made at the point.

    Bytes, operations and block sizes are compared exactly, seconds up to rounding.

    Args:
      costs: of the plan with named sizes, and of the plan made there, on the same chip.
      here: the program that was planned there.
    """
    try:
        return _same_blocks(named.program, here, point) and _same_prices(costs, point)
    except FormulaError:
        return False


def _same_blocks(named: SpmdProgram, here: SpmdProgram, point: Mapping[str, int]) -> bool:
    """Return whether every local value has the block size that its formula gives."""
    known: dict[Any, Any] = {}

    def at(size: Any) -> Any:
        if type(size) is not Formula:
            return size
        if size not in known:
            known[size] = size.at(point)
        return known[size]

    if len(named.locals) != len(here.locals):
        return False
    pairs = [
        (named.locals[i], here.locals[i]) for i in sorted(locals_made(named) | locals_made(here))
    ]
    return all(
        (a.dtype, a.origin) == (b.dtype, b.origin) and tuple(map(at, a.shape)) == b.shape
        for a, b in pairs
    )


def locals_made(program: SpmdProgram) -> set[int]:
    """Return the local values that a device holds at some time: others have no formula."""
    found = set(program.block.arguments)
    for step in walk(program):
        found.update(step.instruction.results)
        found.update(v for body in step.instruction.attributes.bodies for v in body.arguments)
    return found


def _same_prices(costs: tuple[Cost, Cost], point: Mapping[str, int]) -> bool:
    first, second = (dict(_prices(cost)) for cost in costs)
    if first.keys() != second.keys():
        return False
    for key, price in first.items():
        number, other = Formula.of(price).at(point) if _is_exact(price) else price, second[key]
        seconds = key[-1] in SECONDS
        if not (math.isclose(number, other, rel_tol=ROUNDED) if seconds else number == other):
            return False
    return True


def _is_exact(price: Any) -> bool:
    return type(price) is not float


SECONDS = ("seconds", "useful_s", "step_time_s")


def _prices(cost: Cost) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Return every price of a step with a key: of each item, of the whole, and of the memory."""
    totals = cost.totals
    for item in totals.items:
        key = (item.kind, item.axes, item.role, item.phase)
        yield (*key, "count"), item.count
        yield (*key, "flops"), item.flops
        yield (*key, "wire_bytes"), item.wire_bytes
        yield (*key, "seconds"), item.time_s
    yield ("useful_flops",), totals.useful_flops
    yield ("useful_s",), totals.useful_s
    yield ("devices",), totals.devices
    yield ("peak_bytes",), totals.peak_bytes
    yield ("step_time_s",), totals.sum("time_s")
