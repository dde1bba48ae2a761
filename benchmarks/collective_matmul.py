"""Layers whose products run as rings: bytes, temporary memory and predicted steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks.result import Result, geometric_mean
from shardalg.spmd.instructions import CollectiveMatmul
from shardalg.tables import Table

ABOUT = """Layers whose rows are cut over the 8 devices that cut their hidden dimension or heads, as
gathers and reduce-scatters, and as rings (`Switches(collective_matmul=True)`, weighed for an H100):
bytes that a device sends, temporary bytes of the program compiled for 8 CPU devices
(`memory_analysis`), peaks of both plans, and the largest difference to one device, relative to the
largest value. Steps are predicted, not measured, for a layer in bfloat16 on the chips named."""
DEVICES = 8
CHIPS = ("h100", "tpu_v4", "tpu_v5e")
SMALL, LARGE = (2, 512, 256, 1024), (1, 8192, 8192, 32768)
"""Batch, rows, model and hidden dimension: what is compiled, and what is predicted."""
HEADS = 16


def feed_forward(x: Any, up: Any, down: Any) -> Any:
    """Two products with a ReLU between."""
    return _cut(jnp.maximum(x @ up, 0), 2) @ down


def attention(x: Any, query: Any, out: Any) -> Any:
    """Return the products around attention, as einsums over heads."""
    heads = _cut(jnp.einsum("bsm,mhd->bshd", x, query), 2)
    return jnp.einsum("bshd,hdm->bsm", jnp.tanh(heads), out)


def _cut(x: Any, dim: int) -> Any:
    layout = jax.NamedSharding(_mesh().to_jax(), P(*(None,) * dim, "X"))
    return lax.with_sharding_constraint(x, layout)


def _mesh() -> sa.Mesh:
    return sa.Mesh({"X": DEVICES})


LAYERS: dict[str, Callable[..., Any]] = {"feed-forward": feed_forward, "attention": attention}
NAMES = tuple((layer, passes) for layer in LAYERS for passes in ("forward", "gradient"))


def types(layer: str, sizes: tuple[int, ...], dtype: str) -> list[jax.ShapeDtypeStruct]:
    """Arguments of a layer."""
    batch, rows, model, hidden = sizes
    inner = (hidden,) if layer == "feed-forward" else (HEADS, hidden // HEADS)
    shapes = ((batch, rows, model), (model, *inner), (*inner, model))
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def function(layer: str, passes: str) -> Callable[..., Any]:
    """Return the layer, or its result with the gradients of one backward step."""

    def both(*arguments: Any) -> Any:
        result, back = jax.vjp(LAYERS[layer], *arguments)
        return result, back(result)

    return both if passes == "gradient" else LAYERS[layer]


def plans(layer: str, passes: str, given: list[Any], chip: str) -> tuple[sa.Plan, sa.Plan]:
    """Return the plan with gathers, and with rings where these are faster on a chip."""
    specs = (P(None, "X"), P(None, "X"), P("X"))
    results = (P(None, "X"), specs) if passes == "gradient" else P(None, "X")
    gathers, rings = (
        sa.plan(
            function(layer, passes), *given, mesh=_mesh(), in_shardings=specs,
            out_shardings=results, roles=("data", "parameters", "parameters"),
            options=sa.Options(hardware=chip, switches=sa.Switches(collective_matmul=ring)),
        )
        for ring in (False, True)
    )  # fmt: skip
    return gathers, rings


def row(layer: str, passes: str, *, small: tuple[int, ...] = SMALL) -> dict[str, Any]:
    """One layer, both ways."""
    both = plans(layer, passes, types(layer, small, "float32"), "h100")
    rng = np.random.default_rng(0)
    values = [
        (rng.normal(size=t.shape) / 8).astype(t.dtype) for t in types(layer, small, "float32")
    ]
    wanted = jax.tree.leaves(jax.jit(function(layer, passes))(*values))
    found = jax.tree.leaves(both[1].lower()(*values))
    temp = [p.lower().compiled.memory_analysis().temp_size_in_bytes for p in both]
    errors = [float(abs(a - b).max() / abs(b).max()) for a, b in zip(found, wanted, strict=True)]
    report = both[1].verify()
    large = types(layer, LARGE, "bfloat16")
    steps = {chip: _steps(plans(layer, passes, large, chip), chip) for chip in CHIPS}
    return {
        "layer": f"{layer}, {passes}",
        "rings": sum(type(s.attributes) is CollectiveMatmul for s in _instructions(both[1])),
        "proved": sum(claim.status == "proved" for claim in report.claims) if report.ok else 0,
        "wire_bytes_gathered": int(both[0].collectives()["wire_bytes"].sum()),
        "wire_bytes": int(both[1].collectives()["wire_bytes"].sum()),
        "temp_bytes_gathered": temp[0],
        "temp_bytes": temp[1],
        "temp_ratio": temp[1] / temp[0],
        "planned_peak_gathered": both[0].memory.peak_bytes,
        "planned_peak": both[1].memory.peak_bytes,
        "relative_error": max(errors),
        **{f"{chip}_step_ratio": ratio for chip, ratio in steps.items()},
    }


def _instructions(plan: sa.Plan) -> Iterable[Any]:
    return plan.program.block.instructions


def _steps(both: tuple[sa.Plan, sa.Plan], chip: str) -> float:
    """Predicted seconds as rings over those as gathers."""
    gathered, ring = (plan.cost(chip).step_time_s for plan in both)
    return ring / gathered


def run(
    say: Callable[[str], None], names: Iterable[tuple[str, str]] = NAMES, **settings: Any
) -> Result:
    sa.host_devices(DEVICES)
    rows = []
    for layer, passes in names:
        rows.append(row(layer, passes, **settings))
        say(f"{layer}, {passes}: {rows[-1]['temp_ratio']:.2f} of the temporary bytes")
    table = Table.from_records(rows)
    means = {
        f"geometric mean of {column}": geometric_mean(table[column])
        for column in ("temp_ratio", *(f"{chip}_step_ratio" for chip in CHIPS))
    }
    return Result("collective_matmul", ABOUT, table, means)
