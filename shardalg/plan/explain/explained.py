"""Why a value has its layout: the steps that brought it, and what was asked for and refused.

Chains of completion: the steps by which each axis came to a value, back to the annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from shardalg.algebra.digits import Digit, Digits, overlap
from shardalg.algebra.sharding import Sharding
from shardalg.errors import StrategyError
from shardalg.graph.ir import Graph
from shardalg.planner.propagate.sharded import Conflict, Reason, ShardedGraph
from shardalg.tables import Answer, Parts, Table


@dataclass(frozen=True, slots=True)
class Annotated:
    """Where a user said something.

    Attributes:
      kind: "argument", "result" or "site"; name: its path, or the name of the site.
      number: among the flat arguments or results, or the graph's sites.
    """

    kind: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Link:
    """A step that brought `digits` to a value; `depth` steps before the one that is explained."""

    depth: int
    digits: Digits
    reason: Reason


def value_named(graph: Graph, name: str) -> int:
    """The value that a table calls `name`.

    Raises:
      StrategyError: there is none; the message names those near it.
    """
    found = {value.name: value.index for value in graph.values}
    found = {**dict(zip(graph.result_paths, graph.results, strict=True)), **found}
    if not isinstance(name, str) or name not in found:
        near = get_close_matches(str(name), found, n=5, cutoff=0.5) or list(found)[:5]
        raise StrategyError(
            f"no value is called {name!r}; near it are {', '.join(map(repr, near))}. "
            "plan.shardings() lists the names of all values."
        )
    return found[name]


def held(layout: Sharding, digits: Digits) -> Digits:
    """Those of `digits` that a layout splits a dimension by, wholly or in part."""
    return tuple(digit for digit in digits if dims_of(layout, digit))


def chain(sharded: ShardedGraph, value: int, digits: Digits | None = None) -> Iterator[Link]:
    """The steps that brought `digits` (None: all of its layout) to a value, sources behind them.

    Each change comes once per axis. A value that nothing reaches has the one step that says so.
    """
    if value not in sharded.changes:
        yield Link(0, (), sharded.reasons[value])
        return
    if digits is None:
        digits = tuple(d for dim in sharded.shardings[value].dims for d in dim)
    last = len(sharded.history)
    waiting = [(0, *found) for found in reversed(arrivals(sharded, value, digits, before=last))]
    seen = set()
    while waiting:
        depth, moment, reason, brought = waiting.pop()
        if (moment, brought) in seen:
            continue
        seen.add((moment, brought))
        yield Link(depth, brought, reason)
        for source, rest in reversed(_sources(sharded, reason, brought, moment)):
            found = arrivals(sharded, source, rest, before=moment)
            waiting += [(depth + 1, *arrival) for arrival in reversed(found)]


def arrivals(
    sharded: ShardedGraph, value: int, digits: Digits, *, before: int
) -> list[tuple[int, Reason, Digits]]:
    """(moment, change, digits it brought) of a value, the last change first.

    A digit came with the first of the latest unbroken run of layouts that hold it where it is.
    """
    changes = [change for change in sharded.changes.get(value, ()) if change[0] < before]
    if not changes:
        return []
    brought: dict[int, list] = {} if digits else {len(changes) - 1: []}
    for digit in digits:
        places = [dims_of(reason.layout, digit) for _, reason in changes]
        at = len(places) - 1
        while at and places[at - 1] == places[-1] != ():
            at -= 1
        brought.setdefault(at, []).append(digit)
    return [(*changes[at], tuple(brought[at])) for at in sorted(brought, reverse=True)]


def dims_of(layout: Sharding, digit: Digit) -> tuple[int, ...]:
    """The dimensions that a digit splits, wholly or in part."""
    own = enumerate(layout.dims)
    return tuple(at for at, dim in own if any(digit == d or overlap(digit, d) for d in dim))


def _sources(
    sharded: ShardedGraph, reason: Reason, digits: Digits, moment: int
) -> list[tuple[int, Digits]]:
    """The sources that held some of the digits, each with those; all of them if none did."""
    found = [(s, held(_layout_at(sharded, s, moment), digits)) for s in reason.sources]
    return [pair for pair in found if pair[1]] or [(s, ()) for s in reason.sources]


def _layout_at(sharded: ShardedGraph, value: int, moment: int) -> Sharding:
    earlier = [r for at, r in sharded.changes.get(value, ()) if at < moment]
    return earlier[-1].layout if earlier else sharded.shardings[value]


def annotations_of(
    sharded: ShardedGraph, value: int, digits: Digits | None = None
) -> tuple[Annotated, ...]:
    """The annotations from which `digits` (None: all of its layout) came to a value."""
    return annotations_behind(sharded, chain(sharded, value, digits))


def annotations_behind(sharded: ShardedGraph, links: Iterable[Link]) -> tuple[Annotated, ...]:
    """The annotations that some of these steps are, each once."""
    places = (annotated(sharded, link.reason) for link in links)
    return tuple(dict.fromkeys(place for place in places if place is not None))


def annotated(sharded: ShardedGraph, reason: Reason) -> Annotated | None:
    """The annotation that a step is, or (of a result) took its layout from; None for another."""
    graph, given = sharded.graph, sharded.annotations
    if reason.kind == "completed" and reason.node is None:
        places = [j for j, v in enumerate(graph.results) if v == reason.value and given.results[j]]
        return Annotated("result", graph.result_paths[places[0]], places[0]) if places else None
    if reason.kind == "annotated" and reason.value in graph.arguments:
        at = graph.arguments.index(reason.value)
        return Annotated("argument", graph.argument_paths[at], at)
    if reason.kind not in ("annotated", "annotated operand"):
        return None
    return _site(sharded, reason)


def _site(sharded: ShardedGraph, reason: Reason) -> Annotated | None:
    """The site that marks a value, or the last one that is put on it."""
    graph, given = sharded.graph, sharded.annotations.sites
    made = reason.kind == "annotated"
    found = None
    for number, site in enumerate(graph.sites):
        node = graph.nodes[site.node]
        if (
            given[number] is not None
            and reason.value == (node.results if made else node.operands)[0]
        ):
            name = site.name or graph.values[node.results[0]].name
            found = Annotated("site", name, number)
    return found


EXPLANATION_COLUMNS = (
    "depth", "value", "sharding", "why", "source",
    "mesh_axes", "op", "role", "direction", "level", "annotation",
)  # fmt: skip
REFUSED_COLUMNS = ("value", "kept", "refused", "op", "source", "asked_by", "annotations")


@dataclass(frozen=True, repr=False)
class ValueExplanation(Answer):
    """Why a value has its layout.

    Attributes:
      value, sharding: name and completed layout.
      annotations: those that its axes come from.
      steps: one row per step, `depth` 0 the value's own; `axes` are those that the step brought.
      refused: layouts that were asked for along these steps, of this value or one before it, and
        that did not merge with what the value had; see `refusals`.
    """

    value: str
    sharding: Sharding
    annotations: tuple[Annotated, ...]
    steps: Table
    refused: Table

    @property
    def table(self) -> Table:
        """The steps."""
        return self.steps

    def parts(self) -> Parts:
        """A sentence, the steps, and what was refused on the way."""
        head = f"{self.value} is {self.sharding.text()}: {_from(self.annotations)}."
        refused = (REFUSED, self.refused) if len(self.refused) else ()
        return (head, self.steps, *refused)


REFUSED = "Asked for on the way, and refused because it does not merge with what was kept:"


def _from(annotations: Sequence[Annotated]) -> str:
    """In words, at most three of them.

    >>> _from([Annotated("argument", "x", 0), Annotated("site", "ffn", 2)])
    'it comes from argument x, site ffn'
    """
    if not annotations:
        return "no annotation reaches it"
    more = f" and {len(annotations) - 3} more" if len(annotations) > 3 else ""
    return f"it comes from {', '.join(map(str, annotations[:3]))}{more}"


def explanation(sharded: ShardedGraph, value: str) -> ValueExplanation:
    """Why a value has its layout: per axis the steps that brought it, back to the annotations.

    Depth 0 are the value's own changes, each followed by those of the values whose layouts it took,
    as they were at that moment.

    Raises:
      StrategyError: no value has that name.
    """
    start = value_named(sharded.graph, value)
    links = tuple(chain(sharded, start))
    rows = tuple(_row(sharded, link) for link in links)
    nearest = sorted(links, key=lambda link: link.depth)
    refused = refusals(sharded, tuple(dict.fromkeys(link.reason.value for link in nearest)))
    behind = annotations_behind(sharded, links)
    steps = Table(EXPLANATION_COLUMNS, rows)
    return ValueExplanation(value, sharded.shardings[start], behind, steps, refused)


def _row(sharded: ShardedGraph, link: Link) -> tuple[object, ...]:
    reason, graph = link.reason, sharded.graph
    node = None if reason.node is None else graph.nodes[reason.node]
    place = annotated(sharded, reason)
    return (
        link.depth,
        graph.values[reason.value].name,
        reason.layout.text(),
        reason.text(graph),
        "" if node is None else node.source,
        ",".join(sharded.mesh.texts(link.digits)),
        "" if node is None else node.primitive,
        reason.role,
        reason.direction,
        reason.level,
        "" if place is None else str(place),
    )


def refusals(
    sharded: ShardedGraph,
    values: Sequence[int],
    wanted: Callable[[Sharding], bool] = lambda _: True,
) -> Table:
    """What operators asked for of some values, and did not get: the conflicts of completion.

    `asked_by` are the values whose layouts the operator would have passed on, and `annotations`
    those that these have the refused axes from.

    Args:
      values: in the order in which they are told.
      wanted: of a refused layout, whether it is told.
    """
    places = {value: place for place, value in enumerate(values)}
    told = (c for c in sharded.conflicts if c.value in places and wanted(c.refused))
    found = sorted(told, key=lambda conflict: places[conflict.value])
    return Table(REFUSED_COLUMNS, tuple(_refusal(sharded, conflict) for conflict in found))


def _refusal(sharded: ShardedGraph, conflict: Conflict) -> tuple[object, ...]:
    graph = sharded.graph
    node = None if conflict.node is None else graph.nodes[conflict.node]
    axes = tuple(digit for dim in conflict.refused.dims for digit in dim)
    behind = dict.fromkeys(
        place
        for source in conflict.sources
        for place in annotations_of(sharded, source, held(sharded.shardings[source], axes))
    )
    return (
        graph.values[conflict.value].name,
        conflict.kept.text(),
        conflict.refused.text(),
        "border" if node is None else node.primitive,
        "" if node is None else node.source,
        ", ".join(graph.values[source].name for source in conflict.sources),
        ", ".join(map(str, behind)),
    )
