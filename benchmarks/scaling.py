"""Length of the program and time to plan it, from 8 to 2048 devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import shardalg as sa
from benchmarks.result import Result
from benchmarks.train_step import timed
from shardalg.lab.table1_strategies import finalized
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.spmd.instruction import Collective
from shardalg.tables import Table

MESHES = (
    (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32), (32, 64),
)  # fmt: skip
# Divisible on every mesh, so that no row has padding that another one has not.
CONFIG = Config(B=64, S=128, M=4096, H=8192, N=64, D=64, V=4096, L=64)
TURNS = 5
ABOUT = """The unrolled train step under the finalized strategy, planned on growing meshes from one
trace. `instructions` is the length of the program that every device runs. `new_mesh_s` is the
one plan in which nothing of the mesh is remembered, `plan_s` the least of several later ones, both
in processor seconds: planning is one thread. The ratios are against the smallest mesh."""


def run(
    say: Callable[[str], None],
    meshes: Sequence[tuple[int, int]] = MESHES,
    *,
    config: Config = CONFIG,
) -> Result:
    chosen = part("train_step")
    say(f"tracing {config.L} layers")
    arguments = chosen.arguments(config)

    def strategy(shape: tuple[int, int]) -> sa.Strategy:
        return finalized(sa.Mesh(dict(zip("XY", shape, strict=True))), config)

    made = sa.plan(chosen.function(config), *arguments, strategy=strategy((1, 2)))
    rows = []
    for shape in meshes:
        say(f"planning on {shape[0] * shape[1]} devices")
        rows.append(row(made, strategy(shape), shape))
    table = Table.from_records(_with_ratios(rows))
    ratios = ("length_ratio", "new_mesh_ratio", "plan_ratio")
    worst = {f"largest {name}": max(table[name]) for name in ratios}
    return Result("scaling", ABOUT, table, worst)


def row(made: sa.Plan, strategy: sa.Strategy, shape: tuple[int, int]) -> dict[str, Any]:
    """Return the row of a plan on one mesh."""
    plan, first = timed(made.replan, strategy)
    again = min(timed(made.replan, strategy)[1].cpu for _ in range(TURNS))
    instructions = plan.program.block.instructions
    kinds = Counter(isinstance(i.attributes, Collective) for i in instructions)
    return {
        "devices": shape[0] * shape[1],
        "mesh": "x".join(map(str, shape)),
        "nodes": len(plan.graph.nodes),
        "instructions": len(instructions),
        "collectives": kinds[True],
        "new_mesh_s": first.cpu,
        "plan_s": again,
    }


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first = rows[0]
    return [
        r
        | {
            "length_ratio": r["instructions"] / first["instructions"],
            "new_mesh_ratio": r["new_mesh_s"] / first["new_mesh_s"],
            "plan_ratio": r["plan_s"] / first["plan_s"],
        }
        for r in rows
    ]
