"""The axes of a pipeline's stages, which a loop's body uses for nothing else.

A loop that shifts its carry along an axis is a pipeline, and the axis is that of its stages.
Outside the loop, the batch may be sharded along this axis, too. The loop reads microbatches of it
(figure 2 of GSPMD, arXiv:2105.04663). If a microbatch kept the axis on its own batch, each shift
would send it from there to the stages, and the last stage's result back. Therefore only dimensions
of stages have the axis inside the loop. All other values are resharded once before and once after
the loop.

The batch keeps its other axes. A batch on (X, L) that meets the stages on L goes on as a batch on
X, although two shardings that share L do not tell each other so:

    microbatches [None, (X, L)]  pad  [L, None, None] of stages  =  [L, None, X]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.digits import Digit
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Region
from shardalg.graph.ops.rows import rules
from shardalg.planner.propagate.sharded import ShardedGraph

Place = tuple[int, int]
"""A value and one of its dimensions."""


def exclude_stage_axes(
    sharded: ShardedGraph, *, meetings: bool
) -> tuple[tuple[int, Sharding], ...]:
    """Return new shardings, without stage axes, of values that enter or leave a pipeline's body.

    A pipeline is a loop that shifts its carry along a mesh axis, the axis of its stages. Inside the
    loop, only the dimension of stages has this axis. An entry is (value, sharding).

    Args:
      meetings: whether values that an operator combines with a batch on the stage axis get the
        other axes of the batch (see the module's drawing). No partitioner of XLA completes them so.
    """
    graph, found = sharded.graph, dict[int, Sharding]()
    # `axes` collects the stages of all loops, because a batch may meet the stages of any of them.
    axes = set[Digit]()
    for node in graph.nodes_of(("scan",)):
        region = graph.regions[node.bodies[0]]
        stages = dict(_stages(sharded, node, region))
        axes |= stages.keys()
        if stages:
            body = _DimensionClasses(graph, region)
            for value in (*region.arguments, *region.results):
                if value not in sharded.fixed:
                    found |= _without(sharded, body, value, stages)
    met = _other_batch_axes(sharded, axes) if meetings else {}
    # `found` comes last, because a value in both must lose the axes of stages.
    return tuple({**met, **found}.items())


def _other_batch_axes(sharded: ShardedGraph, stages: set[Digit]) -> dict[int, Sharding]:
    """Return new shardings of values that are sharded along the stages of a pipeline, by value.

    An operator may combine such a value with a batch that is sharded along the stage axis L and
    another axis X. The value's batch dimension then gets X:

        batch [None, (X, L)]  pad  stages [L, None, None]   gives   stages [L, None, X]

    Args:
      stages: the digits of the stage axes of all pipelines.
    """
    found: dict[int, Sharding] = {}
    meetings = (pair for node in sharded.graph.nodes if stages for pair in _passed_dimensions(node))
    for one, other in meetings:
        # Either of the two values may be the batch.
        for (batch, place), (value, dim) in ((one, other), (other, one)):
            digits, layout = sharded.shardings[batch].dims[place], sharded.shardings[value]
            used = set(chain.from_iterable(layout.dims))
            rest = tuple(digit for digit in digits if digit not in used)
            # As in the module's drawing: the batch has (X, L), the value has the stages on L, and
            # its own batch dimension is free. The rest, X, goes there.
            is_met = rest and not layout.dims[dim] and not stages.isdisjoint(used & {*digits})
            if is_met and value not in sharded.fixed:
                dims = (*layout.dims[:dim], rest, *layout.dims[dim + 1 :])
                free = tuple(d for d, given in enumerate(dims) if not given)
                found[value] = replace(layout.with_dims(dims), unspecified_dims=free)
    return found


def _stages(sharded: ShardedGraph, node: Node, region: Region) -> Iterator[tuple[Digit, Place]]:
    """Yield the digits of a pipeline's stages, along which the loop shifts its carry.

    Args:
      node, region: the loop and its body.

    Returns:
      Pairs (digit, (carried value, dimension that the digit shards)).
    """
    # The arguments of a scan's body are constants, carries and slices of stacks.
    first, count = (node.signature.param(name) for name in ("num_consts", "num_carry"))
    carried = region.arguments[first : first + count]
    for number in region.nodes:
        inner = sharded.graph.nodes[number]
        # Other operators may be between the carry and the shift, so the shapes are compared.
        for dim in _shifted(inner):
            for value in carried:
                layout = sharded.shardings[value]
                if layout.shape == inner.signature.results[0].shape:
                    yield from ((digit, (value, dim)) for digit in layout.dims[dim])


def _shifted(node: Node) -> Iterator[int]:
    """Yield the dimensions along which a node moves elements to their neighbours."""
    param = node.signature.param
    if node.primitive == "pad":
        # A pad by +n at one end and -n at the other keeps the size and moves all elements by n.
        rows = enumerate(param("padding_config"))
        yield from (dim for dim, (low, high, _) in rows if low and low + high == 0)
    elif node.primitive in ("join_ends", "concatenate"):
        yield param("dimension")


def _without(
    sharded: ShardedGraph, body: _DimensionClasses, value: int, stages: dict[Digit, Place]
) -> dict[int, Sharding]:
    """Return {value: sharding} without stage axes on the wrong dimensions; {} if nothing changes.

    A pipeline shifts a carry whose one dimension has the stages, along a mesh axis. Dimensions that
    operators connect with another dimension of this carry must not have that axis.

    Args:
      body: the classes of dimensions that operators of the loop's body connect.
      stages: for each digit of a stage axis, the (value, dimension) of the stages.
    """
    layout = sharded.shardings[value]
    dims = tuple(
        tuple(
            digit
            for digit in digits
            if digit not in stages or not body.is_other((value, dim), stages[digit])
        )
        for dim, digits in enumerate(layout.dims)
    )
    same = dims == layout.dims
    return {} if same else {value: interned(layout.mesh, layout.shape, dims, ())}


class _DimensionClasses:
    """The equivalence classes of the dimensions of a body's values that operators pass on."""

    def __init__(self, graph: Graph, region: Region) -> None:
        """Join the dimensions that operators of the region pass from operand to result."""
        self.ranks = {v: len(graph.values[v].type.shape) for v in region.arguments}
        # Union-find, because the dimensions of a class are found pair by pair, in any order. The
        # top of a dimension represents its class; a pair joins the classes of both.
        self.parent: dict[Place, Place] = {}
        for number in region.nodes:
            for operand_place, result_place in _passed_dimensions(graph.nodes[number]):
                self.parent[self.top(operand_place)] = self.top(result_place)

    def top(self, place: Place) -> Place:
        """Return the representative of a dimension's equivalence class.

        A class contains the dimensions that operators pass on to each other.

        Args:
          place: the dimension, as (value, number of the dimension).
        """
        while place in self.parent and self.parent[place] != place:
            place = self.parent[place]
        return place

    def is_other(self, place: Place, stage: Place) -> bool:
        """Return whether a dimension is equivalent to another dimension of the stage's value.

        Args:
          place: (value, dimension) to test.
          stage: (value, dimension): the dimension that the pipeline's stages are on.
        """
        value, dim = stage
        others = {self.top((value, d)) for d in range(self.ranks[value]) if d != dim}
        return self.top(place) in others - {self.top(stage)}


def _passed_dimensions(node: Node) -> Iterator[tuple[Place, Place]]:
    """Yield the dimensions of operands, each with the result's dimension that it becomes.

    A dimension is (value, number of the dimension). For example, a product [i, k] x [k, j] passes
    i and j, but not k. Loops and calls pass nothing here.
    """
    # One row of RULES describes all results, or row k describes result k alone.
    for number, rule in enumerate((not node.bodies and rules(node.signature)) or ()):
        # The result's dimension that each loop indexes.
        result_place = {
            name: (node.results[k], dim)
            for k, dims in enumerate(rule.results, number)
            for dim, index in enumerate(dims)
            for name in index.variables
        }
        # Dimensions with a common loop are one dimension for the operator.
        for operand, dims in rule.operands.items():
            for dim, index in enumerate(dims):
                for name in index.variables:
                    if name in result_place:
                        yield (node.operands[operand], dim), result_place[name]
