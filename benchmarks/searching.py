"""Gap, seconds and memory of `sa.search` for twenty steps."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import shardalg as sa
from benchmarks.result import Result
from benchmarks.searched_models import MODELS
from shardalg.tables import Table

ABOUT = """`sa.search` of twenty steps on the mesh a=2, b=4 of eight H100, without a limit of
memory. `gap` is `(step_s - bound_s) / bound_s`; a negative one means that the table is higher than
the price of the plan, so that the bound says nothing about plans. `search_s` are seconds of the
clock from function to answer, the trace in them. Each step has a process of its own: `peak_mib` is
its largest memory, imports in it. `refused` is the reason why a step has no answer."""
MESH = {"a": 2, "b": 4}
CLOSE, FAR = 0.01, 0.05
"""The gaps that eighteen and all of the twenty steps may have."""


def run(say: Callable[[str], None], names: Iterable[str] = tuple(MODELS)) -> Result:
    """Search each step in a process of its own."""
    rows = []
    for name in names:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            rows.append(process.submit(searched, name).result())
        gap, why, used = (rows[-1][key] for key in ("gap", "refused", "search_s"))
        say(f"{name}: {why or f'gap {gap:.2%} after {used:.1f} s'}\n")
    gaps = [math.inf if row["gap"] is None else abs(row["gap"]) for row in rows]
    summary: dict[str, float | str] = {
        f"steps with a gap of at most {limit:.0%}, of {len(rows)}": sum(g <= limit for g in gaps)
        for limit in (CLOSE, FAR)
    }
    summary["seconds of all searches"] = sum(row["search_s"] for row in rows)
    return Result("searching", ABOUT, Table.from_records(rows), summary)


def searched(name: str) -> dict[str, Any]:
    """Search a step in this process; return its row."""
    function, args = MODELS[name]()
    family, refused, found = sa.family(meshes=[MESH]), "", None
    start = time.monotonic()
    try:
        found = sa.search(function, *args, hardware="h100:8", over=family, memory_bytes=math.inf)
    except sa.ShardalgError as error:
        refused = str(error).partition(". ")[0]
    used = time.monotonic() - start
    has = found is not None
    return {
        "step": name,
        "gap": found.gap if has else None,
        "step_s": found.step_s if has else None,
        "table_s": found.rows[0].table_s if has else None,
        "bound_s": found.bound_s if has else None,
        "search_s": used,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "refused": refused,
    }
