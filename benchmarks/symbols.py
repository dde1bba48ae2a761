"""A plan with named sizes: every formula of a whole train step, and how fast formulas are swept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import shardalg as sa
from benchmarks.result import Result
from benchmarks.train_step import Seconds, timed
from shardalg.lab.table1 import costs_of
from shardalg.lab.table1_strategies import finalized
from shardalg.models.training import part
from shardalg.models.transformer import WIDE_64B, Config
from shardalg.sizes.symbolic.lift import lift
from shardalg.sizes.symbolic.retrace import Retrace
from shardalg.tables import Table

CONFIG = replace(WIDE_64B, scan=True)
TRACED_ON = (2, 2)
MESHES = ((8, 16), (4, 32), (16, 8), (16, 16), (32, 8), (8, 32), (4, 16))
CHIP = "tpu_v3"
POINTS = 4_000_000
SWEPT = ("B", "BL", "BSL", "BXY")
# What "a symbolic plan and all its formulas" is: these, after tracing.
COUNTED = ("lift", "plan", "symbolise", "collectives", "cost formulas")
TWICE = ("B", "S", "H", "V", "L")
SAME, OTHER = "at, decisions unchanged", "at, a fact fails"
ABOUT = f"""The train step of the paper's 64-billion-parameter model (embedding, scanned layers,
cross entropy, Adafactor), its sizes B S M H N D V L and X Y named, under the finalized strategy.
`lift` names every dimension from the arguments' (tracing, twice, comes before it and is not
counted); `plan` completes and partitions at the hints; `symbolise` puts formulas for the sizes;
then come the table of collectives, every quantity of the cost in sympy and the orders of Table 1.
`guards` records, once per plan, all that planning asks of the sizes; `conditions` is the table of
that; `at` is the plan at twice one of {", ".join(TWICE)}, checked against that: the same plan, or
traced and planned again; `its program` is the same plan traced and planned when asked for.
`first_ms` is on the first mesh, with nothing remembered, `ms` the median of the meshes
{MESHES[1:]}, each seen for the first time; processor time. A sweep (`plan.sweep`) gives seconds,
peak memory and guards together at about {POINTS:,} points, on one thread: of a grid, multiples of
the hints (of mesh axes all sizes), or of points that have nothing in common; `first_ms` with the
formulas to be compiled, `holds` the share of points at which the plan holds for certain."""


def run(
    say: Callable[[str], None],
    meshes: Sequence[tuple[int, int]] = MESHES,
    *,
    config: Config = CONFIG,
    points: int = POINTS,
) -> Result:
    say("tracing the train step with named sizes")
    first, trace = timed(planned, config, TRACED_ON)
    stages: dict[str, list[Seconds]] = {"trace (twice) and plan": [trace]}
    for shape in meshes:
        say(f"planning and pricing on {shape}")
        for stage, seconds in priced(first, config, shape):
            stages.setdefault(stage, []).append(seconds)
    say("sweeping")
    sweeps = list(swept(first, points))
    rows = [_row(stage, seconds) for stage, seconds in stages.items()]
    counted = [row for row in rows if row["stage"] in COUNTED]
    summary = {
        "symbolic plan and all formulas after tracing, ms": sum(r["ms"] for r in counted),
        "the same with nothing remembered, ms": sum(r["first_ms"] for r in counted),
        "time, memory and guards swept, the slowest grid, points per second": _slowest(
            sweeps, "a grid"
        ),
        "the same, the slowest of scattered points": _slowest(sweeps, "scattered"),
        "at() with unchanged decisions, ms": _ms(rows, SAME),
        "what it needs once per plan (guards), ms": _ms(rows, "guards"),
        "at() at twice a size, decisions unchanged": len(stages.get(SAME, ())),
        "at() at twice a size, a fact fails": len(stages.get(OTHER, ())),
    }
    return Result("symbols", ABOUT, Table.from_records((*rows, *sweeps)), summary)


def _ms(rows: Sequence[Mapping[str, Any]], stage: str) -> float | None:
    return next((row["ms"] for row in rows if row["stage"] == stage), None)


def _slowest(sweeps: Sequence[Mapping[str, Any]], how: str) -> float:
    return min(row["points_per_s"] for row in sweeps if row["stage"].endswith(how))


def planned(config: Config, shape: tuple[int, int]) -> sa.Plan:
    """Traced twice, named and planned."""
    step = part("train_step")
    return sa.plan(
        step.function(config),
        *step.named_arguments(config),
        strategy=strategy(config, shape),
        roles=step.roles(),
        donate_argnums=step.donate_argnums(),
    )


def strategy(config: Config, shape: tuple[int, int]) -> sa.Strategy:
    """Return the finalized strategy on named axes with these hints."""
    return finalized(sa.Mesh(dict(zip("XY", shape, strict=True)), symbolic=True), config)


def priced(first: sa.Plan, config: Config, shape: tuple[int, int]) -> Iterator[tuple[str, Seconds]]:
    """Each stage of a plan on one mesh, in order."""
    symbols = first._symbols
    second = Retrace(symbols.tracer(symbols.second), symbols.second)
    yield "lift", timed(lift, first.graph, symbols.dims, second)[1]
    plan, seconds = timed(first.replan, strategy(config, shape))
    yield "plan", seconds
    yield "symbolise", timed(lambda: plan._symbolised)[1]
    yield "collectives", timed(lambda: plan._collectives_table)[1]
    cost, estimated = timed(plan.cost, CHIP)
    _, shown = timed(cost.formulas)
    yield "cost formulas", Seconds(estimated.wall + shown.wall, estimated.cpu + shown.cpu)
    yield "orders of Table 1", timed(lambda: costs_of(plan, per="L"))[1]
    yield "guards", timed(plan.holds)[1]
    yield "conditions", timed(lambda: plan._conditions_table)[1]
    for name in TWICE:
        sizes = {name: 2 * getattr(config, name)}
        there, seconds = timed(lambda: plan.at(**sizes))  # noqa: B023
        yield (SAME if plan.holds(**sizes) else OTHER), seconds
        if plan.holds(**sizes):
            yield "its program", timed(lambda: there.program)[1]  # noqa: B023


def _row(stage: str, seconds: Sequence[Seconds]) -> dict[str, Any]:
    first, *others = (1e3 * each.cpu for each in seconds)
    return {"stage": stage, "first_ms": first, "ms": statistics.median(others or [first])}


def swept(plan: sa.Plan, points: int) -> Iterator[dict[str, Any]]:
    """Points per second of seconds, peak and guards together, the other sizes at their hints."""
    rng, side = np.random.default_rng(0), round(points ** (1 / 3))
    for names in SWEPT:
        grid = np.ix_(*(np.arange(1, round(points ** (1 / len(names))) + 1) for _ in names))
        rows = [rng.integers(1, 4096, side**3) for _ in names]
        for how, arrays in (("a grid", grid), ("scattered", rows)):
            hints = [plan.sizes[name].hint for name in names]
            sizes = {
                n: a * (h if n not in "XY" else 1)
                for n, a, h in zip(names, arrays, hints, strict=True)
            }
            found, first = timed(partial(plan.sweep, CHIP, **sizes))
            seconds = min(timed(partial(plan.sweep, CHIP, **sizes))[1].cpu for _ in range(3))
            yield {
                "stage": f"sweep of {', '.join(names)}, {how}",
                "first_ms": 1e3 * first.cpu,
                "ms": 1e3 * seconds,
                "points": found.holds.size,
                "points_per_s": found.holds.size / seconds,
                "holds": float(found.holds.mean()),
            }
