"""What another plan of the same function decided otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import is_collective
from shardalg.costs.memory import Liveness
from shardalg.costs.symbolic import Symbolised
from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph
from shardalg.io.table import Table
from shardalg.planning.stages import Stages
from shardalg.spmd.instruction import Collective, Instruction
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram
from shardalg.symbolic.retrace import Alignment, Difference

CHANGE_COLUMNS = ("kind", "place", "source", "at_hints", "here")
NO_CHANGES = Table(CHANGE_COLUMNS, ())
ChangeRow = tuple[str, str, str, str, str]
BORDER = -1
"""Stands for the node of what moves at the program's border."""


def changes(
    hints: Stages,
    here: Stages,
    named: Symbolised | None,
    *,
    point: Mapping[str, int],
    constant: Difference | None,
) -> Table:
    """Every decision in which two plans of one function differ, at the hints and at a point.

    Args:
      named: the formulas at the hints, if sizes have names.

    Kinds: "constant" (the first size made in Python that is another one), "blocks" (a region was
    traced again, since its axis has another size; where that is another program, nothing else is
    listed), "divides" (a split that
    is even here and not there), "part" (an axis of another size, of which a part is used), "choice"
    (the axes on the loops of an operator), "sharding" (of a value), "collectives" (kind,
    dimensions, axes and role of what an operator, or the border, moves), "peak" (where the most
    bytes are alive, which nobody decides).
    """
    made = () if constant is None else ((constant.kind, "", constant.source, "", constant.text),)
    if constant is not None and Alignment(hints.graph, here.graph).difference is not None:
        return Table(CHANGE_COLUMNS, made)
    rows = (*made, *_splits(named, point), *_choices(hints, here), *_shardings(hints, here))
    return Table(CHANGE_COLUMNS, (*rows, *_collectives(hints, here), *_peak(hints, here)))


def _peak(hints: Stages, here: Stages) -> Iterator[ChangeRow]:
    if hints.as_written.place != here.as_written.place:
        first, second = (alive_at(plan.graph, plan.as_written) for plan in (hints, here))
        yield "peak", first[0], first[1], first[0], second[0]


def alive_at(graph: Graph, memory: Liveness) -> tuple[str, str]:
    """Name and source line of what runs at the peak."""
    peak = memory.instruction
    return ("the arguments", "") if peak is None else _whose(graph, peak)


def _splits(named: Symbolised | None, point: Mapping[str, int]) -> Iterator[ChangeRow]:
    for fact in named.conditions if named else ():
        if not fact.holds(point):
            yield fact.kind, fact.where, "", str(fact), fact.otherwise(point)


def _whose(graph: Graph, instruction: Instruction) -> tuple[str, str]:
    return ("border", "") if instruction.node is None else place(graph, instruction.node)


def _choices(hints: Stages, here: Stages) -> Iterator[ChangeRow]:
    first, second = _assignments(hints.program), _assignments(here.program)
    for number in sorted(first.keys() | second.keys()):
        pair = first.get(number, ""), second.get(number, "")
        if pair[0] != pair[1]:
            yield ("choice", *place(hints.graph, number), *pair)


def _assignments(program: SpmdProgram) -> dict[int, str]:
    """Per node the loops that are split, with their axes; several where it is made again."""
    words = cache(partial(loops_over, program.mesh))
    found: dict[int, list[str]] = {}
    for step in walk(program):
        attributes, node = step.instruction.attributes, step.instruction.node
        if type(attributes) is Apply and node is not None:
            found.setdefault(node, []).append(words(attributes.loops))
    return {node: "; ".join(dict.fromkeys(made)) for node, made in found.items()}


def loops_over(mesh: Mesh, loops: tuple[tuple[str, Digits], ...]) -> str:
    """The axes on the loops of an operator, in words."""
    split = sorted((name, _axes(mesh, digits)) for name, digits in loops)
    return ", ".join(f"{name} over {axes}" for name, axes in split if axes)


def _axes(mesh: Mesh, digits: Digits) -> str:
    return ",".join(mesh.texts(digits))


def place(graph: Graph, node: int) -> tuple[str, str]:
    """Name of a node's first result, and its source line."""
    found = graph.nodes[node]
    return graph.values[found.results[0]].name, found.source


def _shardings(hints: Stages, here: Stages) -> Iterator[ChangeRow]:
    graph = hints.graph
    partner = Alignment(graph, here.graph).partner
    text = cache(Sharding.text)
    for value, other in zip(graph.values, partner, strict=True):
        if other >= 0:
            first, second = hints.sharded.shardings[value.index], here.sharded.shardings[other]
            pair = text(first), text(second)
            if pair[0] != pair[1]:
                producer = graph.producer[value.index]
                source = "" if producer is None else graph.nodes[producer].source
                yield ("sharding", value.name, source, *pair)


def _collectives(hints: Stages, here: Stages) -> Iterator[ChangeRow]:
    first, second = _moved(hints.program), _moved(here.program)
    for number in sorted(first.keys() | second.keys()):
        one, other = ("; ".join(side.get(number, ())) for side in (first, second))
        if one != other:
            where = ("border", "") if number == BORDER else place(hints.graph, number)
            yield ("collectives", *where, one, other)


def _moved(program: SpmdProgram) -> Mapping[int, list[str]]:
    found: dict[int, list[str]] = {}
    for step in walk(program):
        instruction = step.instruction
        attributes = instruction.attributes
        if is_collective(attributes):
            node = BORDER if instruction.node is None else instruction.node
            words = f"{_words(program, attributes)} ({instruction.role})"
            found.setdefault(node, []).append(words)
    return found


def _words(program: SpmdProgram, attributes: Collective) -> str:
    of = f" of dimension {' to '.join(map(str, attributes.dims))}" if attributes.dims else ""
    axes = _axes(program.mesh, attributes.digits)
    return f"{attributes.sent_as}{of} along {axes}"
