"""Time to find a path between two shardings, and the quality of the paths."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks.result import Result
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.planner.reshard.grids import solve
from shardalg.planner.reshard.paths import path_moves, reshard_bound, reshard_path
from shardalg.tables import Table
from tests.oracle.record_reshards import layouts
from tests.oracle.redistribution import redistribution

Pair = tuple[Sharding, Sharding]
SMALL = ({"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2})
LARGE = (
    {"x": 8, "y": 16},
    {"x": 4, "y": 4, "z": 8},
    {"x": 2, "y": 2, "z": 2, "u": 2},
    {"x": 2, "y": 16, "z": 16},
)
SIZE, COUNT, CALLS, SEED = 512, 1500, 5, 1520
UNEVEN, UNEVEN_COUNT = 509, 300
MEMOS = (path_moves, solve)
BOUND_MS = 0.2
ABOUT = f"""Paths between two layouts, every assignment of axes to the dimensions of a tensor with
{SIZE} elements in each: all pairs of the small meshes, {COUNT} random ones of the others; and
{UNEVEN_COUNT} random ones with {UNEVEN} elements in each, which nothing divides. Processor
time of one call, without its memos: the least of {CALLS} (`first_ms`: of the first, which may also
make tables that serve all tensors on a mesh). `sent`, the
shares of the tensor that a device sends, and `steps`, collectives, are means; `of_bound` is the
mean ratio to what some device lacks of the target. `rink` is the planner of Rink et al.
(arXiv:2112.01075), as restated in `tests/oracle/redistribution.py`; `less` is the share of pairs
for which ours send less, and `more` more. `held` is what a collective reads and writes at most on a
device, of the tensor."""


def run(
    say: Callable[[str], None],
    meshes: tuple[dict[str, int], ...] = SMALL + LARGE,
    *,
    count: int = COUNT,
) -> Result:
    rows = []
    for size, sizes, rank in itertools.product((SIZE, UNEVEN), meshes, (1, 2, 3)):
        rows.append(row(Mesh(sizes), (size,) * rank, count))
        say(f"{rows[-1]['mesh']}, rank {rank}, {size}: {rows[-1]['mean_ms']:.3f} ms a pair")
    table = Table.from_records(rows)
    slowest = {
        f"slowest mean of a mesh and rank, size {size}, of {BOUND_MS} ms": max(
            r["mean_ms"] / BOUND_MS for r in rows if r["size"] == size
        )
        for size in (SIZE, UNEVEN)
    }
    summary = slowest | {
        "pairs for which Rink et al. send less": sum(more or 0 for more in table["more"]),
    }
    return Result("reshard_paths", ABOUT, table, summary)


def row(mesh: Mesh, shape: tuple[int, ...], count: int) -> dict[str, object]:
    even, rank, total = shape[:1] == (SIZE,), len(shape), math.prod(shape)
    small = dict(mesh.axes) in SMALL
    most = None if small and even else count if even else min(count, UNEVEN_COUNT)
    pairs = list(chosen(mesh, shape, most))
    paths, spent = [], []
    for pair in pairs:
        spent.append([])
        for _ in range(CALLS):
            for memo in MEMOS:
                memo.cache_clear()
            start = time.process_time()
            path = reshard_path.__wrapped__(*pair)
            spent[-1].append(time.process_time() - start)
        paths.append(path)
    first, least = [calls[0] for calls in spent], list(map(min, spent))
    bounds = [reshard_bound(*pair) for pair in pairs]
    ratios = [p.wire_elements / sent for p, sent in zip(paths, bounds, strict=True) if sent]
    found = {
        "mesh": "x".join(str(n) for _, n in mesh.axes),
        "rank": rank,
        "size": shape[0],
        "pairs": len(pairs),
        "first_ms": statistics.mean(first) * 1e3,
        "mean_ms": statistics.mean(least) * 1e3,
        "median_ms": statistics.median(least) * 1e3,
        "of_bound": statistics.mean(ratios),
        "sent": statistics.mean(float(p.wire_elements) for p in paths) / total,
        "steps": statistics.mean(sum(s.wire_elements > 0 for s in p.steps) for p in paths),
        "held": statistics.mean(map(held, pairs, paths)) / total,
    }
    return found | (beside(pairs, paths, rank) if small and even else dict.fromkeys(BESIDE))


BESIDE = ("rink_sent", "rink_steps", "rink_held", "less", "more")


def beside(pairs: list[Pair], paths: list, rank: int) -> dict[str, object]:
    theirs = [redistribution(*pair) for pair in pairs]
    both = [(p.wire_elements, t.sent) for p, t in zip(paths, theirs, strict=True)]
    means = (
        statistics.mean(t.sent for t in theirs) / SIZE**rank,
        statistics.mean(t.steps for t in theirs),
        statistics.mean(t.held for t in theirs) / SIZE**rank,
        statistics.mean(a < b for a, b in both),
        statistics.mean(a > b for a, b in both),
    )
    return dict(zip(BESIDE, means, strict=True))


def held(pair: Pair, path) -> int:
    """Return the largest number of elements of a device: a step's operands and results."""
    sizes = [math.prod(s.shard_shape) for s in (pair[0], *(s.layout for s in path.steps))]
    return max((a + b for a, b in itertools.pairwise(sizes)), default=0)


def chosen(mesh: Mesh, shape: tuple[int, ...], count: int | None) -> Iterator[Pair]:
    """All pairs with different ends, or so many random ones."""
    every = [
        Sharding.from_axes([axes or None for axes in dims], mesh, shape)
        for dims in layouts(list(mesh.axis_names), len(shape))
    ]
    if count is None or len(every) * (len(every) - 1) <= count:
        yield from itertools.permutations(every, 2)
        return
    draw, seen = random.Random(SEED), set()
    while len(seen) < count:
        numbers = tuple(draw.sample(range(len(every)), 2))
        if numbers not in seen:
            seen.add(numbers)
            yield every[numbers[0]], every[numbers[1]]
