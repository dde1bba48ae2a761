"""The Transformer's train step with Adam (arXiv:1412.6980), and the finalized strategy for it.

The moments are sharded as their weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax

from shardalg.algebra.mesh import Mesh
from shardalg.lab import table1_strategies as table1
from shardalg.models import adam, transformer
from shardalg.models.transformer import Config
from shardalg.planner.propagate.strategy import Strategy


def train_step(
    config: Config, params: Any, opt_state: Any, tokens: jax.Array, targets: jax.Array
) -> tuple[Any, Any, jax.Array]:
    """One step of training: (parameters, optimizer state, loss before the step)."""
    loss, grads = jax.value_and_grad(partial(transformer.loss, config))(params, tokens, targets)
    return *adam.apply(params, grads, opt_state), loss


def arguments(config: Config) -> tuple[Any, ...]:
    """Shapes and types of the arguments of `train_step` after its config."""
    weights = transformer.param_types(config)
    tokens = jax.ShapeDtypeStruct((config.B, config.S), "int32")
    return weights, _state(jax.ShapeDtypeStruct((), "int32"), weights), tokens, tokens


def finalized(mesh: Mesh, config: Config) -> Strategy:
    """Return the last strategy of Table 1."""
    given = table1.finalized(mesh, config)
    weights, _, *data = given.in_shardings
    state = _state(jax.sharding.PartitionSpec(), weights)
    results = (weights, state, given.out_shardings[2])
    return replace(given, in_shardings=(weights, state, *data), out_shardings=results)


def _state(step: Any, like: Any) -> dict[str, Any]:
    return {"step": step, "first": like, "second": like}
