"""Why a value has its sharding: the steps of completion, and the shardings that were refused.

A chain follows each axis of a value back through the steps of completion to annotations.
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
    """A place that the user annotated.

    Attributes:
      kind: "argument", "result" or "site". name: the path, or the name of the site.
      number: the index among the flat arguments or results, or the graph's sites.
    """

    kind: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Link:
    """A step of completion by which a value became sharded along `digits` (mesh axes or parts).

    Attributes:
      depth: the number of steps between it and the explained value; 0 is the value's own step.
      reason: the change of the value's sharding, with the operator that caused it.
    """

    depth: int
    digits: Digits
    reason: Reason


def value_named(graph: Graph, name: str) -> int:
    """Return the value that a table calls `name`.

    Raises:
      StrategyError: no value has this name; the message lists similar names.
    """
    found = {value.name: value.index for value in graph.values}
    # Paths of results are names too; a value of the same name has precedence.
    found = {**dict(zip(graph.result_paths, graph.results, strict=True)), **found}
    if not isinstance(name, str) or name not in found:
        # Without similar names, the first names at least show how names are written.
        near = get_close_matches(str(name), found, n=5, cutoff=0.5) or list(found)[:5]
        raise StrategyError(
            f"no value is called {name!r}. Similar names: {', '.join(map(repr, near))}. "
            "plan.shardings() lists the names of all values."
        )
    return found[name]


def held(layout: Sharding, digits: Digits) -> Digits:
    """Return the digits along which the layout shards a dimension, at least in part."""
    return tuple(digit for digit in digits if dims_of(layout, digit))


def chain(sharded: ShardedGraph, value: int, digits: Digits | None = None) -> Iterator[Link]:
    """Yield the steps of completion by which a value became sharded along `digits`, depth first.

    None stands for all axes of its sharding. Each change comes once per axis. If no annotation
    propagates to the value, the only step says that it is replicated.
    """
    # A value that completion never changed has no history to follow, only its initial reason.
    if value not in sharded.changes:
        yield Link(0, (), sharded.reasons[value])
        return
    if digits is None:
        digits = tuple(d for dim in sharded.shardings[value].dims for d in dim)
    last = len(sharded.history)
    # A stack gives a depth-first order, in which the sources of a step come directly after it.
    waiting = [(0, *found) for found in reversed(arrivals(sharded, value, digits, before=last))]
    seen = set()
    while waiting:
        depth, moment, reason, brought = waiting.pop()
        # A step can be reached through several values; it is listed where it comes first.
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
    """Return the changes by which a value became sharded along `digits`, the last one first.

    An entry is (moment, change, digits that came with the change). A moment is an index in
    `sharded.history`; changes from `before` on are ignored.

    Completion can remove a digit and bring it again. A digit therefore belongs to the first change
    of the latest run of layouts that have it on the same dimensions.
    """
    # Later changes did not exist yet when the step before read the value.
    changes = [change for change in sharded.changes.get(value, ()) if change[0] < before]
    if not changes:
        return []
    # By number of a change, the digits that came with it. Without digits to look for, the last
    # change alone is the answer.
    brought: dict[int, list] = {} if digits else {len(changes) - 1: []}
    for digit in digits:
        # Walk back from the last change while the digit is on the same dimensions. The place where
        # this run begins is the change with which the digit came.
        places = [dims_of(reason.layout, digit) for _, reason in changes]
        at = len(places) - 1
        while at and places[at - 1] == places[-1] != ():
            at -= 1
        brought.setdefault(at, []).append(digit)
    return [(*changes[at], tuple(brought[at])) for at in sorted(brought, reverse=True)]


def dims_of(layout: Sharding, digit: Digit) -> tuple[int, ...]:
    """Return the dimensions that are sharded along a digit, at least in part."""
    own = enumerate(layout.dims)
    return tuple(at for at, dim in own if any(digit == d or overlap(digit, d) for d in dim))


def _sources(
    sharded: ShardedGraph, reason: Reason, digits: Digits, moment: int
) -> list[tuple[int, Digits]]:
    """Return (value, digits) for each value from which a step took its sharding.

    The digits are the part of `digits` along which the value was sharded before the step. Values
    that had no such digits are left out. If none had any, all are returned with ().

    Args:
      reason: the step.
      moment: the number of the step in the history of completion.
    """
    found = []
    for source in reason.sources:
        # The step read the sharding that the source had at that moment, not the completed one.
        earlier = [change for at, change in sharded.changes.get(source, ()) if at < moment]
        layout = earlier[-1].layout if earlier else sharded.shardings[source]
        found.append((source, held(layout, digits)))
    return [pair for pair in found if pair[1]] or [(source, ()) for source in reason.sources]


def annotations_of(
    sharded: ShardedGraph, value: int, digits: Digits | None = None
) -> tuple[Annotated, ...]:
    """Return the annotations that caused a value to be sharded along `digits`.

    None stands for all axes of its sharding.
    """
    return annotations_behind(sharded, chain(sharded, value, digits))


def annotations_behind(sharded: ShardedGraph, links: Iterable[Link]) -> tuple[Annotated, ...]:
    """Return the annotations among steps of completion (`links`), each once."""
    places = (annotated(sharded, link.reason) for link in links)
    return tuple(dict.fromkeys(place for place in places if place is not None))


def annotated(sharded: ShardedGraph, reason: Reason) -> Annotated | None:
    """Return the user's annotation from which a step of completion took a sharding, or None.

    Args:
      reason: the step.
    """
    graph, given = sharded.graph, sharded.annotations
    # Three kinds of annotations: of a result, of an argument, or of a site in the function.
    # Completion reads the annotation of a result at a stand-in outside of the graph. Only such a
    # step has no operator.
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
    """Return the annotated site from which the sharding of a step of completion comes, or None.

    It is the site that makes the step's value, or the last site that reads this value.

    Args:
      reason: the step. If its kind is "annotated", a site makes its value.
    """
    graph, site_layouts = sharded.graph, sharded.annotations.sites
    # A `with_sharding_constraint` annotates its result, and by completion also its operand. The
    # kind of the step says which of both the value is.
    is_result = reason.kind == "annotated"
    last_site = None
    for number, site in enumerate(graph.sites):
        node = graph.nodes[site.node]
        if (
            site_layouts[number] is not None
            and reason.value == (node.results if is_result else node.operands)[0]
        ):
            name = site.name or graph.values[node.results[0]].name
            last_site = Annotated("site", name, number)
    return last_site


EXPLANATION_COLUMNS = (
    "depth", "value", "sharding", "why", "source",
    "mesh_axes", "op", "role", "direction", "level", "annotation",
)  # fmt: skip
REFUSED_COLUMNS = ("value", "kept", "refused", "op", "source", "asked_by", "annotations")


@dataclass(frozen=True, repr=False)
class ValueExplanation(Answer):
    """The reasons for a value's sharding.

    Attributes:
      value, sharding: the value's name and its completed sharding.
      annotations: the annotations that its axes come from.
      steps: a row per step, with `depth` 0 for the value's own; `mesh_axes` came with the step.
      refused: shardings that operators proposed for the value, or for an earlier one, and that did
        not merge with the sharding that it had; see `refusals`.
    """

    value: str
    sharding: Sharding
    annotations: tuple[Annotated, ...]
    steps: Table
    refused: Table

    @property
    def table(self) -> Table:
        """The steps of completion that gave the value its sharding, a row each."""
        return self.steps

    def parts(self) -> Parts:
        """Return the parts of the printed text: a sentence, the steps, and refused shardings."""
        head = f"{self.value} is {self.sharding.text()}: {_from(self.annotations)}."
        refused = (REFUSED, self.refused) if len(self.refused) else ()
        return (head, self.steps, *refused)


REFUSED = "Proposed by operators on the way, but incompatible with the sharding that was kept:"


def _from(annotations: Sequence[Annotated]) -> str:
    """Return at most three annotations as text.

    >>> _from([Annotated("argument", "x", 0), Annotated("site", "ffn", 2)])
    'its axes come from argument x, site ffn'
    """
    if not annotations:
        return "no annotation propagates to it"
    more = f" and {len(annotations) - 3} more" if len(annotations) > 3 else ""
    return f"its axes come from {', '.join(map(str, annotations[:3]))}{more}"


def explanation(sharded: ShardedGraph, value: str) -> ValueExplanation:
    """Return why a value has its sharding: the steps of each axis, back to the annotations.

    Steps of depth 0 are changes of the value itself. Each is followed by the changes of the values
    from which it took its sharding, as they were at that moment.

    Raises:
      StrategyError: no value has that name.
    """
    start = value_named(sharded.graph, value)
    links = tuple(chain(sharded, start))
    rows = tuple(_row(sharded, link) for link in links)
    # The user asked about this value, so its own conflicts (depth 0) come first.
    nearest = sorted(links, key=lambda link: link.depth)
    refused = refusals(sharded, tuple(dict.fromkeys(link.reason.value for link in nearest)))
    behind = annotations_behind(sharded, links)
    steps = Table(EXPLANATION_COLUMNS, rows)
    return ValueExplanation(value, sharded.shardings[start], behind, steps, refused)


def _row(sharded: ShardedGraph, link: Link) -> tuple[object, ...]:
    """Return the row of `EXPLANATION_COLUMNS` for one step of completion.

    The step gave a value a sharding: from an annotation, or through an operator (`node`).
    """
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
    """Return the shardings that operators proposed for values and that completion refused.

    A refused sharding conflicts with the one that the value had. `asked_by` are the values whose
    shardings the operator would have passed on. `annotations` are the origins of the refused axes
    in these values.

    Args:
      values: the values, in the order of the rows.
      wanted: selects refused shardings; a conflict with another one has no row.
    """
    # Completion records every conflict: a proposal that did not merge with the value's sharding.
    places = {value: place for place, value in enumerate(values)}
    selected = [c for c in sharded.conflicts if c.value in places and wanted(c.refused)]
    selected.sort(key=lambda conflict: places[conflict.value])
    return Table(REFUSED_COLUMNS, tuple(_refusal(sharded, conflict) for conflict in selected))


def _refusal(sharded: ShardedGraph, conflict: Conflict) -> tuple[object, ...]:
    """Return the row of `REFUSED_COLUMNS` for one conflict.

    A conflict is a sharding that an operator proposed for a value, and that did not merge with the
    sharding that the value had. Without an operator it is at the border of the function.
    """
    graph = sharded.graph
    node = None if conflict.node is None else graph.nodes[conflict.node]
    axes = tuple(digit for dim in conflict.refused.dims for digit in dim)
    # Only annotations that brought the refused axes can be changed to avoid the conflict.
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
