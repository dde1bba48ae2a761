"""Processes of this machine that run one command together, on CPU devices of their own.

Each process has the environment variables that `join` reads, as on a cluster. If one ends with an
error or is killed, or the time is over, the others are ended at once: they would wait for it.

Inside of such a process, `join` connects to the others, `agree` compares a text on all of them, and
`on_host` fetches an array whose blocks are on all of them.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from shardalg.errors import RunError
from shardalg.graph.evaluate import is_key

_HOST = "127.0.0.1"
_POLL_S = 0.05
_SHOWN = 20
"""How many of the last lines of a failed process's log are shown."""
_FORCED = re.compile(r"--xla_force_host_platform_device_count=\d+")
_NOISE = ("[Gloo]",)  # Gloo logs every connection: these lines would hide the program's own


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine that run one command together.

    Attributes:
      count: number of processes.
      devices: number of CPU devices of each process.
      port: port of the first process, to which the others connect; None takes a free one.
      limit_s: seconds from the start to the end of all.
    """

    count: int
    devices: int
    port: int | None = None
    limit_s: float = 3600.0

    def run(self, command: Sequence[str], show: Callable[[str], None] = print) -> None:
        """Run `python command` in every process, and show the lines of the first one's output.

        Args:
          command: arguments of Python. show: called with each line.

        Raises:
          RunError: the port is in use; a process fails, is killed, or takes too long. The last
            lines of its log are shown.
        """
        port = _port(self.port)
        with tempfile.TemporaryDirectory(prefix="shardalg-run-") as folder:
            logs = [Path(folder, f"{index}.log") for index in range(self.count)]
            started: list[subprocess.Popen[bytes]] = []
            try:
                for index, log in enumerate(logs):
                    started.append(_start_process(command, self._environment(port, index), log))
                self._watch(started, logs, show)
            # After a failure, the remaining processes would wait for the failed one forever.
            finally:
                for process in started:
                    process.kill()
                    process.wait()

    def _environment(self, port: int, index: int) -> dict[str, str]:
        """Return the environment variables of process `index`; the first one listens at `port`."""
        return {
            **os.environ,
            "XLA_FLAGS": _FORCED.sub("", os.environ.get("XLA_FLAGS", "")),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(self.devices),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "JAX_COORDINATOR_ADDRESS": f"{_HOST}:{port}",
            "JAX_NUM_PROCESSES": str(self.count),
            "JAX_PROCESS_ID": str(index),
            "PYTHONUNBUFFERED": "1",
        }

    def _watch(
        self,
        started: Sequence[subprocess.Popen[bytes]],
        logs: Sequence[Path],
        show: Callable[[str], None],
    ) -> None:
        """Return when all processes have ended with status 0.

        The lines of the first process's output are shown meanwhile.

        Args:
          started: the processes.
          logs: the file of each process's output.
          show: called with each line.

        Raises:
          RunError: a process ends with another status, or the time limit is over.
        """
        # Poll instead of waiting for one process: any of them may fail first.
        end, seen = time.monotonic() + self.limit_s, 0
        while True:
            # A status is None while the process runs.
            states = [process.poll() for process in started]
            seen = _show_new_lines(logs[0], seen, show)
            failed = [index for index, state in enumerate(states) if state]
            if failed:
                # A killed process makes the others abort or fail, so it is the one to report. Its
                # status is negative (a signal). The order: killed processes, aborted ones, then
                # failed ones.
                cause = min(failed, key=lambda i: ((states[i] or 0) > 0, states[i] == _ABORTED, i))
                raise self._lost(cause, states[cause] or 0, logs[cause], show)
            if all(state == 0 for state in states):
                return
            if time.monotonic() > end:
                slow = states.index(None)
                _tail(logs[slow], slow, show)
                raise RunError(
                    f"process {slow} of {self.count} still runs after the time limit of "
                    f"{self.limit_s:g} s; all are ended. Give more with --time-limit."
                )
            time.sleep(_POLL_S)

    def _lost(self, index: int, state: int, log: Path, show: Callable[[str], None]) -> RunError:
        """Return the error that process `index` ended with status `state`; show its last lines."""
        last = _tail(log, index, show)
        how = f"was killed by signal {-state}" if state < 0 else f"ended with status {state}"
        return RunError(
            f"process {index} of {self.count} {how}; the others are ended, nothing is written. "
            f"Its last line: {last or '(none)'}"
        )


_ABORTED = -signal.SIGABRT


def _start_process(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start `python command` with all its output in a log file."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def _port(wanted: int | None) -> int:
    """Return the port if it is free, or any free port if it is None.

    RunError if the port is in use or no valid number.
    """
    # The system selects a free port for the number 0. The socket is closed again, so that the first
    # process can use the port.
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, wanted or 0))
        except (OSError, OverflowError) as error:
            raise RunError(
                f"port {wanted} of {_HOST} cannot be had: {error}. Name another one, or none: a "
                "free one is taken then."
            ) from None
        return int(probe.getsockname()[1])


def _show_new_lines(log: Path, seen: int, show: Callable[[str], None]) -> int:
    """Show the complete lines of a log after byte `seen`, and return the number of the next byte.

    The next call gets this number. An incomplete last line is shown by a later call. Lines that
    begin with a text of `_NOISE` are left out.
    """
    with log.open("rb") as file:
        file.seek(seen)
        # Bytes after the last line end are an incomplete line.
        complete, line_end, _ = file.read().rpartition(b"\n")
    if not line_end:
        return seen
    for line in complete.decode(errors="replace").splitlines():
        if not line.startswith(_NOISE):
            show(line)
    # One more byte for the line end itself.
    return seen + len(complete) + 1


def _tail(log: Path, index: int, show: Callable[[str], None]) -> str:
    """Show the last lines of the log of process `index`, and return the very last one."""
    lines = [x for x in log.read_text(errors="replace").splitlines() if not x.startswith(_NOISE)]
    for line in lines[-_SHOWN:]:
        show(f"process {index} | {line}")
    return lines[-1] if lines else ""


_ALONE = ("coordinator_address should be defined", "must be called before any JAX")
"""Parts of JAX's errors if nothing names other processes, or if JAX has started already."""


def join(timeout_s: int = 300) -> bool:
    """Join the processes that a launcher or a scheduler started; return False if there are none.

    The processes are described by `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID` in the environment, which `shardalg run --processes` or a user sets. Otherwise
    `jax.distributed.initialize` detects SLURM, GKE, Cloud TPU or Open MPI. Call this before
    anything else uses JAX.

    Args:
      timeout_s: seconds to wait for the other processes.

    Raises:
      RunError: the processes do not find each other in time, or JAX has started.
    """
    # Values in the environment precede the detection of JAX, which knows schedulers only.
    told = [os.environ.get(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")]
    try:
        count, index = (None if text is None else int(text) for text in told)
        jax.distributed.initialize(
            num_processes=count, process_id=index, initialization_timeout=timeout_s
        )
    except (ValueError, RuntimeError) as error:
        if told == [None, None] and any(words in str(error) for words in _ALONE):
            return False
        raise RunError(
            f"this process cannot join the others: {error}. JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID, or the scheduler, say which they are."
        ) from error
    return True


@dataclass(frozen=True)
class Job:
    """The processes that run together.

    Attributes:
      index: number of this process.
      processes: number of processes.
      devices: number of devices of all processes.
    """

    index: int
    processes: int
    devices: int

    @classmethod
    def this(cls) -> Job:
        """Return the job of this process, which may be its only one."""
        return cls(jax.process_index(), jax.process_count(), jax.device_count())


def leave() -> None:
    """Synchronise with the other processes, then leave the job."""
    jax.distributed.shutdown()


def abandon() -> None:
    """End this process at once after an error; JAX would block until the others end."""

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)

    # Handlers run last in, first out: this one runs before JAX's, which would block.
    atexit.register(end)


def agree(text: str, what: str) -> None:
    """Raise unless all processes have equal texts; different programs would block each other.

    Args:
      text: the text of this process. what: name of the text, for the message.

    Raises:
      RunError: the texts differ.
    """
    from jax.experimental import multihost_utils

    # Compare digests: the texts of large programs are megabytes.
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(digest)).reshape(-1, digest.size)
    others = [index for index, other in enumerate(every) if (other != every[0]).any()]
    if others:
        raise RunError(
            f"{what} of process 0 and of process {others[0]} differ. Give all processes the same "
            "files, versions and options."
        )


def on_host(array: jax.Array) -> np.ndarray:
    """Return the whole array on every process; types that only JAX has become exact wider ones.

    Key arrays become their words, bfloat16 and smaller floats float32.
    """
    from jax.experimental import multihost_utils

    if is_key(array):
        array = jax.random.key_data(array)
    # Other processes have blocks that this one cannot read; all processes exchange theirs then.
    if array.is_fully_addressable or array.is_fully_replicated:
        values = np.asarray(array)
    else:
        values = np.asarray(multihost_utils.process_allgather(array, tiled=True))
    # NumPy has the kind "V" (void) for JAX's own types, such as bfloat16.
    is_jax_float = values.dtype.kind == "V" and jnp.issubdtype(values.dtype, jnp.floating)
    return values.astype(np.float32) if is_jax_float else values
