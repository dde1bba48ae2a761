"""Where completion begins and ends: annotations in, uneven borders and loop carries out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.planner.propagate.gspmd.index import SweepIndex
from shardalg.planner.propagate.layouts import Layouts
from shardalg.planner.propagate.strategy import Annotations

Rows = list[tuple[int, Sharding]]


Told = bool | tuple[frozenset[int], tuple[tuple[int, int, bool], ...]]


def told(graph: Graph, annotations: Annotations, policy: str) -> Told:
    """What of the annotations decides how the graph is visited.

    Returns:
      Of GSPMD whether some result is annotated; of Shardy the annotated values, and its sites.
    """
    if policy != "shardy":
        return any(s is not None for s in annotations.results)
    own = frozenset(
        v for v, s in given(graph, annotations) if len(s.unspecified_dims) < len(s.dims)
    )
    pairs = zip(graph.sites, annotations.sites, strict=True)
    sites = [(site.node, sharding) for site, sharding in pairs if sharding is not None]
    numbers = {s: k for k, s in enumerate(dict.fromkeys(s for _, s in sites))}
    return own, tuple((node, numbers[s], not s.unspecified_dims) for node, s in sites)


def seed(
    graph: Graph, annotations: Annotations, layouts: Layouts, index: SweepIndex
) -> dict[int, int]:
    """Layout numbers of the annotated values, as far as they take part in the first round."""
    seeds = {value: _fixed(s, layouts) for value, s in given(graph, annotations)}
    for value, sharding in _on_operands(graph, annotations, index, set(seeds)).items():
        kind = graph.values[value].kind
        fixed = value in index.seeded or kind not in ("region_argument", "argument")
        seeds[value] = _fixed(sharding, layouts, fixed=fixed)
    return seeds


def _on_operands(
    graph: Graph, annotations: Annotations, index: SweepIndex, known: set[int]
) -> dict[int, Sharding]:
    """Annotations inside that also hold for the value they are put on, which has none of its own.

    Only those without an open dimension do. GSPMD takes the last of several, and an argument stays
    free to refine; of which they hold in Shardy's way, its index says.
    """
    pairs = [(s.node, a) for s, a in zip(graph.sites, annotations.sites, strict=True)]
    if index.notified:
        asked = dict(pairs)
        found = {value: asked[node] for value, node in index.seeded.items()}
        return {value: sharding for value, sharding in found.items() if sharding is not None}
    known = known | {value for value, _ in graph.constants}
    rows = [(graph.nodes[node].operands[0], sharding) for node, sharding in pairs]
    return {v: s for v, s in rows if s is not None and v not in known and not s.unspecified_dims}


def given(graph: Graph, annotations: Annotations) -> list[tuple[int, Sharding]]:
    """The values that have an annotation of their own, each with it; results are no such values."""
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    pairs = [
        *zip(graph.arguments, annotations.arguments, strict=True),
        *zip(sites, annotations.sites, strict=True),
        *annotations.values,
    ]
    return [(value, sharding) for value, sharding in pairs if sharding is not None]


def _fixed(sharding: Sharding, layouts: Layouts, *, fixed: bool = True) -> int:
    """An annotation's layout in the first round: dimensions of later ones are whole and closed."""
    known, key = layouts.annotated, (sharding, fixed)
    if key not in known:
        begin = layouts.whole(sharding.shape, fixed=fixed)
        known[key] = in_round(layouts, begin, sharding, 0)
    return known[key]


def in_round(layouts: Layouts, number: int, sharding: Sharding, now: int) -> int:
    """An annotated layout when the dimensions of priority `now` begin to take part.

    Args:
      number: the layout after the rounds before.
    """
    rounds = sharding.priorities or (0,) * len(sharding.dims)
    rows = zip(layouts.dims[number], sharding.dims, rounds, strict=True)
    dims = tuple(own if own_round == now else old for old, own, own_round in rows)
    waiting = [d for d, own_round in zip(sharding.dims, rounds, strict=True) if own_round > now]
    return layouts.number(
        sharding.shape,
        dims,
        fixed=layouts.fixed[number],
        open_dims=tuple(d for d in sharding.unspecified_dims if rounds[d] <= now),
        held=tuple(digit for digits in waiting for digit in digits),
    )


def rounds(graph: Graph, annotations: Annotations, index: SweepIndex) -> list[tuple[int, Rows]]:
    """(priority, annotated values and stand-ins that it concerns) of the rounds after the first."""
    shardings = (*annotations.arguments, *annotations.sites, *annotations.results)
    if not any(s is not None and s.priorities for s in shardings):
        return []
    own = dict(given(graph, annotations))
    rows = [*own.items(), *_on_operands(graph, annotations, index, set(own)).items()]
    rows += [(v, s) for v, s in enumerate(annotations.results, len(graph.values)) if s is not None]
    numbers = sorted({n for _, sharding in rows for n in sharding.priorities if n})
    return [(n, [row for row in rows if n in row[1].priorities]) for n in numbers]


def start(
    graph: Graph, annotations: Annotations, layouts: Layouts, index: SweepIndex
) -> tuple[list[int], dict[int, int]]:
    """A layout number per value and per stand-in of a result, and those of annotated values.

    Constants and rank-0 values stay replicated: a device cuts its block of a constant out of it for
    nothing. So does the stand-in of a result without annotation: it asks for nothing.
    """
    seeds = seed(graph, annotations, layouts, index)
    wholes = [layouts.whole(shape, fixed=not shape) for shape in index.shapes]
    numbers = [wholes[shape] for shape in index.shape_of]
    for value, _ in graph.constants:
        numbers[value] = layouts.whole(layouts.shapes[numbers[value]], fixed=True)
    loose = set(_loose_arguments(graph, annotations, layouts.policy))
    for value, number in seeds.items():
        numbers[value] = _loosened(number, layouts) if value in loose else number
    for stand_in, sharding in enumerate(annotations.results, len(graph.values)):
        shape = layouts.shapes[numbers[stand_in]]
        given = layouts.whole(shape, fixed=True) if sharding is None else _fixed(sharding, layouts)
        numbers[stand_in] = given
    return numbers, seeds


@dataclass(frozen=True)
class BorderChanges:
    """What the ends of a program change in the layouts that the sweeps found.

    Attributes:
      restored: arguments that have their annotation again, each with the layout it had in between.
      looped: (value, the body argument it follows).
      uneven: values replicated.
    """

    restored: tuple[tuple[int, int], ...]
    looped: tuple[tuple[int, int], ...]
    uneven: tuple[int, ...]

    def changes(self) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        """(value, kind of reason, sources)."""
        yield from ((value, "annotated", ()) for value, _ in self.restored)
        yield from ((value, "loop", (like,)) for value, like in self.looped)
        yield from ((value, "border", ()) for value in self.uneven)


def apply_border_rules(
    graph: Graph,
    annotations: Annotations,
    layouts: Layouts,
    *,
    numbers: list[int],
    seeds: dict[int, int],
    is_carried: bool,
) -> BorderChanges:
    """Bring the layouts to what holds at the borders of the program and of its loops, in place.

    Args:
      is_carried: whether what a loop's body returns has the layout of what it carries.
    """
    loose = _loose_arguments(graph, annotations, layouts.policy)
    restored = _settle_arguments(loose, numbers, seeds)
    looped = _settle_loops(graph, layouts, numbers) if is_carried else []
    uneven = _settle_borders(graph, annotations, layouts, numbers)
    return BorderChanges(tuple(restored), tuple(looped), tuple(uneven))


def _loose_arguments(graph: Graph, annotations: Annotations, policy: str) -> list[int]:
    """Annotated arguments that are refined on the way, and have their annotation again at the end.

    GSPMD fixes the arguments only where it may lay out none of them; else what reads an annotated
    one may come to a finer layout through it (`sharding_propagation.cc`, provided_shardings, and
    saved_parameter_shardings at the end).
    """
    pairs = [*zip(graph.arguments, annotations.arguments, strict=True)]
    used = {tie.source for tie in graph.region_arguments} | set(graph.results)
    free = [v for v, s in pairs if s is None and (graph.users[v] or v in used)]
    if policy != "gspmd" or not free:
        return []
    return [v for v, s in pairs if s is not None and not s.unspecified_dims and not s.priorities]


def _loosened(number: int, layouts: Layouts) -> int:
    """An annotated layout that may be refined like one without annotation."""
    shape, dims = layouts.shapes[number], layouts.dims[number]
    return layouts.number(shape, dims, open_dims=tuple(range(len(shape))))


def _settle_arguments(
    loose: list[int], numbers: list[int], seeds: dict[int, int]
) -> list[tuple[int, int]]:
    """Give annotated arguments their annotation again.

    Returns:
      (value changed, its layout before).
    """
    changed = [(value, numbers[value]) for value in loose if numbers[value] != seeds[value]]
    for value in loose:
        numbers[value] = seeds[value]
    return changed


def _settle_borders(
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
        even = layouts.even(number)
        if given is None and not layouts.fixed[number] and even != number:
            numbers[value] = even
            changed.append(value)
    return changed


def results(
    graph: Graph, annotations: Annotations, layouts: Layouts, numbers: list[int]
) -> list[int]:
    """A result's layout at the border: its annotation, completed where open, else its value's."""
    found = []
    for stand_in, (value, given) in enumerate(
        zip(graph.results, annotations.results, strict=True), len(graph.values)
    ):
        found.append(layouts.even(numbers[value]) if given is None else numbers[stand_in])
    return found


def _settle_loops(graph: Graph, layouts: Layouts, numbers: list[int]) -> list[tuple[int, int]]:
    """Give a loop's carried results, in and after the body, the layout of the body argument.

    A carry has one layout, its body argument's. Only annotated values keep another, and are
    resharded at the loop's border; so are initial values and constants, which may have other
    readers.

    Returns:
      (value changed, body argument whose layout it took).
    """
    carried = {
        (tie.call, tie.source): tie.target for tie in graph.region_arguments if tie.kind == "carry"
    }
    repairs = [(source, argument) for (_, source), argument in carried.items()]
    repairs += [
        (tie.target, carried[tie.call, tie.source])
        for tie in graph.region_arguments
        if tie.kind == "result" and (tie.call, tie.source) in carried
    ]
    changed = []
    for value, like in repairs:
        number = numbers[value]
        if not layouts.fixed[number] and layouts.dims[number] != layouts.dims[numbers[like]]:
            numbers[value] = layouts.number(layouts.shapes[number], layouts.dims[numbers[like]])
            changed.append((value, like))
    return changed
