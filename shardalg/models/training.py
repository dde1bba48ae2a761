"""The train step of the dense Transformer, and its parts as functions that can be planned alone.

`OPTIMIZERS` has the optimizers by name: initial state, update, and shardings of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardalg.errors import StrategyError
from shardalg.models import adafactor, adam, transformer
from shardalg.models.transformer import ATTENTION, FFN, Config

Array = jax.Array

ROWS = {"w_o": 2}
"""Contracted dimensions of a weight, the rows of its Adafactor moments; 1 for other weights."""


def factoring(config: Config) -> dict[str, Any]:
    """Return each parameter's factoring in Adafactor, in the tree of the parameters.

    >>> factoring(Config(scan=True))["layers"]["w_o"]
    Factoring(rows=2, stacked=1)
    """
    layer = {
        name: adafactor.Factoring(ROWS.get(name, 1), int(config.scan))
        for name in config.weight_shapes()
    }
    layers = layer if config.scan else (layer,) * config.L
    return {"embedding": adafactor.Factoring(1), "layers": layers}


def init_opt_state(config: Config, params: Any) -> dict[str, Any]:
    """Return Adafactor's state before the first step."""
    return adafactor.init_state(params, factoring(config))


def opt_state_types(config: Config) -> dict[str, Any]:
    """Return the shapes and types of Adafactor's state."""
    return jax.eval_shape(partial(init_opt_state, config), transformer.param_types(config))


def train_step(
    config: Config, params: Any, opt_state: Any, tokens: Array, targets: Array
) -> tuple[Any, Any, Array]:
    """Return parameters and Adafactor's state after a step, and the loss before the step."""
    objective = partial(transformer.loss, config)
    loss, grads = jax.value_and_grad(objective)(params, tokens, targets)
    params, opt_state = adafactor.apply(params, grads, opt_state, factoring(config))
    return params, opt_state, loss


@dataclass(frozen=True)
class Part:
    """A function of the model that can be planned alone.

    Attributes:
      weights: names of the weights in its first argument; () for the whole train step.
      forward: `(config, weights, x) -> y` of a part of a layer; None for the whole train step.
      gradient: True for `(weights, x, dy) -> (y, dweights, dx)`, False for `(weights, x) -> y`.
    """

    name: str
    weights: tuple[str, ...] = ()
    forward: Callable[..., Array] | None = None
    gradient: bool = False

    def function(self, config: Config) -> Callable[..., Any]:
        """Return the part as a JAX function of the arguments in `arguments`."""
        if self.forward is None:
            return partial(train_step, config)
        forward = partial(self.forward, config)
        return partial(value_and_pullback, forward) if self.gradient else forward

    def arguments(self, config: Config) -> tuple[Any, ...]:
        """Return the shapes and types of the function's arguments."""
        # The whole train step. A part of a layer (below) has float32 weights and an activation BSM.
        if self.forward is None:
            tokens = jax.ShapeDtypeStruct((config.B, config.S), jnp.int32)
            return transformer.param_types(config), opt_state_types(config), tokens, tokens
        shapes = config.weight_shapes()
        weights = {name: jax.ShapeDtypeStruct(shapes[name], jnp.float32) for name in self.weights}
        x = jax.ShapeDtypeStruct((config.B, config.S, config.M), config.dtype)
        return (weights, x, x) if self.gradient else (weights, x)

    def named_arguments(self, config: Config) -> tuple[Any, ...]:
        """Return `arguments` with symbolic sizes, named by the paper's letters.

        The hint of each symbolic size is the size in `config`. L is symbolic only if the layers are
        stacked (`scan`).

        >>> part("ffn").named_arguments(Config(B=2, S=3, M=4, H=5))[1].shape
        (B, S, M)
        """
        from shardalg.algebra.dims import dims

        letters = "BSMHNDVL" if config.scan else "BSMHNDV"
        hints = [getattr(config, letter) for letter in letters]
        # Each size is a number that no other size has, so that a dimension's letter can be read off
        # the traced shapes.
        unlike = range(10_007, 10_007 + len(letters))
        named = dict(zip(unlike, dims(" ".join(letters), hint=hints), strict=True))
        sizes: dict[str, Any] = dict(zip(letters, unlike, strict=True))
        distinct = replace(config, **sizes)

        def name(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(tuple(named.get(n, n) for n in leaf.shape), leaf.dtype)

        return jax.tree.map(name, self.arguments(distinct))

    def roles(self) -> tuple[str, ...]:
        """Return the role of each argument: "parameters", "optimizer_state" or "data"."""
        if self.forward is None:
            return ("parameters", "optimizer_state", "data", "data")
        return ("parameters", "data", "data") if self.gradient else ("parameters", "data")

    def donate_argnums(self) -> tuple[int, ...]:
        """Return the positions of the arguments that the function's results replace."""
        return (0, 1) if self.forward is None else ()

    def random_arguments(self, config: Config, seed: int = 0) -> tuple[Any, ...]:
        """Return random arguments of the function, equal for equal seeds."""
        # The parameters are drawn with `seed`: with the same stream the data would repeat them.
        rng = np.random.default_rng((seed, 1))
        if self.forward is None:
            params = transformer.init_params(config, seed)
            ids = rng.integers(0, config.V, (2, config.B, config.S), np.int32)
            return params, init_opt_state(config, params), *map(jnp.asarray, ids)
        weights = transformer.init_params(replace(config, L=1, scan=False), seed)["layers"][0]
        x = rng.standard_normal((2, config.B, config.S, config.M), np.float32)
        data = [jnp.asarray(part, config.dtype) for part in x[: 1 + self.gradient]]
        return ({name: weights[name] for name in self.weights}, *data)


def value_and_pullback(
    forward: Callable[..., Array], weights: Mapping[str, Array], x: Array, dy: Array
) -> tuple[Array, Mapping[str, Array], Array]:
    """Return the value of `forward`, and gradients of `sum(value * dy)` by weights and by `x`."""
    y, pull = jax.vjp(forward, weights, x)
    return (y, *pull(dy))


_FORWARDS = (
    ("ffn", FFN, transformer.ffn),
    ("attention", ATTENTION, transformer.attention),
    ("layer", (*ATTENTION, *FFN), transformer.layer),
)
PARTS = {
    part.name: part
    for part in (
        *(Part(name, weights, forward) for name, weights, forward in _FORWARDS),
        *(Part(f"{name}_gradient", weights, forward, True) for name, weights, forward in _FORWARDS),
        Part("train_step"),
    )
}


def part(name: str) -> Part:
    """Return a part: "ffn", "attention", "layer", any of them + "_gradient", or "train_step".

    >>> part("ffn").arguments(Config(B=2, S=3, M=4, H=5, dtype="float32"))[1]
    ShapeDtypeStruct(shape=(2, 3, 4), dtype=float32)

    Raises:
      StrategyError: there is no part of that name.
    """
    if name not in PARTS:
        raise StrategyError(f"the Transformer has no part {name!r}; its parts are {list(PARTS)}.")
    return PARTS[name]


RATE = 1e-3
"""The learning rate of stochastic gradient descent."""


@dataclass(frozen=True)
class Optimizer:
    """An optimizer: its initial state and its update.

    Attributes:
      init: `(config, params) -> state`; apply: `(config, params, grads, state) -> (params, state)`.
      laid_out: `(config, dims) -> dims of the state`; `dims` is a tree like the parameters, with
        the axes of each dimension of a weight, and the result is such a tree like the state.
    """

    name: str
    init: Callable[[Config, Any], Any]
    apply: Callable[[Config, Any, Any, Any], tuple[Any, Any]]
    laid_out: Callable[[Config, Any], Any]


def _moments(config: Config, dims: Any) -> dict[str, Any]:
    """Return the axes of Adafactor's state: each moment has the axes of the dimensions it keeps."""

    def moments(factors: adafactor.Factoring, axes: Any) -> dict[str, Any]:
        row, column = factors.split(axes)
        return {"row": row, "column": column}

    return {"step": (), "moments": jax.tree.map(moments, factoring(config), dims)}


OPTIMIZERS: Mapping[str, Optimizer] = {
    "adam": Optimizer(
        "adam",
        lambda config, params: adam.init_state(params),
        lambda config, params, grads, state: adam.apply(params, grads, state),
        lambda config, dims: {"step": (), "first": dims, "second": dims},
    ),
    "adafactor": Optimizer(
        "adafactor",
        init_opt_state,
        lambda config, params, grads, state: adafactor.apply(
            params, grads, state, factoring(config)
        ),
        _moments,
    ),
    "sgd": Optimizer(
        "sgd",
        lambda config, params: {"step": jax.numpy.zeros((), jax.numpy.int32)},
        # The state has only the number of the step, because W = W - rate * G needs no moments.
        lambda config, params, grads, state: (
            jax.tree.map(lambda w, g: w - RATE * g, params, grads),
            {"step": state["step"] + 1},
        ),
        lambda config, dims: {"step": ()},
    ),
}
