"""Stages of unequal programs joined in time: when each microbatch is where, and who waits.

Each stage runs its own program on devices of its own, one microbatch after the other in the order
of a schedule. A microbatch begins when its stage is free and what it takes has arrived:

    start(task) = max(end of the task before it on the stage, end of its source + seconds sent)

GPipe: all microbatches forward, then backward, the last one first. 1F1B: a stage begins with one
microbatch for each stage behind it, and then takes a forward and a backward one in turns, so that
it keeps no more microbatches than there are stages from it to the last one (PipeDream-Flush,
arXiv:2006.09503). Sending is asynchronous: it takes no time of either stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from shardalg.costs.pipelines.events import BUBBLE, EventGroup, StageEvent
from shardalg.errors import PipelineError

FORWARD, BACKWARD = "forward", "backward"


class MicrobatchTask(NamedTuple):
    """A microbatch on a stage, forward or backward."""

    phase: str
    microbatch: int


class StageDependency(NamedTuple):
    """What a task waits for beside its own stage: a task of another one, and what it sends."""

    stage: int
    task: MicrobatchTask
    seconds: float


class StageTimes(NamedTuple):
    """What one stage spends.

    Attributes:
      forward, backward: of one microbatch, in parts. after: of the step, when all have passed.
      sends_s, returns_s: from this stage to the next one forward, and from that one back.
    """

    forward: tuple[EventGroup, ...]
    backward: tuple[EventGroup, ...]
    after: tuple[EventGroup, ...]
    sends_s: float
    returns_s: float


def _gpipe(stages: int, stage: int, microbatches: int) -> Iterator[MicrobatchTask]:
    yield from (MicrobatchTask(FORWARD, m) for m in range(microbatches))
    yield from (MicrobatchTask(BACKWARD, m) for m in reversed(range(microbatches)))


def _one_forward_one_backward(
    stages: int, stage: int, microbatches: int
) -> Iterator[MicrobatchTask]:
    ahead = min(microbatches, stages - 1 - stage)
    yield from (MicrobatchTask(FORWARD, m) for m in range(ahead))
    for m in range(microbatches - ahead):
        yield MicrobatchTask(FORWARD, ahead + m)
        yield MicrobatchTask(BACKWARD, m)
    yield from (MicrobatchTask(BACKWARD, m) for m in range(microbatches - ahead, microbatches))


ORDERS: dict[str, Callable[[int, int, int], Iterator[MicrobatchTask]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
}
"""Of (stages, stage, microbatches), the order in which a stage takes its tasks."""


def orders(schedule: str, stages: int, microbatches: int) -> tuple[tuple[MicrobatchTask, ...], ...]:
    """The tasks of each stage, in its order.

    Raises:
      PipelineError: there is no such schedule.

    >>> [f"{task.phase[0]}{task.microbatch}" for task in orders("1f1b", 3, 4)[0]]
    ['f0', 'f1', 'f2', 'b0', 'f3', 'b1', 'b2', 'b3']
    """
    if schedule not in ORDERS:
        raise PipelineError(f"no schedule {schedule!r} here: write one of {', '.join(ORDERS)}.")
    return tuple(tuple(ORDERS[schedule](stages, s, microbatches)) for s in range(stages))


def in_flight(order: Sequence[MicrobatchTask]) -> int:
    """Microbatches that a stage has taken forward and not yet backward, at most.

    >>> [in_flight(order) for order in orders("1f1b", 3, 4)]
    [3, 2, 1]
    >>> in_flight(orders("gpipe", 3, 4)[2])
    4
    """
    kept = most = 0
    for task in order:
        kept += 1 if task.phase == FORWARD else -1
        most = max(most, kept)
    return most


def joined(
    stages: Sequence[StageTimes], order: Sequence[Sequence[MicrobatchTask]]
) -> tuple[StageEvent, ...]:
    """What every stage does when, its waits as bubbles, in the order of time."""
    starts = _starts(stages, order)
    end = max(
        starts[s, order[s][-1]] + _length(t, order[s][-1]) + _sum(t.after)
        for s, t in enumerate(stages)
    )
    found: list[StageEvent] = []
    for stage, times in enumerate(stages):
        now = 0.0
        for task in order[stage]:
            start = starts[stage, task]
            found += _waited(stage, task.phase, now, start)
            parts = _parts(times, task)
            found += _placed(stage, task.microbatch, start, parts)
            now = start + _sum(parts)
        found += _placed(stage, None, now, times.after)
        found += _waited(stage, BACKWARD, now + _sum(times.after), end)
    return tuple(sorted(found, key=lambda event: (event.start_s, event.stage)))


def _starts(
    stages: Sequence[StageTimes], order: Sequence[Sequence[MicrobatchTask]]
) -> dict[tuple[int, MicrobatchTask], float]:
    """When each task begins: the longest way through what it waits for."""
    starts: dict[tuple[int, MicrobatchTask], float] = {}
    ends: dict[tuple[int, MicrobatchTask], float] = {}
    free = [0.0] * len(stages)
    ahead = [list(tasks)[::-1] for tasks in order]
    while any(ahead):
        for stage, tasks in enumerate(ahead):
            while tasks:
                task = tasks[-1]
                source = _source(stages, stage, task)
                if source and (source.stage, source.task) not in ends:
                    break
                arrived = ends[source.stage, source.task] + source.seconds if source else 0.0
                starts[stage, task] = max(free[stage], arrived)
                free[stage] = starts[stage, task] + _length(stages[stage], task)
                ends[stage, task] = free[stage]
                tasks.pop()
    return starts


def _source(
    stages: Sequence[StageTimes], stage: int, task: MicrobatchTask
) -> StageDependency | None:
    """What a task waits for, if anything but its own stage."""
    if task.phase == FORWARD:
        return StageDependency(stage - 1, task, stages[stage - 1].sends_s) if stage else None
    if stage < len(stages) - 1:
        return StageDependency(stage + 1, task, stages[stage].returns_s)
    return StageDependency(stage, MicrobatchTask(FORWARD, task.microbatch), 0.0)


def _parts(times: StageTimes, task: MicrobatchTask) -> tuple[EventGroup, ...]:
    return times.forward if task.phase == FORWARD else times.backward


def _length(times: StageTimes, task: MicrobatchTask) -> float:
    return _sum(_parts(times, task))


def _sum(parts: Sequence[EventGroup]) -> float:
    return sum(part.seconds for part in parts)


def _waited(stage: int, phase: str, start: float, end: float) -> Iterator[StageEvent]:
    if end > start:
        yield StageEvent(stage, BUBBLE, (), phase, start, end - start)


def _placed(
    stage: int, trip: int | None, start: float, parts: Sequence[EventGroup]
) -> Iterator[StageEvent]:
    for part in parts:
        yield StageEvent(stage, part.kind, part.axes, part.phase, start, part.seconds, trip)
        start += part.seconds
