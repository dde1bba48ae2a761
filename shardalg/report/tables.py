"""Tables of a plan: its shardings, its collectives, and strategies side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardalg.costs.collectives import (
    group_size,
    is_collective,
    wire_bytes,
)
from shardalg.costs.walk import Execution, local_bytes, sent_bytes, walk
from shardalg.graph.ir import Graph, Node
from shardalg.graph.modules.of_nodes import modules
from shardalg.io.table import Table
from shardalg.pause import collection_paused
from shardalg.report.modules import by_module
from shardalg.sizes.amounts import number
from shardalg.spmd.program import SpmdProgram

if TYPE_CHECKING:
    from shardalg.costs.symbolic import Symbolised
    from shardalg.propagate import ShardedGraph
    from shardalg.spmd.instruction import Collective, Instruction

COLLECTIVE_COLUMNS = (
    "kind", "mesh_axes", "group_size", "executions", "operand_bytes", "result_bytes", "wire_bytes",
    "wire_bytes_per_step", "role", "phase", "region", "op", "module", "source", "why",
)  # fmt: skip
PHASES = ("forward", "backward", "update")


@collection_paused()
def collectives(program: SpmdProgram, graph: Graph, named: Symbolised | None = None) -> Table:
    """Every collective of a program, in order of execution.

    Bytes are per device and execution (ring bytes: `costs.collectives.step_wire_bytes`).
    `executions` includes trip counts; `wire_bytes_per_step` is `wire_bytes * executions`. `op` is
    the graph node that needs the collective, `module` and `source` its place and the user's line,
    at the program's border those of what made the value.

    Args:
      named: the program with formulas for its sizes; the numbers of a row are then formulas.
    """
    priced = program if named is None else named.program
    rows = []
    for step, other in zip(walk(program), walk(priced), strict=True):
        what = step.instruction.attributes
        if is_collective(what):
            prices = _prices(priced, other, named)
            rows.append((*_what(program, what), *prices, *_whose(program, graph, step)))
    return Table(COLLECTIVE_COLUMNS, tuple(rows))


def _what(program: SpmdProgram, attributes: Collective) -> tuple[object, ...]:
    return attributes.sent_as, ",".join(program.mesh.texts(attributes.digits))


def _prices(program: SpmdProgram, step: Execution, named: Symbolised | None) -> tuple[object, ...]:
    """Group size, count and bytes; formulas as users read them."""
    instruction, attributes = step.instruction, step.instruction.attributes
    assert is_collective(attributes), "prices are those of what is sent"
    held = sent_bytes(program, instruction)
    left = local_bytes(program, instruction.results)
    sent = wire_bytes(attributes, held)
    amounts = (group_size(attributes), step.count, held, left, sent, step.count * sent)
    show = number if named is None else named.sizes.sympy
    return tuple(show(amount) for amount in amounts)


def collectives_by_module(whole: Table) -> Table:
    """The collectives of a step per module, kind and axes; alike modules are one.

    Args:
      whole: the table of `collectives`.
    """
    rows = (
        (
            row["module"],
            (row["kind"], row["mesh_axes"]),
            (row["executions"], row["wire_bytes_per_step"]),
        )
        for row in whole
    )
    return by_module.table(
        ("module", "kind", "mesh_axes", "executions", "wire_bytes_per_step"), by_module.summed(rows)
    )


def maker(program: SpmdProgram, graph: Graph, instruction: Instruction) -> Node | None:
    """The node that an instruction is for; at the border, the one that made the value."""
    if instruction.node is not None:
        return graph.nodes[instruction.node]
    origins = [program.locals[v].origin for v in (*instruction.operands, *instruction.results)]
    made = [graph.producer[v] for v in origins if v is not None]
    return next((graph.nodes[n] for n in made if n is not None), None)


def _whose(program: SpmdProgram, graph: Graph, step: Execution) -> tuple[object, ...]:
    instruction = step.instruction
    node = None if instruction.node is None else graph.nodes[instruction.node]
    made = maker(program, graph, instruction)
    return (
        instruction.role,
        instruction.phase,
        _region(graph, node),
        "border" if node is None else node.primitive,
        "" if made is None else modules(graph)[made.index],
        "" if made is None else made.source,
        str(instruction.why),
    )


def _region(graph: Graph, node: Node | None) -> str:
    """Kinds of the regions around a node, outermost first: "root", "scan", "scan/remat"."""
    kinds, region = [], None if node is None else graph.regions[node.region]
    while region is not None and region.parent is not None:
        kinds.append(region.kind)
        region = graph.regions[region.parent]
    return "/".join(reversed(kinds)) or "root"


def shardings(sharded: ShardedGraph) -> Table:
    """Every value of a completed graph: global shape, sharding, local shape, and the reason."""
    rows = (
        (
            value.name,
            repr(value.type),
            sharding.text(),
            "x".join(map(str, sharding.shard_shape)),
            sharded.why(value.index),
        )
        for value, sharding in zip(sharded.graph.values, sharded.shardings, strict=True)
    )
    return Table(("value", "global_shape", "sharding", "local_shape", "why"), tuple(rows))


def strategies(tables: Mapping[str, Table]) -> Table:
    """Collectives of several strategies, summed over equal phase, kind, axes and role.

    Args:
      tables: name of the strategy to its `collectives` table.

    >>> one = ("all_gather", "Y", 4, 2, 8, 32, 24, 48, "activation", "forward", "root", *[""] * 4)
    >>> strategies({"final": Table(COLLECTIVE_COLUMNS, (one, one))})
    strategy  phase    kind        mesh_axes  role        executions  wire_bytes_per_step
    final     forward  all_gather  Y          activation           4                   96
    """
    sums: dict[tuple[Any, ...], list[float]] = {}
    for name, table in tables.items():
        for row in table:
            key = (name, row["phase"], row["kind"], row["mesh_axes"], row["role"])
            count, moved = sums.setdefault(key, [0, 0])
            sums[key] = [count + row["executions"], moved + row["wire_bytes_per_step"]]
    order = {phase: place for place, phase in enumerate(PHASES)}
    names = {name: place for place, name in enumerate(tables)}
    keys = sorted(sums, key=lambda k: (names[k[0]], order.get(k[1], len(order))))
    sent = ("executions", "wire_bytes_per_step")
    columns = ("strategy", "phase", "kind", "mesh_axes", "role", *sent)
    return Table(columns, tuple((*key, *sums[key]) for key in keys))


def totals(tables: Mapping[str, Table]) -> Table:
    """Wire bytes per device and step of several strategies, by phase and together."""
    rows = []
    for name, table in tables.items():
        moved = dict.fromkeys(PHASES, 0)
        for row in table:
            moved[row["phase"]] = moved.get(row["phase"], 0) + row["wire_bytes_per_step"]
        rows.append((name, len(table), *(moved[p] for p in PHASES), sum(moved.values())))
    columns = (f"{phase}_wire_bytes_per_step" for phase in PHASES)
    return Table(("strategy", "collectives", *columns, "wire_bytes_per_step"), tuple(rows))


def beside(ours: Table, xla: Table) -> Table:
    """Our collectives beside XLA's: executions and wire bytes of one step, by kind and axes.

    Args:
      ours, xla: tables with columns kind, mesh_axes, executions and wire_bytes_per_step. With
        columns sliced_by and group_size, an all_reduce of which only a block is kept counts as a
        reduce_scatter.

    >>> columns = ("kind", "mesh_axes", "executions", "wire_bytes_per_step")
    >>> ours = Table(columns, (("reduce_scatter", "Y", 1, 10), ("all_gather", "X", 2, 10)))
    >>> beside(ours, Table(columns, (("all_reduce", "Y", 1, 20), ("all_gather", "X", 2, 10))))
    kind            mesh_axes  executions  xla_executions  wire_bytes_per_step  ...
    all_gather      X                   2               2                   10  ...
    all_reduce      Y                   0               1                    0  ...
    reduce_scatter  Y                   1               0                   10  ...
    all                                 3               3                   20  ...
    """
    mine, other = _by_kind(ours), _by_kind(xla)
    rows = [
        (*key, *(n for pair in _pairs(mine, other, key) for n in pair))
        for key in sorted(mine.keys() | other.keys())
    ]
    total = tuple(sum(column) for column in list(zip(*rows, strict=True))[2:] or ((0,),) * 4)
    columns = (
        "kind", "mesh_axes", "executions", "xla_executions", "wire_bytes_per_step",
        "xla_wire_bytes_per_step",
    )  # fmt: skip
    return Table(columns, (*rows, ("all", "", *total)))


def _pairs(mine: dict, other: dict, key: tuple[str, str]) -> zip:
    return zip(mine.get(key, (0, 0)), other.get(key, (0, 0)), strict=True)


def _by_kind(table: Table) -> dict[tuple[str, str], tuple[int, float]]:
    """Executions and wire bytes of a step per (kind, axes)."""
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for row in table:
        key = _kind(row), ",".join(sorted(row["mesh_axes"].replace(" ", "").split(",")))
        count, moved = sums.get(key, (0, 0))
        sums[key] = (count + row["executions"], moved + row["wire_bytes_per_step"])
    return sums


def _kind(row: Mapping[str, Any]) -> str:
    scattered = row.get("sliced_by") is not None and row["sliced_by"] >= row["group_size"]
    return "reduce_scatter" if scattered else row["kind"]
