"""Softmax attention that the function writes out, marked as one kernel (`Options(fuse_attention)`).

A product (scores), a softmax and a product with the values are an attention. `fused_attention.py`
prices nodes of a marked attention as a kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from shardalg.costs.compute import contracts
from shardalg.costs.kernels.fused_attention import ALIASES, NONE, elements, handed_on
from shardalg.graph.ir import Graph, Node

# The mark of such nodes (`Node.kernel`).
SOFTMAX = "softmax attention"
# Operators that give their operand in another layout or type.
_SAME = frozenset(("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose"))
# A value that more products contribute to is a sum of layers, and no attention's scores.
_MOST = 3


def with_softmax_attention(graph: Graph, *, fused: bool) -> Graph:
    """Return the graph with its softmax attention marked as kernels, or without these marks.

    An attention is a product whose result, element by element, becomes an exponential that is
    summed along one dimension and is an operand of another product. Products of the backward pass
    belong to it if they read its weights, or the weights with their gradient. A loss of softmax is
    none: its products read the operands of the first product again.
    """
    marked = _Search(graph).nodes() if fused else frozenset()
    changed = {
        node.index: replace(node, kernel=SOFTMAX if node.index in marked else "")
        for node in graph.nodes
        if (node.index in marked) != (node.kernel == SOFTMAX)
    }
    if not changed:
        return graph
    return replace(graph, nodes=tuple(changed.get(n.index, n) for n in graph.nodes))


def fused_lines(graph: Graph) -> tuple[str, ...]:
    """Return the lines of the products of marked attention."""
    nodes = (n for n in graph.nodes if n.kernel == SOFTMAX and contracts(n.signature))
    return tuple(dict.fromkeys(node.source or "an unknown line" for node in nodes))


class _Search:
    """The search for the nodes of softmax attention in a graph.

    Attributes:
      roots: the products that each value is computed from element by element.
      powers: values that are computed from an exponential of such a value.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.handed = handed_on(graph)
        self.roots: dict[int, frozenset[int]] = {}
        self.powers: set[int] = set()
        self.summed: set[int] = set()
        for node in graph.nodes:
            if not node.bodies and not node.kernel and node.primitive not in ALIASES:
                self._follow(node)

    def _follow(self, node: Node) -> None:
        """Give the results of a node their roots."""
        if contracts(node.signature):
            self._give(node.results[0], frozenset((node.index,)), is_power=False)
            return
        for value in node.results:
            size = elements(self.graph, value)
            same = [v for v in node.operands if elements(self.graph, v) == size]
            of = NONE.union(*(self.roots.get(v, NONE) for v in same))
            is_power = node.primitive == "exp" or not self.powers.isdisjoint(same)
            if of and len(of) <= _MOST:
                self._give(value, of, is_power=is_power)
        if node.primitive == "reduce_sum" and len(node.signature.param("axes", ())) == 1:
            self.summed.update(node.operands)

    def _give(self, value: int, of: frozenset[int], *, is_power: bool) -> None:
        waiting = [value]
        while waiting:
            one = waiting.pop()
            known = self.roots.get(one, NONE)
            if of <= known and (not is_power or one in self.powers):
                continue
            self.roots[one] = known | of
            self.powers.update((one,) if is_power else ())
            waiting += self.handed.get(one, ())

    def nodes(self) -> frozenset[int]:
        """Return the nodes of all attention."""
        scores = self._scores()
        if not scores:
            return frozenset()
        kernels = scores | self._gradients(scores)
        inner = {v for v, of in self.roots.items() if of <= kernels}
        found = {
            node.index
            for node in self._candidates()
            if not inner.isdisjoint((*node.operands, *node.results))
        }
        return frozenset(found | self._masks(found, inner))

    def _candidates(self) -> Iterator[Node]:
        """Yield the nodes that may belong to an attention."""
        return (n for n in self.graph.nodes if not n.bodies and n.primitive not in ALIASES)

    def _scores(self) -> frozenset[int]:
        """Return the products whose results are scores."""
        graph = self.graph
        summed = NONE.union(*(self.roots.get(v, NONE) for v in self.summed & self.powers))
        found = set()
        for node in graph.nodes:
            if not contracts(node.signature):
                continue
            for at, value in enumerate(node.operands):
                of = self.roots.get(value, NONE)
                if len(of) != 1 or value not in self.powers or not of <= summed:
                    continue
                (root,) = of
                own = {self._base(v) for v in graph.nodes[root].operands}
                others = {self._base(v) for v in node.operands[:at] + node.operands[at + 1 :]}
                is_forward = node.phase == graph.nodes[root].phase == "forward"
                if is_forward or own.isdisjoint(others):
                    found.add(root)
        return frozenset(found)

    def _gradients(self, scores: frozenset[int]) -> frozenset[int]:
        """Return the products that give gradients of weights: products read them with weights."""
        read = [
            self.roots.get(value, NONE)
            for node in self.graph.nodes
            if contracts(node.signature)
            for value in node.operands
        ]
        alone = NONE.union(*(of for of in read if len(of) == 1))
        mixed = NONE.union(*(of for of in read if len(of) > 1 and not of.isdisjoint(scores)))
        return mixed - alone - scores

    def _masks(self, found: set[int], inner: set[int]) -> set[int]:
        """Return the nodes that make values of the size of scores for marked nodes alone."""
        sizes = {elements(self.graph, value) for value in inner}
        readers: dict[int, set[int]] = defaultdict(set)
        for node in self._candidates():
            for value in node.operands:
                readers[value].add(node.index)
        made: set[int] = set()
        for node in reversed(tuple(self._candidates())):
            if node.index in found or contracts(node.signature):
                continue
            values = [v for v in node.results if elements(self.graph, v) in sizes]
            if values and all(readers[v] and readers[v] <= found | made for v in values):
                made.add(node.index)
        return made

    def _base(self, value: int) -> int:
        """Return the value of which a value is another layout or type."""
        maker = self.graph.producer[value]
        while maker is not None and self.graph.nodes[maker].primitive in _SAME | {*ALIASES}:
            node = self.graph.nodes[maker]
            # A barrier has several results; all others have one.
            value = node.operands[node.results.index(value)]
            maker = self.graph.producer[value]
        return value
