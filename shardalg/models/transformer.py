"""The dense Transformer language model of GSPMD (arXiv:2105.04663), section 5.1, in plain JAX.

Attention `y = Attention(W_Q x, W_K x, W_V x) W_O` and feed-forward `y = Relu(W_in x) W_out` on
activations (B, S, M), each behind a norm and a residual; one embedding (V, M) that is also the
output projection; softmax cross-entropy. Parameters (Table 1 and the embedding) have the type
`Config.param_dtype`, activations `Config.dtype`. Every function takes its `Config` first.

Sites, for a strategy to fill: "attention_heads" on q, k and v (B, S, N, D), "ffn_hidden"
(B, S, H) and "layer_output" (B, S, M) in a layer; "embedded" (B, S, M) and "logits" (B, S, V)
outside. Nothing else is annotated: norms, softmax and residuals are left to completion.

Changes of later models are switches: a gated feed-forward layer (arXiv:2002.05202), fewer heads of
keys and values than of queries (arXiv:2305.13245), and attention that keeps no scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardalg.costs.fusion import ON_CHIP
from shardalg.errors import StrategyError
from shardalg.graph.annotate import annotate

Array = jax.Array
Weights = Mapping[str, Array]
DTYPES = ("bfloat16", "float32")
ATTENTION = ("w_q", "w_k", "w_v", "w_o")
FFN = ("w_in", "w_out")
GATED_FFN = ("w_gate", *FFN)
ATTENTIONS = ("plain", "fused")
REMAT: Mapping[str, Callable[..., Any] | None] = {
    "full": None,
    "minimal": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "minimal_offloaded": jax.checkpoint_policies.offload_dot_with_no_batch_dims(
        "device", "pinned_host"
    ),
}
"""The checkpoint policy of each form of rematerialisation; the names are MaxText's."""


@dataclass(frozen=True)
class Config:
    """Sizes and form of the model, in the paper's letters.

    Attributes:
      B, S: sequences per batch, tokens per sequence.
      M, H: features of a token, features between the two feed-forward products.
      N, D: attention heads, features per head.
      V, L: vocabulary, layers.
      K: heads of keys and values, each for N / K heads of queries; None for N.
      dtype: of activations, "bfloat16" or "float32"; param_dtype: of parameters.
      gated: `(silu(x W_gate) * x W_in) W_out` instead of `relu(x W_in) W_out`.
      attention: "fused" rebuilds the scores in the backward pass instead of keeping them.
      scan: layers in one `lax.scan` over stacked weights instead of one after the other.
      remat: the values of each layer that the backward pass recomputes: False for none; "full" (or
        True) for all except the layer's input; "minimal" for all except the input and the results
        of products with weights; "minimal_offloaded" for the same, with these results on the host.
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
    remat: bool | str = False
    jit: bool = False
    K: int | None = None
    gated: bool = False
    attention: str = "plain"
    param_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Raise `StrategyError` for a size below 1, an unknown choice, or uneven heads of keys."""
        sizes = {name: getattr(self, name) for name in "BSMHNDVL"}
        bad_sizes = {k: v for k, v in sizes.items() if not isinstance(v, int) or v < 1}
        if bad_sizes:
            raise StrategyError(f"Config sizes must be integers of at least 1, got {bad_sizes}.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise StrategyError(
                    f"Config.{name} must be one of {choices}, got {getattr(self, name)!r}."
                )
        if self.K is not None and (not isinstance(self.K, int) or self.K < 1 or self.N % self.K):
            raise StrategyError(
                f"{self.N} heads do not go evenly to {self.K!r} heads of keys and values: "
                "K must divide N."
            )

    @property
    def ffn_weights(self) -> tuple[str, ...]:
        """The names of the feed-forward weights of a layer."""
        return GATED_FFN if self.gated else FFN

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight of one layer, by its name."""
        # Fewer heads of keys and values than of queries, if K is given.
        key_shape = (self.M, self.K or self.N, self.D)
        return {
            "w_q": (self.M, self.N, self.D),
            "w_k": key_shape,
            "w_v": key_shape,
            "w_o": (self.N, self.D, self.M),
            **dict.fromkeys(self.ffn_weights, (self.M, self.H)),
            "w_out": (self.H, self.M),
        }

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters per weight name, of all layers, and of the embedding."""
        shapes = self.weight_shapes()
        layers = {name: self.L * math.prod(shape) for name, shape in shapes.items()}
        return {**layers, "embedding": self.V * self.M}


_CHOICES = {
    "dtype": DTYPES,
    "param_dtype": DTYPES,
    "attention": ATTENTIONS,
    "remat": (False, True, *REMAT),
}
WIDE_64B = Config(B=64, S=1024, M=8192, H=65536, N=128, D=256, V=32000, L=32)
"""Table 2 of the paper, first column: 32 layers of 2 billion parameters, on an (8, 16) mesh."""


def init_params(config: Config, seed: int = 0) -> dict[str, Any]:
    """Return random parameters: {"embedding", "layers"}.

    "layers" is a tuple of dicts of weights, or, with `config.scan`, one dict of weights stacked on
    a leading dimension L. Scanned and unrolled parameters of one seed are the same numbers. The
    deviation of a weight is `1 / sqrt(size of its contracted dimensions)`.
    """
    draw = partial(_draw, np.random.default_rng(seed), config.param_dtype)
    fan_in = {"w_o": config.N * config.D, "w_out": config.H}
    # Both forms draw layer by layer: one draw of (L, ...) per weight would give other numbers.
    shapes = config.weight_shapes().items()
    layers = [
        {name: draw(shape, fan_in=fan_in.get(name, config.M)) for name, shape in shapes}
        for _ in range(config.L)
    ]
    return {
        "embedding": draw((config.V, config.M), fan_in=config.M),
        "layers": jax.tree.map(_stacked, *layers) if config.scan else tuple(layers),
    }


# Drawn on the host: a compile of jax.random for each shape would cost more than a train step.
def _draw(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], *, fan_in: int) -> Array:
    drawn = rng.standard_normal(shape, np.float32) * np.float32(fan_in**-0.5)
    return jnp.asarray(drawn, dtype)


def _stacked(*weights: Array) -> Array:
    return jnp.asarray(np.stack(weights))


def param_types(config: Config) -> dict[str, Any]:
    """Return the shapes and types of `init_params(config)`.

    >>> param_types(Config(scan=True))["layers"]["w_in"]
    ShapeDtypeStruct(shape=(2, 32, 64), dtype=float32)
    """
    # A scan reads weights that are stacked on a leading dimension of layers.
    stack_dims = (config.L,) if config.scan else ()
    layer = {
        name: jax.ShapeDtypeStruct((*stack_dims, *shape), config.param_dtype)
        for name, shape in config.weight_shapes().items()
    }
    embedding = jax.ShapeDtypeStruct((config.V, config.M), config.param_dtype)
    layers = layer if config.scan else tuple(dict(layer) for _ in range(config.L))
    return {"embedding": embedding, "layers": layers}


def ffn(config: Config, weights: Weights, x: Array) -> Array:
    """Return the feed-forward layer of `x`, (B, S, M): `relu(x W_in) W_out`, or its gated form.

    The gated form is `(silu(x W_gate) * x W_in) W_out` (arXiv:2002.05202).
    """
    # Parameters may have a wider type than activations; the products run in `config.dtype`.
    cast_weights = {name: weights[name].astype(config.dtype) for name in config.ffn_weights}
    hidden = jnp.einsum("bsm,mh->bsh", x, cast_weights["w_in"])
    if config.gated:
        hidden = jax.nn.silu(jnp.einsum("bsm,mh->bsh", x, cast_weights["w_gate"])) * hidden
    else:
        hidden = jax.nn.relu(hidden)
    hidden = annotate(hidden, "ffn_hidden")
    return jnp.einsum("bsh,hm->bsm", hidden, cast_weights["w_out"])


def attention(config: Config, weights: Weights, x: Array) -> Array:
    """Return the causal multi-head attention of `x`, (B, S, M), with a softmax in float32."""
    w_q, w_k, w_v, w_o = (weights[name].astype(config.dtype) for name in ATTENTION)
    q, k, v = (
        annotate(jnp.einsum("bsm,mnd->bsnd", x, w), "attention_heads") for w in (w_q, w_k, w_v)
    )
    # A fused kernel keeps no scores: its backward pass computes them again, like a checkpoint.
    attend = partial(_attended, config)
    heads = (attend if config.attention == "plain" else jax.checkpoint(attend))(q, k, v)
    return jnp.einsum("bsnd,ndm->bsm", heads, w_o)


def _attended(config: Config, q: Array, k: Array, v: Array) -> Array:
    """Return the heads' weighted means of `v`, (B, S, N, D), for queries q and keys k.

    With `config.K`, keys and values have K heads, each for N / K heads of queries.
    """
    # Grouped queries: each head of keys and values serves N / K heads of queries. It is repeated
    # N / K times, so that head n of the queries meets its keys at head n in the products below.
    if config.K not in (None, config.N):
        k, v = (jnp.repeat(heads, config.N // config.K, axis=2) for heads in (k, v))
    # Plain JAX writes the scores to memory, a fused kernel does not: ON_CHIP says this to the cost
    # model.
    on_chip = partial(annotate, name=ON_CHIP) if config.attention == "fused" else lambda x: x
    scores = on_chip(jnp.einsum("bsnd,btnd->bnst", q, k)) * config.D**-0.5
    # A token attends to itself and to earlier tokens only; -1e9 has the softmax weight 0.
    query = lax.broadcasted_iota(jnp.int32, scores.shape[2:], 0)
    key = lax.broadcasted_iota(jnp.int32, scores.shape[2:], 1)
    scores = jnp.where(query >= key, scores.astype(jnp.float32), -1e9)
    attention_weights = on_chip(jax.nn.softmax(scores, axis=-1).astype(config.dtype))
    return jnp.einsum("bnst,btnd->bsnd", attention_weights, v)


def norm(config: Config, x: Array) -> Array:
    """Return `x` with zero mean and unit variance over each token's features, in float32 inside."""
    x = x.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return (centred * lax.rsqrt(variance + 1e-6)).astype(config.dtype)


def layer(config: Config, weights: Weights, x: Array) -> Array:
    """Return `x`, (B, S, M), after attention and feed-forward, each with a norm and a residual."""
    x = x + attention(config, weights, norm(config, x))
    x = x + ffn(config, weights, norm(config, x))
    return annotate(x, "layer_output")


def _layers(config: Config, layers: Any, x: Array) -> Array:
    """Return `x` after all layers, scanned or unrolled, with the rematerialisation of `config`.

    Args:
      layers: stacked weights for a scan, otherwise a sequence with the weights of each layer.
    """
    step: Any = jax.jit(partial(layer, config)) if config.jit else partial(layer, config)
    if config.remat:
        step = jax.checkpoint(step, policy=REMAT["full" if config.remat is True else config.remat])
    if config.scan:
        return lax.scan(lambda x, weights: (step(weights, x), None), x, layers)[0]
    for weights in layers:
        x = step(weights, x)
    return x


def forward(config: Config, params: Mapping[str, Any], tokens: Array) -> Array:
    """Return logits (B, S, V) in float32 from tokens (B, S), integers below V."""
    embedding = params["embedding"].astype(config.dtype)
    x = annotate(embedding[tokens], "embedded")
    return logits(config, embedding, _layers(config, params["layers"], x))


def logits(config: Config, embedding: Array, x: Array) -> Array:
    """Return logits (B, S, V) in float32: a norm of the last layer's result, then the embedding."""
    made = jnp.einsum("bsm,vm->bsv", norm(config, x), embedding)
    return annotate(made, "logits").astype(jnp.float32)


def loss(config: Config, params: Mapping[str, Any], tokens: Array, targets: Array) -> Array:
    """Return the mean cross-entropy of the targets, in nats."""
    return cross_entropy(forward(config, params, tokens), targets)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Return the mean over tokens of `log(sum_v exp(logits_v)) - logits_target`, in nats.

    The target is picked by comparison with an iota, so that a vocabulary split over devices needs
    no gather.
    """
    peak = lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_total = jnp.log(jnp.sum(jnp.exp(logits - peak), axis=-1)) + peak[..., 0]
    number = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    is_target = targets[..., None] == number
    picked = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    return jnp.mean(log_total - picked)
