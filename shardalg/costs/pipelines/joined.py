"""Schedule of a pipeline whose stages run different programs: start of each task, and idle time.

Each stage runs its own program on its own devices, one microbatch after the other in the order of
a schedule. A task starts when its stage is free and its input has arrived:

    start(task) = max(end of the stage's previous task, end of the task that produces its input
                                                        + seconds of the transfer)

GPipe runs all microbatches forward, then backward, the last microbatch first. In 1F1B a stage
begins with one microbatch for each later stage, and then alternates between forward and backward.
It therefore keeps at most one microbatch per stage from itself to the last stage (PipeDream-Flush,
arXiv:2006.09503). Sending is asynchronous: it takes no time of either stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from shardalg.costs.pipelines.events import BUBBLE, EventGroup, StageEvent
from shardalg.errors import PipelineError

FORWARD, BACKWARD = "forward", "backward"


class MicrobatchTask(NamedTuple):
    """Forward or backward pass of one microbatch on a stage.

    Attributes:
      phase: "forward" or "backward".
      microbatch: number of the microbatch.
    """

    phase: str
    microbatch: int


class StageDependency(NamedTuple):
    """The task that produces the input of another task.

    Attributes:
      stage: the stage that runs the producing task.
      task: the producing task.
      seconds: seconds to transfer its result to the stage that needs it.
    """

    stage: int
    task: MicrobatchTask
    seconds: float


class StageTimes(NamedTuple):
    """Times of one pipeline stage; each `EventGroup` is an interval of compute or communication.

    Attributes:
      forward, backward: intervals of one microbatch's forward and backward pass.
      after: intervals after all microbatches, such as the optimizer update.
      sends_s: seconds to send activations to the next stage.
      returns_s: seconds to receive their gradients from the next stage.
    """

    forward: tuple[EventGroup, ...]
    backward: tuple[EventGroup, ...]
    after: tuple[EventGroup, ...]
    sends_s: float
    returns_s: float


def _gpipe(stages: int, stage: int, microbatches: int) -> Iterator[MicrobatchTask]:
    """Yield the tasks of a stage in the GPipe order.

    All forward passes come first, then all backward passes in reverse order. The order is the same
    for each of the `stages` stages.
    """
    yield from (MicrobatchTask(FORWARD, m) for m in range(microbatches))
    yield from (MicrobatchTask(BACKWARD, m) for m in reversed(range(microbatches)))


def _one_forward_one_backward(
    stages: int, stage: int, microbatches: int
) -> Iterator[MicrobatchTask]:
    """Yield the tasks of a stage, one of `stages`, in the 1F1B order (PipeDream-Flush)."""
    # The last stage starts backward at once; each stage before it needs one more microbatch ahead.
    ahead = min(microbatches, stages - 1 - stage)
    yield from (MicrobatchTask(FORWARD, m) for m in range(ahead))
    # Then forward and backward alternate, so that at most `ahead + 1` microbatches are in memory.
    for m in range(microbatches - ahead):
        yield MicrobatchTask(FORWARD, ahead + m)
        yield MicrobatchTask(BACKWARD, m)
    # The backward passes of the microbatches that were ahead come last.
    yield from (MicrobatchTask(BACKWARD, m) for m in range(microbatches - ahead, microbatches))


ORDERS: dict[str, Callable[[int, int, int], Iterator[MicrobatchTask]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
}
"""Functions of (stages, stage, microbatches) that yield the tasks of a stage in order."""


def orders(schedule: str, stages: int, microbatches: int) -> tuple[tuple[MicrobatchTask, ...], ...]:
    """Return the tasks of each stage, in the order in which the stage runs them.

    Args:
      schedule: a name in `ORDERS`, such as "gpipe" or "1f1b".

    Raises:
      PipelineError: the schedule is unknown.

    >>> [f"{task.phase[0]}{task.microbatch}" for task in orders("1f1b", 3, 4)[0]]
    ['f0', 'f1', 'f2', 'b0', 'f3', 'b1', 'b2', 'b3']
    """
    if schedule not in ORDERS:
        raise PipelineError(f"no schedule {schedule!r} here: write one of {', '.join(ORDERS)}.")
    return tuple(tuple(ORDERS[schedule](stages, s, microbatches)) for s in range(stages))


def in_flight(order: Sequence[MicrobatchTask]) -> int:
    """Return the largest number of microbatches whose activations a stage keeps at one time.

    >>> [in_flight(order) for order in orders("1f1b", 3, 4)]
    [3, 2, 1]
    >>> in_flight(orders("gpipe", 3, 4)[2])
    4
    """
    kept = most = 0
    # A forward pass stores activations, and the backward pass of the same microbatch frees them.
    for task in order:
        kept += 1 if task.phase == FORWARD else -1
        most = max(most, kept)
    return most


def join_stages(
    stages: Sequence[StageTimes], order: Sequence[Sequence[MicrobatchTask]]
) -> tuple[StageEvent, ...]:
    """Return the intervals of all stages in order of time; idle time is an event "bubble".

    A stage runs its tasks, and then the work after all microbatches (`StageTimes.after`).

    Args:
      order: for each stage, its tasks in order (see `orders`).
    """
    starts = _starts(stages, order)
    # The step ends with the slowest stage. Faster stages have a bubble until then.
    end_s = max(
        starts[s, order[s][-1]] + _length(t, order[s][-1]) + _sum(t.after)
        for s, t in enumerate(stages)
    )
    stage_events: list[StageEvent] = []
    for stage, times in enumerate(stages):
        free_s = 0.0
        for task in order[stage]:
            start = starts[stage, task]
            # A stage is idle from the end of its last task to the start of this one.
            stage_events += _bubble(stage, task.phase, free_s, start)
            parts = _parts(times, task)
            stage_events += _events_of_task(stage, task.microbatch, start, parts)
            free_s = start + _sum(parts)
        stage_events += _events_of_task(stage, None, free_s, times.after)
        stage_events += _bubble(stage, BACKWARD, free_s + _sum(times.after), end_s)
    return tuple(sorted(stage_events, key=lambda event: (event.start_s, event.stage)))


def _starts(
    stages: Sequence[StageTimes], order: Sequence[Sequence[MicrobatchTask]]
) -> dict[tuple[int, MicrobatchTask], float]:
    """Return the start in seconds of each task; each key is (stage, task).

    A task starts when its stage has run all tasks before it and its input has arrived.
    """
    starts: dict[tuple[int, MicrobatchTask], float] = {}
    ends: dict[tuple[int, MicrobatchTask], float] = {}
    free = [0.0] * len(stages)
    # Each pass over the stages schedules all tasks whose inputs exist. A schedule has no cycle, so
    # every pass schedules at least one task.
    # Lists are reversed, so that the next task is popped from the end in constant time.
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
    """Return the producer of a task's input; None for a forward pass of the first stage.

    A forward pass needs the previous stage's result, and a backward pass the next stage's gradient.
    """
    if task.phase == FORWARD:
        return StageDependency(stage - 1, task, stages[stage - 1].sends_s) if stage else None
    if stage < len(stages) - 1:
        return StageDependency(stage + 1, task, stages[stage].returns_s)
    # The last stage turns around: its backward pass needs only its own forward pass.
    return StageDependency(stage, MicrobatchTask(FORWARD, task.microbatch), 0.0)


def _parts(times: StageTimes, task: MicrobatchTask) -> tuple[EventGroup, ...]:
    """Return the intervals of a task: those of a forward or a backward pass of its stage."""
    return times.forward if task.phase == FORWARD else times.backward


def _length(times: StageTimes, task: MicrobatchTask) -> float:
    """Return the seconds of a task."""
    return _sum(_parts(times, task))


def _sum(parts: Sequence[EventGroup]) -> float:
    """Return the seconds of some intervals together."""
    return sum(part.seconds for part in parts)


def _bubble(stage: int, phase: str, start: float, end: float) -> Iterator[StageEvent]:
    """Yield the idle time (bubble) of a stage from `start` to `end`, if `end` is later."""
    if end > start:
        yield StageEvent(stage, BUBBLE, (), phase, start, end - start)


def _events_of_task(
    stage: int, trip: int | None, start: float, parts: Sequence[EventGroup]
) -> Iterator[StageEvent]:
    """Yield the intervals `parts` as events of a stage, one after the other from `start`.

    `trip` is the number of the loop iteration that the events belong to, or None.
    """
    for part in parts:
        yield StageEvent(stage, part.kind, part.axes, part.phase, start, part.seconds, trip)
        start += part.seconds
