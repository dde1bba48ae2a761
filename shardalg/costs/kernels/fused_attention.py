"""Attention that hardware runs as one fused kernel: its scores are never in memory.

A fused kernel computes the scores block by block and keeps only one sum per row
(arXiv:2205.14135). Its backward pass computes the scores again. It has therefore five products,
where the derivative of the function as written has four: FlashAttention-2 (arXiv:2307.08691,
section 3.1.2, algorithm 2).

`Node.kernel` names the attention kernel that a node of the graph belongs to; "" for none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from shardalg.costs.compute import contracts, signature_flops
from shardalg.graph.ir import Graph, Node, once_per_graph
from shardalg.sizes.amounts import quotient

NONE: frozenset[int] = frozenset()
ALIASES = ("annotate", "optimization_barrier")
"""These operators compute nothing: their results are their operands, so they are looked through."""


@dataclass(frozen=True)
class FusedAttention:
    """Values that fused attention kernels never write, and flops that they repeat.

    Attributes:
      on_chip: values that a kernel never writes to memory: scores, softmax weights, their masks
        and gradients.
      again: by number of the node that computes the gradient of the softmax weights: flops of the
        recomputed scores, divided by the flops of this node.
    """

    on_chip: frozenset[int] = NONE
    again: Mapping[int, Fraction] = field(default_factory=dict)


def with_recomputed(graph: Graph, node: int | None, flops: Any) -> Any:
    """Return the flops of a node, plus those of the scores that its kernel computes again.

    Only the product for the gradient of the softmax weights has such an addition; for all other
    nodes, and for None, `flops` is returned unchanged.
    """
    again = fused_attention(graph).again.get(node)  # type: ignore[arg-type]  # None is no key
    if again is None:
        return flops
    return flops + quotient(flops * again.numerator, again.denominator)


@once_per_graph
def fused_attention(graph: Graph) -> FusedAttention:
    """Return the values that attention kernels never write to memory, and the flops they repeat.

    The scores are the result of the first product in a kernel's body (queries times keys), if
    another product of the body reads them after pointwise and layout operators. The scores, and the
    results of these operators with as many elements, stay on the chip. This also holds where a loop
    passes them on to the backward pass.
    """
    if not any(node.kernel for node in graph.nodes):
        return FusedAttention()
    handed = handed_on(graph)
    roots = _roots(graph, handed)
    # A key is a set of products from which an operand is computed; a value counts the products
    # that read such operands. No product reads the result of a kernel's last product.
    reads: dict[frozenset[int], int] = defaultdict(int)
    for node in graph.nodes:
        if node.kernel and contracts(node.signature):
            products = NONE.union(*(roots.get(v, NONE) for v in node.operands))
            if products:
                reads[products] += 1
    # Scores, weights and their gradients are read by another product of the kernel; the result of
    # the attention is not.
    scores = NONE.union(*reads)
    found = {v for v, products in roots.items() if products and products <= scores}
    found |= _masks(graph, found, handed)
    return FusedAttention(frozenset(found - _read_outside(graph, handed)), _again(graph, reads))


def _again(graph: Graph, reads: Mapping[frozenset[int], int]) -> dict[int, Fraction]:
    """Return, per product whose backward kernel recomputes scores, the additional flops as a share.

    Fused attention does not store its scores, so the kernel that computes the gradient of the
    softmax weights computes the scores again. The share is the flops of the scores' product divided
    by the flops of the gradient's product. Keys are node indices.

    Args:
      reads: per set of products, the number of products that read an operand computed from this
        set.
    """
    # The product with the values reads softmax weights alone, so a set in `reads` has the scores'
    # product as its only member. The gradient of the weights is read only together with the
    # weights, because the gradient of the scores is computed from both.
    found = {}
    alone = {root for products in reads for root in products if len(products) == 1}
    for products in reads:
        for gradient in products - alone:
            # If two products read the weights, one is in the backward pass, whose kernel must
            # compute the scores again. If only one does (remat), the backward pass has a product
            # of its own for the scores, which already counts.
            for scores in sorted(products & alone):
                if reads[frozenset((scores,))] > 1:
                    flops = (signature_flops(graph.nodes[n].signature) for n in (scores, gradient))
                    found[gradient] = Fraction(*flops)
    return found


def _roots(graph: Graph, handed: Mapping[int, list[int]]) -> dict[int, frozenset[int]]:
    """Return the nodes of the products from which pointwise operators compute each value.

    Only values in the bodies of attention kernels have an entry. A product counts only if its own
    operands have no entry, so that a chain of products has the first one as its root.

    Args:
      handed: for each value, the values that are equal to it (`handed_on`).
    """
    roots: dict[int, frozenset[int]] = {}

    def give(value: int, products: frozenset[int]) -> None:
        """Add products to the `roots` of a value, and of all values that are equal to it.

        Args:
          products: nodes of products from which the value is computed.
        """
        if not products <= roots.get(value, NONE):
            roots[value] = roots.get(value, NONE) | products
            for target in handed.get(value, ()):
                give(target, products)

    # Bodies come before their loop, and after all operators before it, so one pass is enough.
    for node in graph.nodes:
        if not node.kernel or node.bodies or node.primitive in ALIASES:
            continue
        if contracts(node.signature):
            if not any(roots.get(v) for v in node.operands):
                give(node.results[0], frozenset((node.index,)))
            continue
        for value in node.results:
            size = elements(graph, value)
            same = [v for v in node.operands if elements(graph, v) == size]
            give(value, NONE.union(*(roots.get(v, NONE) for v in same)))
    return roots


def _masks(graph: Graph, scores: set[int], handed: Mapping[int, list[int]]) -> set[int]:
    """Return the values in kernels' bodies that are combined with scores, such as masks.

    Such a value has as many elements as the scores. The search starts at the operands of operators
    that compute scores, and goes back through fused operators and through the borders of loops.

    Args:
      scores: values that are computed from scores element by element.
      handed: for each value, the values that are equal to it (`handed_on`).
    """
    givers: dict[int, list[int]] = defaultdict(list)
    for source, targets in handed.items():
        for target in targets:
            givers[target].append(source)
    producers = graph.producer
    found: set[int] = set()

    def reach(value: int) -> None:
        """Add a value, and the values of the same size from which fused operators compute it."""
        producer = producers[value]
        if value in found or value in scores:
            return
        # A value that equals others, such as the argument of a loop body, comes from these.
        if givers.get(value):
            found.add(value)
            for source in givers[value]:
                reach(source)
        elif producer is not None and _fuses_in_kernel(graph.nodes[producer]):
            found.add(value)
            for operand in graph.nodes[producer].operands:
                if elements(graph, operand) == elements(graph, value):
                    reach(operand)

    # An operand of fewer elements, such as a maximum per row, is no mask of single scores.
    for node in graph.nodes:
        if _fuses_in_kernel(node) and not scores.isdisjoint(node.results):
            for operand in node.operands:
                if elements(graph, operand) == elements(graph, node.results[0]):
                    reach(operand)
    # Derivatives also pass constants of the size of scores through loops, but nothing reads them.
    sizes = {elements(graph, value) for value in scores}
    waiting = [
        value
        for node in graph.nodes_of(("broadcast_in_dim",))
        if node.kernel and elements(graph, node.results[0]) in sizes
        for value in node.results
    ]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += handed.get(value, ())
    return found


def _fuses_in_kernel(node: Node) -> bool:
    """Return whether a node is a pointwise or layout operator in the body of a kernel."""
    return bool(node.kernel) and not node.bodies and not contracts(node.signature)


def _read_outside(graph: Graph, handed: Mapping[int, list[int]]) -> set[int]:
    """Return the values that an operator outside of all attention kernels reads.

    A loop or branch reads an operand only if its body reads the corresponding argument.

    Args:
      handed: for each value, the values that are equal to it (`handed_on`).
    """
    outside = {*graph.results}
    for node in graph.nodes:
        if not node.kernel and not node.bodies and node.primitive not in ALIASES:
            outside.update(node.operands)
    waiting = [v for v in handed if not outside.isdisjoint(handed[v])]
    givers: dict[int, list[int]] = defaultdict(list)
    for source, targets in handed.items():
        for target in targets:
            givers[target].append(source)
    while waiting:
        value = waiting.pop()
        if value not in outside:
            outside.add(value)
            waiting += givers.get(value, ())
    return outside


def handed_on(graph: Graph) -> dict[int, list[int]]:
    """Return, for each value, the values that are equal to it.

    They are arguments of loop bodies and branches, results of loops and branches, and results of
    annotations and barriers.
    """
    found: dict[int, list[int]] = defaultdict(list)
    for argument in graph.region_arguments:
        found[argument.source].append(argument.target)
    for node in graph.nodes_of(ALIASES):
        for value, same in zip(node.operands, node.results, strict=True):
            found[value].append(same)
    return found


def handed_together(graph: Graph, values: frozenset[int]) -> frozenset[int]:
    """Return `values` together with every value that is equal to one of them.

    A loop or branch gives a value that it receives or returns another number (see `handed_on`).
    Such values are followed from the outside to the inside, and back.
    """
    closure: set[int] = set()
    waiting = [*values]
    equal_values: dict[int, list[int]] = defaultdict(list)
    for source, targets in handed_on(graph).items():
        for target in targets:
            equal_values[source].append(target)
            equal_values[target].append(source)
    # Equality has both directions, so every connected value is reached.
    while waiting:
        value = waiting.pop()
        if value not in closure:
            closure.add(value)
            waiting += equal_values[value]
    return frozenset(closure)


def elements(graph: Graph, value: int) -> int:
    """Return the number of elements of a graph value."""
    return math.prod(graph.values[value].type.shape)
