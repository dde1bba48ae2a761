"""The plan of a solution of a cost table: its layouts of all values, and its loops of operators."""

from __future__ import annotations

from collections.abc import Sequence

from shardalg.algebra.sharding import Sharding
from shardalg.plan.search.cost_table import CostTable
from shardalg.planner.partition.choose.key import LoopDigits
from shardalg.planner.partition.choose.node_classes import remade_values
from shardalg.planner.pipeline import partition
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.sharded import Reason, ShardedGraph
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.stages import Stages
from shardalg.planner.traced import Traced

_Loops = dict[int, tuple[LoopDigits, ...]]
_Required = dict[int, tuple[tuple[tuple[int, Sharding], ...], ...]]


def winner(table: CostTable, labels: Sequence[int], traced: Traced, options: Options) -> Stages:
    """Return the stages of a plan that has the layouts and loops of a solution.

    Args:
      labels: one label per variable of the table.
      options: passed on to `pipeline.partition`.
    """
    graph, mesh = table.graph, table.moves.mesh
    shardings, loops, required = _decisions(table, labels)
    results = tuple(shardings[table.tied.get(v, v)] for v in graph.results)
    arguments = tuple(shardings[v] for v in graph.arguments)
    # With the sharding of every value, the plan can be saved and planned again.
    given = frozenset(graph.arguments)
    values = tuple(
        (value.index, shardings[value.index])
        for value in graph.values
        if value.index not in given and value.type.shape
    )
    annotations = Annotations(mesh, arguments, results, (None,) * len(graph.sites), values)
    reasons = tuple(Reason(v, at, "chosen by search") for v, at in enumerate(shardings))
    sharded = ShardedGraph(
        graph, mesh, shardings, results, given, annotations,
        lambda: reasons, tuple, tuple, loops=loops, required=required,
    )  # fmt: skip
    program = partition(sharded, traced.roles, options)
    return Stages(traced, annotations, sharded, program, options.hardware)


def _decisions(
    table: CostTable, labels: Sequence[int]
) -> tuple[tuple[Sharding, ...], _Loops, _Required]:
    """Return the sharding of each value, and per node its loops and its operands' shardings."""
    graph, moves = table.graph, table.moves
    remade = remade_values(graph)
    found = [moves.sharding(table.whole(value.index), value.type.shape) for value in graph.values]
    for value, variable in table.value_of.items():
        homes = table.homes[variable]
        # The second half of the labels has the same homes, in memory.
        home = homes[labels[variable] % len(homes)]
        found[value] = moves.sharding(home._replace(pending=()), graph.values[value].type.shape)
    loops: _Loops = {}
    required: _Required = {}
    asked: dict[int, Sharding] = {}
    # Readers come before makers, so that a value that each device makes itself follows its reader.
    for node in reversed(graph.nodes):
        if node.bodies:
            continue
        variable = table.operator_of[table.classes[node.index]]
        way = table.ways[variable][labels[variable]]
        result = node.results[0]
        if result in remade:
            if result in asked:
                found[result] = asked[result]
                at = moves.layout(found[result])
                fitting = (w for w in table.ways_of(node.signature) if w.results[0] == at)
                way = next(fitting, way)
        elif way.loops:
            loops[node.index] = way.loops
            required[node.index] = way.required
        for value, layout in zip(node.operands, way.operands, strict=True):
            plain = layout._replace(pending=())
            asked[value] = moves.sharding(plain, graph.values[value].type.shape)
    return tuple(found), loops, required
