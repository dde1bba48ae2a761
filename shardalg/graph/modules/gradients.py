"""The values of a backward pass that become one weight's gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from shardalg.graph.ir import Graph, Node
from shardalg.graph.modules.weights import ArgumentModules


def gradients(
    graph: Graph, arguments: ArgumentModules, walked: Sequence[Node]
) -> Mapping[int, str]:
    """Return the values that become one weight's gradient or update: value to the weight's module.

    From a result, or from an update that reads the weight or its state, the way leads back through
    operators that keep every element in its place. Values of one element are left out: a clipping
    factor is part of all gradients.

    Args:
      walked: the nodes in order of execution.
    """
    ends = _Ends(graph, arguments)
    found: dict[int, str] = {}
    for node in reversed(walked):
        for value in node.results:
            reached = ends.of_value(value)
            if len(reached) == 1 and node.phase != "forward" and ends.sizes[value] > 1:
                found[value] = next(iter(reached))
    return found


class _Ends:
    """The modules whose gradients or updates a value leads to, asked in reversed order."""

    def __init__(self, graph: Graph, arguments: ArgumentModules) -> None:
        self.graph = graph
        self.results = arguments.results
        self.named = {**arguments.weights, **{v: m for v, m in arguments.others.items() if m}}
        self.sizes = [prod(value.type.shape) for value in graph.values]
        self.inner: dict[int, list[int]] = {}
        for tie in graph.region_arguments:
            if tie.kind != "carry":
                self.inner.setdefault(tie.source, []).append(tie.target)
        # A barrier has thousands of operands, and each result is its own operand.
        self.through = {
            (node.index, operand): [result]
            for node in graph.nodes_of(["optimization_barrier"])
            for operand, result in zip(node.operands, node.results, strict=True)
        }
        self.known: dict[int, frozenset[str]] = {}

    def of_value(self, value: int) -> frozenset[str]:
        """Return the modules; what reads the value was asked before."""
        if value not in self.known:
            reached = set(filter(None, [self.results.get(value)]))
            for reader in self.graph.users[value]:
                reached.update(self._through(self.graph.nodes[reader], value))
            for target in self.inner.get(value, ()):
                reached |= self.of_value(target)
            self.known[value] = frozenset(reached)
        return self.known[value]

    def _through(self, reader: Node, value: int) -> Iterable[str]:
        if reader.bodies:
            return ()
        if reader.phase == "update":
            shape = self.graph.values[value].type.shape
            read = [v for v in reader.operands if v in self.named]
            updated = [self.named[v] for v in read if self.graph.values[v].type.shape == shape]
            if updated:
                return updated
        if reader.primitive not in _IN_PLACE:
            return ()
        kept = self.through.get((reader.index, value)) or self._kept(reader, value)
        return frozenset().union(*map(self.of_value, kept))

    def _kept(self, reader: Node, value: int) -> Sequence[int]:
        """Return the results of a node that have the elements of an operand."""
        if reader.primitive in _PLACED:
            return reader.results
        if reader.primitive == "scatter-add" and value not in reader.operands[:1]:
            return ()  # what is added are cotangents of activations, those of an embedding's rows
        return [result for result in reader.results if self.sizes[result] == self.sizes[value]]


_PLACED = frozenset({"concatenate", "dynamic_update_slice", "pad"})
"""Operators that put their operand's elements into a larger array."""

_IN_PLACE = _PLACED | frozenset(
    "abs add add_any annotate broadcast_in_dim clamp convert_element_type copy copy_p div exp "
    "integer_pow log max min mul neg optimization_barrier pow psum psum_invariant "
    "reduce_precision reshape rsqrt scatter-add select_n sharding_constraint sign sqrt square "
    "squeeze stop_gradient sub tanh transpose".split()
)
"""Operators whose result has an operand's elements in its own order, or changed one by one."""
