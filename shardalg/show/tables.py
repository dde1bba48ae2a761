"""Tables of a plan: shardings, collectives, costs by module, and comparisons of strategies.

Tables by module have one row per module. Equal layers are folded into one row, as `layers[0:24]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shardalg.costs.collectives import group_size, is_collective, wire_bytes
from shardalg.costs.step_time import timed
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
    from shardalg.spmd.instruction import Instruction

Content = Mapping[tuple[Any, ...], tuple[Any, ...]]
"""Amounts by the key of a row, such as (kind, axes).

They may be formulas, which add like numbers.
"""


def check_by(by: str | None) -> bool:
    """Return True if `by` is "module": the table then has a row per module; False if it is None.

    Raises:
      TableError: `by` is neither "module" nor None.
    """
    if by not in (None, "module"):
        raise TableError(f"by={by!r}: tables are folded by 'module', or not at all (None).")
    return by is not None


def folded(
    found: Mapping[str, Content], compared: int | None = None
) -> list[tuple[str, tuple[Any, ...], tuple[Any, ...]]]:
    """Return rows (module, key, sums), with consecutive equal modules folded into one.

    The sums of a folded module are those of all its modules together.

    Args:
      found: the amounts of each module by row key, by the module's path, as `net/layers_0/up`.
      compared: the number of leading amounts that must be equal in modules that are folded; None
        means all.

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
    # Children that are named by numbers alone are folded to "[0:3]". Their label joins the parent's
    # name without a slash: `layers[0:3]`.
    return [
        ("/".join(path).replace("/[", "["), key, sums)
        for path, content in _fold(rows, compared)
        for key, sums in content.items()
    ]


Row = tuple[tuple[str, ...], dict[Any, tuple[Any, ...]]]


def _fold(rows: Iterable[Row], compared: int | None) -> list[Row]:
    """Return rows per module and submodule, in which equal numbered submodules share one row.

    For example, equal modules layers_0 to layers_23 become layers[0:24], with their sums.

    Args:
      rows: pairs (path, amounts): the keys from this module to a submodule, and amounts by row key.
      compared: the number of leading amounts that must be equal in submodules that are joined;
        None means all.
    """
    result: list[Row] = []
    children: dict[str, list[Row]] = {}
    for path, content in rows:
        # A row with an empty path belongs to the module itself, and only children can be folded.
        if path:
            children.setdefault(path[0], []).append((path[1:], content))
        else:
            result.append(((), content))
    # From the inside outwards, because equal layers must be folded alike before they are compared.
    parts = {name: _fold(inner, compared) for name, inner in children.items()}
    for names in _runs(parts, compared):
        label = names[0]
        # A model of 24 equal layers would fill the table with equal rows, so layers_0 to layers_23
        # become one row `layers[0:24]`.
        if len(names) > 1:
            base, first = _split(label)
            label = f"{base}[{first}:{(first or 0) + len(names)}]"
        # Equal modules have the same rows in the same order, so equal rows are added one by one.
        for same in zip(*(parts[name] for name in names), strict=True):
            contents = [content for _, content in same]
            added = {
                key: tuple(map(sum, zip(*(content[key] for content in contents), strict=True)))
                for key in contents[0]
            }
            result.append(((label, *same[0][0]), added))
    return result


def _runs(parts: Mapping[str, list[Row]], compared: int | None) -> list[list[str]]:
    """Return names of child modules in order, as runs of equal children with consecutive numbers.

    E.g. layers_0, layers_1, head -> [[layers_0, layers_1], [head]], if both layers have equal rows.

    Args:
      parts: the rows of each child, by its name, as "layers_3".
      compared: as in `folded`.
    """
    runs: list[list[str]] = []
    # Layers that differ only in later amounts (see `compared`) should still be folded together.
    seen = {
        name: [
            (path, {key: sums[:compared] for key, sums in content.items()})
            for path, content in rows
        ]
        for name, rows in parts.items()
    }
    # A run needs consecutive numbers, but rows may come in another order, such as in a backward
    # pass. Children of one name are therefore sorted by number.
    first: dict[str, int] = {}
    for place, name in enumerate(parts):
        first.setdefault(_split(name)[0], place)
    for name in sorted(parts, key=lambda name: (first[_split(name)[0]], _split(name)[1] or 0)):
        # A child joins the run before it if it has the next number and the same rows.
        base, number = _split(name)
        last = runs[-1][-1] if runs else ""
        follows = number is not None and _split(last) == (base, number - 1)
        if follows and seen[last] == seen[name]:
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def _split(name: str) -> tuple[str, int | None]:
    """Return a module's name without its number, and the number or None: ("layers", 3)."""
    found = re.fullmatch(r"(.*?)_?(\d+)", name)
    return (name, None) if found is None else (found[1], int(found[2]))


def table(
    columns: tuple[str, ...], found: Mapping[str, Content], compared: int | None = None
) -> Table:
    """Return a row per module and key, from the result of `summed`; `compared` as in `folded`."""
    rows = ((module, *key, *sums) for module, key, sums in folded(found, compared))
    return Table(columns, tuple(rows))


def summed(rows: Iterable[tuple[str, tuple[Any, ...], tuple[Any, ...]]]) -> dict[str, Content]:
    """Return {module: {key: amounts}}, where amounts of equal module and key are added.

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
    """Return every collective of a program, in order of execution.

    Bytes are per device and execution (ring bytes: `costs.collectives.step_wire_bytes`).
    `executions` includes trip counts; `wire_bytes_per_step` is `wire_bytes * executions`. `op` is
    the graph node that needs the collective. `module` and `source` are its module and source line;
    for a result of the program, those of the node that made the value.

    Args:
      named: the program with formulas for its sizes, if the numbers of a row are to be formulas.
    """
    priced = program if named is None else named.program
    rows = []
    # Only sizes differ between the programs: one has numbers, the other formulas. Their
    # instructions therefore correspond one to one.
    for step, other in zip(walk(program), walk(priced), strict=True):
        attributes = step.instruction.attributes
        if is_collective(attributes):
            axes = ",".join(program.mesh.texts(attributes.digits))
            prices = _prices(priced, other, named)
            place = _place(program, graph, step)
            rows.append((attributes.sent_as, axes, *prices, *place))
    return Table(COLLECTIVE_COLUMNS, tuple(rows))


def _prices(program: SpmdProgram, step: Execution, named: Symbolised | None) -> tuple[object, ...]:
    """Return the columns from `group_size` to `wire_bytes_per_step` of a collective's row.

    They are numbers, or sympy expressions if `named` is given. Bytes are those of one device and
    one execution: what it gives to the collective, what it keeps, and what it sends.

    Args:
      program: the program that contains `step`, with formulas for its sizes if `named` is given.
    """
    instruction, attributes = step.instruction, step.instruction.attributes
    assert is_collective(attributes), "only collectives have these prices"
    held = sent_bytes(program, instruction)
    left = local_bytes(program, instruction.results)
    sent = wire_bytes(attributes, held)
    amounts = (group_size(attributes), step.count, held, left, sent, step.count * sent)
    show = number if named is None else named.sizes.sympy
    return tuple(show(amount) for amount in amounts)


def collectives_by_module(whole: Table) -> Table:
    """Return the collectives per module, kind and axes; equal modules are folded.

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
    """Return the graph node to which an instruction belongs, or None.

    A move at the border of the function has no node of its own. It belongs to the node that made
    the moved value.
    """
    if instruction.node is not None:
        return graph.nodes[instruction.node]
    origins = [program.locals[v].origin for v in (*instruction.operands, *instruction.results)]
    made = [graph.producer[v] for v in origins if v is not None]
    return next((graph.nodes[n] for n in made if n is not None), None)


def _place(program: SpmdProgram, graph: Graph, step: Execution) -> tuple[object, ...]:
    """Return a row's columns from `role` to `why`: the origin of an instruction and its reason.

    A move at the border of the function belongs to no operator: its op is "border", and module and
    source line are those of the operator that made the value.
    """
    instruction = step.instruction
    node = None if instruction.node is None else graph.nodes[instruction.node]
    made = maker(program, graph, instruction)
    return (
        instruction.role,
        instruction.phase,
        region_text(graph, node),
        "border" if node is None else node.primitive,
        "" if made is None else modules(graph)[made.index],
        "" if made is None else made.source,
        str(instruction.why),
    )


def region_text(graph: Graph, node: Node | None) -> str:
    """Return the kinds of the regions around a node: "root", "scan", "scan/remat"."""
    kinds, region = [], None if node is None else graph.regions[node.region]
    while region is not None and region.parent is not None:
        kinds.append(region.kind)
        region = graph.regions[region.parent]
    return "/".join(reversed(kinds)) or "root"


def shardings(sharded: ShardedGraph) -> Table:
    """Return a row per value of a completed graph: shape, sharding, shard shape and reason.

    The reason is the annotation or the operator from which completion took the sharding.
    """
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
    """Return the collectives of several strategies, summed by phase, kind, axes and role.

    Args:
      tables: the `collectives` table of each strategy, by name.

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
    # Strategies in the given order, then phases in the order of a step, unknown ones last.
    order = {phase: place for place, phase in enumerate(PHASES)}
    names = {name: place for place, name in enumerate(tables)}
    keys = sorted(sums, key=lambda k: (names[k[0]], order.get(k[1], len(order))))
    sent = ("executions", "wire_bytes_per_step")
    columns = ("strategy", "phase", "kind", "mesh_axes", "role", *sent)
    return Table(columns, tuple((*key, *sums[key]) for key in keys))


def totals(tables: Mapping[str, Table]) -> Table:
    """Return the wire bytes per device and step of several strategies, by phase and in total.

    A row has the name, the number of collectives, the bytes of each phase, and their sum.

    Args:
      tables: the `collectives` table of each strategy, by name.
    """
    rows = []
    for name, table in tables.items():
        moved = dict.fromkeys(PHASES, 0)
        for row in table:
            moved[row["phase"]] = moved.get(row["phase"], 0) + row["wire_bytes_per_step"]
        rows.append((name, len(table), *(moved[p] for p in PHASES), sum(moved.values())))
    columns = (f"{phase}_wire_bytes_per_step" for phase in PHASES)
    return Table(("strategy", "collectives", *columns, "wire_bytes_per_step"), tuple(rows))


def beside(ours: Table, xla: Table) -> Table:
    """Return our collectives and XLA's, by kind and axes: executions and wire bytes per step.

    Args:
      ours, xla: tables with columns kind, mesh_axes, executions and wire_bytes_per_step. With
        columns sliced_by and group_size, an all_reduce whose result is sliced to a block counts as
        a reduce_scatter.

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
    rows: list[tuple[Any, ...]] = []
    for key in sorted(mine.keys() | other.keys()):
        (count, moved), (xla_count, xla_moved) = mine.get(key, (0, 0)), other.get(key, (0, 0))
        rows.append((*key, count, xla_count, moved, xla_moved))
    # Without rows, `zip` gives no columns at all, so four zeros stand for the empty sums.
    total = tuple(sum(column) for column in list(zip(*rows, strict=True))[2:] or ((0,),) * 4)
    columns = (
        "kind", "mesh_axes", "executions", "xla_executions", "wire_bytes_per_step",
        "xla_wire_bytes_per_step",
    )  # fmt: skip
    return Table(columns, (*rows, ("all", "", *total)))


def _by_kind(table: Table) -> dict[tuple[str, str], tuple[int, float]]:
    """Return {(kind, axes): (executions, wire bytes per step)} of a table of collectives.

    Axes are text in sorted order, so that "Y, X" and "X,Y" are one key.
    """
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for row in table:
        # An all-reduce whose result is sliced to a block does the work of a reduce-scatter.
        scattered = row.get("sliced_by") is not None and row["sliced_by"] >= row["group_size"]
        kind = "reduce_scatter" if scattered else row["kind"]
        key = kind, ",".join(sorted(row["mesh_axes"].replace(" ", "").split(",")))
        count, moved = sums.get(key, (0, 0))
        sums[key] = (count + row["executions"], moved + row["wire_bytes_per_step"])
    return sums


COLUMNS = (
    "module", "wire_bytes", "held_bytes", "compute_s", "communication_s", "time_s",
)  # fmt: skip


def costs_by_module(stages: Stages, hardware: str | Hardware | Topology) -> Table:
    """Return seconds, bytes sent, and bytes alive at the peak on a device, per module.

    Numbered modules that send the same bytes are folded. Times and bytes add up to those of `Cost`;
    named sizes have their hints. The bytes of a value belong to the module that made the value,
    the bytes of an argument to the module that reads it first.
    """
    rows = [*_steps(stages, hardware), *_held(stages, hardware)]
    return table(COLUMNS, summed(rows), compared=1)


Amounts = tuple[str, tuple[()], tuple[Any, ...]]


def _steps(stages: Stages, hardware: str | Hardware | Topology) -> Iterator[Amounts]:
    """Yield the bytes sent and the seconds of each executed instruction, with its module.

    An entry is (module, (), amounts). The amounts are (bytes sent, 0, seconds of compute, seconds
    of communication, seconds that a step gets longer). The empty tuple is the key for `summed`: all
    amounts of a module are added.
    """
    program, graph = stages.program, stages.graph
    owners = modules(graph)
    for step, _, _, seconds, exposed_s, _ in timed(program, graph, stages.machine(hardware)):
        node = maker(program, graph, step.instruction)
        attributes, time_s = step.instruction.attributes, exposed_s * step.count
        # `summed` adds amounts by their place, so these have the order of `COLUMNS`: bytes sent,
        # bytes held, seconds of compute and of communication without overlap, and the exposed
        # seconds.
        sent = 0
        if is_collective(attributes):
            sent = step.count * wire_bytes(attributes, sent_bytes(program, step.instruction))
        whole_s = seconds * step.count
        split = (0.0, whole_s) if is_collective(attributes) else (whole_s, 0.0)
        yield "" if node is None else owners[node.index], (), (sent, 0, *split, time_s)


def _held(stages: Stages, hardware: str | Hardware | Topology) -> Iterator[Amounts]:
    """Yield the bytes of each value that is alive at the memory peak, with its module.

    An entry is (module, (), (0, bytes, 0, 0, 0)), which has the places of the entries of `_steps`.
    """
    graph, owners = stages.graph, modules(stages.graph)
    for alive in priced(stages.traced, stages.program, stages.machine(hardware)).memory.alive:
        origin = stages.program.locals[alive.local].origin
        node = None if origin is None else graph.producer[origin]
        # An argument has no producer. A weight belongs to the module that uses it, so the first
        # reader's module counts its bytes.
        if node is None and origin is not None:
            node = next(iter(graph.users[origin]), None)
        yield "" if node is None else owners[node], (), (0, alive.bytes, 0.0, 0.0, 0.0)
