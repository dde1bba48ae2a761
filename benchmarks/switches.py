"""The effect of each switch of the planner, as a benchmark's result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks import formatting as benchmark
from benchmarks import oracle_bytes
from benchmarks.result import Result, geometric_mean
from shardalg.lab import table1_strategies as table1
from shardalg.lab import weight_update
from shardalg.models.training import part
from shardalg.models.transformer import Config
from tests.oracle import formatting

ABOUT = """Wire bytes and peak memory of a device with one switch of `Options` turned the other way,
over those of the plan as it is by default (`plan.switches()`): the recorded programs of the topics
einsum, ffn, attention and stack, the paper's three strategies on a train step, and the levels of
ZeRO, a step of uneven sizes, the gradient of a recurrent layer, and small programs whose sizes do
not divide. `formatting_ratio` is that of the bytes that slices, pads and masks move from and to
memory. Only programs in which a switch changes something are listed; means are of ratios above
0."""
SIZES = Config(B=8, S=16, M=32, H=64, N=8, D=4, V=64, L=2, dtype="float32")
UNEVEN = Config(B=5, S=7, M=9, H=10, N=6, D=3, V=11, L=2, dtype="float32")
MESH = sa.Mesh({"X": 2, "Y": 4})
ZERO = sa.Mesh({"data": 4})


def plans() -> Iterator[tuple[str, sa.Plan]]:
    """(name, plan) of all that is measured."""
    yield from ((name, oracle_bytes.plan(name)) for name in oracle_bytes.NAMES)
    for name in table1.STRATEGIES:
        yield f"step, {name}", step(name, SIZES)
    yield "uneven step, finalized", step("finalized", UNEVEN)
    yield "recurrent", recurrent()
    yield from ((f"uneven {name}", uneven(name)) for name in benchmark.NAMES)
    for level in weight_update.LEVELS:
        yield (
            f"step, ZeRO {level}",
            sa.plan(
                weight_update.function(SIZES),
                *weight_update.arguments(SIZES),
                strategy=weight_update.strategy(level, ZERO, SIZES),
                roles=weight_update.ROLES,
                donate_argnums=weight_update.DONATED,
            ),
        )


def step(strategy: str, config: Config) -> sa.Plan:
    """Return the paper's train step."""
    chosen, layout = part("train_step"), table1.STRATEGIES[strategy](MESH, config)
    function, arguments = chosen.function(config), chosen.arguments(config)
    return sa.plan(function, *arguments, strategy=layout, roles=chosen.roles())


def uneven(name: str) -> sa.Plan:
    """Return a recorded program whose sizes do not divide."""
    function, types, layouts = formatting.program(name)
    return sa.plan(function, *types, mesh=formatting.MESH, **layouts)


def recurrent() -> sa.Plan:
    """Return the gradient of a layer whose weight every trip of a loop reads."""

    def loss(w: jax.Array, x: jax.Array, xs: jax.Array) -> jax.Array:
        return lax.scan(lambda carry, x: (jnp.tanh(carry @ w + x), None), x, xs)[0].sum()

    shapes = ((16, 16), (512, 16), (8, 512, 16))
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    specs = (P("data"), P("data"), P(None, "data"))
    return sa.plan(
        jax.grad(loss), *arguments, mesh=ZERO, in_shardings=specs, out_shardings=P("data")
    )


def rows(
    say: Callable[[str], None], measured: Iterable[tuple[str, sa.Plan]]
) -> Iterator[dict[str, object]]:
    """One per program and switch that changes it."""
    for name, plan in measured:
        say(name)
        given, *flipped = plan.switches().to_dict("records")
        for row in flipped:
            if {**row, "options": ""} != {**given, "options": ""}:
                yield {
                    "program": name,
                    "options": row["options"],
                    **{f"default_{key}": given[key] for key in ("wire_bytes", "peak_memory_bytes")},
                    **{key: row[key] for key in ("wire_bytes", "peak_memory_bytes")},
                    "bytes_ratio": oracle_bytes.ratio(row["wire_bytes"], given["wire_bytes"]),
                    "formatting_ratio": oracle_bytes.ratio(
                        row["formatting_bytes"], given["formatting_bytes"]
                    ),
                    "instructions_ratio": row["local_instructions"] / given["local_instructions"],
                    "peak_ratio": row["peak_memory_bytes"] / given["peak_memory_bytes"],
                }


def run(
    say: Callable[[str], None], measured: Iterable[tuple[str, sa.Plan]] | None = None
) -> Result:
    table = sa.Table.from_records(rows(say, plans() if measured is None else measured))
    summary = {
        f"{option}: geometric mean of {column}": geometric_mean(
            row[column] for row in table.where(options=option) if row[column]
        )
        for option in sorted(set(table["options"]))
        for column in ("bytes_ratio", "formatting_ratio")
    }
    return Result("switches", ABOUT, table, summary)
