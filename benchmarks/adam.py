"""The Transformer's train step with Adam (arXiv:1412.6980), and the finalized strategy for it.

The moments are sharded as their weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shardalg.algebra.mesh import Mesh
from shardalg.models import table1, transformer
from shardalg.models.transformer import Config
from shardalg.propagate.strategy import Strategy

RATE, FIRST_DECAY, SECOND_DECAY, SMALLEST = 1e-3, 0.9, 0.999, 1e-8


def train_step(
    config: Config, params: Any, opt_state: Any, tokens: jax.Array, targets: jax.Array
) -> tuple[Any, Any, jax.Array]:
    """One step of training: (parameters, optimizer state, loss before the step)."""
    loss, grads = jax.value_and_grad(partial(transformer.loss, config))(params, tokens, targets)
    step = opt_state["step"] + 1
    update = partial(_update, step.astype(jnp.float32))
    made = jax.tree.map(update, params, grads, opt_state["first"], opt_state["second"])
    params, first, second = jax.tree.transpose(jax.tree.structure(params), None, made)
    return params, {"step": step, "first": first, "second": second}, loss


def _update(
    step: jax.Array, weight: jax.Array, gradient: jax.Array, first: jax.Array, second: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A weight and its moments after a step."""
    first = FIRST_DECAY * first + (1 - FIRST_DECAY) * gradient
    second = SECOND_DECAY * second + (1 - SECOND_DECAY) * jnp.square(gradient)
    mean, square = first / (1 - FIRST_DECAY**step), second / (1 - SECOND_DECAY**step)
    return weight - RATE * mean / (jnp.sqrt(square) + SMALLEST), first, second


def arguments(config: Config) -> tuple[Any, ...]:
    """Shapes and types of the arguments of `train_step` after its config."""
    weights = transformer.param_types(config)
    tokens = jax.ShapeDtypeStruct((config.B, config.S), jnp.int32)
    return weights, _state(jax.ShapeDtypeStruct((), jnp.int32), weights), tokens, tokens


def finalized(mesh: Mesh, config: Config) -> Strategy:
    """The last strategy of Table 1."""
    given = table1.finalized(mesh, config)
    weights, _, *data = given.in_shardings
    state = _state(jax.sharding.PartitionSpec(), weights)
    results = (weights, state, given.out_shardings[2])
    return replace(given, in_shardings=(weights, state, *data), out_shardings=results)


def _state(step: Any, like: Any) -> dict[str, Any]:
    return {"step": step, "first": like, "second": like}
