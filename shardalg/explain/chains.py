"""Chains of completion: the steps by which each axis came to a value, back to the annotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from shardalg.algebra.digits import Digit, Digits, overlap
from shardalg.algebra.sharding import Sharding
from shardalg.errors import StrategyError
from shardalg.graph.ir import Graph
from shardalg.propagate.sharded import Reason, ShardedGraph


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
