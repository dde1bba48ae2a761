"""Thirty functions with named sizes, on which `benchmarks.holding` measures where plans hold.

The list was fixed before guards were weakened. Fifteen functions are training steps: with
embedding, attention, scan, convolution, mixture of experts, recurrence, Adam and dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardalg as sa

Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class Named:
    """A function whose sizes have names.

    Attributes:
      arguments: the arguments, from sizes by name. shardings: of the arguments.
      hints: per dimension its hint. axes: per mesh axis its hint.
      parts: per dimension the mesh axes that shard it.
      results: the shardings of the results; None where completion decides.
    """

    name: str
    function: Callable[..., Any]
    arguments: Callable[[Sizes], tuple[Any, ...]]
    shardings: tuple[Any, ...]
    hints: Mapping[str, int]
    parts: Mapping[str, str]
    is_training: bool = False
    axes: Mapping[str, int] = field(default_factory=lambda: {"X": 4, "Y": 2})
    results: Any = None

    def plan(self, **point: int) -> sa.Plan:
        """Return the plan with named sizes; with a point, the plan in numbers there."""
        if point:
            sizes: Sizes = {name: point[name] for name in self.hints}
            mesh = sa.Mesh({name: point[name] for name in self.axes})
        else:
            dims = sa.dims(" ".join(self.hints), hint=tuple(self.hints.values()))
            sizes = dict(zip(self.hints, dims, strict=True))
            mesh = sa.Mesh(dict(self.axes), symbolic=True)
        how = {"in_shardings": self.shardings, "out_shardings": self.results}
        return sa.plan(self.function, *self.arguments(sizes), mesh=mesh, **how)


def f32(*shape: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def s32(*shape: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "int32")


def descent(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the step of gradient descent on the first argument of a loss."""

    def step(params: Any, *data: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *data)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def training(
    name: str,
    loss: Callable[..., Any],
    weights: Callable[[Sizes], Any],
    specs: Any,
    data: Callable[[Sizes], tuple[Any, ...]],
    data_specs: tuple[Any, ...],
    hints: Mapping[str, int],
    parts: Mapping[str, str],
    step: Callable[[Callable[..., Any]], Callable[..., Any]] = descent,
) -> Named:
    """Return a training step of a loss, whose weights keep their shardings."""
    return Named(
        name,
        step(loss),
        lambda n: (weights(n), *data(n)),
        (specs, *data_specs),
        hints,
        parts,
        is_training=True,
        results=(specs, None),
    )


def norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def cross_entropy(logits: Any, targets: Any) -> Any:
    logs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logs, targets[..., None], -1).mean()


def attention(p: Any, x: Any) -> Any:
    q, k, v = (jnp.einsum("bsm,mnd->bsnd", x, p[w]) for w in ("wq", "wk", "wv"))
    scores = jnp.einsum("bsnd,btnd->bnst", q, k) * p["wq"].shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("bnst,btnd,ndm->bsm", weights, v, p["wo"])


ATTENTION = {k: P("X", "Y") for k in ("wq", "wk", "wv")} | {"wo": P("Y", None, "X")}
MLP = {"up": P("X", "Y"), "down": P("Y", "X")}


def attention_weights(n: Sizes) -> dict[str, Any]:
    M, N, D = n["M"], n["N"], n["D"]
    return {k: f32(M, N, D) for k in ("wq", "wk", "wv")} | {"wo": f32(N, D, M)}


def mlp(p: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def mlp_weights(n: Sizes) -> dict[str, Any]:
    return {"up": f32(n["M"], n["H"]), "down": f32(n["H"], n["M"])}


def stacked(tree: Any, n: Sizes) -> Any:
    return jax.tree.map(lambda a: f32(n["L"], *a.shape), tree)


def below(specs: Any) -> Any:
    """Return the shardings behind a dimension of layers."""
    return jax.tree.map(lambda s: P(None, *s), specs, is_leaf=lambda s: isinstance(s, P))


def block(p: Any, x: Any) -> Any:
    x = x + attention(p["attention"], norm(x, p["scale"]))
    return x + mlp(p["mlp"], norm(x, p["scale"]))


def block_weights(n: Sizes) -> dict[str, Any]:
    return {"attention": attention_weights(n), "mlp": mlp_weights(n), "scale": f32(n["M"])}


BLOCK = {"attention": ATTENTION, "mlp": MLP, "scale": P()}
TRANSFORMER = {"B": 64, "S": 128, "M": 512, "H": 2048, "N": 8, "D": 64}
HEADS = {"B": "X", "M": "X", "H": "Y", "N": "Y"}


def embedding_loss(p: Any, tokens: Any) -> Any:
    return ((jnp.take(p["emb"], tokens, axis=0) @ p["w"]) ** 2).mean()


def tied_loss(p: Any, tokens: Any, targets: Any) -> Any:
    x = norm(p["emb"][tokens], 1.0)
    return cross_entropy(jnp.tanh(x @ p["w"]) @ p["emb"].T, targets)


def attention_loss(p: Any, x: Any) -> Any:
    return (attention(p, x) ** 2).mean()


def block_loss(p: Any, x: Any) -> Any:
    return (block(p, x) ** 2).mean()


def scanned_mlp_loss(p: Any, x: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, w: (x + mlp(w, x), None), x, p)
    return (x**2).mean()


def language_loss(p: Any, tokens: Any, targets: Any) -> Any:
    x = jnp.take(p["emb"], tokens, axis=0)
    x, _ = jax.lax.scan(lambda x, w: (block(w, x), None), x, p["layers"])
    return cross_entropy(norm(x, 1.0) @ p["head"], targets)


def rematted_loss(p: Any, x: Any) -> Any:
    body = jax.checkpoint(lambda x, w: (x + mlp(w, norm(x, 1.0)), None))
    return (jax.lax.scan(body, x, p)[0] ** 2).mean()


def convolve(x: Any, w: Any, strides: tuple[int, ...], numbers: tuple[str, str, str]) -> Any:
    return jax.lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=numbers)


def image_loss(p: Any, x: Any, labels: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    x = jax.nn.relu(convolve(x, p["first"], (1, 1), numbers))
    x = jax.nn.relu(convolve(x, p["second"], (1, 1), numbers)).mean((1, 2))
    return cross_entropy(x @ p["head"], labels)


def audio_loss(p: Any, x: Any) -> Any:
    x = jax.nn.silu(convolve(x, p["w"], (1,), ("NWC", "WIO", "NWC")))
    return ((x @ p["out"]) ** 2).mean()


def experts_loss(p: Any, x: Any) -> Any:
    gates = jax.nn.softmax(x @ p["gate"])
    hidden = jax.nn.relu(jnp.einsum("bsm,emh->besh", x, p["up"]))
    out = jnp.einsum("besh,ehm->besm", hidden, p["down"])
    return (jnp.einsum("besm,bse->bsm", out, gates) ** 2).mean()


def routed_loss(p: Any, x: Any) -> Any:
    """Two experts for each token, each with room for a fixed number of tokens of a group."""
    gates = jax.nn.softmax(x @ p["gate"])
    values, chosen = jax.lax.top_k(gates, 2)
    mask = jax.nn.one_hot(chosen, gates.shape[-1]) * values[..., None]
    place = jnp.cumsum(mask.sum(2) > 0, 1) - 1
    slots = jax.nn.one_hot(place, 16) * mask.sum(2)[..., None]
    routed = jnp.einsum("bsm,bsec->becm", x, slots)
    hidden = jax.nn.relu(jnp.einsum("becm,emh->bech", routed, p["up"]))
    out = jnp.einsum("bech,ehm->becm", hidden, p["down"])
    return (jnp.einsum("becm,bsec->bsm", out, slots) ** 2).mean()


def expert_weights(n: Sizes) -> dict[str, Any]:
    E, M, H = n["E"], n["M"], n["H"]
    return {"gate": f32(M, E), "up": f32(E, M, H), "down": f32(E, H, M)}


EXPERTS = {"gate": P(), "up": P("X", None, "Y"), "down": P("X", "Y")}


def recurrent_loss(p: Any, x: Any) -> Any:
    def cell(state: Any, row: Any) -> tuple[Any, Any]:
        state = jnp.tanh(state @ p["state"] + row @ p["input"])
        return state, state

    start = jnp.zeros((x.shape[1], p["state"].shape[0]))
    return (jax.lax.scan(cell, start, x)[1] ** 2).mean()


def adam(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step of Adam, whose moments start at zero."""

    def step(params: Any, *data: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *data)

        def update(p: Any, g: Any) -> Any:
            first, second = 0.1 * g, 0.001 * g * g
            return p - 1e-3 * (first / 0.1) / (jnp.sqrt(second / 0.001) + 1e-8)

        return jax.tree.map(update, params, grads), value

    return step


def mlp_loss(p: Any, x: Any) -> Any:
    return (mlp(p, x) ** 2).mean()


def dropout_loss(p: Any, x: Any, key: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
    return (mlp(p, jnp.where(kept, x / 0.9, 0.0)) ** 2).mean()


def weight_decay_loss(p: Any, x: Any, y: Any) -> Any:
    fit = ((jnp.concatenate([x, y], -1) @ p["w"]) ** 2).mean()
    return fit + 1e-4 * sum((w**2).sum() for w in jax.tree.leaves(p))


def decode(cache: Any, x: Any, place: Any) -> Any:
    cache = jax.lax.dynamic_update_slice(cache, x[:, None], (0, place, 0))
    weights = jax.nn.softmax(jnp.einsum("bsm,bm->bs", cache, x))
    return cache, jnp.einsum("bs,bsm->bm", weights, cache)


def rope(x: Any) -> Any:
    half = x.shape[-1] // 2
    rates = 1e4 ** -(jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None] * rates
    first, second = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def grouped_attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bsgnd,btgd->bgnst", q, k)
    return jnp.einsum("bgnst,btgd->bsgnd", jax.nn.softmax(scores), v)


def whitened(x: Any) -> Any:
    x = (x - x.mean(0)) * jax.lax.rsqrt(x.var(0) + 1e-5)
    return x.T @ x


def power(a: Any, v: Any) -> Any:
    return jax.lax.fori_loop(0, 8, lambda _, v: (a @ v) / jnp.linalg.norm(a @ v), v)


def pooled(x: Any) -> Any:
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 1), (1, 1, 1), "SAME").sum(1)


STEPS = (
    training(
        "embedding_step",
        embedding_loss,
        lambda n: {"emb": f32(n["V"], n["M"]), "w": f32(n["M"], n["M"])},
        {"emb": P("X", "Y"), "w": P("X", "Y")},
        lambda n: (s32(n["B"], n["S"]),),
        (P("X"),),
        {"B": 64, "V": 1024, "M": 512, "S": 128},
        {"B": "X", "V": "X", "M": "XY"},
    ),
    training(
        "tied_embedding_step",
        tied_loss,
        lambda n: {"emb": f32(n["V"], n["M"]), "w": f32(n["M"], n["M"])},
        {"emb": P("Y", "X"), "w": P("X", "Y")},
        lambda n: (s32(n["B"], n["S"]), s32(n["B"], n["S"])),
        (P("X"), P("X")),
        {"B": 64, "V": 4096, "M": 512, "S": 128},
        {"B": "X", "V": "Y", "M": "XY"},
    ),
    training(
        "attention_step",
        attention_loss,
        attention_weights,
        ATTENTION,
        lambda n: (f32(n["B"], n["S"], n["M"]),),
        (P("X"),),
        {k: TRANSFORMER[k] for k in "BSMND"},
        HEADS,
    ),
    training(
        "transformer_block_step",
        block_loss,
        block_weights,
        BLOCK,
        lambda n: (f32(n["B"], n["S"], n["M"]),),
        (P("X"),),
        TRANSFORMER,
        HEADS,
    ),
    training(
        "scanned_mlp_step",
        scanned_mlp_loss,
        lambda n: stacked(mlp_weights(n), n),
        below(MLP),
        lambda n: (f32(n["B"], n["M"]),),
        (P("X"),),
        {"L": 6, "B": 256, "M": 512, "H": 2048},
        HEADS,
    ),
    training(
        "scanned_language_step",
        language_loss,
        lambda n: {
            "emb": f32(n["V"], n["M"]),
            "layers": stacked(block_weights(n), n),
            "head": f32(n["M"], n["V"]),
        },
        {"emb": P("Y", "X"), "layers": below(BLOCK), "head": P("X", "Y")},
        lambda n: (s32(n["B"], n["S"]), s32(n["B"], n["S"])),
        (P("X"), P("X")),
        {"L": 4, "V": 8192, **TRANSFORMER},
        {"V": "Y", **HEADS},
    ),
    training(
        "rematted_scan_step",
        rematted_loss,
        lambda n: stacked(mlp_weights(n), n),
        below(MLP),
        lambda n: (f32(n["B"], n["S"], n["M"]),),
        (P("X", None, "Y"),),
        {"L": 6, "B": 64, "S": 96, "M": 512, "H": 2048},
        {"B": "X", "M": "XY", "H": "Y"},
    ),
    training(
        "image_convolution_step",
        image_loss,
        lambda n: {
            "first": f32(3, 3, 4, n["C"]),
            "second": f32(3, 3, n["C"], n["C"]),
            "head": f32(n["C"], n["K"]),
        },
        {"first": P(None, None, None, "Y"), "second": P(None, None, None, "Y"), "head": P("Y")},
        lambda n: (f32(n["B"], n["W"], n["W"], 4), s32(n["B"])),
        (P("X"), P("X")),
        {"B": 64, "W": 32, "C": 64, "K": 96},
        {"B": "X", "C": "Y"},
    ),
    training(
        "audio_convolution_step",
        audio_loss,
        lambda n: {"w": f32(5, n["C"], n["H"]), "out": f32(n["H"], n["C"])},
        {"w": P(None, "X", "Y"), "out": P("Y", "X")},
        lambda n: (f32(n["B"], n["T"], n["C"]),),
        (P("X"),),
        {"B": 64, "T": 256, "C": 128, "H": 512},
        {"B": "X", "C": "X", "H": "Y"},
    ),
    training(
        "dense_experts_step",
        experts_loss,
        expert_weights,
        EXPERTS,
        lambda n: (f32(n["B"], n["S"], n["M"]),),
        (P("X"),),
        {"B": 32, "S": 64, "M": 256, "E": 16, "H": 512},
        {"B": "X", "E": "X", "H": "Y"},
    ),
    training(
        "routed_experts_step",
        routed_loss,
        expert_weights,
        EXPERTS,
        lambda n: (f32(n["B"], n["S"], n["M"]),),
        (P("X"),),
        {"B": 32, "S": 64, "M": 256, "E": 20, "H": 512},
        {"B": "X", "E": "X", "H": "Y"},
    ),
    training(
        "recurrent_step",
        recurrent_loss,
        lambda n: {"state": f32(n["H"], n["H"]), "input": f32(n["M"], n["H"])},
        {"state": P(None, "Y"), "input": P(None, "Y")},
        lambda n: (f32(n["T"], n["B"], n["M"]),),
        (P(None, "X"),),
        {"T": 48, "B": 128, "M": 256, "H": 512},
        {"B": "X", "H": "Y"},
    ),
    training(
        "adam_step",
        mlp_loss,
        mlp_weights,
        MLP,
        lambda n: (f32(n["B"], n["S"], n["M"]),),
        (P("X"),),
        {"B": 64, "S": 96, "M": 512, "H": 2048},
        HEADS,
        adam,
    ),
    training(
        "dropout_step",
        dropout_loss,
        mlp_weights,
        {"up": P(None, "Y"), "down": P("Y")},
        lambda n: (f32(n["B"], n["M"]), jax.ShapeDtypeStruct((2,), "uint32")),
        (P("X"), P()),
        {"B": 512, "M": 384, "H": 1024},
        {"B": "X", "H": "Y"},
    ),
    training(
        "joined_features_step",
        weight_decay_loss,
        lambda n: {"w": f32(n["M"] + n["N"], n["H"])},
        {"w": P(None, "Y")},
        lambda n: (f32(n["B"], n["M"]), f32(n["B"], n["N"])),
        (P("X"), P("X")),
        {"B": 512, "M": 384, "N": 160, "H": 1024},
        {"B": "X", "H": "Y"},
    ),
)

FORWARD = (
    Named(
        "perceptron",
        mlp,
        lambda n: (mlp_weights(n), f32(n["B"], n["M"])),
        (MLP, P("X")),
        {"B": 256, "M": 512, "H": 2048},
        HEADS,
    ),
    Named(
        "log_softmax_of_product",
        lambda x, w: jax.nn.log_softmax(x @ w),
        lambda n: (f32(n["B"], n["M"]), f32(n["M"], n["V"])),
        (P("X"), P(None, "Y")),
        {"B": 64, "M": 512, "V": 1024},
        {"B": "X", "V": "Y"},
        axes={"X": 8, "Y": 4},
    ),
    Named(
        "layer_norm",
        lambda x, g: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-6) * g,
        lambda n: (f32(n["B"], n["S"], n["M"]), f32(n["M"])),
        (P("X", None, "Y"), P("Y")),
        {"B": 64, "S": 128, "M": 512},
        {"B": "X", "M": "Y"},
    ),
    Named(
        "grouped_attention",
        grouped_attention,
        lambda n: (
            f32(n["B"], n["S"], n["G"], n["N"], n["D"]),
            f32(n["B"], n["S"], n["G"], n["D"]),
            f32(n["B"], n["S"], n["G"], n["D"]),
        ),
        (P("X", None, "Y"), P("X", None, "Y"), P("X", None, "Y")),
        {"B": 32, "S": 128, "G": 8, "N": 4, "D": 64},
        {"B": "X", "G": "Y"},
    ),
    Named(
        "attention_over_sequence",
        grouped_attention,
        lambda n: (
            f32(n["B"], n["S"], n["G"], n["N"], n["D"]),
            f32(n["B"], n["S"], n["G"], n["D"]),
            f32(n["B"], n["S"], n["G"], n["D"]),
        ),
        (P("X", "Y"), P("X", "Y"), P("X", "Y")),
        {"B": 32, "S": 128, "G": 8, "N": 4, "D": 64},
        {"B": "X", "S": "Y"},
    ),
    Named(
        "cross_entropy",
        cross_entropy,
        lambda n: (f32(n["B"], n["S"], n["V"]), s32(n["B"], n["S"])),
        (P("X", None, "Y"), P("X")),
        {"B": 32, "S": 128, "V": 4096},
        {"B": "X", "V": "Y"},
    ),
    Named(
        "embedding_lookup",
        lambda w, i: jnp.take(w, i, axis=0),
        lambda n: (f32(n["V"], n["M"]), s32(n["B"], n["S"])),
        (P("Y"), P("X")),
        {"B": 64, "S": 128, "V": 4096, "M": 512},
        {"B": "X", "V": "Y"},
    ),
    Named(
        "decode_with_cache",
        decode,
        lambda n: (f32(n["B"], n["S"], n["M"]), f32(n["B"], n["M"]), s32()),
        (P("X", None, "Y"), P("X", "Y"), P()),
        {"B": 32, "S": 256, "M": 512},
        {"B": "X", "M": "Y"},
    ),
    Named(
        "gated_perceptron",
        lambda x, a, b, c: (jax.nn.silu(x @ a) * (x @ b)) @ c,
        lambda n: (
            f32(n["B"], n["S"], n["M"]),
            f32(n["M"], n["H"]),
            f32(n["M"], n["H"]),
            f32(n["H"], n["M"]),
        ),
        (P("X", None, "Y"), P(None, "Y"), P(None, "Y"), P("Y")),
        {"B": 32, "S": 64, "M": 512, "H": 1536},
        {"B": "X", "M": "Y", "H": "Y"},
    ),
    Named(
        "sampling",
        lambda x, w: jax.lax.top_k(x @ w, 8),
        lambda n: (f32(n["B"], n["M"]), f32(n["M"], n["V"])),
        (P("X"), P(None, "Y")),
        {"B": 64, "M": 512, "V": 4096},
        {"B": "X", "V": "Y"},
    ),
    Named(
        "rotary_positions",
        rope,
        lambda n: (f32(n["B"], n["S"], 2 * n["D"]),),
        (P("X", "Y"),),
        {"B": 32, "S": 128, "D": 32},
        {"B": "X", "S": "Y"},
    ),
    Named(
        "whitening",
        whitened,
        lambda n: (f32(n["B"], n["M"]),),
        (P("X", "Y"),),
        {"B": 1024, "M": 512},
        {"B": "X", "M": "Y"},
    ),
    Named(
        "power_iteration",
        power,
        lambda n: (f32(n["M"], n["M"]), f32(n["M"])),
        (P("X", "Y"), P("X")),
        {"M": 1024},
        {"M": "XY"},
    ),
    Named(
        "pooling",
        pooled,
        lambda n: (f32(n["B"], n["T"], n["C"]),),
        (P("X", None, "Y"),),
        {"B": 32, "T": 96, "C": 128},
        {"B": "X", "C": "Y"},
    ),
    Named(
        "joined_rows",
        lambda x, y, w: jnp.concatenate([x, y], 0) @ w,
        lambda n: (f32(n["B"], n["M"]), f32(n["B"], n["M"]), f32(n["M"], n["H"])),
        (P("X"), P("X"), P(None, "Y")),
        {"B": 256, "M": 512, "H": 1024},
        {"B": "X", "H": "Y"},
    ),
)
FUNCTIONS = (*STEPS, *FORWARD)
