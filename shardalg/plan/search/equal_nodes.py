"""Classes of equal nodes of a graph: interior layers of an unrolled loop share their decisions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from shardalg.graph.ir import Graph

ROUNDS = 3
"""Number of times that a class is refined by the classes of its neighbours."""


def equal_nodes(
    graph: Graph, rounds: int = ROUNDS, marks: Mapping[int, Hashable] | None = None
) -> list[int]:
    """Return a class number per node; nodes of one class have equal operators and neighbours.

    The method is colour refinement. The first class of a node is its signature and its phase. Each
    round adds the classes of the nodes that make its operands and that read its results. After a
    few rounds the layers in the middle of a model are equal, and its first and last layers differ.

    Args:
      rounds: the number of times that classes are refined.
      marks: for an argument (value), a mark that tells it from others of its type, such as a pin.

    >>> import jax
    >>> from shardalg.graph.tracing.trace import trace
    >>> def layers(x):
    ...     for _ in range(10):
    ...         x = jax.numpy.tanh(x) * 2
    ...     return x
    >>> classes = equal_nodes(trace(layers, jax.ShapeDtypeStruct((4, 4), "float32")))
    >>> len(classes), len(set(classes))
    (20, 8)
    """
    maker, marked = graph.producer, marks or {}
    results = frozenset(graph.results)
    numbers: dict[Hashable, int] = {}

    def numbered(key: Hashable) -> int:
        return numbers.setdefault(key, len(numbers))

    classes = [numbered((node.signature, node.phase, node.region)) for node in graph.nodes]
    for _ in range(rounds):
        numbers = {}
        refined = []
        for node in graph.nodes:
            # An argument has no maker: its role in the function is its type.
            operands = tuple(
                (graph.values[v].type, marked.get(v)) if (n := maker[v]) is None else classes[n]
                for v in node.operands
            )
            readers = tuple(
                (tuple(sorted({classes[user] for user in graph.users[v]})), v in results)
                for v in node.results
            )
            refined.append(numbered((classes[node.index], operands, readers)))
        classes = refined
    return classes
