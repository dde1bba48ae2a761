"""Pipelines, experts, a U-Net and manual regions beside XLA, as a benchmark's result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks.oracle_bytes import our_wire_bytes, ratio
from benchmarks.result import Result, geometric_mean
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.models.published.conformer import PIPELINED, Conformer
from shardalg.models.published.encoder_decoder import FIGURE_2, EncoderDecoder
from shardalg.models.published.moe import HYBRID, SPARSE, MoEConfig
from shardalg.models.published.pipelined import TABLE_4, Pipelined
from shardalg.models.published.unet3d import SPATIAL, UNet3D
from shardalg.models.transformer import Config

ABOUT = """Wire bytes per device and step beside those of XLA's two partitioners, and the processor
seconds of planning and proving: pipelines as shifting buffers (`sa.pipeline`) and as manual
regions, forward and gradient, and whole train steps of the paper's models at small sizes on eight
devices (sixteen in figure 2's). XLA is asked about the same function with the same annotations; of
a region that is manual along some axes about the region as it is written. An all-reduce of XLA's of
which a device keeps a block counts as a reduce-scatter. Gathered copies are kept for the backward
pass, as XLA keeps them. `once_ratio`: with `Switches(defer_in_loops=True)`, which reduces the sums
of a loop once behind it, over the better of XLA's. Where XLA's partitioner ends without an answer,
its figure is missing. GSPMD gathers the weights of the manual pipeline's gradient along Y, and all
of Y then computes alike: fewer bytes at these small weights, and twice the products."""
MESH = sa.Mesh({"L": 4, "Y": 2})
STAGES, STEPS = 4, 4
SIZES = Config(B=8, S=8, M=32, H=64, N=8, D=4, V=64, L=4, dtype="float32")
MOE = MoEConfig(B=8, S=16, M=32, H=64, E=8, C=4, dtype="float32")
WEIGHTS = {"in": P("L", None, None, "Y"), "out": P("L", None, "Y")}
KEPT = sa.Options(keep_gathers=True)
ONCE = replace(KEPT, switches=sa.Switches(defer_in_loops=True))
Planner = Callable[[sa.Options], sa.Plan]


def layer(weights: Any, x: jax.Array) -> jax.Array:
    """Compute a feed-forward layer with its residual."""
    return x + jax.nn.relu(x @ weights["in"]) @ weights["out"]


def by_shift(rounds: int, *, is_gradient: bool) -> Planner:
    """Return a pipeline by `sa.pipeline` on L and X, its layers sharded along Y."""
    mesh = sa.Mesh({"L": 2, "X": 2, "Y": 2})
    pipe = sa.pipeline(layer, stages=2, microbatches=4, rounds=rounds)
    weights = {"in": _float(2, rounds, 32, 64), "out": _float(2, rounds, 64, 32)}
    x, specs = _float(32, 32), (WEIGHTS, P("X"))
    fn, given = _gradient(pipe) if is_gradient else pipe, (weights, x)
    if is_gradient:
        given, ends = (*given, x), {"in_shardings": (*specs, P("X")), "out_shardings": specs}
    else:
        ends = {"in_shardings": specs, "out_shardings": P("X")}
    return lambda options: sa.plan(fn, *given, mesh=mesh, options=options, **ends)


def by_hand(*, is_gradient: bool) -> Planner:
    """Return the same pipeline as a region that is manual along the stages."""

    def body(weights: Any, xs: jax.Array) -> jax.Array:
        place = lax.axis_index("L")
        own = jax.tree.map(lambda leaf: leaf[0, 0], weights)

        def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            handed = lax.ppermute(state, "L", [(0, 1), (1, 2), (2, 3)])
            state = jax.checkpoint(layer)(own, jnp.where(place == 0, x, handed))
            return state, state

        start = lax.pcast(jnp.zeros(xs.shape[1:]), ("L",), to="varying")
        return lax.scan(step, start, xs)[1][STAGES - 1 :][None]

    def forward(weights: Any, xs: jax.Array) -> jax.Array:
        ends = {"in_specs": (P("L"), P()), "out_specs": P("L")}
        return jax.shard_map(body, mesh=_abstract(MESH), axis_names={"L"}, **ends)(weights, xs)[-1]

    weights = {"in": _float(STAGES, 1, 32, 64), "out": _float(STAGES, 1, 64, 32)}
    fn = jax.grad(lambda w, xs: (forward(w, xs) ** 2).sum()) if is_gradient else forward
    given = weights, _float(STEPS + STAGES - 1, 8, 32)
    specs = {"in_shardings": (WEIGHTS, P())}
    return lambda options: sa.plan(fn, *given, mesh=MESH, options=options, **specs)


def programs() -> Mapping[str, Planner]:
    """Return the function that plans each named program."""
    steps = {
        "Transformer, GPipe, train step": (Pipelined(SIZES, Schedule(2, 4)), TABLE_4, "L2 X2 Y2"),
        "Transformer, circular, train step": (
            Pipelined(SIZES, Schedule(2, 4, 2)), TABLE_4, "L2 X2 Y2"
        ),
        "Conformer, GPipe, train step": (
            Conformer(Schedule(2, 4), dtype="float32"), PIPELINED, "L2 X2"
        ),
        "sparse MoE, train step": (MOE, SPARSE, "X8"),
        "hybrid MoE, train step": (MOE, HYBRID, "X4 Y2"),
        "encoder-decoder of figure 2, train step": (
            EncoderDecoder(MoEConfig(B=16, L=8, E=4, dtype="float32"), 4, Schedule(4, 4)),
            FIGURE_2, "X4 Y4",
        ),
        "3D U-Net, train step": (UNet3D(size=16, width=8, dtype="float32"), SPATIAL, "X2 Y4"),
    }  # fmt: skip
    found = {
        "GPipe, forward": by_shift(1, is_gradient=False),
        "GPipe, gradient": by_shift(1, is_gradient=True),
        "circular, forward": by_shift(2, is_gradient=False),
        "circular, gradient": by_shift(2, is_gradient=True),
        "manual pipeline, forward": by_hand(is_gradient=False),
        "manual pipeline, gradient": by_hand(is_gradient=True),
    }
    return found | {name: _step(*made) for name, made in steps.items()}


def _step(config: Any, layout: Any, mesh: str) -> Planner:
    axes = {part[0]: int(part[1:]) for part in mesh.split()}
    return lambda options: config.model.plan(sa.Mesh(axes), layout, options)


def _abstract(mesh: sa.Mesh) -> Any:
    auto = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
    sizes = tuple(mesh.shape.values())
    return jax.sharding.AbstractMesh(sizes, mesh.axis_names, axis_types=auto)


def _gradient(fn: Any) -> Any:
    return lambda weights, x, dy: jax.vjp(fn, weights, x)[1](dy)


def _float(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def row(name: str, planner: Planner) -> dict[str, Any]:
    """Return a program's figures."""
    plan, plan_s = _timed(lambda: planner(KEPT))
    report, prove_s = _timed(plan.verify)
    assert report.ok, (name, report.refuted)
    sent, once = (float(our_wire_bytes(p.program)) for p in (plan, planner(ONCE)))
    theirs = {whose: _asked(plan, whose) for whose in ("gspmd", "shardy")}
    better = min((n for n in theirs.values() if n is not None), default=None)
    return {
        "program": name,
        "devices": plan.mesh.size,
        "wire_bytes": sent,
        **{f"{whose}_wire_bytes": n for whose, n in theirs.items()},
        "bytes_ratio": None if better is None else ratio(sent, better),
        "once_ratio": None if better is None else ratio(once, better),
        "claims": len(report.claims),
        "plan_s": plan_s,
        "prove_s": prove_s,
    }


def _asked(plan: sa.Plan, partitioner: str) -> float | None:
    """Wire bytes of XLA's program; None where its partitioner ends without an answer."""
    try:
        return plan.compare_xla(partitioner).xla_wire_bytes
    except sa.LoweringError as error:
        if "without an answer" not in str(error):
            raise
        return None


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    made = work()
    return made, time.process_time() - begun


def rows(say: Callable[[str], None], measured: Mapping[str, Planner]) -> Iterator[dict[str, Any]]:
    """One per program."""
    for name, planner in measured.items():
        say(name)
        yield row(name, planner)


def run(say: Callable[[str], None], measured: Mapping[str, Planner] | None = None) -> Result:
    table = sa.Table.from_records(rows(say, programs() if measured is None else measured))
    known = [row for row in table if row["bytes_ratio"] is not None]
    summary = {
        "programs": len(table),
        "sending more than the better of XLA's": sum(r["bytes_ratio"] > 1 for r in known),
        "largest bytes_ratio": max(r["bytes_ratio"] for r in known),
        "geometric mean of bytes_ratio": geometric_mean(r["bytes_ratio"] for r in known),
        "geometric mean of once_ratio": geometric_mean(r["once_ratio"] for r in known),
        "planning, most seconds": max(table["plan_s"]),
        "proving, most seconds": max(table["prove_s"]),
    }
    return Result("systems", ABOUT, table, summary)
