"""Changes of annotations: another sharding, at all places that one spec of the user annotates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.algebra.sharding import Sharding
from shardalg.plan.explain.disagreements import Side
from shardalg.plan.explain.explained import Annotated
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.stages import Stages
from shardalg.planner.traced import Traced

MOST_PLACES = 6
"""Number of annotations that are changed, because each of them costs several plans."""
MOST_TOLD = 4
"""A sentence that lists more changes is hard to read; tables have all."""
Slot = tuple[str, int]
"""One entry of `Annotations`: the name of a field and an index into it."""


@dataclass(frozen=True)
class AnnotationChange:
    """One annotation with another sharding.

    Attributes:
      place: the annotated place. slots: all entries of `Annotations` that the same spec of the
        user sets: the sites of one name, or the argument and the result of a state.
      before, after: the shardings.
    """

    place: Annotated
    slots: tuple[Slot, ...]
    before: Sharding
    after: Sharding

    @property
    def changed_dims(self) -> int:
        """The number of dimensions in which the shardings `before` and `after` differ."""
        pairs = zip(self.before.dims, self.after.dims, strict=True)
        return sum(before != after for before, after in pairs)

    @property
    def steps(self) -> tuple[AnnotationChange, ...]:
        """The change itself, as a tuple; `Changes` has several."""
        return (self,)

    def applied(self, annotations: Annotations) -> Annotations:
        """Return the annotations with this change."""
        return filled(annotations, self.slots, self.after)

    def __str__(self) -> str:
        return f"{self.place} as {self.after.text()} instead of {self.before.text()}"


@dataclass(frozen=True)
class Changes:
    """Changes of several annotations, which are tried together."""

    steps: tuple[AnnotationChange, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The entries of `Annotations` that the changes set."""
        return tuple(slot for change in self.steps for slot in change.slots)

    @property
    def changed_dims(self) -> int:
        """The sum of `changed_dims` over all changes."""
        return sum(change.changed_dims for change in self.steps)

    def applied(self, annotations: Annotations) -> Annotations:
        """Return the annotations with all changes."""
        for step in self.steps:
            annotations = step.applied(annotations)
        return annotations

    def __str__(self) -> str:
        shown = ", and ".join(map(str, self.steps[:MOST_TOLD]))
        rest = len(self.steps) - MOST_TOLD
        return f"{shown}, and {rest} more" if rest > 0 else shown


def filled(given: Annotations, slots: tuple[Slot, ...], layout: Sharding) -> Annotations:
    """Return the annotations with the sharding `layout` in each of the entries `slots`."""
    sides = {name: list(getattr(given, name)) for name, _ in slots}
    for name, at in slots:
        # Entries of one spec may belong to values of different shapes: each keeps its own shape.
        shape = layout.shape if sides[name][at] is None else sides[name][at].shape
        sides[name][at] = replace(layout, shape=shape)
    made: dict[str, Any] = {name: tuple(side) for name, side in sides.items()}
    return replace(given, **made)


def changes(stages: Stages, sides: tuple[Side, Side], digits: Digits) -> Iterator[AnnotationChange]:
    """Yield changes of the annotations behind a collective.

    Args:
      sides: the sharding that the moved value has, and the one that is needed.
      digits: the axes along which the collective runs.

    A change drops, adds or moves some axes along which the collective runs. Or it takes the
    sharding of either side, if the value has the annotation's shape.
    """
    side_layouts = [side.layout for side in sides]
    # `slots` are all entries of the annotations that one spec of the user sets.
    for place, slots, before in islice(_places(stages, sides), MOST_PLACES):
        # The sharding of either side makes both sides equal; uneven ones would add padding.
        dims_of_sides = [s.dims for s in side_layouts if s.shape == before.shape and s.is_even]
        for dims in dict.fromkeys((*_edits(before, digits), *dims_of_sides)):
            if dims != before.dims:
                yield AnnotationChange(place, slots, before, before.with_dims(dims))


def drops(stages: Stages, sides: tuple[Side, Side], digits: Digits) -> Iterator[AnnotationChange]:
    """Yield changes that remove a collective's axes, one per annotation that the axes come from.

    Args:
      sides: the sharding that the moved value has, and the one that is needed.
      digits: the axes along which the collective runs.
    """
    for place, slots, before in _places(stages, sides):
        # A collective can run along a part of an axis (a sub-axis), but a PartitionSpec names whole
        # axes, so the whole axis is dropped.
        kept = tuple(
            tuple(d for d in dim if not any(d == other or overlap(d, other) for other in digits))
            for dim in before.dims
        )
        if kept != before.dims:
            yield AnnotationChange(place, slots, before, before.with_dims(kept))


def _places(
    stages: Stages, sides: tuple[Side, Side]
) -> Iterator[tuple[Annotated, tuple[Slot, ...], Sharding]]:
    """Yield (place, entries, sharding) for each annotation that causes a collective.

    `place` is the argument, result or site that is annotated. `entries` are the entries of the
    plan's annotations which the user's spec sets, and `sharding` is the sharding in the first
    entry. A spec that sets several entries comes once. Specs of a `shard_map` are left out.

    Args:
      sides: the sharding that the moved value has, and the one that is needed, each with its
        annotations.
    """
    seen: set[tuple[Slot, ...]] = set()
    for place in dict.fromkeys(place for side in sides for place in side.annotations):
        # Results that are new values of arguments, and repeated sites, share one spec of the user.
        # An entry is (field of `Annotations`, index into it).
        slots = _SLOTS[place.kind](stages.traced, stages.annotations, place.number)
        if slots in seen or _is_region_spec(stages, place):
            continue
        seen.add(slots)
        field_, at = slots[0]
        yield place, slots, getattr(stages.annotations, field_)[at]


def _is_region_spec(stages: Stages, place: Annotated) -> bool:
    """Return whether an annotated place is an input or an output of a `shard_map`."""
    if place.kind != "site":
        return False
    graph = stages.graph
    # Another spec would need another trace of the region's body, so such a site cannot be changed.
    node = graph.nodes[graph.sites[place.number].node]
    around = (graph.producer[node.operands[0]], *graph.users[node.results[0]])
    return any(n is not None and graph.nodes[n].primitive == "shard_map" for n in around)


def _edits(layout: Sharding, digits: Digits) -> Iterator[tuple[Digits, ...]]:
    """Yield the dims of a sharding after edits: an axis is removed, or is on another dimension.

    One axis of `digits` is edited at a time, then all of them together. If the sharding uses a
    whole axis, and the collective runs along a part of it, the whole axis is edited. E.g. [X, None]
    with the axis X -> [None, None], [X, None], [None, X].
    """
    # The user can only write whole axes, so a part of an axis stands for the axis of the sharding.
    layout_axes = [d for dim in layout.dims for d in dim]
    whole_axes = [next((d for d in layout_axes if overlap(d, digit)), digit) for digit in digits]
    digits = tuple(dict.fromkeys(whole_axes))
    groups = [(digit,) for digit in digits] + ([digits] if len(digits) > 1 else [])
    edited: dict[tuple[Digits, ...], None] = {}
    for group in groups:
        rest = tuple(tuple(d for d in dim if d not in group) for dim in layout.dims)
        edited[rest] = None
        for dim_number, dim in enumerate(rest):
            longer = (*dim, *group)
            # An uneven annotation would trade the collective for padding.
            if layout.shape[dim_number] % parts(longer) == 0:
                edited[(*rest[:dim_number], longer, *rest[dim_number + 1 :])] = None
    yield from edited


def _sites(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    """Return the entries of all sites with the name and the sharding of site `number`.

    A site is a place in the function that `with_sharding_constraint` annotates. Every layer of a
    model repeats it, but the user can only change the one line.
    """
    graph = traced.graph

    def key(site_number: int) -> tuple[object, ...]:
        """Return a key that is equal for sites with the same name and the same axes per dimension.

        Sites without a name are compared by their source line.
        """
        site, layout = graph.sites[site_number], annotations.sites[site_number]
        line = site.name or graph.nodes[site.node].source
        return line, layout and layout.dims

    return tuple(("sites", n) for n in range(len(graph.sites)) if key(n) == key(number))


def slots_of_argument(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    """Return the entry of argument `number` in the annotations, and of its result, if any.

    A train step returns the new value of a parameter as a result, which needs the same sharding.
    Only the entry of the argument is returned if no result is its new value.
    """
    result = dict(_states(traced, annotations)).get(number)
    return (("arguments", number), *([("results", result)] if result is not None else []))


def _result(traced: Traced, annotations: Annotations, number: int) -> tuple[Slot, ...]:
    """Return the entry of result `number` in the annotations, after that of its argument, if any.

    A result of a train step can be the new value of a parameter, which needs the same sharding.
    Only the entry of the result is returned if it is not the new value of an argument.
    """
    for argument, result in _states(traced, annotations):
        if result == number:
            return (("arguments", argument), ("results", result))
    return (("results", number),)


# By the kind of the annotated place. All entries that one spec sets must change together, because
# the user can only change the spec.
_SLOTS: Mapping[str, Callable[[Traced, Annotations, int], tuple[Slot, ...]]] = {
    "site": _sites,
    "argument": slots_of_argument,
    "result": _result,
}


def _states(traced: Traced, annotations: Annotations) -> Iterator[tuple[int, int]]:
    """Yield (argument, result) numbers where the result is the new value of a donated argument.

    They have equal paths, types and annotations. Both need the same sharding: otherwise each step
    would begin with a reshard that no plan shows.
    """
    graph, free = traced.graph, dict.fromkeys(range(len(traced.graph.results)))
    for argument in traced.donated:
        # A result has another name than its argument, so only the keys after the name are compared.
        path = graph.argument_paths[argument]
        tail = path[path.index("[") :] if "[" in path else ""
        kind = graph.values[graph.arguments[argument]].type
        for result in free:
            has_type = graph.values[graph.results[result]].type == kind
            has_layout = annotations.arguments[argument] == annotations.results[result]
            if has_type and has_layout and graph.result_paths[result].endswith(tail):
                del free[result]  # a result belongs to one argument
                yield argument, result
                break
