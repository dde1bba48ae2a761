"""At which share of other sizes a plan with named sizes holds, and whether its formulas are right.

`python -m benchmarks.holding [--points 50] [--seed 0] [name ...]` prints a row per function.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.named_functions import FUNCTIONS, Named
from benchmarks.result import Result
from shardalg.errors import ShardalgError
from shardalg.plan.named_sizes import PRICES, guards_hold, planned_there
from shardalg.plan.plan import Plan
from shardalg.sizes.formula import Formula
from shardalg.tables import Table

POINTS, SEED = 50, 0
CHIP = "tpu_v3"
MULTIPLES, MESHES, ANY = "multiples", "meshes", "any"
REGIMES = {
    MULTIPLES: "sizes are multiples of the mesh axes that shard them, from half to twice the hint",
    MESHES: "the same, and mesh axes have 2, 4, 8 or 16 devices",
    ANY: "any integers within 25 % of the hints",
}
AXES = (2, 4, 8, 16)
ABOUT = f"""Of {
    len(FUNCTIONS)
} functions with named sizes (`benchmarks/named_functions.py`), the share
of random points at which `plan.holds` is True. Regimes: {
    "; ".join(f"{k}: {v}" for k, v in REGIMES.items())
}. `unchanged` is the share of points at which a plan made there takes the same
decisions. `right` is the share at which every price by formula is that of the plan made there.
`wrong` counts points at which `holds` is True and some price is another one: 0 is required.
`quick` is the share that the recorded questions alone answer, without a plan made there."""


def points(named: Named, regime: str, count: int, seed: int) -> Iterator[dict[str, int]]:
    """Return random sizes of dimensions and axes."""
    rng = random.Random(f"{named.name} {regime} {seed}")
    for _ in range(count):
        axes = dict(named.axes)
        if regime == MESHES:
            axes = {name: rng.choice(AXES) for name in axes}
        sizes = {}
        for name, hint in named.hints.items():
            if regime == ANY:
                sizes[name] = rng.randint(math.ceil(hint * 0.75), math.floor(hint * 1.25))
                continue
            parts = math.prod(axes[axis] for axis in named.parts.get(name, ""))
            low, high = math.ceil(hint / 2 / parts), max(2 * hint // parts, 1)
            sizes[name] = parts * rng.randint(min(low, high), high)
        yield {**sizes, **axes}


@dataclass(frozen=True)
class Seen:
    """The findings at a point.

    Attributes:
      why: the kinds of decisions that changed, or the prices that differ.
    """

    holds: bool
    quick: bool
    unchanged: bool
    right: bool
    why: tuple[str, ...]


def seen(plan: Plan, point: dict[str, int]) -> Seen:
    """Ask a plan about a point, and compare it with a plan that is made there."""
    holds = plan.holds(**point)
    try:
        there = planned_there(plan, point)
    except ShardalgError as error:
        return Seen(holds, False, False, False, (type(error).__name__,))
    kinds = [row["kind"] for row in there.changes if row["kind"] not in PRICES]
    different = [] if plan._named is None else list(differing(plan, there, point))
    why = tuple(dict.fromkeys(kinds)) or tuple(different)
    quick = guards_hold(plan, point)
    return Seen(holds, quick, not kinds, not different, why)


def differing(plan: Plan, there: Plan, point: dict[str, int]) -> Iterator[str]:
    """Return the names of prices whose formula is not the price of the plan made there."""
    first, second = prices(plan), prices(there)
    if len(first) != len(second):
        yield "collectives"
        return
    for (name, formula), (_, number) in zip(first, second, strict=True):
        value = formula.at(point) if type(formula) is Formula else formula
        is_time = name.endswith("_s")
        same = math.isclose(value, number, rel_tol=1e-9) if is_time else value == number
        if not same:
            yield name


def prices(plan: Plan) -> list[tuple[str, Any]]:
    """Return the prices of a step, in formulas or numbers."""
    totals = plan.cost(CHIP).totals
    sent = [("wire bytes", i.wire_bytes) for i in totals.items if i.is_communication]
    return [
        *sent,
        ("flops", totals.sum("flops")),
        ("useful flops", totals.useful_flops),
        ("peak", totals.peak_bytes),
        ("step_time_s", totals.sum("time_s")),
    ]


def measured(
    named: Named, regimes: Iterable[str] = REGIMES, *, count: int = POINTS, seed: int = SEED
) -> Iterator[dict[str, Any]]:
    """Return a row per regime of one function."""
    plan = named.plan()
    for regime in regimes:
        found = [seen(plan, point) for point in points(named, regime, count, seed)]
        unchanged = [s for s in found if s.unchanged]
        whys = Counter(why for s in found if not s.holds for why in s.why[:1])
        yield {
            "function": named.name,
            "regime": regime,
            "holds": share(s.holds for s in found),
            "quick": share(s.quick for s in found),
            "unchanged": share(s.unchanged for s in found),
            "holds_of_unchanged": share(s.holds for s in unchanged),
            "right": share(s.right for s in found),
            "wrong": sum(s.holds and not s.right for s in found),
            "why_not": ", ".join(f"{why} {n}" for why, n in whys.most_common(3)),
        }


def share(answers: Iterable[bool]) -> float:
    """Return the share of True; 1 of nothing."""
    given = [*answers]
    return sum(given) / len(given) if given else 1.0


def run(
    say: Callable[[str], None],
    functions: Sequence[Named] = FUNCTIONS,
    *,
    count: int = POINTS,
    seed: int = SEED,
    regimes: Sequence[str] = tuple(REGIMES),
) -> Result:
    """Measure every function at `count` points of each regime."""
    rows = []
    for named in functions:
        say(f"{named.name}, seed {seed}")
        rows += measured(named, regimes, count=count, seed=seed)
    summary: dict[str, float | str] = {}
    for regime in regimes:
        own = [row for row in rows if row["regime"] == regime]
        for name in ("holds", "quick", "unchanged", "holds_of_unchanged", "right"):
            summary[f"{regime}: {name}, median"] = statistics.median(row[name] for row in own)
            summary[f"{regime}: {name}, mean"] = statistics.fmean(row[name] for row in own)
    summary["holds, but a price differs"] = sum(row["wrong"] for row in rows)
    summary["seed"] = seed
    return Result("holding", ABOUT, Table.from_records(rows), summary)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.holding", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--regime", choices=tuple(REGIMES), action="append")
    given = parser.parse_args()
    chosen = [f for f in FUNCTIONS if not given.names or f.name in given.names]
    regimes = tuple(given.regime or REGIMES)
    made = run(lambda text: None, chosen, count=given.points, seed=given.seed, regimes=regimes)
    for row in made.table:
        numbers = " ".join(
            f"{name}={row[name]:.2f}"
            for name in ("holds", "quick", "unchanged", "holds_of_unchanged", "right")
        )
        print(
            f"{row['function']:26} {row['regime']:9} {numbers} "
            f"wrong={row['wrong']} {row['why_not']}"
        )
    for name, value in made.summary.items():
        print(f"{name}: {value}")
    return 1 if made.summary["holds, but a price differs"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
