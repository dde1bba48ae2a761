"""The completion stage: `propagate` combines initial shardings, sweeps and borders.

Contested products are products whose operands want one mesh axis on different dimensions of the
result. GSPMD's paper leaves open which operand wins. In XLA, the larger operand wins as soon as
both are sharded, unless a chain of readers prefers the other. An elementwise operator further on
may then read the result beside a value in the other sharding, so that everything after it is
resharded. Such products are found after the completion, when all shardings are known. The other
operand may win in a second completion (`planner/stages.py` compares the two programs).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from shardalg.graph.ir import Graph
from shardalg.graph.ops.rows import rules
from shardalg.planner.propagate import border
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.fixpoint import LONGEST_CHAIN, Fixpoint
from shardalg.planner.propagate.gspmd.index import Rules, index
from shardalg.planner.propagate.gspmd.step import StepOutcome
from shardalg.planner.propagate.gspmd.tuple_steps import computations
from shardalg.planner.propagate.history import Record, conflicts, history, merges
from shardalg.planner.propagate.layouts import Layouts, extends
from shardalg.planner.propagate.operator_classes import Dims
from shardalg.planner.propagate.options import CompletionOptions
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.propagate.shardy.edges import edge_index
from shardalg.planner.propagate.shardy.worklist import Worklist
from shardalg.planner.propagate.strategy import Annotations


@dataclass(eq=False)
class Contested(Fixpoint):
    """The sweeps of completion, which also record contested products.

    A product is contested if its operands want one mesh axis for different dimensions of the
    result.

    Attributes:
      turned: steps of products whose second operand wins.
      wanted: per step of a contested product, the result's shardings that its operands want; the
        first one is the one that won.
    """

    turned: frozenset[int] = frozenset()
    wanted: dict[int, tuple[Dims, ...]] = field(default_factory=dict)

    def _preferred_order(self, position: int, outcome: StepOutcome) -> StepOutcome:
        """Return the outcome of a step of a product after the choice between its two operands.

        The operands may offer different shardings for the result. XLA's look-ahead chooses first.
        If it does not, the second operand wins in the steps of `turned`, and the first one in all
        others.
        """
        # If the look-ahead takes the other order, the product is not contested.
        found = super()._preferred_order(position, outcome)
        if found is not outcome or outcome.other is None:
            return found
        if position in self.turned:
            return outcome.other
        self.wanted[position] = outcome.wanted
        return found

    def lost(self) -> frozenset[int]:
        """Return the contested products for which the operand that lost would fit the neighbours.

        A product is in the result if an elementwise operator reads it together with another value,
        the neighbour, whose sharding agrees with the wish of the second operand and not with the
        wish of the first one.
        """
        # [False, True]: the neighbours agree with the operand that lost, and not with the winner.
        return frozenset(
            position
            for position, wanted in self.wanted.items()
            if (beside := self._shardings_beside(self.index.tensors[position][-1]))
            and [any(extends(dims, own) for dims in beside) for own in wanted] == [False, True]
        )

    def _shardings_beside(self, value: int) -> list[Dims]:
        """Return the shardings of the other operands of an elementwise operator that reads a value.

        The operator is the first one with another sharded operand on the chain of single readers.
        """
        index, layouts = self.index, self.layouts
        for _ in range(LONGEST_CHAIN):
            # A step between stacks of zeros only shares a sharding: it does not read the value.
            readers = [r for r in index.readers[value] if not self._is_zeros(r[0])]
            if len({position for position, _ in readers}) != 1:
                return []
            # An elementwise operator reads all operands in one sharding, so that a product in
            # another sharding costs a reshard there.
            position, kind = readers[0][0], index.kind(readers[0][0])
            if kind.role != image.POINTWISE or len(kind.results) != 1:
                return []
            # A layout of one tile is replicated.
            values = index.tensors[position]
            numbers = [self.numbers[v] for v in values[: kind.num_operands] if v != value]
            sharded = [layouts.dims[number] for number in numbers if layouts.tiles[number] > 1]
            if sharded:
                return sharded
            # The other operands are replicated: the search continues at the operator's result.
            value = values[-1]
        return []


DEFAULT = CompletionOptions()


class CompletionOrder(NamedTuple):
    """A way to complete shardings: the order of the steps, and the class that applies them.

    Attributes:
      steps: the function that returns the steps of a graph in this order (`SweepIndex`).
      order: the class that applies steps until no sharding changes.
      is_carried: whether a loop's carry has one sharding outside and inside of the loop.
    """

    steps: Any
    order: Any
    is_carried: bool = False


ORDERS = {
    "paper": CompletionOrder(index, Contested, is_carried=True),
    "gspmd": CompletionOrder(computations, Fixpoint),
    "shardy": CompletionOrder(edge_index, Worklist),
}


def propagate(
    graph: Graph,
    annotations: Annotations,
    options: CompletionOptions = DEFAULT,
    *,
    table: Rules = rules,
    turned: frozenset[int] = frozenset(),
) -> ShardedGraph:
    """Complete the shardings of a graph: a sharding for every value, each with its reason.

    Annotated values keep their shardings, except for open dimensions. The others take the shardings
    that their neighbours in the graph offer, in the order of XLA's sharding propagation: level by
    level (`planner/propagate/gspmd/image.py`), each to its fixed point, forward in XLA's order of
    instructions (`index.post_order`), then backward. `merge` combines two shardings of one value.
    Source: GSPMD, arXiv:2105.04663, section 3.5.

    With Shardy's order, `worklist.py` orders the steps and `factors.py` decides them. Dimensions
    with a priority take part from the round of this number on; each round is completed as a whole.

    Args:
      graph: normalised (implicit broadcasts explicit).
      annotations: the user's, as `resolve` returns them.
      table: a function from an operator's signature to its rules (einsum-like rows), or to None if
        nothing propagates through the operator.
      turned: indices of matrix products. At these nodes the sharding of the second operand is
        preferred if the two operands offer different shardings to the result.

    >>> import jax
    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.graph.tracing.trace import trace
    >>> from shardalg.planner.propagate import Strategy, resolve
    >>> P, f32 = jax.sharding.PartitionSpec, jax.numpy.float32
    >>> x, w = jax.ShapeDtypeStruct((8, 16), f32), jax.ShapeDtypeStruct((16, 4), f32)
    >>> graph = trace(lambda x, w: x @ w, x, w)
    >>> strategy = Strategy(Mesh({"x": 2, "y": 4}), (P("x"), P(None, "y")))
    >>> done = propagate(graph, resolve(graph, strategy))
    >>> print(done.results[0].text(), "-", done.why(graph.results[0]))
    [x, y] - from x, w through dot_general (contraction, forward, level 1)
    """
    # The order of visits decides conflicts, so each order has an index of the graph of its own.
    layouts = Layouts(annotations.mesh, options.partitioner)
    order = ORDERS[options.order]
    steps = order.steps(
        graph, table, border.visiting_facts(graph, annotations, options.partitioner)
    )
    numbers, seeds = border.start(graph, annotations, layouts, steps)
    # The sweeps change `numbers` in place; the history is replayed from a copy.
    begin = tuple(numbers)
    fixpoint = order.order(steps, layouts, numbers, options.priorities)
    if options.order == "paper":
        fixpoint.turned = turned
    fixpoint.run()
    # A round is completed before the next one begins, so that the earlier priority wins conflicts.
    for now, rows in border.rounds(graph, annotations, steps):
        for value, sharding in rows:
            fixpoint.begin_round(value, border.in_round(layouts, numbers[value], sharding, now))
        fixpoint.run()
    # JAX takes and returns even shards, and a loop has one sharding per carry.
    border_changes = border.apply_border_rules(
        graph, annotations, layouts, numbers=numbers, seeds=seeds, is_carried=order.is_carried
    )
    own = frozenset(value for value, _ in border.given(graph, annotations))
    record = Record(
        graph=graph,
        fixpoint=fixpoint,
        begin=begin,
        seeds=seeds,
        border_changes=border_changes,
        annotated=own,
    )
    results = border.results(graph, annotations, layouts, numbers)
    # After the results have their shardings: Shardy may compute a product in another sharding.
    fixpoint.finish()
    known = layouts.shardings()
    return ShardedGraph(
        graph=graph,
        mesh=annotations.mesh,
        shardings=tuple([known[number] for number in numbers[: len(graph.values)]]),
        results=tuple([known[number] for number in results]),
        fixed=frozenset(value for value, number in seeds.items() if layouts.fixed[number]),
        annotations=annotations,
        _history=partial(history, record),
        _conflicts=partial(conflicts, record),
        _merges=partial(merges, record),
        contested=fixpoint.lost() if options.order == "paper" else frozenset(),
    )
