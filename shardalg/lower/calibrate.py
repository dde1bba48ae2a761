"""Five probes of this machine's peaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardalg.costs.hardware import Hardware, Source
from shardalg.lower.measure import cores, memory_bytes, repeated

_AXIS = "devices"
_MATMUL = 512  # rows and columns of the square that each device multiplies
_ELEMENTS = 1 << 20  # f32 elements that each device copies, or puts into an all-reduce
_HOW = "measured in this process, all devices at once, median of 5 runs"


def probed(devices: Sequence[jax.Device]) -> Hardware:
    """What one of `devices` does while all of them work; of CPU devices, what a core does.

    Flops: f32 matmuls of 512; memory: `x + 1` on 4 MiB, read and written; link: an all-reduce of
    4 MiB per device, ring bytes; latency: an all-reduce of one element, per hop of its ring.
    Takes about a second.
    """
    n, shared = len(devices), devices[0].platform == "cpu"
    turns = max(1.0, n / cores()) if shared else 1.0
    mesh = Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))
    square = jnp.ones((n * _MATMUL, _MATMUL), jnp.float32)
    block = jnp.ones((n * _ELEMENTS,), jnp.float32)
    sum_s = _seconds(mesh, lambda x: lax.psum(x, _AXIS), block)
    hop_s = _seconds(mesh, lambda x: lax.psum(x, _AXIS), jnp.ones((n,), jnp.float32))
    hops = max(1, 2 * (n - 1))
    figures = {
        "peak_flops_per_s.float32": 2 * _MATMUL**3 / _seconds(mesh, lambda x: x @ x, square),
        "hbm_bytes": memory_bytes(devices[0]),
        "hbm_bytes_per_s": 8 * _ELEMENTS / _seconds(mesh, lambda x: x + 1, block),
        "link_bytes_per_s": max(1, 2 * (n - 1)) / n * 4 * _ELEMENTS / sum_s,
        "latency_s": hop_s / hops,
    }
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
    """Seconds of `function` on every device's block of `x`."""
    spec = PartitionSpec(_AXIS)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    x = jax.device_put(x, NamedSharding(mesh, spec))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        run = jax.jit(mapped).lower(x).compile()
    shared = mesh.devices.flat[0].platform == "cpu"
    return repeated(lambda: run(x), 5, shared=shared).step_s
