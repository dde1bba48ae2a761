"""Formatting that partitioning adds: slices, pads, masks and halos, and what they move."""

from __future__ import annotations

from collections import defaultdict

from shardalg.costs.collectives import wire_bytes
from shardalg.costs.cost import Cost
from shardalg.costs.fusion import traffic, unwritten
from shardalg.costs.walk import Execution, local_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.io.table import Table
from shardalg.sizes.amounts import number
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import Apply, CollectivePermute, Control, HaloExchange
from shardalg.spmd.program import SpmdProgram

MOVING = (HaloExchange, CollectivePermute)
"""Collectives that move borders of blocks rather than change how a value is split."""


def formatting(program: SpmdProgram, graph: Graph, cost: Cost | None = None) -> Table:
    """Instructions that the function does not have, by kind, and their share of the program.

    `memory_bytes` are what a device moves from and to memory for them in a step; what is fused with
    its neighbours moves nothing. `wire_bytes` are sent by halos and permutes. The last row is all
    of them, and its shares are those of the program's local and sent bytes.

    Args:
      cost: adds `memory_s`, the seconds of those memory bytes on its hardware (`cost.formatting_s`
        in the last row), and `step_share`, what they are of `cost.step_time_s`.
    """
    inside = unwritten(program, graph)
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    whole: list[float] = [0, 0, 0]
    for step in walk(program):
        if isinstance(step.instruction.attributes, Control):
            continue
        amounts = (step.count, *_bytes(program, step, inside))
        kinds = [whole] if _is_users(step) else [whole, sums[_name(step)]]
        for total in kinds:
            total[:] = [a + b for a, b in zip(total, amounts, strict=True)]
    added = [sum(column) for column in zip(*sums.values(), strict=True)] or [0, 0, 0]
    rows = [(name, *found) for name, found in sorted(sums.items())] + [("all", *added)]
    columns = (
        "instruction", "executions", "memory_bytes", "wire_bytes_per_step", "memory_share",
        "wire_share",
    )  # fmt: skip
    shares = (
        (*row[:2], *map(number, row[2:]), *(_share(row[k], whole[k - 1]) for k in (2, 3)))
        for row in rows
    )
    return _timed(Table(columns, tuple(shares)), cost)


def _timed(table: Table, cost: Cost | None) -> Table:
    if cost is None:
        return table
    per_s, step = cost.hardware.hbm_bytes_per_s, cost.step_time_s
    seconds = [float(moved / per_s) for moved in table["memory_bytes"]]
    rows = zip(table.rows, seconds, strict=True)
    timed = tuple((*row, s, _share(s, step)) for row, s in rows)
    return Table((*table.columns, "memory_s", "step_share"), timed)


def _is_users(step: Execution) -> bool:
    """Whether an instruction is an operator of the function, or changes how a value is split."""
    instruction = step.instruction
    kind = type(instruction.attributes)
    if kind is Apply:
        return instruction.node is not None
    return issubclass(kind, Collective) and kind not in MOVING


def _name(step: Execution) -> str:
    return type(step.instruction.attributes).__name__


def _bytes(program: SpmdProgram, step: Execution, inside: frozenset[int]) -> tuple[float, float]:
    instruction = step.instruction
    if isinstance(instruction.attributes, Collective):
        held = local_bytes(program, instruction.operands)
        return 0, step.count * wire_bytes(instruction.attributes, held)
    return step.count * local_bytes(program, traffic(instruction, inside)), 0


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
