"""Our reshards against XLA's, on layouts between which XLA replicates the tensor first."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

import shardalg as sa
from benchmarks.result import Result, geometric_mean
from shardalg.lower.xla_dump.hlo_collectives import compile_with_collectives, total_wire_bytes
from shardalg.planner.reshard.paths import reshard_path
from shardalg.tables import Table
from tests.oracle.record_reshards import FACTS, groups

Dims = tuple[tuple[str, ...], ...]
Case = tuple[str, dict[str, int], Dims, Dims]
ISSUES: tuple[Case, ...] = (
    ("jax 21562", {"x": 2, "y": 4}, (("y",), (), ("x",)), ((), ("x", "y"), ())),
    ("openxla 15207", {"x": 2, "y": 4}, (("x", "y"), (), ()), ((), ("y",), ("x",))),
)
SHAPES = {2: (2048, 2048), 3: (256, 128, 128)}  # 16 MiB of float32
COUNT, REPEATS, SEED = 24, 12, 21562
ABOUT = """`x + 1` from one layout to another on 8 CPU devices, float32 arrays of 16 MiB: pairs from
the 1,876 of rank 1 to 3 on the meshes 8, 4x2 and 2x2x2 on which XLA gathers the whole tensor
though nobody wants it whole (`tests/oracle/reshards.json`), and two reported ones. Ours is the
lowered path, XLA's its own partitioning of the same jit; both run in turns, times are medians. Wire
elements are those that a device sends, temporary ones what the compiler allots on a device, both as
shares of the tensor; each all-to-all of two or four takes 64 bytes more, a table of pointers."""


def cases(count: int = COUNT) -> tuple[Case, ...]:
    """Yield the issues, and a sample of the pairs on which XLA replicates."""
    found: list[Case] = []
    recorded = json.loads(FACTS.read_text())["groups"]
    for (mesh, rank, every), facts in zip(groups(), recorded, strict=True):
        pairs = [pair for pair in itertools.product(every, repeat=2) if pair[0] != pair[1]]
        found += [
            (f"rank {rank}", mesh, *pair)
            for pair, received in zip(pairs, facts["received"], strict=True)
            if received < 0 and any(pair[1])
        ]
    return (*ISSUES, *random.Random(SEED).sample(found, count))


def run(
    say: Callable[[str], None],
    chosen: Sequence[Case] | None = None,
    *,
    shapes: dict[int, tuple[int, ...]] = SHAPES,
    repeats: int = REPEATS,
) -> Result:
    sa.host_devices(8)
    rows = []
    for case in cases() if chosen is None else chosen:
        rows.append(row(case, shapes[len(case[2])], repeats))
        say(f"{rows[-1]['source']} to {rows[-1]['target']}: {rows[-1]['time_ratio']:.3f} of XLA's")
    table = Table.from_records(rows)
    means: dict[str, float | str] = {
        f"geometric mean of {name}": geometric_mean(v for v in table[name] if v)
        for name in ("time_ratio", "wire_ratio", "temp_ratio")
    }
    means["pairs on which ours is faster"] = sum(ratio < 1 for ratio in table["time_ratio"])
    return Result("reshards", ABOUT, table, means)


def row(case: Case, shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    name, sizes, source, target = case
    mesh, size = sa.Mesh(sizes), math.prod(shape)
    specs = [PartitionSpec(*(axes or None for axes in dims)) for dims in (source, target)]
    x = np.arange(size, dtype=np.float32).reshape(shape)
    plan = sa.plan(
        lambda x: x + 1,
        jax.ShapeDtypeStruct(shape, x.dtype),
        mesh=mesh,
        in_shardings=(specs[0],),
        out_shardings=specs[1],
    )
    lowered = plan.lower()
    np.testing.assert_array_equal(lowered(x), x + 1)
    measured = lowered.measure(x, repeats=repeats)
    path = reshard_path(*(sa.Sharding.from_spec(spec, mesh, shape) for spec in specs))
    _, theirs = compile_with_collectives(lowered.jit().stage, mesh)
    sent, xla_sent = float(path.wire_elements) / size, total_wire_bytes(theirs) / x.nbytes
    temp, xla_temp = (m.temp_bytes / x.nbytes for m in (measured.memory, measured.xla_memory))
    return {
        "case": name,
        "mesh": "x".join(map(str, sizes.values())),
        "source": str(specs[0]),
        "target": str(specs[1]),
        "steps": len(path.steps),
        "ms": measured.ours.median_s * 1e3,
        "xla_ms": measured.xla.median_s * 1e3,
        "time_ratio": measured.ratio,
        "wire_share": sent,
        "xla_wire_share": xla_sent,
        "wire_ratio": sent / xla_sent,
        "temp_share": temp,
        "xla_temp_share": xla_temp,
        "temp_ratio": temp / xla_temp if xla_temp else None,
    }
