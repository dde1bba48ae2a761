"""Formatting that partitioning adds: slices, pads, masks and halos, and what they move.

Uneven results: JAX arrays cannot be uneven, so they leave on the longest even prefix.
"""

from __future__ import annotations

from collections import defaultdict

from shardalg.algebra.derived_layouts import even_prefix
from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import wire_bytes
from shardalg.costs.cost import Cost
from shardalg.costs.fusion import traffic, unwritten
from shardalg.costs.walk import Execution, local_bytes, walk
from shardalg.graph.ir import Graph, Value
from shardalg.planner.reshard.padded import gathered
from shardalg.sizes.amounts import number
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import Apply, CollectivePermute, Control, HaloExchange
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table

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


WHY = "a JAX array cannot be uneven: {}, held as {}, leaves as {}; lowered.padded keeps it"
NOBODYS = ("unknown", "forward", "root", "border", "", "")
"""Role, phase, region, operator, module and source of what happens behind the function."""


def with_borders(table: Table, program: SpmdProgram, graph: Graph) -> Table:
    """The collectives of a program, and a row per uneven result of what laying it out anew sends.

    Such a row's kind is "border"; it is sent behind the program, where the lowered one is called,
    and not by `lowered.padded`.
    """
    sides = zip(program.block.results, graph.results, program.result_shardings, strict=True)
    rows = (
        _row(program.locals[local], graph.values[value], layout)
        for local, value, layout in sides
        if not layout.is_even
    )
    return Table(table.columns, (*table.rows, *rows))


def _row(held: Local, value: Value, layout: Sharding) -> tuple[object, ...]:
    even = even_prefix(layout)
    kept = {digit for dim in even.dims for digit in dim}
    dropped = tuple(d for dim in layout.dims for d in dim if d not in kept)
    left = Local(held.index, even.shard_shape, held.dtype, even)
    sent = number(_sent(layout, even) * value.type.itemsize)
    what = ("border", ",".join(layout.mesh.texts(dropped)), parts(dropped), 1)
    why = WHY.format(value.name, layout.text(), even.text())
    return (*what, held.bytes, left.bytes, sent, sent, *NOBODYS, why)


def _sent(layout: Sharding, even: Sharding) -> int:
    """Elements that a device sends where the dimensions that change are gathered and cut."""
    rows = [
        (size, held, kept) if held != kept else (block, (), ())
        for size, block, held, kept in zip(
            layout.shape, layout.shard_shape, layout.dims, even.dims, strict=True
        )
    ]
    shape, held, kept = zip(*rows, strict=True)
    return sum(step.sent for step in gathered(shape, (held, ()), (kept, ())))
