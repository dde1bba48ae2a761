"""Axes along which a loop shifts what it carries: stages of a pipeline, and nothing else inside.

Such an axis may be that of the batch around the loop, whose microbatches the loop reads (figure 2
of GSPMD, arXiv:2105.04663). A microbatch that kept it on its own batch would be sent from there to
the stages in every shift, and what the last stage makes back. So inside of the loop only what is a
dimension of stages has it; the rest is brought there once, and leaves once.

Other axes of such a batch are not lost with it: where it meets the stages, a batch on (X, L) goes
on as one on X, which two layouts that share L would not tell each other.

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


def apart_from_stages(sharded: ShardedGraph, *, meetings: bool) -> tuple[tuple[int, Sharding], ...]:
    """What enters or leaves a body with an axis of its stages on another dimension, without it.

    Args:
      meetings: also what has the stages and meets such a value, with its other axes; no partitioner
        of XLA's completes them so.
    """
    graph, found = sharded.graph, dict[int, Sharding]()
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
    beside = _beside(sharded, axes) if meetings else {}
    return tuple({**beside, **found}.items())


def _beside(sharded: ShardedGraph, stages: set[Digit]) -> dict[int, Sharding]:
    """What has stages and meets a batch on them, with the batch's other axes on that dimension."""
    found: dict[int, Sharding] = {}
    meetings = (pair for node in sharded.graph.nodes if stages for pair in _handed_on(node))
    for one, other in meetings:
        for (batch, place), (value, dim) in ((one, other), (other, one)):
            digits, layout = sharded.shardings[batch].dims[place], sharded.shardings[value]
            used = set(chain.from_iterable(layout.dims))
            rest = tuple(digit for digit in digits if digit not in used)
            is_met = rest and not layout.dims[dim] and not stages.isdisjoint(used & {*digits})
            if is_met and value not in sharded.fixed:
                dims = (*layout.dims[:dim], rest, *layout.dims[dim + 1 :])
                free = tuple(d for d, given in enumerate(dims) if not given)
                found[value] = replace(layout.with_dims(dims), unspecified_dims=free)
    return found


def _stages(sharded: ShardedGraph, node: Node, region: Region) -> Iterator[tuple[Digit, Place]]:
    """Digits along which a carry is shifted, each with the dimension of the carry."""
    first, count = (node.signature.param(name) for name in ("num_consts", "num_carry"))
    carried = region.arguments[first : first + count]
    for number in region.nodes:
        inner = sharded.graph.nodes[number]
        for dim in _shifted(inner):
            for value in carried:
                layout = sharded.shardings[value]
                if layout.shape == inner.signature.results[0].shape:
                    yield from ((digit, (value, dim)) for digit in layout.dims[dim])


def _shifted(node: Node) -> Iterator[int]:
    """Dimensions whose elements a node hands on to their neighbours."""
    param = node.signature.param
    if node.primitive == "pad":
        rows = enumerate(param("padding_config"))
        yield from (dim for dim, (low, high, _) in rows if low and low + high == 0)
    elif node.primitive in ("join_ends", "concatenate"):
        yield param("dimension")


def _without(
    sharded: ShardedGraph, body: _DimensionClasses, value: int, stages: dict[Digit, Place]
) -> dict[int, Sharding]:
    """The value in its layout without the digits of stages that another dimension has."""
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
    """The dimensions of a body's values, joined where operators hand one on as another."""

    def __init__(self, graph: Graph, region: Region) -> None:
        self.ranks = {v: len(graph.values[v].type.shape) for v in region.arguments}
        self.above: dict[Place, Place] = {}
        for number in region.nodes:
            for one, other in _handed_on(graph.nodes[number]):
                self.above[self.top(one)] = self.top(other)

    def top(self, place: Place) -> Place:
        """What stands for all that a dimension is joined with."""
        while place in self.above and self.above[place] != place:
            place = self.above[place]
        return place

    def is_other(self, place: Place, stage: Place) -> bool:
        """Whether it is another dimension of a value that has the stages in one."""
        value, dim = stage
        others = {self.top((value, d)) for d in range(self.ranks[value]) if d != dim}
        return self.top(place) in others - {self.top(stage)}


def _handed_on(node: Node) -> Iterator[tuple[Place, Place]]:
    """Dimensions of operands that are dimensions of results."""
    for number, rule in enumerate((not node.bodies and rules(node.signature)) or ()):
        made = {
            name: (node.results[min(k, len(node.results) - 1)], dim)
            for k, dims in enumerate(rule.results, number)
            for dim, index in enumerate(dims)
            for name in index.variables
        }
        for operand, dims in rule.operands.items():
            for dim, index in enumerate(dims):
                for name in index.variables:
                    if name in made:
                        yield (node.operands[operand], dim), made[name]
