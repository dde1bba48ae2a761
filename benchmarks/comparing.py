"""Seconds of `sa.compare` and of `rules.lint` for a Transformer of a billion parameters."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import shardalg as sa
from benchmarks.result import Result
from shardalg.tables import Table

ABOUT = """The train step of a decoder with Adam, its layers unrolled, and the rules of its arrays.
`sa.compare` traces the step once, then plans and prices six recipes for 64 H100 on the mesh
data=16, model=4, and prints the ranking; `traced_s` is the trace. `rules.lint` gets the arrays,
rules without a finding, and the loss as the function. `processor_s` are seconds of one core without
the trace, `wall_s` those of the clock. `goal_s` are the seconds that it may take after tracing.
Both calls are made for a tiny model first, so that imports do not count."""
COMPARE_S, LINT_S = 6.0, 2.0
MESH = {"data": 16, "model": 4}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder: layers, features, hidden features, heads, vocabulary, batch, length."""

    layers: int = 24
    model: int = 1536
    hidden: int = 6144
    heads: int = 16
    vocabulary: int = 32000
    batch: int = 64
    length: int = 2048

    def shapes(self) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
        """Return the shape and the names of the dimensions of each array of a layer."""
        m, f, h = self.model, self.hidden, self.heads
        into = (m, h, m // h), ("embed", "heads", "kv")
        up = (m, f), ("embed", "mlp")
        return {
            **dict.fromkeys("qkv", into),
            "o": ((h, m // h, m), ("heads", "kv", "embed")),
            **dict.fromkeys(("gate", "up"), up),
            "down": ((f, m), ("mlp", "embed")),
            **dict.fromkeys(("first", "second"), ((m,), ("embed",))),
        }

    def parameters(self, leaf: Callable[..., Any]) -> dict[str, Any]:
        """Return the tree of parameters; `leaf(shape, names)` makes one."""
        layer = {name: leaf(*pair) for name, pair in self.shapes().items()}
        table = leaf((self.vocabulary, self.model), ("vocab", "embed"))
        return {"table": table, "layers": [dict(layer) for _ in range(self.layers)]}

    @property
    def tokens(self) -> tuple[int, int]:
        return self.batch, self.length


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
    return wide.astype(x.dtype) * scale


def layer(w: dict[str, Any], x: Any) -> Any:
    h = norm(x, w["first"])
    q, k, v = (jnp.einsum("bsd,dhe->bshe", h, w[name]) for name in "qkv")
    scores = jnp.einsum("bshe,bthe->bhst", q, k).astype(jnp.float32)
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    share = jax.nn.softmax(jnp.where(causal, scores, -1e9), -1).astype(x.dtype)
    x = x + jnp.einsum("bhst,bthe,hed->bsd", share, v, w["o"])
    h = norm(x, w["second"])
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def loss(params: dict[str, Any], tokens: Any) -> Any:
    x = params["table"][tokens]
    for weights in params["layers"]:
        x = layer(weights, x)
    logits = (x @ params["table"].T).astype(jnp.float32)[:, :-1]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1))


def step(params: Any, first: Any, second: Any, tokens: Any) -> Any:
    grads = jax.tree.map(lambda g: g.astype(jnp.float32), jax.grad(loss)(params, tokens))
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, grads)
    moved = jax.tree.map(
        lambda p, m, v: p - (1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype),
        *(params, first, second),
    )
    return moved, first, second


def recipes() -> dict[str, Any]:
    """Return the six recipes that are compared."""
    made = sa.recipes
    data, fsdp, first = made.data("data"), made.fsdp("data"), made.zero(1, "data")
    tensor, both = made.tensor("model"), made.two_d("data", "model")
    mixed = {"fsdp + tensor": fsdp | tensor, "zero 1 + tensor": first | tensor, "2D": both}
    return {"data": data, "fsdp": fsdp, "zero 1": first, **mixed}


TINY = Sizes(layers=1, model=64, hidden=256, heads=4, vocabulary=512, batch=16, length=16)


def run(say: Callable[[str], None], sizes: Sizes = Sizes()) -> Result:
    """Measure both calls in this process."""
    for measured in (TINY, sizes):
        rows = [compared(measured), linted(measured)]
    say(f"compare {rows[0]['processor_s']:.1f} s, lint {rows[1]['processor_s']:.1f} s")
    figures = {f"{row['call']}, seconds of a core": row["processor_s"] for row in rows}
    return Result("comparing", ABOUT, Table.from_records(rows), figures)


def compared(sizes: Sizes) -> dict[str, Any]:
    """Return the row of `sa.compare`."""
    module = importlib.import_module("shardalg.plan.comparing.compare")
    traced: list[float] = []
    trace = module.traced_call

    def timed(*args: Any) -> Any:
        start = time.process_time()
        found = trace(*args)
        traced.append(time.process_time() - start)
        return found

    arrays, wide = (
        sizes.parameters(lambda shape, _, dtype=dtype: jax.ShapeDtypeStruct(shape, dtype))
        for dtype in ("bfloat16", "float32")
    )
    tokens = jax.ShapeDtypeStruct(sizes.tokens, "int32")
    roles = ("parameters", "optimizer_state", "optimizer_state", "data")
    start = time.process_time(), time.time()
    with mock.patch.object(module, "traced_call", timed):
        found = sa.compare(
            step, arrays, wide, wide, tokens, strategies=recipes(), roles=roles,
            hardware="h100:64", meshes=MESH, progress=False,
        )  # fmt: skip
        text = repr(found)
    used = time.process_time() - start[0], time.time() - start[1]
    assert "refused" not in text.lower(), text
    parameters = sum(leaf.size for leaf in jax.tree.leaves(arrays))
    return {
        "call": "sa.compare",
        "subject": f"{len(found.rows)} recipes, {sizes.layers} layers, 64 devices",
        "parameters": parameters,
        "traced_s": sum(traced),
        "processor_s": used[0] - sum(traced),
        "wall_s": used[1],
        "goal_s": COMPARE_S,
    }


def linted(sizes: Sizes) -> dict[str, Any]:
    """Return the row of `rules.lint`, whose function is traced as a part of it."""
    params = sizes.parameters(lambda shape, names: (shape, "bfloat16", names))
    tokens = (sizes.tokens, "int32", ("batch", None))
    rules = [("batch", "data"), ("embed", "data"), ("vocab", "model"), ("mlp", "model")]
    rules.append(("heads", "model"))
    start = time.process_time(), time.time()
    found = sa.logical_rules(rules, MESH).lint({"params": params, "tokens": tokens}, fn=loss)
    used = time.process_time() - start[0], time.time() - start[1]
    shapes = sizes.parameters(lambda shape, _: jax.ShapeDtypeStruct(shape, "bfloat16"))
    leaves = jax.tree.leaves(shapes)
    return {
        "call": "rules.lint",
        "subject": f"{len(leaves) + 1} arrays, {len(rules)} rules, {len(found)} findings",
        "parameters": sum(leaf.size for leaf in leaves),
        "traced_s": None,
        "processor_s": used[0],
        "wall_s": used[1],
        "goal_s": LINT_S,
    }
