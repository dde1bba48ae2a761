"""XLA in a process of its own, with as many CPU devices as a mesh has.

If XLA aborts, only that process ends, and this one raises an error.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from shardalg.errors import LoweringError
from shardalg.lower.xla_dump.hlo_collectives import Dumping

SCRIPT = Path(__file__).with_name("xla_process.py")
LONGEST_S = 600
_STAMP = re.compile(r"^[A-Z]\d+ [\d:.]+ +\d+ ")
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=\d+")


class Request(NamedTuple):
    """The compilation that another process performs.

    Attributes:
      devices: number of CPU devices.
      open_arguments, open_results: for each, whether XLA chooses its sharding.
    """

    partitioner: str
    devices: int
    open_arguments: list[bool]
    open_results: list[bool]


class CompiledApart(NamedTuple):
    """The results' shardings as HLO text, a device's flops if XLA counts them, and XLA's log."""

    shardings: list[str]
    flops: float | None
    log: str


def compile_apart(stage: Any, dumping: Dumping, asked: Request) -> CompiledApart:
    """Compile a program in another process.

    Args:
      stage: JAX's lowered program.
      dumping: the folder for XLA's dump, and for the files that the processes exchange.
      asked: partitioner, number of devices, and values whose shardings XLA may choose.

    Raises:
      LoweringError: XLA ends without an answer.
    """
    # Bytecode is shorter than text, above all for large constants.
    module = BytesIO()
    stage.compiler_ir("stablehlo").operation.write_bytecode(module)
    request = asked._asdict() | {"options": dumping.options}
    (dumping.folder / "module").write_bytes(module.getvalue())
    (dumping.folder / "request.json").write_text(json.dumps(request))
    run = run_apart(SCRIPT, dumping.folder, LONGEST_S)
    if run.returncode:
        raise LoweringError(
            f"XLA's {asked.partitioner} partitioner ended without an answer on {asked.devices} "
            f"devices (status {run.returncode}): {last_words(run.stderr)}\n"
            "Compare with another partitioner, or leave out the part of the function that it names."
        )
    return CompiledApart(
        **json.loads((dumping.folder / "results.json").read_text()), log=run.stderr
    )


def run_apart(
    script: Path, folder: Path, longest_s: int, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder in a process with this one's import path.

    Args:
      longest_s: time limit in seconds.
      more: additional variables of the process's environment.

    Raises:
      LoweringError: the process takes longer than `longest_s`.
    """
    # With -P, this folder is not on the import path, where its modules could hide others.
    command = [sys.executable, "-P", str(script), str(folder)]
    # Leave out this process's number of CPU devices: the script sets its own, and JAX refuses both.
    # All of XLA's optimizations are on, even if this process has switched them off.
    flags = _DEVICE_COUNT.sub("", os.environ.get("XLA_FLAGS", ""))
    path = os.pathsep.join(entry for entry in sys.path if entry)
    own = {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    environment = os.environ | {"XLA_FLAGS": flags} | own | dict(more or {})
    try:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=longest_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoweringError(
            f"the compiler has no answer after {longest_s} s. Compile a smaller program."
        ) from None


def last_words(stderr: str) -> str:
    """Return the failed check that XLA names before its stack trace, or else the last lines."""
    # A stack trace follows the failed check, so the last lines would not name it.
    failed = [line for line in stderr.splitlines() if "Check failed" in line]
    return _STAMP.sub("", failed[0]).strip() if failed else stderr.strip()[-600:]
