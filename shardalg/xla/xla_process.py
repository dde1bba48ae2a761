"""XLA in a process of its own with a given number of CPU devices; run as a script.

Its folder holds `module`, the StableHLO of a lowered program, and `request.json`: the partitioner,
the number of devices, and for each argument and result whether XLA may choose its sharding. XLA
writes its dump into the same folder, and `results.json` has the results' shardings and the flops of
a device. Nothing of shardalg is imported, and an abort of XLA ends this process alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

SWITCH = "jax_use_shardy_partitioner"


def main(folder: Path) -> None:
    """Compile the program in the folder, and write `results.json`.

    It has the shardings of the results as XLA chose them, and the flops of one device.
    """
    request = json.loads((folder / "request.json").read_text())
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", request["devices"])
    # Newer versions of JAX have Shardy only, and no switch.
    if hasattr(jax.config, SWITCH):
        jax.config.update(SWITCH, request["partitioner"] == "shardy")
    executable = compiled((folder / "module").read_bytes(), request, request["options"])
    results = {"shardings": result_shardings(executable), "flops": device_flops(executable)}
    (folder / "results.json").write_text(json.dumps(results))


def compiled(module: bytes, request: dict[str, Any], options: dict[str, str]) -> Any:
    """Compile StableHLO for CPU devices and return XLA's executable."""
    from jax.extend.backend import get_backend, get_compile_options
    from jaxlib.xla_client import DeviceList

    # There is no Python function to jit, so XLA's own options say which shardings it may choose.
    backend, count = get_backend("cpu"), request["devices"]
    made = get_compile_options(
        num_replicas=1,
        num_partitions=count,
        device_assignment=np.arange(count)[None],
        env_options_overrides=options,
        backend=backend,
    )
    build = made.executable_build_options
    build.allow_spmd_sharding_propagation_to_parameters = request["open_arguments"]
    build.allow_spmd_sharding_propagation_to_output = request["open_results"]
    return backend.compile_and_load(module, DeviceList(tuple(backend.devices()[:count])), made)


def result_shardings(executable: Any) -> list[str]:
    """Return the results' shardings as HLO text."""
    from jaxlib.xla_client import HloSharding

    return [str(HloSharding.from_proto(s)) for s in executable.get_output_shardings() or ()]


def device_flops(executable: Any) -> float | None:
    """Return the floating-point operations of one device that XLA counts; None without a count."""
    counted = executable.cost_analysis()
    counted = counted[0] if isinstance(counted, list) and counted else counted
    return counted.get("flops") if isinstance(counted, dict) else None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
