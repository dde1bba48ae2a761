"""Why a value has its layout: the steps that brought it, and what was asked for and refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardalg.algebra.sharding import Sharding
from shardalg.explain.chains import (
    Annotated,
    Link,
    annotated,
    annotations_behind,
    annotations_of,
    chain,
    held,
    value_named,
)
from shardalg.io.answers import Answer, Parts
from shardalg.io.table import Table
from shardalg.propagate.sharded import Conflict, ShardedGraph

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
