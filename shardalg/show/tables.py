"""Tables of a plan: its shardings, its collectives, and strategies side by side.

Tables folded by module: one row for what a module does, alike layers as `layers[0:24]`.

Seconds, bytes sent and bytes held of each module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shardalg.costs.collectives import group_size, is_collective, wire_bytes
from shardalg.costs.step_time import timed
from shardalg.costs.topology import machine
from shardalg.costs.walk import Execution, local_bytes, sent_bytes, walk
from shardalg.errors import TableError
from shardalg.graph.ir import Graph, Node
from shardalg.graph.modules import modules
from shardalg.pause import collection_paused
from shardalg.planner.stages import Stages, priced
from shardalg.sizes.amounts import number
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.symbolic import Symbolised
    from shardalg.costs.topology import Topology
    from shardalg.planner.propagate import ShardedGraph
    from shardalg.spmd.instruction import Collective, Instruction

Content = Mapping[tuple[Any, ...], tuple[Any, ...]]
"""Per key of a row, such as (kind, axes), what is summed."""


def check_by(by: str | None) -> bool:
    """Whether a table is asked for by module.

    Raises:
      TableError: it is asked for by something else.
    """
    if by not in (None, "module"):
        raise TableError(f"by={by!r}: tables are folded by 'module', or not at all (None).")
    return by is not None


def folded(
    found: Mapping[str, Content], compared: int | None = None
) -> list[tuple[str, tuple[Any, ...], tuple[Any, ...]]]:
    """(module, key, sums) with modules that are alike, and numbered one after another, as one.

    Args:
      found: module to what it does; sums of modules that are folded are those of all of them.
      compared: how many of the sums, the first ones, must be equal in modules that are alike; None:
        all.

    >>> layer = {("all_gather",): (2, 8)}
    >>> found = {f"net/layers_{i}/up": layer for i in range(3)} | {"net/head": {("psum",): (1, 4)}}
    >>> for row in folded(found):
    ...     print(*row)
    net/layers[0:3]/up ('all_gather',) (6, 24)
    net/head ('psum',) (1, 4)
    >>> [row[0] for row in folded({f"layers/{i}/up": layer for i in range(3)})]
    ['layers[0:3]/up']
    """
    rows = [(tuple(name.split("/")), dict(content)) for name, content in found.items()]
    return [
        ("/".join(path).replace("/[", "["), key, sums)
        for path, content in _fold(rows, compared)
        for key, sums in content.items()
    ]


Row = tuple[tuple[str, ...], dict[Any, tuple[Any, ...]]]


def _fold(rows: Iterable[Row], compared: int | None) -> list[Row]:
    """Rows below one module, those of children that are alike joined."""
    own: list[Row] = []
    below: dict[str, list[Row]] = {}
    for path, content in rows:
        if path:
            below.setdefault(path[0], []).append((path[1:], content))
        else:
            own.append(((), content))
    parts = {name: _fold(inner, compared) for name, inner in below.items()}
    for names in _runs(parts, compared):
        label = names[0] if len(names) == 1 else _label(names)
        alike = zip(*(parts[name] for name in names), strict=True)
        own += [((label, *same[0][0]), _added([what for _, what in same])) for same in alike]
    return own


def _added(contents: list[dict[Any, tuple[Any, ...]]]) -> dict[Any, tuple[Any, ...]]:
    return {
        key: tuple(map(sum, zip(*(content[key] for content in contents), strict=True)))
        for key in contents[0]
    }


def _runs(parts: Mapping[str, list[Row]], compared: int | None) -> list[list[str]]:
    """Children in order, those that follow each other in number and are alike together."""
    runs: list[list[str]] = []
    seen = {name: _seen(rows, compared) for name, rows in parts.items()}
    for name in sorted(parts, key=_order(parts)):
        base, number = _split(name)
        last = runs[-1][-1] if runs else ""
        follows = number is not None and _split(last) == (base, number - 1)
        if follows and seen[last] == seen[name]:
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def _seen(rows: list[Row], compared: int | None) -> list[Any]:
    """What must be equal in modules that are alike."""
    return [(path, {key: sums[:compared] for key, sums in what.items()}) for path, what in rows]


def _order(parts: Mapping[str, Any]) -> Any:
    """Families of numbered children where the first of them stands, by number."""
    first: dict[str, int] = {}
    for place, name in enumerate(parts):
        first.setdefault(_split(name)[0], place)
    return lambda name: (first[_split(name)[0]], _split(name)[1] or 0)


def _split(name: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(.*?)_?(\d+)", name)
    return (name, None) if found is None else (found[1], int(found[2]))


def _label(names: list[str]) -> str:
    base, first = _split(names[0])
    return f"{base}[{first}:{(first or 0) + len(names)}]"


def table(
    columns: tuple[str, ...], found: Mapping[str, Content], compared: int | None = None
) -> Table:
    """A row per module and key; "" is outside of all modules; `compared` as of `folded`."""
    rows = ((module, *key, *sums) for module, key, sums in folded(found, compared))
    return Table(columns, tuple(rows))


def summed(rows: Iterable[tuple[str, tuple[Any, ...], tuple[Any, ...]]]) -> dict[str, Content]:
    """Module to key to sums.

    >>> summed([("a", ("k",), (1, 2)), ("a", ("k",), (3, 4))])
    {'a': {('k',): (4, 6)}}
    """
    found: dict[str, dict[Any, tuple[Any, ...]]] = {}
    for module, key, amounts in rows:
        content = found.setdefault(module, {})
        before = content.get(key, (0,) * len(amounts))
        content[key] = tuple(a + b for a, b in zip(before, amounts, strict=True))
    return dict(found)


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
    return table(("module", "kind", "mesh_axes", "executions", "wire_bytes_per_step"), summed(rows))


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


COLUMNS = (
    "module", "wire_bytes", "held_bytes", "compute_s", "communication_s", "time_s",
)  # fmt: skip


def costs_by_module(stages: Stages, hardware: str | Hardware | Topology) -> Table:
    """What a step takes, sends, and holds at its peak on a device, per module.

    Numbered modules that send the same are one. Times and bytes add up to those of `Cost`; where
    sizes have names, at their hints. Bytes are held for the module that made the value, arguments
    for the one that reads them first.
    """
    rows = [*_steps(stages, hardware), *_held(stages, hardware)]
    return table(COLUMNS, summed(rows), compared=1)


Amounts = tuple[str, tuple[()], tuple[Any, ...]]


def _steps(stages: Stages, hardware: str | Hardware | Topology) -> Iterator[Amounts]:
    program, graph = stages.program, stages.graph
    owners = modules(graph)
    for step, _, _, seconds in timed(program, graph, machine(hardware)):
        node = maker(program, graph, step.instruction)
        what, took = step.instruction.attributes, seconds * step.count
        sent = 0
        if is_collective(what):
            sent = step.count * wire_bytes(what, sent_bytes(program, step.instruction))
        split = (0.0, took) if is_collective(what) else (took, 0.0)
        yield "" if node is None else owners[node.index], (), (sent, 0, *split, took)


def _held(stages: Stages, hardware: str | Hardware | Topology) -> Iterator[Amounts]:
    graph, owners = stages.graph, modules(stages.graph)
    for alive in priced(stages.traced, stages.program, hardware).memory.alive:
        origin = stages.program.locals[alive.local].origin
        node = None if origin is None else graph.producer[origin]
        if node is None and origin is not None:
            node = next(iter(graph.users[origin]), None)
        yield "" if node is None else owners[node], (), (0, alive.bytes, 0.0, 0.0, 0.0)
