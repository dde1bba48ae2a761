"""Start and duration of all instructions of a program, for each pipeline stage.

All devices run the same instructions, one after the other. Small all-reduces that are combined into
one run together, after the last of their operands exists (`analyses.overlap.execution_order`). A
stage without a microbatch computes on padding, which is a bubble. Of L stages, stage s has a
microbatch in trip t of T if s <= t < T - (L - 1 - s). This holds for the backward pass too, whose
loop runs from the last t to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from shardalg.costs.analyses.overlap import all_in_execution_order
from shardalg.costs.hardware import Hardware
from shardalg.costs.pipelines.loops import PipelineLoop, pipeline_loops
from shardalg.costs.step_time import Timed, timed
from shardalg.costs.topology import Topology
from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions.control import Loop
from shardalg.spmd.program import SpmdProgram

BUBBLE = "bubble"
COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class StageEvent:
    """An interval of time on the devices of one pipeline stage.

    Attributes:
      stage: number of the stage.
      kind: "compute", "bubble", or the kind of a collective, such as "all_gather".
      axes: mesh axes of the collective; () for other kinds.
      phase: "forward", "backward" or "update".
      start_s, seconds: start and duration of the interval.
      trip: the trip of the pipeline loop, or the microbatch in `joined.py`; None outside of
        a pipeline.
    """

    stage: int
    kind: str
    axes: tuple[str, ...]
    phase: str
    start_s: float
    seconds: float
    trip: int | None = None


def events(
    program: SpmdProgram, graph: Graph, hardware: Hardware | Topology, *, overlap: bool = True
) -> tuple[StageEvent, ...]:
    """Return the intervals in which each stage computes, communicates or is idle.

    They are in order of time, and the intervals of one stage have no gaps. A program without
    a pipeline has one stage.

    Args:
      overlap: whether collectives have only the seconds that computation does not hide.
    """
    loops = pipeline_loops(graph)
    stage_count = max((loop.stages for loop in loops.values()), default=1)
    stage_events: list[StageEvent] = []
    start_s = 0.0

    def pipelined(each: Timed) -> Instruction | None:
        """Return the pipeline loop around an instruction, or None."""
        return next((i for i in each.step.loops if i.node in loops), None)

    # `timed` is in the order of the program; devices run combined all-reduces later.
    execution_place = {
        id(each): place for place, each in enumerate(all_in_execution_order(program.block))
    }
    steps = sorted(
        timed(program, graph, hardware), key=lambda each: execution_place[id(each.step.instruction)]
    )
    # The body of a pipeline loop is in the list once, so its instructions are repeated per trip.
    for pipeline_loop, loop_steps in groupby(steps, pipelined):
        groups = [*parts([*loop_steps], pipeline_loop, overlap=overlap)]
        trips: Sequence[int | None] = [None]
        if pipeline_loop is not None:
            loop = pipeline_loop.attributes
            assert isinstance(loop, Loop), "a pipeline is a scan"
            trips = range(loop.length)[::-1] if loop.reverse else range(loop.length)
        for trip in trips:
            for stage in range(stage_count):
                idle = pipeline_loop is not None and _idle(loops, pipeline_loop, stage, trip)
                stage_events += _events_of_trip(groups, start_s, stage, trip, idle)
            start_s += sum(group.seconds for group in groups)
    return tuple(stage_events)


def _idle(loops: dict[int, PipelineLoop], loop: Instruction, stage: int, trip: int | None) -> bool:
    """Return whether a stage has no microbatch in a trip of the pipeline loop `loop`."""
    assert loop.node is not None and trip is not None, "a pipeline is a loop of the function"
    stages = loops[loop.node].stages
    # A program may have several pipelines. A stage beyond those of this one repeats its stages.
    stage %= stages
    return not stage <= trip < loop.attributes.executions - (stages - 1 - stage)


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Consecutive instructions that are shown as one interval.

    Attributes:
      kind: "compute" or the kind of a collective, such as "all_gather".
      axes: mesh axes of the collective; () for compute.
      phase: "forward", "backward" or "update".
      seconds: seconds of all of them together.
    """

    kind: str
    axes: tuple[str, ...]
    phase: str
    seconds: float


def parts(
    steps: list[Timed], around: Instruction | None, *, overlap: bool = True
) -> Iterator[EventGroup]:
    """Yield consecutive instructions of equal kind, axes and phase as one group each.

    Args:
      around: the pipeline loop around all steps, whose groups have the seconds of one trip; None
        outside of a pipeline.
      overlap: whether collectives have only the seconds that computation does not hide.
    """
    trips = around.attributes.executions if around is not None else 1

    def group_key(each: Timed) -> tuple[str, tuple[str, ...], str]:
        """Return kind, axes and phase; instructions that agree in them form a group."""
        kind = each.kind if each.axes else COMPUTE
        return kind, each.axes, each.step.instruction.phase

    for (kind, axes, phase), run in groupby(steps, group_key):
        # The hidden time of a collective is already shown as the computation that hides it.
        shown = ((each.exposed_s if overlap else each.seconds, each) for each in run)
        seconds = sum(time * each.step.count for time, each in shown) / trips
        if seconds:
            yield EventGroup(kind, axes, phase, seconds)


def _events_of_trip(
    groups: list[EventGroup], start: float, stage: int, trip: int | None, idle: bool
) -> Iterator[StageEvent]:
    """Yield the groups of one trip as events of a stage, or one bubble if the stage is idle."""
    if idle:
        seconds = sum(group.seconds for group in groups)
        # A bubble has no mesh axes: ().
        yield StageEvent(stage, BUBBLE, (), groups[0].phase, start, seconds, trip)
        return
    for part in groups:
        yield StageEvent(stage, part.kind, part.axes, part.phase, start, part.seconds, trip)
        start += part.seconds
