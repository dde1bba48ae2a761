"""Where completion begins and ends: annotations in, uneven borders and loop carries out."""

from __future__ import annotations

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.propagate.index import Index
from shardalg.propagate.kinds import Dims
from shardalg.propagate.layouts import Layouts
from shardalg.propagate.strategy import Annotations


def seed(graph: Graph, annotations: Annotations, layouts: Layouts) -> dict[int, int]:
    """Layout numbers of the annotated values.

    An annotation inside also fixes the value it is put on, if that has none and the annotation has
    no open dimension; the last annotation goes first. An argument takes it as its layout but stays
    free to refine.
    """
    seeds: dict[int, int] = {}
    nodes = [graph.nodes[site.node] for site in graph.sites]
    for value, sharding in given(graph, annotations):
        seeds[value] = _fixed(sharding, layouts)
    constants = {value for value, _ in graph.constants}
    arguments = set(graph.arguments)
    for node, sharding in reversed([*zip(nodes, annotations.sites, strict=True)]):
        value = node.operands[0]
        if sharding is None or sharding.unspecified_dims or value in seeds or value in constants:
            continue
        fixed = value not in arguments
        seeds[value] = layouts.number(sharding.shape, sharding.dims, fixed=fixed)
    return seeds


def given(graph: Graph, annotations: Annotations) -> list[tuple[int, Sharding]]:
    """The values that have an annotation of their own, each with it; results are no such values."""
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    pairs = [
        *zip(graph.arguments, annotations.arguments, strict=True),
        *zip(sites, annotations.sites, strict=True),
        *annotations.values,
    ]
    return [(value, sharding) for value, sharding in pairs if sharding is not None]


def _fixed(sharding: Sharding, layouts: Layouts) -> int:
    return layouts.number(
        sharding.shape, sharding.dims, fixed=True, open_dims=sharding.unspecified_dims
    )


def start(
    graph: Graph, annotations: Annotations, layouts: Layouts, index: Index
) -> tuple[list[int], dict[int, int]]:
    """A layout number per value and per stand-in of a result, and those of annotated values.

    Constants and rank-0 values stay replicated: a device cuts its block of a constant out of it for
    nothing. So does the stand-in of a result without annotation: it asks for nothing.
    """
    seeds = seed(graph, annotations, layouts)
    wholes = [layouts.whole(shape, fixed=not shape) for shape in index.shapes]
    numbers = [wholes[shape] for shape in index.shape_of]
    for value, _ in graph.constants:
        numbers[value] = layouts.whole(layouts.shapes[numbers[value]], fixed=True)
    for value, number in seeds.items():
        numbers[value] = number
    for stand_in, sharding in enumerate(annotations.results, len(graph.values)):
        shape = layouts.shapes[numbers[stand_in]]
        given = layouts.whole(shape, fixed=True) if sharding is None else _fixed(sharding, layouts)
        numbers[stand_in] = given
    return numbers, seeds


def settle_borders(
    graph: Graph, annotations: Annotations, layouts: Layouts, numbers: list[int]
) -> list[int]:
    """Make completed arguments and results divide: JAX takes and returns even shards only.

    GSPMD replicates one that does not; Shardy keeps the longest prefix of its axes that divides,
    and a result that is uneven inside is so cut at the border alone.

    Returns:
      The values changed.
    """
    ends = [*zip(graph.arguments, annotations.arguments, strict=True)]
    if layouts.policy == "gspmd":
        ends += zip(graph.results, annotations.results, strict=True)
    changed = []
    for value, given in ends:
        number = numbers[value]
        even = _even(layouts, number)
        if given is None and not layouts.fixed[number] and even != layouts.dims[number]:
            numbers[value] = layouts.number(layouts.shapes[number], even)
            changed.append(value)
    return changed


def _even(layouts: Layouts, number: int) -> Dims:
    """A layout's dimensions as the border of a program may have them."""
    dims, shape = layouts.dims[number], layouts.shapes[number]
    cut = tuple(_prefix(size, digits) for size, digits in zip(shape, dims, strict=True))
    return ((),) * len(dims) if layouts.policy == "gspmd" and cut != dims else cut


def _prefix(size: int, digits: Digits) -> Digits:
    count = 0
    while count < len(digits) and size % parts(digits[: count + 1]) == 0:
        count += 1
    return digits[:count]


def results(
    graph: Graph, annotations: Annotations, layouts: Layouts, numbers: list[int]
) -> list[int]:
    """A result's layout at the border: its annotation, completed where open, else its value's."""
    found = []
    for stand_in, (value, given) in enumerate(
        zip(graph.results, annotations.results, strict=True), len(graph.values)
    ):
        number = numbers[value]
        made = layouts.number(layouts.shapes[number], _even(layouts, number))
        found.append(made if given is None else numbers[stand_in])
    return found


def settle_loops(graph: Graph, layouts: Layouts, numbers: list[int]) -> list[tuple[int, int]]:
    """Give a loop's carried results, in and after the body, the layout of the body argument.

    A carry has one layout, its body argument's. Only annotated values keep another, and are
    resharded at the loop's border; so are initial values and constants, which may have other
    readers.

    Returns:
      (value changed, body argument whose layout it took).
    """
    carried = {(tie.call, tie.source): tie.target for tie in graph.ties if tie.kind == "carry"}
    repairs = [(source, argument) for (_, source), argument in carried.items()]
    repairs += [
        (tie.target, carried[tie.call, tie.source])
        for tie in graph.ties
        if tie.kind == "result" and (tie.call, tie.source) in carried
    ]
    changed = []
    for value, like in repairs:
        number = numbers[value]
        if not layouts.fixed[number] and layouts.dims[number] != layouts.dims[numbers[like]]:
            numbers[value] = layouts.number(layouts.shapes[number], layouts.dims[numbers[like]])
            changed.append((value, like))
    return changed
