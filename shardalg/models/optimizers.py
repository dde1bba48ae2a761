"""The optimizers by name: state, update, and how the state is laid out along its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from shardalg.models import adafactor, adam, training
from shardalg.models.transformer import Config

RATE = 1e-3
"""What stochastic gradient descent multiplies a gradient with."""


@dataclass(frozen=True)
class Optimizer:
    """How weights are updated.

    Attributes:
      init: `(config, params) -> state`; apply: `(config, params, grads, state) -> (params, state)`.
      laid_out: `(config, dims) -> dims of the state`, given a tuple of axes per weight dimension.
    """

    name: str
    init: Callable[[Config, Any], Any]
    apply: Callable[[Config, Any, Any, Any], tuple[Any, Any]]
    laid_out: Callable[[Config, Any], Any]


def _descend(config: Config, params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
    """W = W - rate * G."""
    return jax.tree.map(lambda w, g: w - RATE * g, params, grads), {"step": state["step"] + 1}


def _moments(config: Config, dims: Any) -> dict[str, Any]:
    """Of Adafactor: on the dimensions that each moment keeps of its weight."""

    def moments(factors: adafactor.Factoring, axes: Any) -> dict[str, Any]:
        row, column = factors.split(axes)
        return {"row": row, "column": column}

    return {"step": (), "moments": jax.tree.map(moments, training.factoring(config), dims)}


OPTIMIZERS: Mapping[str, Optimizer] = {
    "adam": Optimizer(
        "adam",
        lambda config, params: adam.init_state(params),
        lambda config, params, grads, state: adam.apply(params, grads, state),
        lambda config, dims: {"step": (), "first": dims, "second": dims},
    ),
    "adafactor": Optimizer(
        "adafactor",
        training.init_opt_state,
        lambda config, params, grads, state: adafactor.apply(
            params, grads, state, training.factoring(config)
        ),
        _moments,
    ),
    "sgd": Optimizer(
        "sgd",
        lambda config, params: {"step": jax.numpy.zeros((), jax.numpy.int32)},
        _descend,
        lambda config, dims: {"step": ()},
    ),
}
