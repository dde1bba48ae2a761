"""Changes: an annotation with another layout, wherever one spec of the user's says it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from shardalg.algebra.digits import Digit, Digits, overlap, parts
from shardalg.algebra.sharding import Sharding
from shardalg.plan.explain.disagreements import Side
from shardalg.plan.explain.explained import Annotated
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.stages import Stages
from shardalg.planner.traced import Traced

MOST_PLACES = 6
"""So many of the annotations behind a collective are tried otherwise, the value's own first."""
MOST_TOLD = 4
"""So many changes of a set are told in a sentence; tables have all."""
Slot = tuple[str, int]
"""An entry of `Annotations`: its field, and the place in it."""


@dataclass(frozen=True)
class AnnotationChange:
    """One annotation with another layout.

    Attributes:
      place: what is annotated; slots: all that one spec says (sites of one name, a state's argument
        and result).
      before, after: its layout; changed_dims: in how many dimensions they differ.
    """

    place: Annotated
    slots: tuple[Slot, ...]
    before: Sharding
    after: Sharding

    @property
    def changed_dims(self) -> int:
        """In how many dimensions the layouts differ."""
        pairs = zip(self.before.dims, self.after.dims, strict=True)
        return sum(before != after for before, after in pairs)

    @property
    def steps(self) -> tuple[AnnotationChange, ...]:
        """The change itself, as a tuple: of `Changes` each."""
        return (self,)

    def applied(self, annotations: Annotations) -> Annotations:
        """The annotations with this change."""
        return filled(annotations, self.slots, self.after)

    def __str__(self) -> str:
        return f"{self.place} as {self.after.text()} instead of {self.before.text()}"


@dataclass(frozen=True)
class Changes:
    """Changes of different annotations, together."""

    steps: tuple[AnnotationChange, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All that any of them says."""
        return tuple(slot for change in self.steps for slot in change.slots)

    @property
    def changed_dims(self) -> int:
        """In how many dimensions the layouts differ, of all together."""
        return sum(change.changed_dims for change in self.steps)

    def applied(self, annotations: Annotations) -> Annotations:
        """The annotations with all changes."""
        for step in self.steps:
            annotations = step.applied(annotations)
        return annotations

    def __str__(self) -> str:
        shown = ", and ".join(map(str, self.steps[:MOST_TOLD]))
        rest = len(self.steps) - MOST_TOLD
        return f"{shown}, and {rest} more" if rest > 0 else shown


def filled(given: Annotations, slots: tuple[Slot, ...], layout: Sharding) -> Annotations:
    """The annotations with one layout in some of their places."""
    sides = {name: list(getattr(given, name)) for name, _ in slots}
    for name, at in slots:
        shape = layout.shape if sides[name][at] is None else sides[name][at].shape
        sides[name][at] = replace(layout, shape=shape)
    made: dict[str, Any] = {name: tuple(side) for name, side in sides.items()}
    return replace(given, **made)


def changes(stages: Stages, sides: tuple[Side, Side], digits: Digits) -> Iterator[AnnotationChange]:
    """Each annotation of two sides that disagree, changed.

    Some of the axes along which the collective runs are dropped, added or moved; or the layout is
    that of either side, where the value has the annotation's shape.
    """
    wanted = [side.layout for side in sides]
    for place, slots, before in islice(_places(stages, sides), MOST_PLACES):
        same = [s.dims for s in wanted if s.shape == before.shape and s.is_even]
        for dims in dict.fromkeys((*_edits(before, digits), *same)):
            if dims != before.dims:
                yield AnnotationChange(place, slots, before, before.with_dims(dims))


def drops(stages: Stages, sides: tuple[Side, Side], digits: Digits) -> Iterator[AnnotationChange]:
    """Each annotation of two sides that disagree, without any of the collective's axes."""
    for place, slots, before in _places(stages, sides):
        kept = tuple(tuple(d for d in dim if not _meets(d, digits)) for dim in before.dims)
        if kept != before.dims:
            yield AnnotationChange(place, slots, before, before.with_dims(kept))


def _meets(digit: Digit, digits: Digits) -> bool:
    return any(digit == other or overlap(digit, other) for other in digits)


def _places(
    stages: Stages, sides: tuple[Side, Side]
) -> Iterator[tuple[Annotated, tuple[Slot, ...], Sharding]]:
    """The annotations of two sides, each spec of the user's once: all it says, and its layout."""
    seen: set[tuple[Slot, ...]] = set()
    for place in dict.fromkeys(place for side in sides for place in side.annotations):
        slots = _slots(stages.traced, stages.annotations, place)
        if slots in seen or _says_a_region(stages, place):
            continue
        seen.add(slots)
        field_, at = slots[0]
        yield place, slots, getattr(stages.annotations, field_)[at]


def _says_a_region(stages: Stages, place: Annotated) -> bool:
    """Whether a spec of a shard_map says the layout: what runs inside was traced for it."""
    if place.kind != "site":
        return False
    graph = stages.graph
    node = graph.nodes[graph.sites[place.number].node]
    around = (graph.producer[node.operands[0]], *graph.users[node.results[0]])
    return any(n is not None and graph.nodes[n].primitive == "shard_map" for n in around)


def _edits(layout: Sharding, digits: Digits) -> Iterator[tuple[Digits, ...]]:
    """Layouts in which one axis, or all of them, stand on another dimension or on none.

    A collective along a part of an axis that the layout names is of that axis.
    """
    own = [d for dim in layout.dims for d in dim]
    named = [next((d for d in own if overlap(d, digit)), digit) for digit in digits]
    digits = tuple(dict.fromkeys(named))
    groups = [(digit,) for digit in digits] + ([digits] if len(digits) > 1 else [])
    found: dict[tuple[Digits, ...], None] = {}
    for group in groups:
        rest = tuple(tuple(d for d in dim if d not in group) for dim in layout.dims)
        found[rest] = None
        for at, dim in enumerate(rest):
            longer = (*dim, *group)
            if layout.shape[at] % parts(longer) == 0:
                found[(*rest[:at], longer, *rest[at + 1 :])] = None
    yield from found


def _slots(traced: Traced, annotations: Annotations, place: Annotated) -> tuple[Slot, ...]:
    """All annotations that one spec of the user's stands for, sorted."""
    return _TOGETHER[place.kind](traced, annotations, place.number)


def _sites(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    """Sites of one name, or of one line where they have none, that are annotated alike."""
    graph = traced.graph

    def spelled(at: int) -> tuple[object, ...]:
        site, layout = graph.sites[at], annotations.sites[at]
        line = site.name or graph.nodes[site.node].source
        return line, layout and layout.dims

    alike = [at for at in range(len(graph.sites)) if spelled(at) == spelled(number)]
    return tuple(("sites", at) for at in alike)


def slots_of_argument(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    """An argument, with the result that takes its place if it is state of a step."""
    result = dict(_states(traced, annotations)).get(number)
    return (("arguments", number), *([("results", result)] if result is not None else []))


def _result(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    for argument, result in _states(traced, annotations):
        if result == number:
            return (("arguments", argument), ("results", result))
    return (("results", number),)


_TOGETHER: Mapping[str, Callable[[Traced, Annotations, int], tuple[Slot, ...]]] = {
    "site": _sites,
    "argument": slots_of_argument,
    "result": _result,
}


def _states(traced: Traced, annotations: Annotations) -> Iterator[tuple[int, int]]:
    """(argument, result) of state that a step takes and gives back: donated, of one path and spec.

    Such a pair keeps one layout, or every step would begin with a reshard that no plan shows.
    """
    graph, free = traced.graph, dict.fromkeys(range(len(traced.graph.results)))
    for argument in traced.donated:
        path = graph.argument_paths[argument]
        tail = path[path.index("[") :] if "[" in path else ""
        kind = graph.values[graph.arguments[argument]].type
        for result in free:
            alike = graph.values[graph.results[result]].type == kind
            same = annotations.arguments[argument] == annotations.results[result]
            if alike and same and graph.result_paths[result].endswith(tail):
                del free[result]
                yield argument, result
                break
