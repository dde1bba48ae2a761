"""Search for softmax attention that a function writes out in single operators.

An attention is a product (scores), a softmax, and a product with the values. With
`Options(fuse_attention)` its nodes are marked, and `fused_attention.py` prices them as one kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from shardalg.costs.compute import contracts
from shardalg.costs.kernels.fused_attention import ALIASES, NONE, elements, handed_on
from shardalg.graph.ir import Graph, Node

SOFTMAX = "softmax attention"
"""`Node.kernel` of attention that this module found, so that it can also be removed again."""
# Operators that change only layout or type, so that queries and keys are recognised behind them.
_SAME = frozenset(("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose"))
_MOST = 3
"""A value that is computed from more products is a sum of layers, and no attention's scores."""


def with_softmax_attention(graph: Graph, *, fused: bool) -> Graph:
    """Return the graph with its softmax attention marked as kernels, or without these marks.

    An attention begins with a product, the scores. Pointwise operators compute an exponential of
    the scores, which is summed along one dimension and is an operand of another product. Products
    of the backward pass belong to it if they read the softmax weights, or these with their
    gradient. A softmax loss is no attention: its products read operands of the first product again.

    Args:
      fused: whether to set the marks (`Node.kernel`); otherwise they are removed.
    """
    attention_nodes = _Search(graph).nodes() if fused else frozenset()
    changed_nodes = {
        node.index: replace(node, kernel=SOFTMAX if node.index in attention_nodes else "")
        for node in graph.nodes
        if (node.index in attention_nodes) != (node.kernel == SOFTMAX)
    }
    if not changed_nodes:
        return graph
    return replace(graph, nodes=tuple(changed_nodes.get(n.index, n) for n in graph.nodes))


def fused_lines(graph: Graph) -> tuple[str, ...]:
    """Return the source lines of the products in attention that is marked as a kernel."""
    nodes = (n for n in graph.nodes if n.kernel == SOFTMAX and contracts(n.signature))
    return tuple(dict.fromkeys(node.source or "an unknown line" for node in nodes))


class _Search:
    """Search for the nodes of softmax attention in a graph.

    Attributes:
      handed: for each value, the values that are equal to it, such as arguments of loop bodies.
      roots: for each value, the matrix products from whose results it is computed by operators that
        keep the size, such as scaling, masking and exp. A product is given by its node index.
      powers: the values in `roots` that are computed through an `exp`, such as softmax weights.
      summed: values that some `reduce_sum` adds along one dimension, such as softmax's denominator.
    """

    def __init__(self, graph: Graph) -> None:
        """Fill the tables `roots`, `powers` and `summed` in one pass over the graph.

        The class explains the tables. Nodes in attention kernels are left out.
        """
        self.graph = graph
        self.handed = handed_on(graph)
        self.roots: dict[int, frozenset[int]] = {}
        self.powers: set[int] = set()
        self.summed: set[int] = set()
        # A loop or branch is no operator itself; its body has nodes of its own. An alias has the
        # tables of its operand through `handed`.
        for node in graph.nodes:
            if not node.bodies and not node.kernel and node.primitive not in ALIASES:
                self._follow(node)

    def _follow(self, node: Node) -> None:
        """Record for one node's results from which matrix products they are computed.

        `roots` has the products of each value. The result of a product has this product alone. The
        result of another node has the products of all its operands of equal size together. Nothing
        is recorded if there are none, or more than `_MOST` (3).

        `powers` has the recorded results of an exponential, and those that are computed from a
        value in `powers`. `summed` has the operands of each `reduce_sum` along one dimension.
        """
        if contracts(node.signature):
            self._give(node.results[0], frozenset((node.index,)), is_power=False)
            return
        for value in node.results:
            # A smaller operand, such as the maximum of a row, is no score itself.
            size = elements(self.graph, value)
            same_size = [v for v in node.operands if elements(self.graph, v) == size]
            products = NONE.union(*(self.roots.get(v, NONE) for v in same_size))
            is_power = node.primitive == "exp" or not self.powers.isdisjoint(same_size)
            if products and len(products) <= _MOST:
                self._give(value, products, is_power=is_power)
        if node.primitive == "reduce_sum" and len(node.signature.param("axes", ())) == 1:
            self.summed.update(node.operands)

    def _give(self, value: int, products: frozenset[int], *, is_power: bool) -> None:
        """Record that a value, and all values equal to it, are computed from some products.

        Args:
          products: nodes of the products.
          is_power: whether the value is computed from an exponential.
        """
        waiting = [value]
        while waiting:
            target = waiting.pop()
            recorded = self.roots.get(target, NONE)
            # Nothing new: without this test, the search would not end in a loop of equal values.
            if products <= recorded and (not is_power or target in self.powers):
                continue
            self.roots[target] = recorded | products
            self.powers.update((target,) if is_power else ())
            waiting += self.handed.get(target, ())

    def nodes(self) -> frozenset[int]:
        """Return the numbers of all nodes that belong to some attention."""
        scores = self._scores()
        if not scores:
            return frozenset()
        # The products of the gradient of the scores run in the same kernel.
        score_products = scores | self._gradients(scores)
        inner = {v for v, products in self.roots.items() if products <= score_products}
        attention_nodes = {
            node.index
            for node in self._candidates()
            if not inner.isdisjoint((*node.operands, *node.results))
        }
        return frozenset(attention_nodes | self._masks(attention_nodes, inner))

    def _candidates(self) -> Iterator[Node]:
        """Yield the nodes that may belong to an attention: no loops, annotations or barriers."""
        return (n for n in self.graph.nodes if not n.bodies and n.primitive not in ALIASES)

    def _scores(self) -> frozenset[int]:
        """Return the nodes of the products whose results are scores of an attention.

        Let p be the only product from which an operand of another product is computed. The result
        of p is a matrix of scores if this operand is computed from an exponential, and if such an
        exponential of p's result is also summed along one dimension. This is a softmax.
        """
        graph = self.graph
        # The products that have an exponential of their result summed, as a softmax does.
        summed = NONE.union(*(self.roots.get(v, NONE) for v in self.summed & self.powers))
        score_nodes = set()
        for node in graph.nodes:
            if not contracts(node.signature):
                continue
            for position, value in enumerate(node.operands):
                products = self.roots.get(value, NONE)
                if len(products) != 1 or value not in self.powers or not products <= summed:
                    continue
                (root,) = products
                # A softmax loss is no attention. It is recognised by its gradient, which multiplies
                # the softmax by an operand of the product that computed the logits.
                root_operands = {self._base(v) for v in graph.nodes[root].operands}
                other_operands = {
                    self._base(v) for v in node.operands[:position] + node.operands[position + 1 :]
                }
                is_forward = node.phase == graph.nodes[root].phase == "forward"
                if is_forward or root_operands.isdisjoint(other_operands):
                    score_nodes.add(root)
        return frozenset(score_nodes)

    def _gradients(self, scores: frozenset[int]) -> frozenset[int]:
        """Return the nodes of the products that compute the gradient of softmax weights.

        The gradient of the scores combines this gradient with the weights, element by element,
        before a product reads it. So a product is such a gradient if other products read its result
        only combined with scores, and never alone.

        Args:
          scores: nodes of the products whose results are scores.
        """
        products_read = [
            self.roots.get(value, NONE)
            for node in self.graph.nodes
            if contracts(node.signature)
            for value in node.operands
        ]
        read_alone = NONE.union(*(products for products in products_read if len(products) == 1))
        read_combined = [products for products in products_read if len(products) > 1]
        # Gradients are read together with scores, and no product reads them alone.
        read_with_scores = NONE.union(
            *(products for products in read_combined if not products.isdisjoint(scores))
        )
        return read_with_scores - read_alone - scores

    def _masks(self, found: set[int], inner: set[int]) -> set[int]:
        """Return the nodes that compute masks of scores.

        A mask has as many elements as the scores, and is read only by attention or by other masks.

        Args:
          found: the nodes of attention that are known so far.
          inner: values that are computed from scores.
        """
        sizes = {elements(self.graph, value) for value in inner}
        readers: dict[int, set[int]] = defaultdict(set)
        for node in self._candidates():
            for value in node.operands:
                readers[value].add(node.index)
        mask_nodes: set[int] = set()
        # Readers come before their operands, so a mask that only another mask reads finds it in
        # `made`.
        for node in reversed(tuple(self._candidates())):
            if node.index in found or contracts(node.signature):
                continue
            values = [v for v in node.results if elements(self.graph, v) in sizes]
            if values and all(readers[v] and readers[v] <= found | mask_nodes for v in values):
                mask_nodes.add(node.index)
        return mask_nodes

    def _base(self, value: int) -> int:
        """Return the value from which a value differs at most in layout and item type.

        The search goes backward through reshapes, transposes, casts and the like, as far as they
        go.
        """
        producer = self.graph.producer[value]
        while producer is not None and self.graph.nodes[producer].primitive in _SAME | {*ALIASES}:
            node = self.graph.nodes[producer]
            # A barrier has several operands, each of which is the result at the same position.
            value = node.operands[node.results.index(value)]
            producer = self.graph.producer[value]
        return value
