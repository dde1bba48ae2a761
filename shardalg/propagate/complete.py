"""`propagate`: the stage's one public function, put together from seeds, sweeps and borders."""

from __future__ import annotations

from functools import partial

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.ops.table import rules
from shardalg.propagate import border
from shardalg.propagate.fixpoint import Fixpoint
from shardalg.propagate.history import Record, conflicts, history
from shardalg.propagate.index import Rules, index
from shardalg.propagate.layouts import Layouts
from shardalg.propagate.sharded import ShardedGraph
from shardalg.propagate.strategy import Annotations, Options


def propagate(
    graph: Graph, annotations: Annotations, options: Options = Options(), *, table: Rules = rules
) -> ShardedGraph:
    """Complete the shardings of a graph.

    Args:
      graph: normalised (implicit broadcasts explicit).
      annotations: of `resolve`.
      table: signature to its rows (None: nothing is inferred through the node).

    Follows XLA's sharding propagation, level by level (see `priority.py`); GSPMD
    (arXiv:2105.04663), section 3.5.
    """
    layouts = Layouts(annotations.mesh, options.policy)
    seeds = border.seed(graph, annotations, layouts)
    numbers, exits = border.start(graph, annotations, layouts, seeds)
    fixpoint = Fixpoint(index(graph, table, tuple(exits)), layouts, numbers, options.priorities)
    fixpoint.run()
    looped = border.settle_loops(graph, layouts, numbers)
    uneven = border.settle_borders(graph, annotations, layouts, numbers)
    record = Record(graph, fixpoint, seeds, tuple(looped), tuple(uneven))
    shardings = tuple([layouts.sharding(n) for n in numbers])
    return ShardedGraph(
        graph, annotations.mesh, shardings[: len(graph.values)], _results(annotations, graph,
        shardings), frozenset(v for v, number in seeds.items() if layouts.fixed[number]),
        annotations, partial(history, record), partial(conflicts, record),
    )  # fmt: skip


def _results(
    annotations: Annotations, graph: Graph, shardings: tuple[Sharding, ...]
) -> tuple[Sharding, ...]:
    """A result's layout at the border: its annotation, completed where that is open, else its value's."""
    stand_ins = iter(shardings[len(graph.values) :])
    return tuple(
        shardings[value] if given is None else next(stand_ins)
        for value, given in zip(graph.results, annotations.results, strict=True)
    )
