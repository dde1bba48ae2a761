"""A step's time by instruction: JAX's profiler trace compared with the plan's prices.

Every instruction is emitted in a scope named by its first result ("at_v5" for `%5` of the printed
program), and the compiler keeps the scopes of its operators. A fusion has the scope of its last
operator. Only collectives and contractions therefore have a row of their own; all other compute is
one row, and operators without a scope (the compiler's copies) are another.

A collective's time includes the delay of the slowest device. CPU devices share the machine's cores,
so the prediction needs hardware that was measured with as many devices at work
(`sa.measure_hardware`). The measured step has the form of a planned timeline
(`costs.pipelines.events`).
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from shardalg.costs.collectives import RING_BYTES, axis_names, is_collective
from shardalg.costs.pipelines import events as planned
from shardalg.costs.step_time import Timed, timed
from shardalg.costs.topology import chip_text
from shardalg.costs.walk import walk
from shardalg.errors import LoweringError
from shardalg.lower.emit.emitter import SCOPE
from shardalg.lower.measure import Timing, run_once
from shardalg.lower.xla_dump.hlo_text import HloModule, parse
from shardalg.tables import Table, seconds_text

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.lower.shard_map import Lowered

OTHER, UNNAMED = "other compute", "not named"
_OWN_ROW = (*RING_BYTES, "contraction")
_AROUND = ("while", "conditional", "call")  # left out: operators inside would count twice
_SCOPED = re.compile(rf"(?:^|/){SCOPE}(\d+)(?=/|$)")


class DeviceEvent(NamedTuple):
    """One execution of an operator of the compiled program on one device.

    Attributes:
      device: name of the trace's plane and number of the device on it.
      op: name of the operator in the compiled program.
      start_s: start in seconds of the profiler's clock.
    """

    device: str
    op: str
    seconds: float
    start_s: float = 0.0


@dataclass(frozen=True)
class Row:
    """Seconds per step and device of one instruction, or of all other compute.

    Attributes:
      name: the instruction's first result in the printed program, such as "%5"; "" for other rows.
      kind: kind of the collective, "contraction", "other compute" or "not named".
      axes: mesh axes of the collective; () for other kinds.
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Measured minus predicted seconds."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True)
class Breakdown:
    """The predicted and the measured time of a step, by instruction.

    Attributes:
      rows: one per collective and contraction, then one for all other compute.
      timing: times of whole steps, without the profiler.
      hardware: name of the chip that the prediction assumes.
      device: kind of the devices that ran the step.
    """

    rows: tuple[Row, ...]
    timing: Timing
    hardware: str
    device: str

    @property
    def predicted_s(self) -> float:
        """The predicted seconds of the step, without overlap."""
        return sum(row.predicted_s for row in self.rows)

    @property
    def largest(self) -> Row:
        """The row that explains most of the difference between prediction and measurement."""
        return max(self.rows, key=lambda row: abs(row.difference_s))

    def table(self) -> Table:
        """Return a table with a row per collective and contraction, and one for the rest.

        Seconds are those of all executions in a step. The ratio is predicted / measured, None if
        nothing was measured.
        """
        rows = tuple(
            (r.name, r.kind, ",".join(r.axes), r.predicted_s, r.measured_s,
             r.predicted_s / r.measured_s if r.measured_s else None)
            for r in self.rows
        )  # fmt: skip
        names = ("instruction", "kind", "mesh_axes", "predicted_s", "measured_s", "ratio")
        return Table(names, rows)

    def __repr__(self) -> str:
        """Return the step's time, its prediction, the largest difference, and the table."""
        ratio = self.predicted_s / self.timing.median_s
        # Times on simulated CPU devices say little, so the text mentions their cores.
        shared = f", whose devices share {os.cpu_count()} cores" if self.device == "cpu" else ""
        worst = self.largest
        return (
            f"Breakdown on {self.device}{shared}: step {self.timing}, predicted for "
            f"{self.hardware} {seconds_text(self.predicted_s)}, ratio {ratio:.2f}; largest "
            f"difference {seconds_text(worst.difference_s)} of {worst.kind} {worst.name}\n"
            f"{self.table()}"
        )


def breakdown(
    lowered: Lowered, args: Sequence[Any], hardware: Hardware | Topology, repeats: int
) -> Breakdown:
    """Return predicted and measured seconds of each instruction of a lowered program.

    `repeats` steps are timed. As many are then traced by JAX's profiler, which slows them down.

    Args:
      args: arguments of the function.
      hardware: the chip or topology for which the prediction is made.

    Raises:
      LoweringError: the trace has no events of the program.
    """
    placed, module = lowered.entering(*args), parse(lowered.compiled.as_text())
    # The first call compiles and fills caches; it is not among the timed runs.
    warm = run_once(lowered, placed)[0].seconds
    runs = [run_once(lowered, placed)[0] for _ in range(repeats)]
    shared = lowered.run.mesh.devices.flat[0].platform == "cpu"
    timing = Timing.of(runs, shared=shared, warm_up_s=warm)
    # An event is one run of one HLO operator on one device. The events are added up per instruction
    # of the program.
    traced = record_events(lambda: [run_once(lowered, placed) for _ in range(repeats)], module)
    measured = per_instruction(traced, module, repeats)
    prices = timed(lowered.program, lowered.graph, hardware)
    device = lowered.run.mesh.devices.flat[0].device_kind
    chip = chip_text(hardware, lowered.program.mesh.size)
    return Breakdown(tuple(rows(prices, measured)), timing, chip, device)


def record_events(run: Callable[[], Any], module: HloModule) -> list[DeviceEvent]:
    """Return the profiler's events of a program's operators during a run."""
    with tempfile.TemporaryDirectory(prefix="shardalg-trace-") as folder:
        with jax.profiler.trace(folder):
            run()
        with warnings.catch_warnings():
            # jaxlib 0.11 warns on the first use of the reader; raised as an error, it ends Python.
            warnings.simplefilter("ignore", DeprecationWarning)
            return list(events(Path(folder), module))


def events(folder: Path, module: HloModule) -> Iterable[DeviceEvent]:
    """Yield the events of a trace that belong to operators of a program.

    An event has the device, the name of the HLO operator, its seconds and its start. Operators
    around others, such as loops, are left out, because their time contains the others'.

    Args:
      folder: folder into which JAX's profiler wrote the trace.
      module: the compiled program.
    """
    ops = {name: op for ops in module.computations.values() for name, op in ops.items()}
    for file in folder.rglob("*.xplane.pb"):
        # The planes are freed with their `ProfileData`, so the loop below needs a name for it.
        data = jax.profiler.ProfileData.from_file(str(file))
        for plane in data.planes:
            for event in (event for line in plane.lines for event in line.events):
                stats = dict(event.stats)
                op = ops.get(str(stats.get("hlo_op")))
                if op is not None and op.opcode not in _AROUND:
                    device = f"{plane.name} {stats.get('device_ordinal', '')}"
                    start, seconds = event.start_ns * 1e-9, event.duration_ns * 1e-9
                    yield DeviceEvent(device, op.name, seconds, start)


def per_instruction(
    found: Sequence[DeviceEvent], module: HloModule, repeats: int
) -> dict[int | None, float]:
    """Return the seconds that each instruction takes in one step on one device.

    A key is the number of the instruction's first result. The key None has the seconds of operators
    that belong to no instruction.

    Args:
      found: events of all devices.
      module: the compiled program.
      repeats: number of steps that were traced.

    Raises:
      LoweringError: there are no events.
    """
    check_events(found)
    scopes = scopes_of(module)
    # The profiler sums over devices and runs: divide by both for one device's step.
    devices = len({event.device for event in found})
    total: dict[int | None, float] = defaultdict(float)
    for event in found:
        total[scopes[event.op]] += event.seconds / (devices * repeats)
    return total


def check_events(found: Sequence[DeviceEvent]) -> None:
    """Raise LoweringError if a trace has no events."""
    if not found:
        raise LoweringError(
            "the profiler's trace has no events of the program: another profiler is running, or "
            "this backend records none. Stop the other one, or take lowered.measure(...)."
        )


def scopes_of(module: HloModule) -> dict[str, int | None]:
    """Return, for each operator of a compiled program, the instruction that it was lowered from.

    An instruction is given by the number of its first result; None if the operator has none.
    """
    scopes: dict[str, int | None] = {}
    for ops in module.computations.values():
        for name, op in ops.items():
            inside = _SCOPED.findall(op.op_name)
            scopes[name] = int(inside[-1]) if inside else None
    return scopes


def rows(prices: Sequence[Timed], measured: Mapping[int | None, float]) -> Iterable[Row]:
    """Yield a row per collective and contraction in the order of the program, then the others.

    Args:
      prices: predicted seconds of every instruction.
      measured: measured seconds by the first result of the instruction, as of `per_instruction`.
    """
    left, predicted = dict(measured), 0.0
    for price in prices:
        seconds = price.seconds * price.step.count
        results = price.step.instruction.results
        # Fusions mix other operators, so that only these kinds can be measured one by one.
        if price.kind in _OWN_ROW and results:
            name = f"%{results[0]}"
            yield Row(name, price.kind, price.axes, seconds, left.pop(results[0], 0.0))
        else:
            predicted += seconds
    # The key None has the seconds of operators that belong to no instruction.
    unnamed = left.pop(None, 0.0)
    # These two rows are no single instruction and no collective: they have no name and no axes.
    yield Row("", OTHER, (), predicted_s=predicted, measured_s=sum(left.values()))
    yield Row("", UNNAMED, (), predicted_s=0.0, measured_s=unnamed)


class EventKind(NamedTuple):
    """Kind, mesh axes and phase of an event, with the values of a planned event (`StageEvent`)."""

    kind: str
    axes: tuple[str, ...]
    phase: str


OTHER_COMPUTE = EventKind(planned.COMPUTE, (), "")
"""Events of operators that the compiler added."""


def traced_step(lowered: Lowered, args: Sequence[Any]) -> tuple[planned.StageEvent, ...]:
    """Return the events of one step on the first device; neighbours of one kind are merged.

    Times count from the start of the first event. A pipeline's bubbles are computed on padding, and
    look like all other compute. Between events the device waits. A collective's time includes the
    wait for the slowest device.

    Raises:
      LoweringError: the profiler's trace has no events of the program.
    """
    placed, module = lowered.entering(*args), parse(lowered.compiled.as_text())
    # The first call fills caches: in the trace it would look slower than other steps.
    run_once(lowered, placed)
    found = record_events(lambda: run_once(lowered, placed), module)
    check_events(found)
    first = min(event.device for event in found)
    mine = sorted((e for e in found if e.device == first), key=lambda e: e.start_s)
    kinds, scopes = _event_kinds(lowered), scopes_of(module)

    def kind_of(event: DeviceEvent) -> EventKind:
        instruction = scopes[event.op]
        return OTHER_COMPUTE if instruction is None else kinds.get(instruction, OTHER_COMPUTE)

    return tuple(_merge_neighbours(mine, kind_of))


def _event_kinds(lowered: Lowered) -> dict[int, EventKind]:
    """Return the kind of each instruction's events, by the number of its first result.

    A kind is (kind of the collective or "compute", mesh axes, phase of the step).
    """
    mesh, found = lowered.program.mesh, {}
    for step in walk(lowered.program):
        instruction = step.instruction
        attributes = instruction.attributes
        # The lowered program names operations after their first result.
        if not instruction.results:
            continue
        # A permute in which every device keeps its block (`stays`) is compiled to a copy.
        if is_collective(attributes) and not attributes.stays:
            axes = axis_names(mesh, attributes.digits)
            kind = EventKind(attributes.sent_as, axes, instruction.phase)
        else:
            kind = EventKind(planned.COMPUTE, axes=(), phase=instruction.phase)
        found[instruction.results[0]] = kind
    return found


def _merge_neighbours(
    events: Sequence[DeviceEvent], kind_of: Callable[[DeviceEvent], EventKind]
) -> Iterator[planned.StageEvent]:
    """Yield one event for neighbouring events of one kind; times count from the first event.

    Args:
      events: events of one device, sorted by their starts.
      kind_of: returns the kind of an event.
    """
    first_s = events[0].start_s
    for (kind, axes, phase), neighbours in groupby(events, kind_of):
        group = [*neighbours]
        start_s = group[0].start_s - first_s
        # Events of a device may overlap, so that the last one to start need not be the last to end.
        end_s = max(event.start_s + event.seconds for event in group) - first_s
        # A traced step has one stage: number 0.
        yield planned.StageEvent(0, kind, axes, phase, start_s, end_s - start_s)
