"""`make hardware`: predicted beside measured steps, of plans that nothing was calibrated with.

On the accelerator that JAX offers, else on eight CPU devices; kept by the device's kind.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import shardalg as sa
from benchmarks.result import RESULTS, Result, printed
from shardalg.costs.hardware import Hardware
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.lab.explore.explore import Progress
from shardalg.lab.table1_strategies import STRATEGIES
from shardalg.lower.measure import Timing, memory
from shardalg.lower.shard_map import Lowered
from shardalg.models.measured.this_machine import CalibrationRun, in_turns, measure_hardware
from shardalg.models.model import DimensionAxes
from shardalg.models.published.conformer import PIPELINED, Conformer
from shardalg.models.published.moe import HYBRID, MoEConfig
from shardalg.models.published.unet3d import SPATIAL, UNet3D
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.plan.plan import Plan
from shardalg.tables import Table

ABOUT = """Five models on three meshes each, on all devices of this machine: a Transformer layer
with its gradient, and train steps of a mixture of experts, a 3D U-Net, a pipelined Conformer and
a Transformer with Adam. `predicted_ms` is the plan's price by figures that were fitted to other,
small programs (`shardalg calibrate`), `probed_ms` by five probes of the peaks. CPU devices share
the cores, and `work_ms` is the processor time of all of them over the cores, which other programs
on the machine do not lengthen; `wall_ms` is the clock's least. Errors are predicted over measured
- 1, of the work on CPU and of the clock elsewhere. `planned_bytes` is the plan's peak memory,
`compiled_bytes` the compiler's. `largest` is the row of the breakdown with the largest
difference. The calibration programs and the models run in turns, so that both see the same
load of the machine."""
LAYER = Config(B=16, S=128, M=256, H=1024, N=8, D=32, dtype="float32")
MOE = MoEConfig(B=16, S=64, M=128, H=512, N=8, D=16, V=256, E=8, C=16, dtype="float32")
UNET = UNet3D(batch=8, size=16, width=8, levels=3, dtype="float32")
CONFORMER = Conformer(
    Schedule(2, 4), B=16, S=32, M=64, H=256, N=4, K=5, F=16, C=8, V=64, dtype="float32"
)
REPEATS = 15
Planned = tuple[Plan, tuple[Any, ...]]
Axes = Mapping[str, int]


def _layer(axes: Axes) -> Planned:
    chosen, mesh = part("layer_gradient"), sa.Mesh(axes)
    args = chosen.random_arguments(LAYER)
    given = STRATEGIES["finalized"](mesh, LAYER, "layer_gradient")
    return sa.plan(chosen.function(LAYER), *args, strategy=given, roles=chosen.roles()), args


def _published(made: Any, layout: DimensionAxes, axes: Axes) -> Planned:
    model = made.model
    return model.plan(sa.Mesh(axes), layout), model.random_arguments()


def _transformer(axes: Axes) -> Planned:
    model = sa.models.DenseTransformer(
        layers=2, model_dim=128, hidden_dim=512, heads=8, head_dim=16, vocab=512, seq=64, batch=16,
        dtype="float32", optimizer="adam",
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(0, 512, (2, 16, 64))
    return model.plan(axes, "finalized"), (*model.init(), *jnp.asarray(ids, jnp.int32))


@dataclass(frozen=True)
class Model:
    """A planned model and the axes of its meshes: two, the second a factor of the devices."""

    plan: Callable[[Axes], Planned]
    axes: tuple[str, str] = ("X", "Y")

    def meshes(self, devices: int) -> Iterator[Axes]:
        """Return three meshes, or as many as the devices have."""
        if self.axes == ("X", "Y"):
            shapes = {(2, devices // 2), (devices // 2, 2), (devices, 1)}
        else:  # stages, and what is in parallel to them
            shapes = {(2, devices // 2), (2, devices // 4), (2, devices // 8)}
        for shape in sorted(shapes):
            if all(size >= 1 for size in shape) and shape[0] * shape[1] <= devices:
                yield dict(zip(self.axes, shape, strict=True))


MODELS = {
    "Transformer layer": Model(_layer),
    "mixture of experts": Model(partial(_published, MOE, HYBRID)),
    "3D U-Net": Model(partial(_published, UNET, SPATIAL)),
    "Conformer": Model(partial(_published, CONFORMER, PIPELINED), ("L", "X")),
    "Transformer": Model(_transformer),
}


def run(
    say: Callable[[str], None],
    models: Sequence[str] = tuple(MODELS),
    *,
    devices: Sequence[jax.Device] | None = None,
    chip: Hardware | None = None,
) -> Result:
    """Plan and lower all, run the calibration programs and the models in turns, and compare."""
    devices = list(devices or _devices())
    say(f"calibrating {devices[0].device_kind}")
    rough = measure_hardware(devices, quick=True)
    calibration = None if chip else CalibrationRun.on(devices, say)
    ready = []
    for name in models:
        for axes in MODELS[name].meshes(len(devices)):
            planned, args = MODELS[name].plan(axes)
            lowered = planned.lower(list(devices)[: planned.mesh.size])
            ready.append(Ready(name, planned, lowered, args))
            say(f"{name}, {planned.mesh} lowered")
    programs = calibration.steps if calibration else ()
    timings = in_turns([*programs, *((each.lowered, each.args) for each in ready)], REPEATS)
    if calibration:
        chip = calibration.hardware(timings[: len(programs)])
    rows = []
    for each, timing in zip(ready, timings[len(programs) :], strict=True):
        rows.append(row(each, timing, (chip or rough, rough)))
        say(f"{each.name}, {rows[-1]['mesh']}: {rows[-1]['error']:+.0%}")
    table = Table.from_records(rows)
    name = re.sub(r"\W+", "_", devices[0].device_kind).lower()
    return Result(name, ABOUT, table, summary(table, devices))


def _devices() -> list[jax.Device]:
    """Return the devices of an accelerator, or else eight CPU devices."""
    cpu = sa.host_devices(8)  # before JAX starts
    found = jax.devices()
    return cpu if found[0].platform == "cpu" else found


class Ready(NamedTuple):
    """A planned model with its executable and its arguments."""

    name: str
    planned: Plan
    lowered: Lowered
    args: tuple[Any, ...]


def row(ready: Ready, timing: Timing, chips: tuple[Hardware, Hardware]) -> dict[str, Any]:
    """Return the row of a model on a mesh, with its prices on the fitted and the probed chip."""
    name, planned, lowered, args = ready
    predicted, probed = (planned.cost(chip) for chip in chips)
    largest = lowered.breakdown(*args, hardware=chips[0], repeats=3).largest
    measured = timing.step_s
    held = memory(lowered).total_bytes
    return {
        "model": name,
        "mesh": repr(planned.mesh),
        "work_ms": timing.step_s * 1e3,
        "wall_ms": timing.least_s * 1e3,
        "predicted_ms": predicted.step_time_s * 1e3,
        "error": predicted.step_time_s / measured - 1,
        "wall_error": predicted.step_time_s / timing.least_s - 1,
        "probed_ms": probed.step_time_s * 1e3,
        "probed_error": probed.step_time_s / measured - 1,
        "planned_bytes": predicted.peak_memory_bytes,
        "compiled_bytes": held,
        "bytes_error": predicted.peak_memory_bytes / held - 1,
        "largest": f"{largest.kind} {largest.name}",
    }


def summary(table: Table, devices: Sequence[jax.Device]) -> dict[str, float | str]:
    """Medians and worsts."""
    found: dict[str, float | str] = {
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "plans": len(table.rows),
        "load of the machine at the end": os.getloadavg()[0],
    }
    for column in ("error", "wall_error", "probed_error", "bytes_error"):
        sizes = [abs(value) for value in table[column]]
        found[f"median {column}"] = statistics.median(sizes)
        found[f"worst {column}"] = max(sizes)
    return found


def main() -> int:
    say = Progress()
    result = run(say)
    paths = result.save(RESULTS / "hardware")
    printed(result)
    say(f"written to {', '.join(map(str, paths))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
