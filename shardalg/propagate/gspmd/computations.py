"""A graph as XLA's own propagation sweeps it: computation by computation, tuples as XLA has them.

A loop is in HLO one `while` whose tuple enters its bodies, comes out of them and is handed on: per
element one layout, wherever the tuple stands (`related`). Bodies are visited before what is around
them, each computation forward and then backward. What a tuple holds has a layout beside that of the
value that was put into it: a place, numbered after the graph's values and the stand-ins of results.
Source: `sharding_propagation.cc`, RunToFixPoint and MaybeComputationPropagation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from shardalg.graph.ir import Graph
from shardalg.graph.once import once_per_graph
from shardalg.propagate.gspmd import priority
from shardalg.propagate.gspmd.index import Index, Rules, Span, assembled
from shardalg.propagate.gspmd.tuple_steps import Computations


@once_per_graph
def computations(graph: Graph, rules: Rules, results_given: bool = True) -> Index:
    """The index of a graph for GSPMD's own sweeps.

    Args:
      results_given: whether some result is annotated: as of `index`.
    """
    builder = Computations(graph, rules, results_given)
    found = [*builder.computations(0)]
    made = assembled(
        graph,
        list(builder.found),
        [*chain.from_iterable(found)],
        [len(steps) for steps in found],
        (builder.names, builder.shapes),
    )
    for region, span in zip(builder.regions, made.spans, strict=True):
        _order_readers(graph, made, region, span)
    return replace(
        made,
        related=builder.related,
        late=frozenset(builder.late),
        together=_together(made),
    )


def _together(made: Index) -> dict[int, tuple[int, ...]]:
    """Steps from one tuple to another, each with all those of the two tuples."""
    pairs: dict[tuple[int, int | None], list[int]] = {}
    for number, (first, end, _, _) in enumerate(made.spans):
        for step in range(first, end):
            if made.kind(step).role in (priority.WHILE, priority.BRANCH):
                pairs.setdefault((number, made.nodes[step]), []).append(step)
    return {step: tuple(steps) for steps in pairs.values() for step in steps}


def _order_readers(graph: Graph, made: Index, region: int, span: Span) -> None:
    """Bring what reads an argument of a scan's body into the order in which XLA has it.

    The body is a call that is inlined: the last of its readers takes the place of the call
    (`hlo_instruction.cc`, Users::RemoveUser). Elsewhere the order is that from the results down.
    """
    found = graph.regions[region]
    arguments = set(found.arguments) if found.kind == "scan" else set()
    for place in range(span[2], span[3]):
        readers = made.heard[place]
        if len(readers) > 1 and made.order[place] in arguments:
            root = [r for r in readers if _is_last(made, r[0], found.node)]
            inner = [r for r in readers if r not in root]
            made.heard[place] = [*inner[-1:], *root, *inner[:-1]]


def _is_last(made: Index, step: int, call: int | None) -> bool:
    """Whether a step puts a value into the tuple that a body returns."""
    return made.nodes[step] == call and made.kind(step).role == priority.TUPLE
