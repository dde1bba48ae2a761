"""Nodes of a graph from a file, held against the rows of their operators."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from shardalg.errors import PlanFileError
from shardalg.graph.ir import Graph
from shardalg.ops.rows import rules


def check_rows(graph: Graph) -> None:
    """Raise where the parameters of a node give no row, as those of a traced one always do.

    JAX's own rules for types look at some parameters alone (a convolution's order of dimensions may
    count from the end, a sort's dimension be none), and cannot be asked where one is code.

    Raises:
      PlanFileError: the nodes, with what is wrong with their rows.
    """
    found = list(islice(_faults(graph), 5))
    if found:
        raise PlanFileError(
            f"the saved graph is damaged: {'; '.join(found)}. Plan the function again."
        )


def _faults(graph: Graph) -> Iterator[str]:
    for signature, source in {node.signature: node.source for node in graph.nodes}.items():
        try:
            rules(signature)
        except Exception as error:  # a row takes for granted what tracing guarantees
            reason = f"{type(error).__name__}: {error!s:.160}"
            yield f"{signature.primitive} ({source or 'an unknown line'}) has no row: {reason}"
