"""Uneven results: JAX arrays cannot be uneven, so they leave on the longest even prefix."""

from __future__ import annotations

from shardalg.algebra.derived_layouts import even_prefix
from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Value
from shardalg.io.table import Table
from shardalg.reshard.padded import gathered
from shardalg.sizes.amounts import number
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

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
