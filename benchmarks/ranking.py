"""How many ways to train a model are ranked a second, and how many runs of planning that takes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.result import Result
from shardalg.io.table import Table
from shardalg.models.ranking.groups import price
from shardalg.models.ranking.named import NARROW
from shardalg.models.ranking.ranked import strategies

ABOUT = """`sa.strategies` of the paper's narrow model on 256 cores of TPU v3, layers recomputed:
candidates of one step on one mesh are planned and priced together. `candidates` are all points that
get a number or a reason; `planned` counts runs of planning. Seconds are of the processor, without
the import (`import_s`); the first space traces the step. Drawn candidates are priced by plans of
their own, one by one, and compared."""
FLAT: dict[str, Any] = {"strategy": ["finalized"], "remat": ["full"]}
PIPES: dict[str, Any] = {"strategy": ["pipelined"], "remat": ["full"]}
SPACES = {
    "2D, 32 batches": {**FLAT, "batch": [64 * n for n in range(1, 33)]},
    "2D, 64 batches": {**FLAT, "batch": [64 * n for n in range(1, 65)]},
    "pipelines, 4 batches": {
        **PIPES, "batch": [256 * n for n in range(1, 5)], "microbatches": [16],
    },
}  # fmt: skip
DRAWN = 3


def run(say: Callable[[str], None]) -> Result:
    imported, records = time.process_time(), []
    for name, choices in SPACES.items():
        say(f"ranking: {name}\n")
        start = time.process_time()
        found = strategies(NARROW, 256, "v3", choices=choices)
        seconds = time.process_time() - start
        looked = len(found.ranked) + len(found.refused)
        drawn = random.Random(1).sample(found.ranked, DRAWN)
        start = time.process_time()
        same = [price(one.cost) == one.price for one in drawn]
        alone = (time.process_time() - start) / DRAWN
        records.append(
            {
                "space": name,
                "candidates": looked,
                "ranked": len(found.ranked),
                "planned": found.planned,
                "processor_s": seconds,
                "import_s": imported,
                "candidates_per_s": looked / seconds,
                "one_by_one_per_s": 1 / alone,
                "drawn_equal": f"{sum(same)} of {DRAWN}",
            }
        )
    summary = {f"{r['space']}, candidates a second": r["candidates_per_s"] for r in records}
    return Result("ranking", ABOUT, Table.from_records(records), summary)
