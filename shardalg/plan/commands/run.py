"""`shardalg run`: plan, verify, lower and run a function of the user."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.notation.read import mesh_of
from shardalg.errors import CommandError, DeviceError
from shardalg.files import write_whole
from shardalg.plan.commands.function import add_function, arguments, loaded, plan_of
from shardalg.plan.commands.messages import add_json, print_json
from shardalg.tables import seconds_text

if TYPE_CHECKING:
    from shardalg.lower.running.processes import Job
    from shardalg.lower.shard_map import Lowered
    from shardalg.plan.plan import Plan

HELP = "run a function on the devices of this machine, in local processes, or in a cluster's job"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg run` to its parser."""
    add_function(parser)
    option = parser.add_argument
    option(
        "--processes", type=int, metavar="N",
        help="start N local processes with CPU devices (default: join a cluster's job, if any)",
    )  # fmt: skip
    option("--port", type=int, help="port of the first local process (default: a free one)")
    option(
        "--time-limit", type=float, default=3600.0, metavar="SECONDS",
        help="time limit of all local processes together; default %(default)g",
    )  # fmt: skip
    option("--steps", type=int, default=1, metavar="N", help="number of calls; default %(default)s")
    option(
        "--carry", default="", metavar="RESULT:ARGUMENT,...",
        help="numbers of results that become arguments of the next step, as 0:0",
    )  # fmt: skip
    option(
        "--out", type=Path, metavar="FILE.npz",
        help="write the results by path, with the scalars of every step (bfloat16 as float32)",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run the function here, or start local processes that do, and return the exit status.

    Raises:
      CommandError: an option has a wrong value; checked before anything is planned.
    """
    carry = _carry(options.carry)
    if options.steps < 1:
        raise CommandError(f"--steps {options.steps}: give a number of at least 1.")
    if options.out is not None and not options.out.parent.is_dir():
        raise CommandError(f"--out {options.out}: no folder {options.out.parent}. Make it first.")
    if options.processes is None:
        return _member(options, carry)
    _local(options)
    return 0


def _carry(text: str) -> dict[int, int]:
    """Return {argument: result}: the number of the result that an argument takes in the next step.

    The option --carry has such pairs as text, "result:argument".

    >>> _carry("0:0,2:1")
    {0: 0, 1: 2}
    """
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    bad = [":".join(pair) for pair in pairs if len(pair) != 2 or not all(map(str.isdigit, pair))]
    if bad:
        raise CommandError(f"--carry {bad[0]!r}: write RESULT:ARGUMENT by number, as in 0:0.")
    return {int(argument): int(result) for result, argument in pairs}


def _local(options: argparse.Namespace) -> None:
    """Start local processes that run the function, and print their output.

    Each process runs `shardalg run` with the same options, and has an equal share of the mesh's
    devices.

    Raises:
      CommandError: the number of processes does not divide the devices of the mesh.
    """
    from shardalg.lower.running.processes import LocalProcesses

    count = options.processes
    if options.mesh is None:
        raise CommandError(
            "--processes needs --mesh, as --mesh X=2,Y=4: the processes share its devices."
        )
    size = mesh_of(options.mesh).size
    if count < 1 or size % count:
        fit = ", ".join(str(n) for n in range(1, size + 1) if not size % n)
        raise CommandError(
            f"--processes {count} does not divide {size} devices (--mesh {options.mesh}): every "
            f"process has equally many. Write one of {fit}."
        )
    processes = LocalProcesses(count, size // count, options.port, options.time_limit)
    # With an option that starts processes, each process would start further ones.
    starting = ("command", "function", "processes", "port", "time_limit", "json")
    values = {k: v for k, v in vars(options).items() if k not in starting and v not in (None, "")}
    call_arguments = [options.function, *(f"--{name}={value}" for name, value in values.items())]
    command = ["-m", "shardalg", "run", *call_arguments, *(["--json"] if options.json else [])]
    if not options.json:
        processes.run(command, lambda line: print(line, flush=True))
        return
    lines: list[str] = []
    processes.run(command, lines.append)
    # A log contains both streams. The document starts at a line "{" and ends at the last "}".
    first, last = lines.index("{"), len(lines) - lines[::-1].index("}")
    print("\n".join((*lines[:first], *lines[last:])), file=sys.stderr)
    print("\n".join(lines[first:last]))


def _member(options: argparse.Namespace, carry: Mapping[int, int]) -> int:
    """Run the function as one process of a cluster's job, or alone; return the exit status.

    Args:
      carry: the number of the result that becomes each argument of the next step.
    """
    from shardalg.lower.axes import FORCED, host_devices
    from shardalg.lower.running.processes import abandon, join, leave

    joined = join()
    # Outside of a cluster there is only this process, and JAX gives it one CPU device by default.
    # The mesh needs more.
    if not joined and options.mesh is not None and FORCED not in os.environ.get("XLA_FLAGS", ""):
        host_devices(mesh_of(options.mesh).size)  # JAX reads it when it starts
    try:
        _planned_and_run(options, carry, joined=joined)
    except BaseException:
        # At a normal exit, JAX waits for the other processes, which wait for this one in their next
        # collective. `abandon` ends this process at once.
        if joined:
            abandon()
        raise
    if joined:
        leave()
    return 0


def _planned_and_run(
    options: argparse.Namespace, carry: Mapping[int, int], *, joined: bool
) -> None:
    """Plan the function, check that all processes of the job have this plan, and run it.

    Args:
      carry: the number of the result that becomes each argument of the next step.
      joined: whether this process is one of several in a cluster's job.
    """
    from shardalg.lower.running.processes import Job, agree

    function, specs = loaded(options)
    plan = plan_of(function, specs, options)
    if joined:
        num_devices = Job.this().devices
        if num_devices != plan.mesh.size:
            raise DeviceError(
                f"{plan.mesh!r} has {plan.mesh.size} devices, but the job has {num_devices}. Give "
                f"--mesh {num_devices} devices, or start the job with {plan.mesh.size}."
            )
        # Processes that run different programs would wait for each other without end.
        agree(plan.text(), "the plans")
    values = arguments(specs, "arrays" if hasattr(specs, "arrays") else "args")
    _run(options, plan, values, carry)


def _run(
    options: argparse.Namespace, plan: Plan, values: tuple[Any, ...], carry: Mapping[int, int]
) -> None:
    """Run a plan for the number of steps asked for, print each step, and write the results.

    Every process of the job calls it; the first one prints and writes.

    Args:
      values: the arguments of the first step.
      carry: the number of the result that becomes each argument of the next step.
    """
    from shardalg.lower.running.processes import Job
    from shardalg.lower.running.steps import run_steps

    lowered, job = plan.lower(), Job.this()
    first = job.index == 0
    steps: list[dict[str, Any]] = []

    def record(step: int, seconds: float, scalars: Mapping[str, Any]) -> None:
        """Store the time and the scalar results of a step; print them in the first process."""
        steps.append({"step": step, "step_time_s": seconds, "scalars": dict(scalars)})
        # With --json, standard output must be one JSON document.
        if first and not options.json:
            shown = "".join(f"  {path} {value:.8g}" for path, value in scalars.items())
            print(f"step {step}: {seconds_text(seconds)}{shown}", flush=True)

    if first and not options.json:
        print(f"{lowered!r}, {job.processes} processes", flush=True)
    ran = run_steps(lowered, values, options.steps, carry, record)
    if options.out is not None:
        # Gathering the blocks is a collective, so every process takes part.
        host_values: Mapping[str, Any] = ran.on_host(lowered)
        if first:
            import numpy as np

            # Written to memory first, so that the file is replaced as a whole or not at all.
            content = io.BytesIO()
            np.savez(content, **host_values)
            write_whole(options.out, content.getvalue())
            if not options.json:
                print(f"{len(host_values)} results in {options.out}", flush=True)
    if first and options.json:
        print_json(
            {
                **_machine(lowered, plan, job),
                "steps": steps,
                "out": options.out and str(options.out),
            }
        )


def _machine(lowered: Lowered, plan: Plan, job: Job) -> dict[str, Any]:
    """Return the devices that the plan runs on, their memory, and whether the plan fits.

    CPU devices share the memory of the machine, so all of them together must fit.
    """
    from shardalg.lower.measure import memory_bytes

    device = lowered.run.mesh.devices.flat[0]
    capacity = memory_bytes(device)
    peak = plan.overview().priced.at_hints.peak_memory_bytes
    needed_bytes = peak * (plan.mesh.size if device.platform == "cpu" else 1)
    return {
        "plan": repr(plan),
        "machine": f"{plan.mesh.size} x {device.device_kind} (devices of this job)",
        "devices": plan.mesh.size,
        "processes": job.processes,
        "mesh": dict(plan.mesh.shape),
        "fits": bool(needed_bytes <= capacity),
        "capacity_bytes": int(capacity),
        "peak_memory_bytes": peak,
    }
