"""A third-party train step: attnax's Transformer (on flax) with optax's AdamW.

The packages' model and optimizer are unchanged. This file only calls them and gives the shardings
of their arrays on a mesh of two axes (X, Y): each kernel along both axes, the batch along X.
Nothing inside the step is annotated. The packages are no dependencies of shardalg; importing this
module needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from attnax import TransformerConfig, TransformerDecoder
from flax import nnx
from jax.sharding import PartitionSpec

CONFIG = TransformerConfig(
    vocab_size=64, d_model=32, num_heads=8, num_layers=2, d_ff=64, dropout_rate=0.0, max_len=16
)
BATCH = 8
OPTIMIZER = optax.adamw(1e-2)
ROLES = ("parameters", "optimizer_state", "data", "data")
DONATED = (0, 1)
# TO_FEATURES kernels compute the hidden features that FROM_FEATURES kernels contract. Both are
# sharded along Y on these features, so no reshard is needed between the two products.
TO_FEATURES = ("query_proj", "key_proj", "value_proj", "dense1")
FROM_FEATURES = ("output_proj", "dense2", "token_embed")


@dataclass(frozen=True)
class Foreign:
    """A train step from PyPI packages, with arguments and shardings.

    The step is a function `(params, state, tokens, targets) -> (params, state, loss)`.

    Attributes:
      arguments: global arrays on one device.
      in_shardings, out_shardings: shardings for `plan`, in the form of those of `jax.jit`.
    """

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]


def is_spec(leaf: Any) -> bool:
    """Return True for a `PartitionSpec`, the leaves of a tree of shardings."""
    return isinstance(leaf, PartitionSpec)


def place(axes: tuple[str, str], path: Any, leaf: Any) -> PartitionSpec:
    """Return the sharding of a parameter, chosen by its name; vectors are replicated.

    >>> keys = (jax.tree_util.GetAttrKey("dense2"),)
    >>> place(("X", "Y"), keys, jnp.zeros((64, 32))) == PartitionSpec("Y", "X")
    True
    """
    path_text = jax.tree_util.keystr(path)
    if leaf.ndim != 2:
        return PartitionSpec()
    # A kernel that reads the model's features has its rows along the first axis.
    if any(name in path_text for name in TO_FEATURES):
        return PartitionSpec(*axes)
    assert any(name in path_text for name in FROM_FEATURES), path_text
    return PartitionSpec(*reversed(axes))


def build(seed: int = 0, *, axes: tuple[str, str] = ("X", "Y")) -> Foreign:
    """Return a train step of attnax's Transformer and optax's AdamW, with random arguments.

    Args:
      axes: names of the two mesh axes; the first one shards the batch.
    """
    model = TransformerDecoder(nnx.Rngs(seed), CONFIG)
    model.eval()
    # optax differentiates a tree of parameters. The rest of the module (its structure, random
    # state) stays constant and is merged with them inside of the loss.
    definition, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_of(params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        decoder = nnx.merge(definition, params, rest)
        logits = decoder.token_embed.embed.attend(decoder(tokens))
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def step(params: Any, state: Any, tokens: jax.Array, targets: jax.Array) -> tuple[Any, ...]:
        loss, grads = jax.value_and_grad(loss_of)(params, tokens, targets)
        updates, state = OPTIMIZER.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    specs = jax.tree_util.tree_map_with_path(partial(place, axes), params)
    # AdamW's moments have the shapes of the parameters, and so their shardings. Its counter has
    # none.
    state = OPTIMIZER.init(params)
    state_specs = optax.tree_utils.tree_map_params(
        OPTIMIZER,
        lambda _, spec: spec,
        state,
        specs,
        transform_non_params=lambda _: PartitionSpec(),
    )
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, CONFIG.vocab_size, (2, BATCH, CONFIG.max_len), np.int32)
    data = PartitionSpec(axes[0], None)
    return Foreign(
        step,
        (params, state, *map(jnp.asarray, ids)),
        (specs, state_specs, data, data),
        (specs, state_specs, PartitionSpec()),
    )


def train(run: Callable[..., Any], arguments: tuple[Any, ...], steps: int) -> list[float]:
    """Return the losses of `steps` calls of `run`, a train step; each starts from the last state.

    The state stays on the devices. `arguments` are copied, because a step may donate its state.
    """
    params, state, *data = jax.tree.map(jnp.array, arguments)
    losses = []
    for _ in range(steps):
        params, state, loss = run(params, state, *data)
        losses.append(float(loss))
    return losses
