"""A measured step on a time axis, in the shape of a planned one (`costs.pipelines.events`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from shardalg.costs.collectives import axis_names, is_collective
from shardalg.costs.pipelines import events as planned
from shardalg.costs.walk import walk
from shardalg.lower.breakdown import Event, check_events, recorded, scopes_of
from shardalg.lower.measure import once
from shardalg.lower.xla_dump.hlo_text import parse

if TYPE_CHECKING:
    from shardalg.lower.shard_map import Lowered


class Sort(NamedTuple):
    """What an event is, as a planned one says it."""

    kind: str
    axes: tuple[str, ...]
    phase: str


OTHER = Sort(planned.COMPUTE, (), "")
"""What the compiler added."""


def traced_step(lowered: Lowered, args: Sequence[Any]) -> tuple[planned.Event, ...]:
    """One step on the first device: neighbours of one sort together, from the first's start.

    A pipeline's bubbles are computed on padding, and look like all other compute. Between events
    the device waits; a collective's time has the waiting for the slowest device in it.

    Raises:
      LoweringError: the profiler's trace has no events of the program.
    """
    placed, module = lowered.entering(*args), parse(lowered.compiled.as_text())
    once(lowered, placed)
    found = recorded(lambda: once(lowered, placed), module)
    check_events(found)
    first = min(event.device for event in found)
    mine = sorted((e for e in found if e.device == first), key=lambda e: e.start_s)
    sorts, scopes = _sorts(lowered), scopes_of(module)
    return tuple(_placed(mine, lambda e: sorts.get(scopes[e.op] or -1, OTHER)))


def _sorts(lowered: Lowered) -> dict[int, Sort]:
    """First result of an instruction to its sort."""
    mesh, found = lowered.program.mesh, {}
    for step in walk(lowered.program):
        instruction = step.instruction
        attributes = instruction.attributes
        if not instruction.results:
            continue
        if is_collective(attributes) and not attributes.stays:
            axes = axis_names(mesh, attributes.digits)
            sort = Sort(attributes.sent_as, axes, instruction.phase)
        else:
            sort = Sort(planned.COMPUTE, (), instruction.phase)
        found[instruction.results[0]] = sort
    return found


def _placed(events: Sequence[Event], sort: Callable[[Event], Sort]) -> Iterator[planned.Event]:
    start = events[0].start_s
    for (kind, axes, phase), run in groupby(events, sort):
        alike = [*run]
        begin = alike[0].start_s - start
        end = max(event.start_s + event.seconds for event in alike) - start
        yield planned.Event(0, kind, axes, phase, begin, end - begin)
