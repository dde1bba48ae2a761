"""Transformers with mixtures of experts: sections 5.4 and 5.5 of GSPMD (arXiv:2105.04663).

Dense and MoE layers alternate. In an MoE layer each token goes to two of E feed-forward networks,
at most C of a sequence to each (gating as in GShard, arXiv:2006.16668, algorithm 1; a sequence is a
group). Masks (B, S, E, C) send tokens there and back:

    dispatched  "bsm,bsec->ebcm", then all-to-all from B to E
    experts     "ebcm,emh->ebch" and "ebch,ehm->ebcm"
    combined    all-to-all from E to B, then "ebcm,bsec->bsm"

`SPARSE` is the layout of section 5.4, on a mesh of one axis: experts along it in MoE layers, the
batch elsewhere. `HYBRID` is that of section 5.5, on (X, Y): experts along X, heads and hidden
features along Y, dense layers as in Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardalg.errors import StrategyError
from shardalg.graph.annotate import annotate
from shardalg.models import transformer
from shardalg.models.model import Data, DimensionAxes, Model, Parameter

Array = jax.Array

SPARSE = DimensionAxes({"E": "X"}, {"B": "X", "E": "X"})
_Y = {"N": "Y", "H": "Y", "V": "Y"}
HYBRID = DimensionAxes({"E": "X", "M": "X", **_Y}, {"B": "X", "E": "X", "M": "Y", **_Y})
SITES = {
    "attention_heads": "BSND",
    "ffn_hidden": "BSH",
    "layer_output": "BSM",
    "embedded": "BSM",
    "logits": "BSV",
    "masks": "BSeC",
    "dispatched": "eBCM",
    "expert_input": "EbCM",
    "expert_hidden": "EbCH",
    "expert_output": "EbCM",
    "combined": "eBCM",
}
"""The letters of each annotated activation.

A tensor with experts and sequences is sharded on one of both dimensions; the other dimension has
the small letter: e for experts, b for sequences.
"""
BALANCE = 0.01
"""Weight of the loss that keeps experts equally busy; GShard, section 2.2."""


@dataclass(frozen=True)
class MoEConfig:
    """Sizes of a Transformer with experts in every second layer, in the paper's letters.

    Attributes:
      B, S: sequences per batch, tokens per sequence.
      M, H: features of a token, features between the two feed-forward products.
      N, D: attention heads, features per head.
      V, L: vocabulary, layers.
      E, C: experts of a layer, and the tokens of a sequence that an expert takes at most.

    Raises:
      StrategyError: a size below 1, an odd number of layers, or fewer than two experts.
    """

    B: int = 8
    S: int = 8
    M: int = 16
    H: int = 32
    N: int = 4
    D: int = 4
    V: int = 32
    E: int = 8
    C: int = 4
    L: int = 2
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        """Raise StrategyError for an impossible size, or layers that cannot alternate."""
        sizes = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "dtype"}
        bad_sizes = {k: v for k, v in sizes.items() if type(v) is not int or v < 1}
        if bad_sizes:
            raise StrategyError(f"sizes of a model are integers of at least 1, got {bad_sizes}.")
        if self.L % 2 or self.E < 2:
            raise StrategyError(
                f"L={self.L} layers with E={self.E} experts: dense and MoE layers alternate, so "
                "that L is even, and a token goes to two experts."
            )

    @property
    def dense(self) -> transformer.Config:
        """The configuration of the dense layers, which are half of all layers."""
        sizes = {letter: getattr(self, letter) for letter in "BSMHNDV"}
        return transformer.Config(**sizes, L=self.L // 2, dtype=self.dtype)

    @property
    def model(self) -> Model:
        """The model with these sizes, with weights, data and loss, to be planned and trained.

        >>> MoEConfig().model.types()["layers"]["moe"]["w_in"].shape
        (1, 8, 16, 32)
        """
        attention = {name: Parameter("nMND", 1, 1) for name in ("w_q", "w_k", "w_v")}
        attention["w_o"] = Parameter("nNDM", 2, 1)
        ffn = {"w_in": Parameter("nMH", 1, 1), "w_out": Parameter("nHM", 1, 1)}
        experts = {
            "w_gate": Parameter("nme", 1, 1),
            "w_in": Parameter("nEMH", 1, 2),
            "w_out": Parameter("nEHM", 1, 2),
        }
        sizes = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "dtype"}
        # A small letter has the size of its capital, but is not sharded along the capital's axes.
        return Model(
            sizes={**sizes, "n": self.L // 2, "e": self.E, "b": self.B, "m": self.M},
            weights={
                "embedding": Parameter("VM"),
                "layers": {"dense": {**attention, **ffn}, "moe": {**attention, **experts}},
            },
            data=(Data("BS", below="V"), Data("BS", below="V")),
            loss=partial(loss, self),
            sites=SITES,
        )


def gating(config: MoEConfig, w_gate: Array, x: Array) -> tuple[Array, Array]:
    """Return each token's weights (B, S, E, C) for its two experts, and balance losses (B,).

    An expert takes at most C tokens of a sequence: later tokens have weight 0 at this expert.
    """
    shares = jax.nn.softmax(jnp.einsum("bsm,me->bse", x.astype(jnp.float32), w_gate), -1)
    first = jax.nn.one_hot(jnp.argmax(shares, -1), config.E)
    # Shares are positive, so -1 excludes the first expert from the second choice.
    second = jax.nn.one_hot(jnp.argmax(jnp.where(first > 0, -1.0, shares), -1), config.E)
    # A token's place in an expert's buffer is the number of earlier tokens of its sequence there:
    # an exclusive prefix sum. Second choices queue behind all first choices.
    place_1 = jnp.cumsum(first, 1) - first
    place_2 = jnp.cumsum(second, 1) - second + jnp.sum(first, 1, keepdims=True)
    both = shares * (first + second)
    # GShard normalises the weights of both experts to the sum 1, before any token is dropped.
    both = both / jnp.sum(both, -1, keepdims=True)
    first_way, second_way = (
        (both * chosen)[..., None] * jax.nn.one_hot(_at(place, chosen), config.C)
        for place, chosen in ((place_1, first), (place_2, second))
    )
    # The share of first choices is constant for the gradient (argmax); the mean gate carries it.
    busy = jnp.mean(first, 1) * jnp.mean(shares, 1)
    return annotate(first_way + second_way, "masks"), config.E * jnp.sum(busy, -1)


def _at(place: Array, chosen: Array) -> Array:
    """Return the place of each token at its chosen expert, and -1 at all other experts.

    `one_hot` of -1 is zero, so a token is not sent to these experts.
    """
    return jnp.where(chosen > 0, place, -1).astype(jnp.int32)


def moe(config: MoEConfig, weights: Any, x: Array) -> tuple[Array, Array]:
    """Return the output (B, S, M) of a feed-forward layer of experts, and balance losses (B,)."""
    shares, balance = gating(config, weights["w_gate"], x)
    return experts(config, weights, shares, x), balance


def experts(config: MoEConfig, weights: Any, shares: Array, x: Array) -> Array:
    """Return the experts' outputs for (B, S, M), combined with the weights `shares` of `gating`."""
    w_in, w_out = (weights[name].astype(config.dtype) for name in ("w_in", "w_out"))
    sent = jnp.einsum("bsm,bsec->ebcm", x, (shares > 0).astype(config.dtype))
    # Two annotations of one value: first along B, then along E. The reshard between them is the
    # all-to-all that sends tokens to the devices of their experts.
    sent = annotate(annotate(sent, "dispatched"), "expert_input")
    hidden = jax.nn.relu(jnp.einsum("ebcm,emh->ebch", sent, w_in))
    out = jnp.einsum("ebch,ehm->ebcm", annotate(hidden, "expert_hidden"), w_out)
    out = annotate(annotate(out, "expert_output"), "combined")
    return jnp.einsum("ebcm,bsec->bsm", out, shares.astype(config.dtype))


def moe_layer(config: MoEConfig, weights: Any, x: Array) -> tuple[Array, Array]:
    """Return activations (B, S, M) after attention and experts, and balance losses (B,)."""
    dense = config.dense
    x = x + transformer.attention(dense, weights, transformer.norm(dense, x))
    combined, balance = moe(config, weights, transformer.norm(dense, x))
    return annotate(x + combined, "layer_output"), balance


def pair(config: MoEConfig, weights: Any, x: Array) -> tuple[Array, Array]:
    """Return (B, S, M) after a dense layer and a layer of experts, and balance losses (B,)."""
    return moe_layer(config, weights["moe"], transformer.layer(config.dense, weights["dense"], x))


def loss(config: MoEConfig, params: Any, tokens: Array, targets: Array) -> Array:
    """Return the mean cross-entropy in nats, plus the weighted balance loss of the experts.

    The balance loss is small if all experts get equally many tokens; its weight is `BALANCE`.
    """
    dense = config.dense
    embedding = params["embedding"].astype(config.dtype)
    x = annotate(embedding[tokens], "embedded")
    # A step of the scan is a pair of layers, one dense and one with experts.
    x, balance = lax.scan(lambda x, w: pair(config, w, x), x, params["layers"])
    logits = transformer.logits(dense, embedding, x)
    return transformer.cross_entropy(logits, targets) + BALANCE * jnp.mean(balance)
