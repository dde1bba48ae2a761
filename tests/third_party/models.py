"""Train steps of models from PyPI, unchanged: attention with dropout, convolution, state space.

What stands here is what a user writes: the loss, optax's update, and where the arrays go.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from attnax import TransformerConfig, TransformerDecoder
from flax import nnx
from jax.sharding import PartitionSpec as P
from jax_resnet import ResNet, ResNetBlock
from mamba2_jax import Mamba2Config, Mamba2ForCausalLM

BATCH, LENGTH, VOCABULARY = 8, 16, 64
# Where a gradient is zero but for rounding (biases of keys), a small `eps` would blow rounding up.
OPTIMIZER = optax.adamw(1e-2, eps=1e-3)
ROLES = ("parameters", "optimizer_state", "data", "data")
DONATED = (0, 1)


@dataclass(frozen=True)
class Step:
    """`step(params, state, inputs, targets) -> (params, state, loss)` and where its arrays go.

    `state` holds the optimizer's and what the model itself keeps from step to step: the counts of
    its random keys, the running means of its normalisations.
    """

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    in_shardings: tuple[Any, ...]

    @property
    def out_shardings(self):
        return (*self.in_shardings[:2], P())


def is_spec(leaf):
    return isinstance(leaf, P)


def built(loss_of, params, kept, data):
    """Return the step of `loss_of(params, kept, *data) -> (loss, kept)`."""

    def step(params, state, *data):
        moments, kept = state
        (loss, kept), grads = jax.value_and_grad(loss_of, has_aux=True)(params, kept, *data)
        updates, moments = OPTIMIZER.update(grads, moments, params)
        return optax.apply_updates(params, updates), (moments, kept), loss

    specs = jax.tree.map(split_last, params)
    moments = OPTIMIZER.init(params)
    moment_specs = optax.tree_utils.tree_map_params(
        OPTIMIZER, lambda _, at: at, moments, specs, transform_non_params=lambda _: P()
    )
    kept_specs = jax.tree.map(lambda leaf: P(), kept)
    batches = tuple(P("X", *[None] * (array.ndim - 1)) for array in data)
    arguments = (params, (moments, kept), *map(jnp.asarray, data))
    return Step(step, arguments, (specs, (moment_specs, kept_specs), *batches))


def split_last(leaf):
    """Kernels are split over Y by their last dimension, vectors are replicated."""
    return P(*[None] * (leaf.ndim - 1), "Y") if leaf.ndim > 1 and leaf.shape[-1] % 4 == 0 else P()


def tokens(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(0, VOCABULARY, (2, BATCH, LENGTH), np.int32))


def of_nnx(model, loss_of, seed):
    """Return the step of an nnx model; state other than parameters is kept."""
    definition, params, kept = nnx.split(model, nnx.Param, ...)

    def loss(params, kept, inputs, targets):
        model = nnx.merge(definition, params, kept, copy=True)
        value = loss_of(model, inputs, targets)
        return value, nnx.state(model, nnx.Not(nnx.Param))

    return built(loss, params, kept, tokens(seed))


def attention(seed=0):
    """attnax's Transformer decoder, with dropout."""
    config = TransformerConfig(
        vocab_size=VOCABULARY, d_model=32, num_heads=8, num_layers=1, d_ff=64, dropout_rate=0.1,
        max_len=LENGTH,
    )  # fmt: skip

    def loss(model, inputs, targets):
        logits = model.token_embed.embed.attend(model(inputs))
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    return of_nnx(TransformerDecoder(nnx.Rngs(seed), config), loss, seed)


def state_space(seed=0):
    """mamba2-jax's language model: a causal depthwise convolution and a chunked state space."""
    config = Mamba2Config(
        vocab_size=VOCABULARY, hidden_size=32, state_size=8, head_dim=8, chunk_size=8,
        num_hidden_layers=1,
    )  # fmt: skip
    return of_nnx(
        Mamba2ForCausalLM(config, rngs=nnx.Rngs(seed)),
        lambda model, inputs, targets: model(inputs, targets)["loss"],
        seed,
    )


def convolution(seed=0):
    """jax-resnet's residual network, with batch normalisation and max pooling."""
    model = ResNet(ResNetBlock, stage_sizes=[1], hidden_sizes=(32,), n_classes=8)
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((BATCH, 16, 16, 4)).astype(np.float32)
    labels = rng.integers(0, 8, (BATCH,), np.int32)
    variables = model.init(jax.random.key(seed), images)

    def loss(params, kept, images, labels):
        logits, kept = model.apply(
            {"params": params, "batch_stats": kept}, images, mutable=["batch_stats"]
        )
        value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return value, kept["batch_stats"]

    kept = variables["batch_stats"]
    return built(loss, variables["params"], kept, (images, labels))
