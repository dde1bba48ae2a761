"""Points per second of `plan.sweep` over meshes and named sizes, by formula and by plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks.result import Result
from shardalg.tables import Table

ABOUT = """The gradient step of eight layers, scanned, on a mesh with named sizes data=16, model=4.
`plan.sweep` gets lists of meshes and of batches. `formula` and `plan` count the points by source;
`points_per_s` is all of them over the seconds of one core. The second call of a row has the
formulas of the first. Batches that do not divide have uneven blocks, for which the planner's
decisions are compared at every point. `goal` is the least number of points per second where
formulas hold."""
GOAL = 1000
MESHES = [(d, m) for d in (8, 16, 32, 64) for m in (2, 4)]
CASES = {
    "8 meshes, batches that divide": (MESHES, range(4096, 4096 + 512 * 250, 512)),
    "8 meshes, any batches": (MESHES, range(4096, 4096 + 37 * 250, 37)),
}


def step(params: Any, x: Any) -> Any:
    def layer(hidden: Any, w: Any) -> tuple[Any, None]:
        return hidden + jnp.tanh(jnp.maximum(hidden @ w["up"], 0) @ w["down"]), None

    def loss(params: Any) -> Any:
        return (jax.lax.scan(layer, x, params)[0] ** 2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def plan() -> Any:
    """Return the plan in named sizes."""
    B, D, F = sa.dims("B D F", hint=(16384, 1024, 4096))
    shapes = {"up": (8, D, F), "down": (8, F, D)}
    params = {name: jax.ShapeDtypeStruct(shape, "bfloat16") for name, shape in shapes.items()}
    weights = {"up": P(None, None, "model"), "down": P(None, "model")}
    return sa.plan(
        step,
        *(params, jax.ShapeDtypeStruct((B, D), "bfloat16")),
        mesh=sa.Mesh({"data": 16, "model": 4}, symbolic=True),
        in_shardings=(weights, P("data")),
        out_shardings=weights,
        roles=("parameters", "data"),
    )


def run(say: Callable[[str], None]) -> Result:
    """Measure the cases in this process."""
    rows, figures = [], {}
    for name, (meshes, batches) in CASES.items():
        named = plan()
        for call in ("first", "second"):
            start = time.process_time()
            found = named.sweep(
                "h100", mesh=[{"data": d, "model": m} for d, m in meshes], B=list(batches)
            )
            used = time.process_time() - start
            by = [row.source for row in found.rows]
            rows.append({
                "case": name, "call": call, "points": len(by), "formula": by.count("formula"),
                "plan": by.count("plan"), "processor_s": used, "points_per_s": len(by) / used,
                "goal": GOAL if "plan" not in by else None,
            })  # fmt: skip
            say(f"{name}, {call} call: {len(by) / used:,.0f} points per second")
        figures[f"{name}, second call, points per second"] = rows[-1]["points_per_s"]
    return Result("sweeping", ABOUT, Table.from_records(rows), figures)
