"""Rate of ranking candidates, and the number of planning runs."""

from __future__ import annotations

import math
import random
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from benchmarks.result import Result
from shardalg.models.ranking.candidate import NARROW
from shardalg.models.ranking.groups import Price, price
from shardalg.models.ranking.ranked import strategies
from shardalg.models.ranking.workers import cores
from shardalg.tables import Table

ABOUT = """`sa.strategies` of the paper's narrow model on 256 cores of TPU v3, layers recomputed:
candidates of one step on one mesh are priced together, by the formulas of one plan wherever its
guards hold. `candidates` are all points that get a number or a reason; `planned` counts runs of
planning. Each space is a process of its own, from a cold start: `seconds` are those of the clock
until it is ranked, imports and tracing in them, `processor_s` those of all its processes, one a
core. Drawn candidates are priced by plans of their own, one by one, and compared."""
FLAT: dict[str, Any] = {"strategy": ["finalized"], "remat": ["full"]}
PIPES: dict[str, Any] = {"strategy": ["pipelined"], "remat": ["full"]}
MANY = [*range(4, 20)]
SPACES = {
    "2D, 32 batches": {**FLAT, "batch": [64 * n for n in range(1, 33)]},
    "2D, 64 batches": {**FLAT, "batch": [64 * n for n in range(1, 65)]},
    "2D, 72 batches, 16 schedules": {
        **FLAT, "batch": [512 * n for n in range(1, 73)], "microbatches": MANY,
    },
    "2D, 704 batches, 16 schedules": {
        **FLAT, "batch": [512 * n for n in range(1, 705)], "microbatches": MANY,
    },
    "pipelines, 4 batches": {
        **PIPES, "batch": [256 * n for n in range(1, 5)], "microbatches": [16],
    },
}  # fmt: skip
DRAWN = 3


def run(say: Callable[[str], None]) -> Result:
    records = []
    for name in SPACES:
        say(f"ranking: {name}\n")
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            records.append(process.submit(ranked, name, time.time()).result())
    summary = {f"{r['space']}, candidates a second": r["candidates_per_s"] for r in records}
    return Result("ranking", ABOUT, Table.from_records(records), summary)


def _is_equal(one: Price, other: Price) -> bool:
    """Return whether two prices are equal, seconds up to the rounding of their sums."""
    near = math.isclose(one.step_time_s, other.step_time_s, rel_tol=1e-12)
    return near and replace(one, step_time_s=0.0) == replace(other, step_time_s=0.0)


def ranked(name: str, start: float) -> dict[str, Any]:
    """Rank a space in a fresh process; return its row."""
    found = strategies(NARROW, 256, "v3", choices=SPACES[name])
    seconds = time.time() - start
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    processor = sum(used.ru_utime + used.ru_stime for used in both)
    before = time.process_time()
    looked = len(found.ranked) + len(found.refused)
    drawn = random.Random(1).sample(found.ranked, DRAWN)
    same = [_is_equal(price(one.cost), one.price) for one in drawn]
    alone = (time.process_time() - before) / DRAWN
    return {
        "space": name,
        "candidates": looked,
        "ranked": len(found.ranked),
        "planned": found.planned,
        "processes": cores(),
        "seconds": seconds,
        "processor_s": processor,
        "candidates_per_s": looked / seconds,
        "one_by_one_per_s": 1 / alone,
        "drawn_equal": f"{sum(same)} of {DRAWN}",
    }
