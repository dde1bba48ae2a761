"""Slices, pads, masks and halos that partitioning adds, and the bytes that they move.

JAX arrays cannot be uneven. An uneven result is therefore resharded at the end, to the longest even
prefix of its axes.
"""

from __future__ import annotations

from collections import defaultdict

from shardalg.algebra.derived_layouts import even_prefix
from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import wire_bytes
from shardalg.costs.cost import Cost
from shardalg.costs.fusion import casts, kernel_bytes, traffic, values_not_in_memory
from shardalg.costs.walk import Execution, local_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.planner.reshard.padded import gather_path
from shardalg.sizes.amounts import number
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import Apply, CollectivePermute, Control, HaloExchange
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table

MOVING = (HaloExchange, CollectivePermute)
"""Collectives that move borders of blocks; all others change the sharding of a value."""


def formatting(program: SpmdProgram, graph: Graph, cost: Cost | None = None) -> Table:
    """Return the instructions that partitioning adds, by kind, and their share of the program.

    `memory_bytes` are the bytes that a device moves from and to memory per step. An instruction
    that is fused with its neighbours moves nothing. Halos and permutes also have
    `wire_bytes_per_step`. The last row is the sum, with its shares of the program's local and sent
    bytes.

    Args:
      cost: adds `memory_s`, the seconds of the memory bytes on the cost's hardware
        (`cost.formatting_s` in the last row), and `step_share`, their share of `cost.step_time_s`.
    """
    inside, cast = values_not_in_memory(program, graph), casts(program, graph)
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    whole: list[float] = [0, 0, 0]
    for step in walk(program):
        if isinstance(step.instruction.attributes, Control):
            continue
        # Links and memory have different speeds, so wire bytes of collectives and memory bytes of
        # all other instructions are in two columns.
        instruction = step.instruction
        attributes = instruction.attributes
        moved, sent = 0, 0
        if isinstance(attributes, Collective):
            held = local_bytes(program, instruction.operands)
            sent = step.count * wire_bytes(attributes, held)
        else:
            kernel = kernel_bytes(program, graph, instruction)
            each = local_bytes(program, traffic(instruction, inside, cast))
            moved = step.count * (each if kernel is None else kernel)
        # The shares below are of the whole program, so the user's operators count there as well.
        amounts = (step.count, moved, sent)
        added_by_us = not _is_users(step)
        for total in [whole, sums[type(attributes).__name__]] if added_by_us else [whole]:
            total[:] = [a + b for a, b in zip(total, amounts, strict=True)]
    added = [sum(column) for column in zip(*sums.values(), strict=True)] or [0, 0, 0]
    rows = [(name, *found) for name, found in sorted(sums.items())] + [("all", *added)]
    columns = (
        "instruction", "executions", "memory_bytes", "wire_bytes_per_step", "memory_share",
        "wire_share",
    )  # fmt: skip
    # `row[2]` and `row[3]` are bytes of memory and of links. In `whole`, which has no name as its
    # first entry, the same amounts have places 1 and 2.
    shares = (
        (*row[:2], *map(number, row[2:]), *(_share(row[k], whole[k - 1]) for k in (2, 3)))
        for row in rows
    )
    table = Table(columns, tuple(shares))
    if cost is None:
        return table
    per_s, step = cost.hardware.hbm_bytes_per_s, cost.step_time_s
    seconds = [float(moved / per_s) for moved in table["memory_bytes"]]
    pairs = zip(table.rows, seconds, strict=True)
    timed = tuple((*row, s, _share(s, step)) for row, s in pairs)
    return Table((*table.columns, "memory_s", "step_share"), timed)


def _is_users(step: Execution) -> bool:
    """Return whether an instruction is the user's operator, or changes a value's sharding."""
    instruction = step.instruction
    kind = type(instruction.attributes)
    if kind is Apply:
        return instruction.node is not None
    return issubclass(kind, Collective) and kind not in MOVING


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


WHY = (
    "a JAX array cannot be uneven: {} with sharding {} is returned as {}; "
    "lowered.padded keeps the sharding"
)
AFTER_FUNCTION = ("unknown", "forward", "root", "border", "", "")
"""Role to source of a reshard after the function: no operator or source line needs it."""


def with_borders(table: Table, program: SpmdProgram, graph: Graph) -> Table:
    """Return the collectives of a program, with a row for the reshard of each uneven result.

    The kind of such a row is "border". The lowered program sends these bytes after the function;
    `lowered.padded` does not.
    """
    rows = []
    sides = zip(program.block.results, graph.results, program.result_shardings, strict=True)
    for local, number_of_value, layout in sides:
        if layout.is_even:
            continue
        held, value = program.locals[local], graph.values[number_of_value]
        # A JAX array cannot have blocks of different sizes at the border of a function. The result
        # is therefore resharded along the axes that divide it, and loses the others.
        even = even_prefix(layout)
        kept = {digit for dim in even.dims for digit in dim}
        dropped = tuple(d for dim in layout.dims for d in dim if d not in kept)
        left = Local(held.index, even.shard_shape, held.dtype, even)
        sent = number(_sent(layout, even) * value.type.itemsize)
        # Kind, axes, group size and executions. The reshard follows the program, outside of all
        # loops, so it runs once.
        what = ("border", ",".join(layout.mesh.texts(dropped)), parts(dropped), 1)
        why = WHY.format(value.name, layout.text(), even.text())
        rows.append((*what, held.bytes, left.bytes, sent, sent, *AFTER_FUNCTION, why))
    return Table(table.columns, (*table.rows, *rows))


def _sent(layout: Sharding, even: Sharding) -> int:
    """Return the number of elements that a device sends when `layout` is resharded to `even`.

    Each dimension that differs is gathered, then cut.
    """
    # A dimension with the same axes at both ends is not gathered. It only scales the bytes, so it
    # counts as an unsharded dimension of the block's size.
    rows = [
        (size, held, kept) if held != kept else (block, (), ())
        for size, block, held, kept in zip(
            layout.shape, layout.shard_shape, layout.dims, even.dims, strict=True
        )
    ]
    shape, held, kept = zip(*rows, strict=True)
    return sum(step.sent for step in gather_path(shape, (held, ()), (kept, ())))
