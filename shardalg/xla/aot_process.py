"""A compiler without its devices, in a process of its own: run as a script.

Its folder holds `request.json`, an `aot.Target` and the names of programs, and a file of StableHLO
for each of them. For each program it writes `<program>.json`, with the compiler's memory and flops
or its error, and `<program>.hlo`, the compiled program as text. It writes `failed.json` if there is
no compiler, or if the compiler does not know the topology. Nothing of shardalg is imported.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

MEMORY = {
    "peak_memory_bytes": "peak_memory_in_bytes",
    "argument_bytes": "argument_size_in_bytes",
    "result_bytes": "output_size_in_bytes",
    "temp_bytes": "temp_size_in_bytes",
    "alias_bytes": "alias_size_in_bytes",
}


def main(folder: Path) -> None:
    """Compile the programs of the folder."""
    request = json.loads((folder / "request.json").read_text())
    try:
        devices = placed(topology(request), request["places"])
    except Exception as error:
        # A plugin may raise any class of exception, and the caller reports each of them.
        failure = {"kind": type(error).__name__, "message": str(error)}
        (folder / "failed.json").write_text(json.dumps(failure))
        return
    for name in request["programs"]:
        start = time.perf_counter()
        answer = compiled(
            (folder / name).read_bytes(),
            devices,
            folder / f"{name}.hlo",
            request["compiler_options"],
        )
        answer["compile_s"] = time.perf_counter() - start
        (folder / f"{name}.json").write_text(json.dumps(answer))


def topology(request: dict[str, Any]) -> list[Any]:
    """Return the devices of the topology in the request."""
    from jax.experimental import topologies

    described = topologies.get_topology_desc(platform=request["platform"], **request["options"])
    return list(described.devices)


def placed(devices: list[Any], places: list[list[int]]) -> list[Any]:
    """Return the device at every position of the mesh.

    Raises:
      ValueError: the topology does not have exactly these places.
    """
    # GPUs have no coordinates: a place is the number of the device.
    if len(places[0]) == 1:
        return [devices[number] for (number,) in places]
    found = {_place(device): device for device in devices}
    wanted = [tuple(place) for place in places]
    if len(found) != len(wanted) or not found.keys() >= set(wanted):
        raise ValueError(
            f"it has {len(found)} devices, at (slice, x, y, z, core) {min(found)} to {max(found)}, "
            f"and the mesh needs {len(wanted)}, at {min(wanted)} to {max(wanted)}"
        )
    return [found[place] for place in wanted]


def _place(device: Any) -> tuple[int, ...]:
    # A place has three coordinates of the chip, even on a topology with fewer.
    chip = (*device.coords, 0, 0)[:3]
    return getattr(device, "slice_index", None) or 0, *chip, device.core_on_chip


def compiled(module: bytes, devices: list[Any], text: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Compile a program and return the compiler's figures; write its HLO to `text`."""
    import jax
    import numpy as np
    from jax.extend.backend import get_compile_options
    from jax.extend.mlir import ir
    from jax.interpreters.mlir import make_ir_context
    from jaxlib.xla_client import DeviceList

    # `jax.jit` would need the devices, so the module goes to the plugin's compiler directly.
    with make_ir_context():
        parsed = ir.Module.parse(module)
    options = get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.arange(len(devices))[None],
        env_options_overrides=more,
        backend=devices[0].client,
    )
    try:
        made = devices[0].client.compile(parsed, DeviceList(tuple(devices)), options)
    except jax.errors.JaxRuntimeError as error:  # out of memory is an answer
        return {"error": str(error)}
    text.write_text("\n".join(part.to_string() for part in made.hlo_modules()))
    stats = made.get_compiled_memory_stats()
    return {name: int(getattr(stats, field)) for name, field in MEMORY.items()} | _flops(made)


def _flops(made: Any) -> dict[str, float]:
    """Return the flops that the compiler counts; an empty dictionary if it counts none."""
    import jax

    try:
        costs = made.cost_analysis()
    # Some plugins do not implement the cost analysis.
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return {}
    costs = costs[0] if isinstance(costs, list) else costs
    return {"flops": costs["flops"]} if "flops" in costs else {}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
