"""Time to plan and to verify a halo, from 32 devices to 1,048,576 on five axes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import _lru_cache_wrapper
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks.result import Result
from benchmarks.train_step import timed
from shardalg.tables import Table

AXES = "abcde"
MESHES = ((2, 2, 2, 2, 2), (4, 4, 4, 4, 4), (8, 8, 4, 8, 8), (16, 16, 16, 16, 16))
TURNS = 3
ABOUT = """One dimension on all five axes of a mesh, four elements per device and a few more: read
by a convolution, by one with stride, by one without padding (whose blocks drift against those of
what it reads) and by a shift. `plan_s` and `verify_s` are the least of several turns in processor
seconds, nothing remembered, neither plans nor proofs; the ratios are against the smallest mesh."""


def _convolved(stride: int, padding: str) -> Callable[..., Any]:
    def run(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (stride,), padding, dimension_numbers=("NHC", "HIO", "NHC")
        )

    return run


def _shifted(x: Any, w: Any) -> Any:
    return jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1] * w[0, 0, 0]


PROGRAMS = {
    "convolution": (_convolved(1, "SAME"), 0),
    "convolution, stride 2": (_convolved(2, "SAME"), 0),
    "convolution, uneven": (_convolved(1, "SAME"), -3),
    "convolution, drifting": (_convolved(1, "VALID"), 2),
    "shift": (_shifted, 0),
}


def run(say: Callable[[str], None], meshes: Sequence[tuple[int, ...]] = MESHES) -> Result:
    rows = []
    for name, (function, more) in PROGRAMS.items():
        say(name)
        first: dict[str, Any] = {}
        for sizes in meshes:
            row = measured(function, sizes, more)
            first = first or row
            for what in ("plan", "verify"):
                row[f"{what}_ratio"] = row[f"{what}_s"] / first[f"{what}_s"]
            rows.append({"program": name, **row})
    worst = {f"largest {key}": max(row[key] for row in rows) for key in ("plan_s", "verify_s")}
    return Result("halos", ABOUT, Table.from_records(rows), worst)


def measured(function: Callable[..., Any], sizes: tuple[int, ...], more: int) -> dict[str, Any]:
    """Plan a given trace on one mesh, and measure it."""
    mesh = sa.Mesh(dict(zip(AXES, sizes, strict=True)))
    shapes = (1, 4 * mesh.size + more, 2), (3, 2, 2)
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    strategy = sa.Strategy(mesh, (P(None, tuple(AXES)), None))
    small = sa.Mesh(dict.fromkeys(AXES, 1))
    traced = sa.plan(function, *types, mesh=small)
    turns = []
    for _ in range(TURNS):
        _forget()
        plan, planning = timed(traced.replan, strategy)
        report, proving = timed(plan.verify)
        assert report.ok, report
        turns.append((planning.cpu, proving.cpu))
    plan_s, verify_s = (min(times) for times in zip(*turns, strict=True))
    sent = int(plan.collectives()["wire_bytes"].sum())
    return {"devices": mesh.size, "wire_bytes": sent, "plan_s": plan_s, "verify_s": verify_s}


def _forget() -> None:
    """Clear all caches of our functions, including z3's proofs."""
    for memo in gc.get_objects():
        if isinstance(memo, _lru_cache_wrapper) and memo.__module__.startswith("shardalg"):
            memo.cache_clear()
