"""A measured step from the JSON trace of JAX's profiler, as a timeline.

`jax.profiler.trace` writes `*.trace.json.gz` in Chrome's Trace Event Format. On TPUs the process
"/device:TPU:0" has the threads "XLA Modules" and "XLA Ops"; on GPUs "/device:GPU:0" has a thread
per stream ("Stream #..."). On CPUs the operators are events of threads of the host, with the device
in their arguments. Sources: XProf's documentation of the trace viewer (openxla.org/xprof), and
traces of jax 0.11 on CPU devices.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardalg.costs.pipelines.events import COMPUTE, StageEvent
from shardalg.errors import RunError
from shardalg.show.timeline import Timeline

_KINDS = {
    "all_gather": r"all[-_]gather|nccl\w*AllGather",
    "reduce_scatter": r"reduce[-_]scatter|psum_scatter|nccl\w*ReduceScatter",
    "all_reduce": r"all[-_]reduce|psum|pmax|pmin|nccl\w*AllReduce",
    "ragged_all_to_all": r"ragged[-_]all[-_]to[-_]all",
    "all_to_all": r"all[-_]to[-_]all|nccl\w*AllToAll",
    "collective_permute": r"collective[-_]permute|ppermute|nccl\w*SendRecv",
}
"""Names of operators by kind of collective: those of XLA, of JAX, and of NCCL's kernels."""
_AROUND = re.compile(r"^%?(while|conditional|call)(\.\d+)?$")
_DEVICE = re.compile(r"^/device:(?P<name>\w+:\d+)")


@dataclass(frozen=True)
class TraceOperator:
    """One execution of an operator on one device; times are seconds.

    Attributes:
      device: the device, such as "TPU:0".
      run: the module that ran it, with the number of the run; "" if the trace does not name it.
    """

    device: str
    run: str
    name: str
    kind: str
    start_s: float
    seconds: float


def read_trace(
    path: str | Path, *, device: str | None = None, module: str | None = None
) -> Timeline:
    """Return a step that JAX's profiler measured, from the trace that it wrote as JSON.

    Of all runs of the module, the one with the median time is returned. The operators of a
    collective have its kind, all other operators are computation.

    Args:
      path: a file `*.trace.json.gz` or `*.json`, or the folder that `jax.profiler.trace` was given:
        its last trace is read.
      device: the device, such as "TPU:0"; None: the first one of the trace.
      module: the compiled module, such as "jit_step"; None: the one with the most time.

    Raises:
      RunError: the file is no trace, or has no operators, or none of this device or module.
      OSError: no such file or folder.
    """
    file = Path(path)
    if file.is_dir():
        written = sorted(file.rglob("*.trace.json.gz"), key=lambda each: each.stat().st_mtime)
        if not written:
            raise RunError(f"{file} has no *.trace.json.gz. Give the folder of jax.profiler.trace.")
        file = written[-1]
    operators = [*_operators(_events(file))]
    if not operators:
        raise RunError(
            f"{file} has no operators of a device. Trace the step with jax.profiler.trace, and "
            "call jax.block_until_ready inside of the context."
        )
    devices = sorted({one.device for one in operators})
    device = devices[0] if device is None else device
    if device not in devices:
        raise RunError(f"{file} has no device {device!r}. It has {', '.join(devices)}.")
    runs: defaultdict[str, list[TraceOperator]] = defaultdict(list)
    for one in operators:
        if one.device == device:
            runs[one.run].append(one)
    # A run is named by its module and a number.
    modules: defaultdict[str, list[list[TraceOperator]]] = defaultdict(list)
    for run, members in runs.items():
        modules[run.partition(" ")[0]].append(members)
    if module is None:
        module = max(modules, key=lambda name: sum(o.seconds for r in modules[name] for o in r))
    if module not in modules:
        known = ", ".join(sorted(modules))
        raise RunError(f"{file} has no module {module!r} on {device}. It has {known}.")
    # A run takes from the start of its first operator to the end of its last one.
    times = [
        max(one.start_s + one.seconds for one in members) - min(one.start_s for one in members)
        for members in modules[module]
    ]
    chosen = modules[module][times.index(statistics.median_low(times))]
    start = min(one.start_s for one in chosen)
    events = tuple(
        StageEvent(0, one.kind, (), "", one.start_s - start, one.seconds)
        for one in sorted(chosen, key=lambda one: one.start_s)
    )
    of = f"measured on {device}, the median of {len(times)} runs of {module or 'the program'}"
    return Timeline(events, f"trace of {len(devices)} devices", of)


def _events(file: Path) -> list[dict[str, Any]]:
    """Return the events of a trace file."""
    content = file.read_bytes()
    try:
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        events = json.loads(text)["traceEvents"]
        return [event for event in events if isinstance(event, dict)]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{file} is no JSON trace ({type(error).__name__}): give a *.trace.json.gz that "
            "jax.profiler.trace wrote."
        ) from None


def _operators(events: Iterable[dict[str, Any]]) -> Iterator[TraceOperator]:
    """Yield the operators of all devices of a trace."""
    processes: dict[Any, str] = {}
    threads: dict[tuple[Any, Any], str] = {}
    complete = []
    for event in events:
        name = event.get("args", {}).get("name", "")
        if event.get("ph") == "M" and event.get("name") == "process_name":
            processes[event.get("pid")] = str(name)
        elif event.get("ph") == "M" and event.get("name") == "thread_name":
            threads[event.get("pid"), event.get("tid")] = str(name)
        elif event.get("ph") == "X" and "ts" in event:
            complete.append(event)
    # GPUs have a thread per stream. Their thread "XLA Ops" repeats the kernels of all streams.
    streams = {pid for (pid, _), name in threads.items() if name.startswith("Stream")}
    modules: defaultdict[Any, list[tuple[float, float, str]]] = defaultdict(list)
    for event in complete:
        if threads.get((event.get("pid"), event.get("tid"))) == "XLA Modules":
            start, name = float(event["ts"]), re.sub(r"\(.*", "", str(event["name"]))
            modules[event.get("pid")].append((start, start + float(event.get("dur", 0)), name))
    for event in complete:
        pid, name, args = event.get("pid"), str(event.get("name", "")), event.get("args", {})
        thread = threads.get((pid, event.get("tid")), "")
        found = _DEVICE.match(processes.get(pid, ""))
        if found:
            if not (thread.startswith("Stream") if pid in streams else thread == "XLA Ops"):
                continue
            at = float(event["ts"])
            inside = (
                f"{m} {i}" for i, (a, b, m) in enumerate(modules[pid]) if a <= at < max(b, a + 1e-9)
            )
            device, run = found["name"], next(inside, "")
            if not run and args.get("hlo_module"):
                run = str(args["hlo_module"])
        elif "hlo_op" in args and "device_ordinal" in args:
            device = f"CPU:{args['device_ordinal']}"
            run = f"{args.get('hlo_module', '')} {args.get('run_id', '')}"
        else:
            continue
        # Operators around others contain their time.
        if _AROUND.match(name) or name.startswith("end: "):
            continue
        words = [str(args.get("hlo_op", "")), name, str(args.get("hlo_category", ""))]
        yield TraceOperator(
            device, run, name, _kind(words), 1e-6 * float(event["ts"]),
            1e-6 * float(event.get("dur", 0)),
        )  # fmt: skip


def _kind(words: Iterable[str]) -> str:
    """Return the kind of collective that an operator's names say, or "compute".

    >>> _kind(["all-gather-start.3"]), _kind(["", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"])
    ('all_gather', 'all_reduce')
    >>> _kind(["psum.14"]), _kind(["loop_all_reduce_like_fusion"])
    ('all_reduce', 'compute')
    """
    for word in words:
        for kind, pattern in _KINDS.items():
            if re.match(rf"%?({pattern})([-._\d]|$)", word) or (
                "nccl" in word[:5] and re.match(rf"({pattern})", word)
            ):
                return kind
    return COMPUTE
