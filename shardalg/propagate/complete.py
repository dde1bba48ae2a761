"""`propagate`: the stage's one public function, put together from seeds, sweeps and borders."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from shardalg.graph.ir import Graph
from shardalg.ops.rows import rules
from shardalg.propagate import border
from shardalg.propagate.gspmd.computations import computations
from shardalg.propagate.gspmd.contested import Contested
from shardalg.propagate.gspmd.fixpoint import Fixpoint
from shardalg.propagate.gspmd.index import Rules, index
from shardalg.propagate.history import Record, conflicts, history
from shardalg.propagate.layouts import Layouts
from shardalg.propagate.merges import merges
from shardalg.propagate.options import Options
from shardalg.propagate.sharded import ShardedGraph
from shardalg.propagate.shardy.edges import edge_index
from shardalg.propagate.shardy.worklist import Worklist
from shardalg.propagate.strategy import Annotations

DEFAULT = Options()


class Way(NamedTuple):
    """How layouts spread over a graph.

    Attributes:
      steps: the graph as it is visited. order: of the visits, until nothing changes.
      is_carried: whether a loop's value has one layout outside and inside.
    """

    steps: Any
    order: Any
    is_carried: bool = False


WAYS = {
    "paper": Way(index, Contested, is_carried=True),
    "gspmd": Way(computations, Fixpoint),
    "shardy": Way(edge_index, Worklist),
}


def propagate(
    graph: Graph,
    annotations: Annotations,
    options: Options = DEFAULT,
    *,
    table: Rules = rules,
    turned: frozenset[int] = frozenset(),
) -> ShardedGraph:
    """Complete the shardings of a graph: a layout for every value, each with its reason.

    Annotated values stay as they are but for open dimensions. The others take what their
    neighbours ask for, in the order of XLA's sharding propagation: level by level
    (`priority.py`), each to its fixed point, forward in XLA's order of instructions
    (`index.post_order`), then backward; between two layouts of one value `merge` decides. GSPMD,
    arXiv:2105.04663, section 3.5. As Shardy completes, the order is that of `worklist.py`, and
    `factors.py` decides. Dimensions that an annotation gives a priority take part from that round
    on; each round is completed as a whole.

    Args:
      graph: normalised (implicit broadcasts explicit).
      annotations: of `resolve`.
      table: signature to its rows (None: nothing is inferred through the node).
      turned: contested products whose second operand wins, by the paper's policy.

    >>> import jax
    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.graph.tracing.trace import trace
    >>> from shardalg.propagate import Strategy, resolve
    >>> P, f32 = jax.sharding.PartitionSpec, jax.numpy.float32
    >>> x, w = jax.ShapeDtypeStruct((8, 16), f32), jax.ShapeDtypeStruct((16, 4), f32)
    >>> graph = trace(lambda x, w: x @ w, x, w)
    >>> strategy = Strategy(Mesh({"x": 2, "y": 4}), (P("x"), P(None, "y")))
    >>> done = propagate(graph, resolve(graph, strategy))
    >>> print(done.results[0].text(), "-", done.why(graph.results[0]))
    [x, y] - from x, w through dot_general (contraction, forward, level 1)
    """
    layouts = Layouts(annotations.mesh, options.partitioner)
    way = WAYS[options.way]
    steps = way.steps(graph, table, border.told(graph, annotations, options.partitioner))
    numbers, seeds = border.start(graph, annotations, layouts, steps)
    begin = tuple(numbers)
    fixpoint = way.order(steps, layouts, numbers, options.switches.priorities)
    if options.way == "paper":
        fixpoint.turned = turned
    fixpoint.run()
    for now, rows in border.rounds(graph, annotations, steps):
        for value, sharding in rows:
            fixpoint.take_part(value, border.in_round(layouts, numbers[value], sharding, now))
        fixpoint.run()
    settled = border.settle(
        graph, annotations, layouts, numbers=numbers, seeds=seeds, is_carried=way.is_carried
    )
    own = frozenset(value for value, _ in border.given(graph, annotations))
    record = Record(graph, fixpoint, begin, seeds, settled, own)
    results = border.results(graph, annotations, layouts, numbers)
    fixpoint.settle()
    known = layouts.shardings()
    return ShardedGraph(
        graph,
        annotations.mesh,
        tuple([known[number] for number in numbers[: len(graph.values)]]),
        tuple([known[number] for number in results]),
        frozenset(value for value, number in seeds.items() if layouts.fixed[number]),
        annotations,
        partial(history, record),
        partial(conflicts, record),
        partial(merges, record),
        contested=fixpoint.lost() if options.way == "paper" else frozenset(),
    )
