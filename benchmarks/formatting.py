"""Formatting of programs whose sizes do not divide, with and without `join_formatting`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import jax
import numpy as np

import shardalg as sa
from benchmarks.result import Result, geometric_mean
from shardalg.tables import Table
from tests.oracle import formatting

ABOUT = """The recorded programs whose sizes do not divide (tests/oracle/formatting.py), on 4 CPU
devices and larger: instructions that cut, pad, join or select, their bytes from and to memory and
their share of a TPU v3's step, with `Switches(join_formatting=False)` and as planned; XLA's
partitioner's instructions, recorded at the small sizes; and the wall time of the lowered programs,
which run in turns (medians). Ratios are as planned over without."""
SCALE = {30: 510, 12: 256, 8: 64}
"""Size in the recorded program to the size that is timed; it divides where that one does."""
NAMES = (
    "convolutions", "convolutions, gradient", "attention", "attention, gradient", "normalisation",
    "normalisation, gradient", "feed-forward", "feed-forward, gradient", "running sum",
    "running sum from the end", "pipeline", "shift of what is made of it",
)  # fmt: skip
REPEATS = 25
SIDES = (sa.Options(switches=sa.Switches(join_formatting=False)), sa.Options())


def larger(type_: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the argument at the size that is timed."""
    shape = tuple(SCALE.get(size, size) for size in type_.shape)
    return jax.ShapeDtypeStruct(shape, type_.dtype)


def medians(calls: list[Callable[[], Any]], repeats: int) -> list[float]:
    """Wall seconds of each, run in turns."""
    found: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 2):
        for times, call in zip(found, calls, strict=True):
            start = perf_counter()
            jax.block_until_ready(call())
            times += [perf_counter() - start] if turn > 1 else []
    return [float(np.median(times)) for times in found]


def row(name: str, *, size: Callable[..., Any] = larger, repeats: int = REPEATS) -> dict[str, Any]:
    """One program, both ways."""
    function, types, layouts = formatting.program(name)
    types = [size(type_) for type_ in types]
    rng = np.random.default_rng(0)
    values = [rng.normal(size=t.shape).astype(t.dtype) for t in types]
    plans = [sa.plan(function, *types, mesh=formatting.MESH, options=o, **layouts) for o in SIDES]
    tables = [plan.formatting("tpu_v3").iloc[-1] for plan in plans]
    lowered = [plan.lower() for plan in plans]
    borders = zip(values, lowered[0].arguments, strict=True)
    arrays = [jax.device_put(value, border.outer) for value, border in borders]
    times = medians([lambda run=run: run(*arrays) for run in lowered], repeats)
    made = [formatting.our_instructions(plan) for plan in plans]
    return {
        "program": name,
        "xla_instructions": sum(formatting.recorded()["instructions"][name].values()),
        "instructions_without": made[0],
        "instructions": made[1],
        "memory_bytes_without": int(tables[0].memory_bytes),
        "memory_bytes": int(tables[1].memory_bytes),
        "step_share_without": tables[0].step_share,
        "step_share": tables[1].step_share,
        "wall_s_without": times[0],
        "wall_s": times[1],
        "bytes_ratio": ratio(*tables),
        "time_ratio": times[1] / times[0],
    }


def ratio(before: Any, after: Any) -> float:
    """Return a ratio of bytes; 1 if there are none."""
    return float(after.memory_bytes / before.memory_bytes) if before.memory_bytes else 1.0


def run(say: Callable[[str], None], names: Iterable[str] = NAMES, **settings: Any) -> Result:
    sa.host_devices(4)
    rows = []
    for name in names:
        rows.append(row(name, **settings))
        say(f"{name}: {rows[-1]['bytes_ratio']:.2f} of the bytes")
    table = Table.from_records(rows)
    means = {
        f"geometric mean of {column}": geometric_mean(table[column])
        for column in ("bytes_ratio", "time_ratio")
    }
    return Result("formatting", ABOUT, table, means)
