"""A train step that nobody here wrote: attnax's Transformer (on flax), optax's AdamW.

The model and the optimizer are the packages' own, unchanged; what stands here is the call of them
and where their arrays go on a mesh of two axes: each kernel over both axes, the batch over X.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from attnax import TransformerConfig, TransformerDecoder
from flax import nnx
from jax.sharding import PartitionSpec as P

CONFIG = TransformerConfig(
    vocab_size=64, d_model=32, num_heads=8, num_layers=2, d_ff=64, dropout_rate=0.0, max_len=16
)
BATCH = 8
OPTIMIZER = optax.adamw(1e-2)
ROLES = ("parameters", "optimizer_state", "data", "data")
# Kernels that make features split over Y contract what X splits, and the other way round.
TO_FEATURES = ("query_proj", "key_proj", "value_proj", "dense1")
FROM_FEATURES = ("output_proj", "dense2", "token_embed")


@dataclass(frozen=True)
class Foreign:
    """The step and its arguments, global and on one device."""

    step: Any
    arguments: tuple[Any, ...]
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]


def is_spec(leaf):
    return isinstance(leaf, P)


def place(path, leaf):
    names = jax.tree_util.keystr(path)
    if leaf.ndim != 2:
        return P()
    if any(name in names for name in TO_FEATURES):
        return P("X", "Y")
    assert any(name in names for name in FROM_FEATURES), names
    return P("Y", "X")


def build(seed=0):
    model = TransformerDecoder(nnx.Rngs(seed), CONFIG)
    model.eval()
    definition, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_of(params, tokens, targets):
        decoder = nnx.merge(definition, params, rest)
        logits = decoder.token_embed.embed.attend(decoder(tokens))
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def step(params, state, tokens, targets):
        loss, grads = jax.value_and_grad(loss_of)(params, tokens, targets)
        updates, state = OPTIMIZER.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    specs = jax.tree_util.tree_map_with_path(place, params)
    state = OPTIMIZER.init(params)
    state_specs = optax.tree_utils.tree_map_params(
        OPTIMIZER, lambda _, spec: spec, state, specs, transform_non_params=lambda _: P()
    )
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, CONFIG.vocab_size, (2, BATCH, CONFIG.max_len), np.int32)
    data = P("X", None)
    return Foreign(
        step,
        (params, state, jnp.asarray(tokens), jnp.asarray(targets)),
        (specs, state_specs, data, data),
        (specs, state_specs, P()),
    )
