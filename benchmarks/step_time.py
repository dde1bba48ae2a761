"""Our lowered step against XLA's partitioning of the same function, on 8 CPU devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import shardalg as sa
from benchmarks.result import Result, geometric_mean
from shardalg.lab.table1_strategies import STRATEGIES
from shardalg.lower.three_ways import compare, one_device
from shardalg.lower.xla_dump.hlo_collectives import total_wire_bytes
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.tables import Table

PARTS = (
    "ffn", "ffn_gradient", "attention", "attention_gradient", "layer", "layer_gradient",
)  # fmt: skip
CONFIG = Config(B=16, S=128, M=256, H=1024, N=8, D=32, dtype="float32")
REPEATS = 25
ABOUT = """Parts of the dense Transformer (float32, B=16, S=128, M=256, H=1024, N=8, D=32) on mesh
(X=2, Y=4) of 8 CPU devices, forward and gradient (value, weight gradients and input gradient),
under the three strategies of Table 1. Ours is the program that the plan lowers to; XLA's is its own
partitioning of the same function with the same annotations. Both run in turns; times are medians.
Copies that do not raise the peak of memory stay for the backward pass (`keep_below_peak`); XLA
keeps all. Wire bytes are those that one device sends in a step, XLA's right after its partitioner
(an all-reduce of which only a block is kept counts as the reduce-scatter that it stands for).
Temporary bytes are what XLA's CPU compiler allots on a device. All ratios are ours over XLA's;
`error` and `xla_error` are the largest relative differences of ours and of XLA's partition from the
same function on one device. Partitions add in another order than one device; where an input of relu
is within rounding of 0, its gradient appears or disappears in both."""


def run(
    say: Callable[[str], None],
    parts: Sequence[str] = PARTS,
    *,
    config: Config = CONFIG,
    repeats: int = REPEATS,
) -> Result:
    devices = sa.host_devices(8)
    rows = []
    for name in parts:
        for strategy in STRATEGIES:
            rows.append(row(name, strategy, (config, repeats, devices)))
            say(f"{name}, {strategy}: {rows[-1]['time_ratio']:.3f} of XLA's time")
    table = Table.from_records(rows)
    means = {
        f"geometric mean of {column}": geometric_mean(v for v in table[column] if v)
        for column in ("time_ratio", "bytes_ratio", "temp_ratio")
    }
    return Result("step_time", ABOUT, table, means)


def row(name: str, strategy: str, settings: tuple[Config, int, list[Any]]) -> dict[str, Any]:
    """One part under one strategy, run beside XLA's."""
    config, repeats, devices = settings
    chosen, mesh = part(name), sa.Mesh({"X": 2, "Y": 4})
    function, arguments = chosen.function(config), chosen.random_arguments(config)
    given = STRATEGIES[strategy](mesh, config, name)
    options = sa.Options(switches=sa.Switches(keep_below_peak=True))
    plan = sa.plan(function, *arguments, strategy=given, roles=chosen.roles(), options=options)
    expected = one_device(function)(*arguments)
    compared = compare(plan.lower(devices), arguments, expected, repeats=repeats)
    measured = compared.measurement
    table = plan.collectives_table
    ours = sum(n * b for n, b in zip(table["executions"], table["wire_bytes"], strict=True))
    theirs = total_wire_bytes(compared.xla_collectives)
    temp, xla_temp = measured.memory.temp_bytes, measured.xla_memory.temp_bytes
    return {
        "part": name,
        "strategy": strategy,
        "ms": measured.ours.median_s * 1e3,
        "xla_ms": measured.xla.median_s * 1e3,
        "time_ratio": measured.ratio,
        "wire_bytes": float(ours),
        "xla_wire_bytes": float(theirs),
        "bytes_ratio": float(ours) / theirs if theirs else None,
        "temp_bytes": temp,
        "xla_temp_bytes": xla_temp,
        "temp_ratio": temp / xla_temp if xla_temp else None,
        "error": compared.relative_error,
        "xla_error": compared.xla_relative_error,
    }
