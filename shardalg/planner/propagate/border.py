"""The beginning and the end of completion: initial shardings, uneven borders and loop carries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.planner.propagate.gspmd.index import SweepIndex
from shardalg.planner.propagate.layouts import Layouts
from shardalg.planner.propagate.strategy import Annotations

Rows = list[tuple[int, Sharding]]
"""Values with their annotations."""
VisitingFacts = bool | tuple[frozenset[int], tuple[tuple[int, int, bool], ...]]
"""The facts that `visiting_facts` returns."""


def visiting_facts(graph: Graph, annotations: Annotations, policy: str) -> VisitingFacts:
    """Return the facts of the annotations that decide the order in which operators are visited.

    Returns:
      For GSPMD, whether some result is annotated. For Shardy, the annotated values, and a triple
      for each annotated site: its node, a number that sites with equal annotations share, and
      whether the annotation leaves no dimension open.
    """
    # GSPMD counts the readers of results only if results are annotated. Shardy's order of visits
    # depends on the annotations themselves.
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
    """Return the sharding of each annotated value in the first round of priorities.

    Shardings are given by their numbers in `layouts`.
    """
    seeds = {value: _fixed(s, layouts) for value, s in given(graph, annotations)}
    for value, sharding in _operand_annotations(graph, annotations, index, set(seeds)).items():
        # An argument, also of a loop's body, may still be refined during the sweeps. For any other
        # value, a site that reads it counts as an annotation of its own.
        kind = graph.values[value].kind
        fixed = value in index.seeded or kind not in ("region_argument", "argument")
        seeds[value] = _fixed(sharding, layouts, fixed=fixed)
    return seeds


def _operand_annotations(
    graph: Graph, annotations: Annotations, index: SweepIndex, known: set[int]
) -> dict[int, Sharding]:
    """Return the annotations of sites that also hold for the value that the site reads.

    A site is an operator that only marks its operand with a sharding. The value has no annotation
    of its own, and the site leaves no dimension open. GSPMD takes the last of several sites, and an
    argument may still be refined. In Shardy's order, the index says which sites hold.
    """
    pairs = [(s.node, a) for s, a in zip(graph.sites, annotations.sites, strict=True)]
    # Only Shardy's index has `notified`; its `seeded` says which site decides for which value.
    if index.notified:
        by_node = dict(pairs)
        found = {value: by_node[node] for value, node in index.seeded.items()}
        return {value: sharding for value, sharding in found.items() if sharding is not None}
    # A constant stays replicated: a device cuts its block out of it without communication.
    known = known | {value for value, _ in graph.constants}
    # Of several sites that read a value, the dictionary keeps the last one, as GSPMD does.
    rows = [(graph.nodes[node].operands[0], sharding) for node, sharding in pairs]
    return {v: s for v, s in rows if s is not None and v not in known and not s.unspecified_dims}


def given(graph: Graph, annotations: Annotations) -> list[tuple[int, Sharding]]:
    """Return (value, sharding) for each value that has an annotation of its own.

    Annotations of the function's results are left out. A result has a number and a sharding of its
    own, apart from those of the value that it returns.
    """
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    pairs = [
        *zip(graph.arguments, annotations.arguments, strict=True),
        *zip(sites, annotations.sites, strict=True),
        *annotations.values,
    ]
    return [(value, sharding) for value, sharding in pairs if sharding is not None]


def _fixed(sharding: Sharding, layouts: Layouts, *, fixed: bool = True) -> int:
    """Return the number in `layouts` of the sharding with which an annotation begins completion.

    Priorities divide completion into rounds. In the first round, the dimensions that take part in
    later rounds are not sharded, and closed.

    Args:
      fixed: whether operators may change open dimensions only.
    """
    # A memo, because many values have equal annotations.
    known, key = layouts.annotated, (sharding, fixed)
    if key not in known:
        # Round 0 adds the dimensions without a priority to a replicated layout.
        replicated = layouts.whole(sharding.shape, fixed=fixed)
        known[key] = in_round(layouts, replicated, sharding, 0)
    return known[key]


def in_round(layouts: Layouts, number: int, sharding: Sharding, now: int) -> int:
    """Return the sharding of an annotated value at the beginning of the round `now`.

    In each round, the annotation's dimensions of this priority take part. The sharding is given by
    its number in `layouts`.

    Args:
      number: the number of the sharding after the earlier rounds.
    """
    rounds = sharding.priorities or (0,) * len(sharding.dims)
    # Dimensions of other rounds keep their digits, because earlier rounds may have changed them.
    rows = zip(layouts.dims[number], sharding.dims, rounds, strict=True)
    dims = tuple(own if own_round == now else old for old, own, own_round in rows)
    # No other dimension may take the digits of a later round: one digit cannot partition two.
    waiting = [d for d, own_round in zip(sharding.dims, rounds, strict=True) if own_round > now]
    return layouts.number(
        sharding.shape,
        dims,
        fixed=layouts.fixed[number],
        open_dims=tuple(d for d in sharding.unspecified_dims if rounds[d] <= now),
        reserved=tuple(digit for digits in waiting for digit in digits),
    )


def rounds(graph: Graph, annotations: Annotations, index: SweepIndex) -> list[tuple[int, Rows]]:
    """Return the rounds of completion after the first one, in ascending order of priority.

    Each entry is a priority and the annotated values, as (value, sharding), of which a dimension
    has this priority. Dimensions with priority 0, or without one, take part from the first round.
    """
    # Most strategies have no priorities.
    shardings = (*annotations.arguments, *annotations.sites, *annotations.results)
    if not any(s is not None and s.priorities for s in shardings):
        return []
    # Annotations of single operands and of results have rounds, too. Results are numbered after the
    # graph's values, because one value may be several results with different annotations.
    annotated = dict(given(graph, annotations))
    operands = _operand_annotations(graph, annotations, index, set(annotated))
    rows = [*annotated.items(), *operands.items()]
    rows += [(v, s) for v, s in enumerate(annotations.results, len(graph.values)) if s is not None]
    priorities = sorted({p for _, sharding in rows for p in sharding.priorities if p})
    return [(p, [row for row in rows if p in row[1].priorities]) for p in priorities]


def start(
    graph: Graph, annotations: Annotations, layouts: Layouts, index: SweepIndex
) -> tuple[list[int], dict[int, int]]:
    """Return the initial layout numbers of values and results, and the annotated values' numbers.

    Constants and scalars stay replicated: a device cuts its block out of a constant without
    communication. Each result of the function has an entry of its own after the values (a
    stand-in). That of a result without annotation is replicated, so that it offers nothing.
    """
    seeds = seed(graph, annotations, layouts, index)
    # At first every value is replicated. There is one such layout per shape; scalars are fixed.
    replicated = [layouts.whole(shape, fixed=not shape) for shape in index.shapes]
    numbers = [replicated[shape] for shape in index.shape_of]
    for value, _ in graph.constants:
        numbers[value] = layouts.whole(layouts.shapes[numbers[value]], fixed=True)
    loose = set(_loose_arguments(graph, annotations, layouts.policy))
    for value, number in seeds.items():
        # GSPMD may refine a loose argument during the sweeps, so all its dimensions are open.
        # `apply_border_rules` restores the annotation afterwards.
        if value in loose:
            shape, dims = layouts.shapes[number], layouts.dims[number]
            number = layouts.number(shape, dims, open_dims=tuple(range(len(shape))))
        numbers[value] = number
    for stand_in, sharding in enumerate(annotations.results, len(graph.values)):
        shape = layouts.shapes[numbers[stand_in]]
        if sharding is None:
            numbers[stand_in] = layouts.whole(shape, fixed=True)
        else:
            numbers[stand_in] = _fixed(sharding, layouts)
    return numbers, seeds


@dataclass(frozen=True)
class BorderChanges:
    """The changes of shardings at the borders of the program and of its loops, after the sweeps.

    Attributes:
      restored: arguments that have their annotation again, each with its layout number before.
      looped: (value, the body's argument whose sharding it took).
      uneven: values that were made even.
    """

    restored: tuple[tuple[int, int], ...]
    looped: tuple[tuple[int, int], ...]
    uneven: tuple[int, ...]

    def changes(self) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        """Yield (value, kind of reason, values that the sharding is taken from) for each change."""
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
    """Apply the rules of the program's and the loops' borders to the layout numbers, in place.

    Args:
      is_carried: whether the value that a loop's body returns has the sharding of the carry.
    """
    # In this order: carries take the restored shardings, and only final shardings are made even.
    loose = _loose_arguments(graph, annotations, layouts.policy)
    restored = _restore_arguments(loose, numbers, seeds)
    looped = _share_carries(graph, layouts, numbers) if is_carried else []
    uneven = _make_even(graph, annotations, layouts, numbers)
    return BorderChanges(tuple(restored), tuple(looped), tuple(uneven))


def _loose_arguments(graph: Graph, annotations: Annotations, policy: str) -> list[int]:
    """Return the annotated arguments that are refined during the sweeps, and restored afterwards.

    GSPMD fixes the arguments only if it may not shard any of them. Otherwise the readers of an
    annotated argument may get a finer sharding through it (`sharding_propagation.cc`,
    provided_shardings, and saved_parameter_shardings at the end).
    """
    # Only an argument that something reads counts as open: no other one could get a sharding.
    pairs = [*zip(graph.arguments, annotations.arguments, strict=True)]
    used = {tie.source for tie in graph.region_arguments} | set(graph.results)
    free = [v for v, s in pairs if s is None and (graph.users[v] or v in used)]
    if policy != "gspmd" or not free:
        return []
    return [v for v, s in pairs if s is not None and not s.unspecified_dims and not s.priorities]


def _restore_arguments(
    loose: list[int], numbers: list[int], seeds: dict[int, int]
) -> list[tuple[int, int]]:
    """Give arguments their annotated shardings again; return the changed ones.

    An entry of the result is (value, its layout number before).

    Args:
      loose: the annotated arguments that completion was allowed to change.
      numbers: the layout number of each value; changed in place.
      seeds: the layout number of each annotation.
    """
    changed = [(value, numbers[value]) for value in loose if numbers[value] != seeds[value]]
    for value in loose:
        numbers[value] = seeds[value]
    return changed


def _make_even(
    graph: Graph, annotations: Annotations, layouts: Layouts, numbers: list[int]
) -> list[int]:
    """Give completed arguments and results even shardings; return the values that changed.

    JAX takes and returns even shards only. GSPMD replicates an uneven value, also a result. Shardy
    keeps the longest prefix of its axes that divides the sizes. For results Shardy does this only
    where they leave the program, so that the value inside may stay uneven and is not changed here.
    """
    borders = [*zip(graph.arguments, annotations.arguments, strict=True)]
    if layouts.policy == "gspmd":
        borders += zip(graph.results, annotations.results, strict=True)
    changed = []
    for value, annotation in borders:
        number = numbers[value]
        even = layouts.even(number)
        # An annotation of the user is not changed.
        if annotation is None and not layouts.fixed[number] and even != number:
            numbers[value] = even
            changed.append(value)
    return changed


def results(
    graph: Graph, annotations: Annotations, layouts: Layouts, numbers: list[int]
) -> list[int]:
    """Return the sharding with which each result leaves the function, as a number in `layouts`.

    It is the result's annotation, completed in its open dimensions. A result without annotation has
    the sharding of its value, made even.
    """
    # Result k has the entry `len(graph.values) + k` of `numbers`, apart from that of its value: one
    # value may be several results with different annotations.
    found = []
    for stand_in, (value, given) in enumerate(
        zip(graph.results, annotations.results, strict=True), len(graph.values)
    ):
        found.append(layouts.even(numbers[value]) if given is None else numbers[stand_in])
    return found


def _share_carries(graph: Graph, layouts: Layouts, numbers: list[int]) -> list[tuple[int, int]]:
    """Give the results of a loop, and of its body, the sharding of the carry; return the changes.

    The sharding of a carry is that of the body's argument. Three kinds of values keep their own
    sharding, and are resharded at the loop's border: annotated values, initial values and constants
    (the last two may have other readers).

    Returns:
      Pairs (changed value, the body's argument whose sharding it took).
    """
    # The body's argument for each (loop, result of the body that is its next value).
    carried = {
        (tie.call, tie.source): tie.target for tie in graph.region_arguments if tie.kind == "carry"
    }
    # Initial values and constants are not listed, so they keep their shardings; annotated values
    # are `fixed`.
    repairs = [(source, argument) for (_, source), argument in carried.items()]
    repairs += [
        (tie.target, carried[tie.call, tie.source])
        for tie in graph.region_arguments
        if tie.kind == "result" and (tie.call, tie.source) in carried
    ]
    changed = []
    for value, argument in repairs:
        number = numbers[value]
        dims = layouts.dims[numbers[argument]]
        if not layouts.fixed[number] and layouts.dims[number] != dims:
            numbers[value] = layouts.number(layouts.shapes[number], dims)
            changed.append((value, argument))
    return changed
