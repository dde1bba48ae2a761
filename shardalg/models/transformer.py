"""The dense Transformer language model of GSPMD (arXiv:2105.04663), section 5.1, in plain JAX.

Attention `y = Attention(W_Q x, W_K x, W_V x) W_O` and feed-forward `y = Relu(W_in x) W_out` on
activations (B, S, M), each behind a norm and a residual; one embedding (V, M) that is also the
output projection; softmax cross-entropy. Parameters are float32 and those of Table 1 and the
embedding; activations are `Config.dtype`. Every function takes its `Config` first (`partial`).

Sites, for a strategy to fill: "attention_heads" on q, k and v (B, S, N, D), "ffn_hidden"
(B, S, H) and "layer_output" (B, S, M) in a layer; "embedded" (B, S, M) and "logits" (B, S, V)
outside. Nothing else is annotated: norms, softmax and residuals are left to completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardalg.errors import StrategyError
from shardalg.graph.annotate import annotate

Array = jax.Array
Weights = Mapping[str, Array]
DTYPES = ("bfloat16", "float32")
ATTENTION = ("w_q", "w_k", "w_v", "w_o")
FFN = ("w_in", "w_out")


@dataclass(frozen=True)
class Config:
    """Sizes and form of the model, in the paper's letters.

    Attributes:
      B, S: sequences per batch, tokens per sequence.
      M, H: features of a token, features between the two feed-forward products.
      N, D: attention heads, features per head.
      V, L: vocabulary, layers.
      dtype: of activations, "bfloat16" or "float32"; parameters are always float32.
      scan: layers in one `lax.scan` over stacked weights instead of one after the other.
      remat: recompute each layer in the backward pass instead of keeping its activations.
      jit: unrolled layers call one jitted function, which JAX traces and differentiates once.

    >>> sum(size for size in WIDE_64B.parameter_counts().values())
    68981620736
    """

    B: int = 8
    S: int = 16
    M: int = 32
    H: int = 64
    N: int = 8
    D: int = 4
    V: int = 64
    L: int = 2
    dtype: str = "bfloat16"
    scan: bool = False
    remat: bool = False
    jit: bool = False

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in "BSMHNDVL"}
        bad = {k: v for k, v in sizes.items() if not isinstance(v, int) or v < 1}
        if bad:
            raise StrategyError(f"Config sizes must be integers of at least 1, got {bad}.")
        if self.dtype not in DTYPES:
            raise StrategyError(f"Config.dtype must be one of {DTYPES}, got {self.dtype!r}.")

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one layer's weights."""
        projection = (self.M, self.N, self.D)
        return {
            "w_q": projection,
            "w_k": projection,
            "w_v": projection,
            "w_o": (self.N, self.D, self.M),
            "w_in": (self.M, self.H),
            "w_out": (self.H, self.M),
        }

    def parameter_counts(self) -> dict[str, int]:
        """Parameters per weight, all layers together, and of the embedding."""
        M, H, N, D = self.M, self.H, self.N, self.D
        attention = dict.fromkeys(ATTENTION, self.L * M * N * D)
        return {**attention, **dict.fromkeys(FFN, self.L * M * H), "embedding": self.V * M}


# Table 3 of the paper: 32 layers of 2 billion parameters, on an (8, 16) mesh.
WIDE_64B = Config(B=64, S=1024, M=8192, H=65536, N=128, D=256, V=32000, L=32)


def init_params(config: Config, seed: int = 0) -> dict[str, Any]:
    """Random float32 parameters: {"embedding", "layers"}.

    "layers" is a tuple of dicts of weights, or, with `config.scan`, one dict of weights stacked on
    a leading dimension L. Scanned and unrolled parameters of one seed are the same numbers. The
    deviation of a weight is `1 / sqrt(size of what it contracts)`.
    """
    draw = partial(_draw, np.random.default_rng(seed))
    layers = [_init_layer(config, draw) for _ in range(config.L)]
    return {
        "embedding": draw((config.V, config.M), fan_in=config.M),
        "layers": jax.tree.map(_stacked, *layers) if config.scan else tuple(layers),
    }


def _init_layer(config: Config, draw: Callable[..., Array]) -> dict[str, Array]:
    fan_in = {"w_o": config.N * config.D, "w_out": config.H}
    shapes = config.weight_shapes()
    return {name: draw(shapes[name], fan_in=fan_in.get(name, config.M)) for name in shapes}


# Drawn on the host: a compile of jax.random for each shape would cost more than a train step.
def _draw(rng: np.random.Generator, shape: tuple[int, ...], *, fan_in: int) -> Array:
    return jnp.asarray(rng.standard_normal(shape, np.float32) * np.float32(fan_in**-0.5))


def _stacked(*weights: Array) -> Array:
    return jnp.asarray(np.stack(weights))


def param_types(config: Config) -> dict[str, Any]:
    """Shapes and types of `init_params(config)`, without the numbers.

    >>> param_types(Config(scan=True))["layers"]["w_in"]
    ShapeDtypeStruct(shape=(2, 32, 64), dtype=float32)
    """
    lead = (config.L,) if config.scan else ()
    layer = {
        name: jax.ShapeDtypeStruct((*lead, *shape), jnp.float32)
        for name, shape in config.weight_shapes().items()
    }
    embedding = jax.ShapeDtypeStruct((config.V, config.M), jnp.float32)
    layers = layer if config.scan else tuple(dict(layer) for _ in range(config.L))
    return {"embedding": embedding, "layers": layers}


def ffn(config: Config, weights: Weights, x: Array) -> Array:
    """Feed-forward layer: `Relu(x W_in) W_out`, (B, S, M) to (B, S, M)."""
    w_in, w_out = (weights[name].astype(config.dtype) for name in FFN)
    hidden = jax.nn.relu(jnp.einsum("bsm,mh->bsh", x, w_in))
    hidden = annotate(hidden, "ffn_hidden")
    return jnp.einsum("bsh,hm->bsm", hidden, w_out)


def attention(config: Config, weights: Weights, x: Array) -> Array:
    """Causal multi-head attention, (B, S, M) to (B, S, M); the softmax is taken in float32."""
    w_q, w_k, w_v, w_o = (weights[name].astype(config.dtype) for name in ATTENTION)
    q, k, v = (
        annotate(jnp.einsum("bsm,mnd->bsnd", x, w), "attention_heads") for w in (w_q, w_k, w_v)
    )
    scores = jnp.einsum("bsnd,btnd->bnst", q, k) * config.D**-0.5
    query = lax.broadcasted_iota(jnp.int32, scores.shape[2:], 0)
    key = lax.broadcasted_iota(jnp.int32, scores.shape[2:], 1)
    scores = jnp.where(query >= key, scores.astype(jnp.float32), -1e9)
    shares = jax.nn.softmax(scores, axis=-1).astype(config.dtype)
    heads = jnp.einsum("bnst,btnd->bsnd", shares, v)
    return jnp.einsum("bsnd,ndm->bsm", heads, w_o)


def norm(config: Config, x: Array) -> Array:
    """Zero mean and unit variance over the features of each token, computed in float32."""
    x = x.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return (centred * lax.rsqrt(variance + 1e-6)).astype(config.dtype)


def layer(config: Config, weights: Weights, x: Array) -> Array:
    """One Transformer layer: attention, then feed-forward, each behind a norm and a residual."""
    x = x + attention(config, weights, norm(config, x))
    x = x + ffn(config, weights, norm(config, x))
    return annotate(x, "layer_output")


def _layers(config: Config, layers: Any, x: Array) -> Array:
    step: Any = jax.jit(partial(layer, config)) if config.jit else partial(layer, config)
    if config.remat:
        step = jax.checkpoint(step)
    if config.scan:
        return lax.scan(lambda x, weights: (step(weights, x), None), x, layers)[0]
    for weights in layers:
        x = step(weights, x)
    return x


def forward(config: Config, params: Mapping[str, Any], tokens: Array) -> Array:
    """Logits (B, S, V) in float32, from tokens (B, S) of integers below V."""
    embedding = params["embedding"].astype(config.dtype)
    x = annotate(embedding[tokens], "embedded")
    x = norm(config, _layers(config, params["layers"], x))
    logits = jnp.einsum("bsm,vm->bsv", x, embedding)
    return annotate(logits, "logits").astype(jnp.float32)


def loss(config: Config, params: Mapping[str, Any], tokens: Array, targets: Array) -> Array:
    """Mean over tokens of `log(sum_v exp(logits_v)) - logits_target`, in nats.

    The target is picked by comparison with an iota, so that a vocabulary split over devices needs
    no gather.
    """
    logits = forward(config, params, tokens)
    peak = lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_total = jnp.log(jnp.sum(jnp.exp(logits - peak), axis=-1)) + peak[..., 0]
    is_target = targets[..., None] == lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    picked = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    return jnp.mean(log_total - picked)
