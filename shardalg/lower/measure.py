"""Measurement of two executables of one function: times in turns, memory, and their difference.

`measure_devices` measures the peak rates of this machine's devices.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardalg.costs.hardware import Hardware, Source
from shardalg.errors import LoweringError
from shardalg.files import write_whole
from shardalg.tables import Table, bytes_text, seconds_text

if TYPE_CHECKING:
    from shardalg.costs.pipelines.events import StageEvent
    from shardalg.lower.isolated import Alone

SCHEMA = "shardalg.measurement/1"


class Executable(Protocol):
    """An executable that can be measured: a `Lowered`, or its function partitioned by XLA."""

    @property
    def donated(self) -> tuple[int, ...]:
        """Flattened arguments that a call consumes."""

    @property
    def compiled(self) -> Any:
        """The compiled program; `entering` returns its arguments."""

    def entering(self, *args: Any) -> list[jax.Array]:
        """Return the arguments in the executable's shardings."""

    def leave(self, outputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the results without the padding that sharding added."""


class TimedRun(NamedTuple):
    """One run: seconds by the clock, and seconds in which this process kept all cores busy."""

    seconds: float
    busy_s: float


@dataclass(frozen=True)
class Timing:
    """The times of one executable's runs.

    Attributes:
      seconds: time of each run.
      warm_up_s: time of the run before them, which warms up; None if it was not measured.
      busy_s: for CPU devices, the processor seconds of each run divided by the number of cores. It
        is the time of a run if no other process runs and no core waits. () for other devices.
    """

    seconds: tuple[float, ...]
    warm_up_s: float | None = None
    busy_s: tuple[float, ...] = ()

    @staticmethod
    def of(runs: Sequence[TimedRun], *, shared: bool, warm_up_s: float | None = None) -> Timing:
        """Make a timing from runs; `shared` means that the devices share this process's cores."""
        busy = tuple(run.busy_s for run in runs) if shared else ()
        return Timing(tuple(run.seconds for run in runs), warm_up_s, busy)

    @property
    def step_s(self) -> float:
        """Median time of a run: of `busy_s` if devices share cores, else of `seconds`."""
        return statistics.median(self.busy_s or self.seconds)

    def without(self, other: Timing) -> Timing:
        """Return these times less the median of another timing, and at least zero."""
        least, busy = other.median_s, other.step_s
        return Timing(
            tuple(max(0.0, s - least) for s in self.seconds),
            busy_s=tuple(max(0.0, s - busy) for s in self.busy_s),
        )

    @property
    def median_s(self) -> float:
        """Median of `seconds`."""
        return statistics.median(self.seconds)

    @property
    def least_s(self) -> float:
        """Fastest run: the one that a loaded machine delayed least."""
        return min(self.seconds)

    @cached_property
    def quartiles_s(self) -> tuple[float, float]:
        """First and third quartile; half of the runs are between them."""
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def __str__(self) -> str:
        low, high = self.quartiles_s
        return f"{seconds_text(self.median_s)} ({seconds_text(low)} to {seconds_text(high)})"


@dataclass(frozen=True)
class Memory:
    """Bytes on one device by the compiler's count.

    Attributes:
      alias_bytes: bytes of results that have the memory of donated arguments.
      in_use_bytes: the largest number of bytes in use, by the backend; None if it has no count.
    """

    argument_bytes: int
    result_bytes: int
    temp_bytes: int
    alias_bytes: int
    in_use_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Arguments, results and temporaries, a donated argument counted once."""
        return self.argument_bytes + self.result_bytes + self.temp_bytes - self.alias_bytes


class Split(NamedTuple):
    """The error of a step's prediction, split in an error of rates and the rest.

    Attributes:
      predicted_s, measured_s: seconds of the step.
      rates_s: measured minus predicted seconds of the collectives and contractions, run alone.
    """

    predicted_s: float
    measured_s: float
    rates_s: float

    @property
    def rest_s(self) -> float:
        """Measured minus predicted seconds, without `rates_s`.

        It comes from overlap and fusion, which make it negative, and from all other compute.
        """
        return self.measured_s - self.predicted_s - self.rates_s


@dataclass(frozen=True)
class Measurement:
    """Our program compared with XLA's own partitioning of the same function on the same devices.

    Attributes:
      ours, xla: times of both executables. memory, xla_memory: their memory on one device.
      max_relative_error: the largest `max |ours - xla| / max |xla|` of all results.
      verified: how far the plan was proved, in words.
      device: kind of the devices. mesh: the plan's mesh.
      digest: hash of the program that every device ran.
      predicted_s: predicted seconds of a step on `hardware`; None without hardware.
      alone: times of each distinct collective and contraction alone; () if they were not run.
      devices: number of devices. device_bytes: bytes of memory of one device.
      amounts: flops, bytes and executions of a step on one device, to which rates are fitted.
      events: events of one more step on the first device; () if no step was traced.
      drawn: makes a timeline from events and the text of a mesh.
    """

    ours: Timing
    xla: Timing
    memory: Memory
    xla_memory: Memory
    max_relative_error: float
    verified: str
    device: str
    mesh: str = ""
    digest: str = ""
    predicted_s: float | None = None
    hardware: str = ""
    alone: tuple[Alone, ...] = ()
    events: tuple[StageEvent, ...] = ()
    drawn: Callable[[tuple[StageEvent, ...], str], Any] | None = field(default=None, compare=False)
    devices: int = 0
    device_bytes: float = math.inf
    amounts: Mapping[str, float] = field(default_factory=dict)

    def timeline(self) -> Any:
        """Return one step as it ran on the first device, drawn like the plan's timeline.

        Raises:
          LoweringError: no step was traced, or it was lowered without a plan.
        """
        if not self.events or self.drawn is None:
            raise LoweringError(
                "no step was traced: measure what plan.lower() gives with trace=True."
            )
        return self.drawn(self.events, self.mesh)

    def split(self) -> Split:
        """Return the error of the predicted step, split into an error of rates and the rest.

        The error of rates is the difference for instructions that ran alone. The rest comes from
        running them together, for example from overlap.

        Raises:
          LoweringError: nothing was run alone, or nothing was predicted.
        """
        if self.predicted_s is None or not self.alone:
            raise LoweringError(
                "what is not predicted, or not run alone, has no error to split: measure with "
                "isolate=True and hardware=..."
            )
        rates_error_s = sum(one.seconds - (one.predicted_s or 0.0) for one in self.alone)
        return Split(self.predicted_s, self.ours.step_s, rates_error_s)

    def save(self, path: str | Path) -> None:
        """Write the measurement to a JSON file, with date, versions, mesh and program digest.

        Raises:
          OSError: the folder does not exist or cannot be written to.
        """
        versions = {name: version(name) for name in ("shardalg", "jax", "jaxlib")}
        day = datetime.now(UTC).isoformat(timespec="seconds")
        machine = {"host": platform.machine(), "cores": cores()}
        about = {"schema": SCHEMA, "date": day, "versions": versions, **machine}
        content = asdict(replace(self, drawn=None))
        del content["drawn"]
        write_whole(Path(path), json.dumps({**about, **content}, indent=1) + "\n")

    @property
    def ratio(self) -> float:
        """Median of ours over median of XLA's: below 1 is faster."""
        return self.ours.median_s / self.xla.median_s

    def table(self) -> Table:
        """Return a table with a row per executable: its times and its memory."""
        rows = (
            _row("shardalg", self.ours, self.memory),
            _row("xla", self.xla, self.xla_memory),
        )
        return Table(_COLUMNS, rows)

    def __repr__(self) -> str:
        """Return the times and the memory of both executables, their ratio and their difference."""
        return (
            f"Measurement on {self.device}, {len(self.ours.seconds)} runs each, in turns\n"
            f"  shardalg {self.ours}   memory {bytes_text(self.memory.total_bytes)} per device\n"
            f"  xla      {self.xla}   memory {bytes_text(self.xla_memory.total_bytes)} per device\n"
            f"  ratio {self.ratio:.3f}, relative error {self.max_relative_error:.1e}, "
            f"plan {self.verified}"
        )


_COLUMNS = (
    "executable", "median_s", "quartile_1_s", "quartile_3_s", "runs", "argument_bytes",
    "result_bytes", "temp_bytes", "total_bytes", "in_use_bytes",
)  # fmt: skip


def _row(name: str, timing: Timing, memory: Memory) -> tuple[object, ...]:
    times = (timing.median_s, *timing.quartiles_s, len(timing.seconds))
    compiled = (memory.argument_bytes, memory.result_bytes, memory.temp_bytes, memory.total_bytes)
    return (name, *times, *compiled, memory.in_use_bytes)


def measure(
    ours: Executable, xla: Executable, args: Sequence[Any], *, repeats: int, verified: str
) -> Measurement:
    """Run both executables `repeats` times in turns after one warm-up each, and compare them.

    The times do not include sharding the arguments and copying donated arguments. The measurement
    has times and memory of both, and the largest relative difference of their results.

    Args:
      ours: the lowered plan.
      xla: the same function partitioned by XLA.
      args: arguments of the function.
      verified: how far the plan was proved, in words.
    """
    both = (ours, xla)
    placed = [executable.entering(*args) for executable in both]
    # Both are compiled before the first run, so that no measured time contains a compilation.
    _ = [executable.compiled for executable in both]
    # The first run is the warm-up, and gives the results that are compared. A run is (times,
    # outputs).
    first = [run_once(*pair) for pair in zip(both, placed, strict=True)]
    pairs = zip(both, first, strict=True)
    results = [executable.leave(outputs) for executable, (_, outputs) in pairs]
    runs: tuple[list[TimedRun], list[TimedRun]] = ([], [])
    for turn in range(repeats):
        # Turns alternate, so that a drift of the machine affects both equally.
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            runs[which].append(run_once(both[which], placed[which])[0])
    shared = _device(ours).platform == "cpu"
    timings = [
        Timing.of(made, shared=shared, warm_up_s=warm.seconds)
        for made, (warm, _) in zip(runs, first, strict=True)
    ]
    return Measurement(
        ours=timings[0],
        xla=timings[1],
        memory=memory(ours),
        xla_memory=memory(xla),
        max_relative_error=max(map(relative_error, *results), default=0.0),
        verified=verified,
        device=_device(ours).device_kind,
        device_bytes=memory_bytes(_device(ours)),
    )


def run_once(executable: Executable, arguments: Sequence[jax.Array]) -> tuple[TimedRun, Any]:
    """Run an executable once; return its time and its results.

    Donated arguments are copied before the run, so that the next one has them, too.
    """
    arguments = [
        x.copy() if index in executable.donated else x for index, x in enumerate(arguments)
    ]
    jax.block_until_ready(arguments)
    return timed_call(lambda: executable.compiled(*arguments))


def timed_call(call: Callable[[], Any]) -> tuple[TimedRun, Any]:
    """Call a function, wait until its results are ready, and return its time and the results."""
    start, busy = time.perf_counter(), time.process_time()
    outputs = jax.block_until_ready(call())
    # Other processes on the same cores lengthen the time by the clock, but not the processor time
    # of this process. Therefore both are measured. Processor time is the sum over all cores, so it
    # is divided by their number.
    busy_s = (time.process_time() - busy) / cores()
    return TimedRun(time.perf_counter() - start, busy_s), outputs


def time_repeatedly(call: Callable[[], Any], repeats: int, *, shared: bool) -> Timing:
    """Return the times of `repeats` calls after one that warms up.

    Args:
      shared: whether the devices share this process's cores.
    """
    warm = timed_call(call)[0].seconds
    runs = [timed_call(call)[0] for _ in range(repeats)]
    return Timing.of(runs, shared=shared, warm_up_s=warm)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes(device: jax.Device) -> float:
    """Return the bytes of memory of a device; of the machine if the device states none."""
    stats = device.memory_stats() or {}
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(stats.get("bytes_limit", whole))


def _device(executable: Executable) -> jax.Device:
    shardings = jax.tree.leaves(executable.compiled.output_shardings)
    return sorted(shardings[0].device_set, key=lambda device: device.id)[0]


def memory(executable: Executable) -> Memory:
    """Return the bytes of an executable on a device, from the compiler and the backend.

    They are those of arguments, results, temporary values, results in the memory of arguments, and
    the peak of the device so far. The peak is None if the backend does not count it (CPU).
    """
    stats = executable.compiled.memory_analysis()
    backend = _device(executable).memory_stats() or {}
    return Memory(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
        backend.get("peak_bytes_in_use"),
    )


def relative_error(first: Any, second: Any) -> float:
    """Return `max |first - second| / max |second|` in double precision; 0 for no elements.

    >>> relative_error(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    0.2
    """
    # Complex numbers contain all other item types.
    actual, expected = (np.asarray(x).astype(np.complex128) for x in (first, second))
    if actual.size == 0:
        return 0.0
    # The floor avoids a division by zero where all expected values are 0.
    scale = max(float(np.max(np.abs(expected))), float(np.finfo(np.float32).tiny))
    return float(np.max(np.abs(actual - expected))) / scale


_AXIS = "devices"
_MATMUL = 512
"""Rows and columns of the square matrix that each device multiplies."""
_ELEMENTS = 1 << 20
"""Number of f32 elements that each device copies, or puts into an all-reduce."""
_HOW = "measured in this process, all devices at once, median of 5 runs"


def measure_devices(devices: Sequence[jax.Device]) -> Hardware:
    """Measure one of `devices` while all of them work; for CPU devices, one core.

    The rate of arithmetic is that of f32 products of 512 by 512 matrices. The memory bandwidth is
    that of `x + 1` on 4 MiB, which are read and written. The link bandwidth is that of the ring
    bytes of an all-reduce of 4 MiB per device. The latency is that of an all-reduce of one element,
    divided by the hops of its ring. The measurement takes about a second.
    """
    n, shared = len(devices), devices[0].platform == "cpu"
    # If there are more CPU devices than cores, devices take turns on a core. With 8 devices on 2
    # cores, `turns` is 4: a core is 4 times as fast as a device seems.
    turns = max(1.0, n / cores()) if shared else 1.0
    mesh = Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))
    square = jnp.ones((n * _MATMUL, _MATMUL), jnp.float32)
    block = jnp.ones((n * _ELEMENTS,), jnp.float32)
    sum_s = _seconds(mesh, lambda x: lax.psum(x, _AXIS), block)
    hop_s = _seconds(mesh, lambda x: lax.psum(x, _AXIS), jnp.ones((n,), jnp.float32))
    # An all-reduce on a ring of n devices has 2 * (n - 1) hops, and each one sends 1/n of the
    # tensor. An element of float32 has 4 bytes; `x + 1` reads and writes it, 8 bytes.
    hops = max(1, 2 * (n - 1))
    figures = {
        "peak_flops_per_s.float32": 2 * _MATMUL**3 / _seconds(mesh, lambda x: x @ x, square),
        "hbm_bytes": memory_bytes(devices[0]),
        "hbm_bytes_per_s": 8 * _ELEMENTS / _seconds(mesh, lambda x: x + 1, block),
        "link_bytes_per_s": hops / n * 4 * _ELEMENTS / sum_s,
        "latency_s": hop_s / hops,
    }
    # Rates of a core are higher than measured rates of a device, and the latency is lower.
    for name in figures.keys() - {"hbm_bytes", "latency_s"}:
        figures[name] *= turns
    figures["latency_s"] /= turns
    if shared:
        figures["cores"] = cores()
    return Hardware(
        name=f"{n} {devices[0].device_kind} devices of this machine",
        cores=figures.get("cores", math.inf),
        peak_flops_per_s=(("float32", figures["peak_flops_per_s.float32"]),),
        hbm_bytes=figures["hbm_bytes"],
        hbm_bytes_per_s=figures["hbm_bytes_per_s"],
        link_bytes_per_s=figures["link_bytes_per_s"],
        latency_s=figures["latency_s"],
        sources=tuple(Source(name, value, _HOW) for name, value in figures.items()),
    )


def _seconds(mesh: Mesh, function: Callable[[jax.Array], jax.Array], x: Any) -> float:
    """Return the median seconds of `function` on every device's block of `x`.

    Compilation and the distribution of `x` are not included.

    Args:
      mesh: JAX's mesh of one axis, along which the first dimension of `x` is sharded.
    """
    spec = PartitionSpec(_AXIS)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    x = jax.device_put(x, NamedSharding(mesh, spec))
    # The caller may have set another mesh, which JAX would use inside of this program.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        run = jax.jit(mapped).lower(x).compile()
    # CPU devices share the cores of this process.
    shared = mesh.devices.flat[0].platform == "cpu"
    return time_repeatedly(lambda: run(x), 5, shared=shared).step_s
