"""The three 2D strategies of the paper's Table 1, on any mesh of two axes (X, Y).

Each strategy annotates seven tensors of a layer: the weights W_Q, W_K, W_V (one annotation),
W_O, W_in and W_out, and the activations BSND (q, k and v), BSH and BSM (the layer's output).
Weights come in through the shardings of the arguments, activations through sites.
Source: GSPMD, arXiv:2105.04663, Table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.models import training
from shardalg.models.transformer import Config
from shardalg.planner.propagate.strategy import Strategy

Dims = tuple[str | None, ...]
_PROJECTION = ("X", "Y", None)
WEIGHTS: Mapping[str, Dims] = {
    "w_q": _PROJECTION,
    "w_k": _PROJECTION,
    "w_v": _PROJECTION,
    "w_o": ("Y", None, "X"),
    "w_in": ("X", "Y"),
    "w_out": ("Y", "X"),
    "embedding": ("Y", "X"),
}
"""The axis of each dimension of a weight.

Table 1 has no column for the embedding: its vocabulary is along Y, like H in W_out.
"""


@dataclass(frozen=True)
class Activations:
    """One row of GSPMD's Table 1: how activations are sharded along the mesh axes X and Y.

    The logits (B, S, V) are sharded like BSH, and the tokens (B, S) like B and S of BSM.

    Attributes:
      bsm: the axis, or None, of the dimensions B, S, M of activations of shape (B, S, M).
      bsnd, bsh: the same for activations of shapes (B, S, N, D) and (B, S, H).
    """

    name: str
    bsm: Dims
    bsnd: Dims
    bsh: Dims

    def sites(self) -> dict[str, Dims]:
        """Return the axis of each dimension, by site (named value) of the model."""
        layer = {"attention_heads": self.bsnd, "ffn_hidden": self.bsh, "layer_output": self.bsm}
        return {**layer, "embedded": self.bsm, "logits": self.bsh}


ATTEMPT_1 = Activations("attempt 1", (None, None, "X"), (None, None, "Y", None), (None, None, "Y"))
ATTEMPT_2 = Activations("attempt 2", ("X", None, None), ("X", None, "Y", None), ("X", None, "Y"))
FINALIZED = Activations("finalized", ("X", None, "Y"), ("X", None, "Y", None), ("X", None, "Y"))
ORDERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "attempt 1": (("XY",), ("X", "Y"), (), ("X", "Y")),
    "attempt 2": (("XY",), ("X",), ("Y",), ("X",)),
    "finalized": (("XY",), ("XY",), ("Y",), ("X",)),
}
"""The paper's orders of the costs of each row of Table 1, each a sum of 1/(product of axes).

The costs are weight memory, activation memory, weight communication, activation communication.
"""
LAYER_SITES = ("attention_heads", "ffn_hidden", "layer_output")
_SITES_OF = {
    "ffn": ("ffn_hidden",),
    "attention": ("attention_heads",),
    "layer": LAYER_SITES,
    "train_step": (*LAYER_SITES, "embedded", "logits"),
}


def _strategy(row: Activations, mesh: Mesh, config: Config, part: str = "train_step") -> Strategy:
    """Return the annotations of one row of GSPMD's Table 1 for a part of the Transformer.

    Args:
      row: the axes of the activations. part: one of `training.PARTS`.
    """
    spec = _speller(mesh)
    chosen = training.part(part)
    arguments: tuple[Any, ...]
    results: Any
    weights = jax.tree.map(spec, _weight_dims(config, chosen), is_leaf=_is_dims)
    if chosen.forward is None:
        state = _state_specs(config, spec)
        tokens = spec(row.bsm[:2])
        arguments, results = (weights, state, tokens, tokens), (weights, state, spec(()))
    else:
        # A part of a layer begins and ends at the residual stream. Its input and its result, and
        # their gradients, therefore have the sharding of the activation BSM in Table 1.
        x = spec(row.bsm)
        forward, gradient = ((weights, x), x), ((weights, x, x), (x, weights, x))
        arguments, results = gradient if chosen.gradient else forward
    names = _SITES_OF[part.removesuffix("_gradient")]
    sites = {name: spec(row.sites()[name]) for name in names}
    return Strategy(mesh, in_shardings=arguments, out_shardings=results, sites=sites)


def attempt_1(mesh: Mesh, config: Config, part: str = "train_step") -> Strategy:
    """Return the annotations of "attempt 1" in GSPMD's Table 1.

    Hidden features H and heads N are sharded along Y, and model features M along X, in weights and
    activations. Each product needs an all_reduce of its result, and no value is resharded.

    >>> strategy = attempt_1(Mesh({"X": 2, "Y": 4}), Config(), "ffn")
    >>> strategy.in_shardings[1] == PartitionSpec(None, None, "X")
    True
    """
    return _strategy(ATTEMPT_1, mesh, config, part)


def attempt_2(mesh: Mesh, config: Config, part: str = "train_step") -> Strategy:
    """Return the annotations of "attempt 2" in GSPMD's Table 1.

    Weights are sharded as in attempt 1, and activations have their batch along X. Weights are
    gathered along X before each use.
    """
    return _strategy(ATTEMPT_2, mesh, config, part)


def finalized(mesh: Mesh, config: Config, part: str = "train_step") -> Strategy:
    """Return the annotations of the row "finalized" in GSPMD's Table 1.

    They are those of attempt 2, with M of activations (B, S, M) along Y too. Every weight and
    activation of Table 1 is then sharded along both axes.
    """
    return _strategy(FINALIZED, mesh, config, part)


STRATEGIES: Mapping[str, Callable[..., Strategy]] = {
    "attempt 1": attempt_1,
    "attempt 2": attempt_2,
    "finalized": finalized,
}


def count_annotations(config: Config, strategy: Strategy) -> int:
    """Return the number of annotated tensors of a layer; W_Q, W_K and W_V count once if equal.

    >>> count_annotations(Config(), finalized(Mesh({"X": 2, "Y": 4}), Config()))
    7
    """
    arguments: Any = strategy.in_shardings
    layers = arguments[0]["layers"]
    weights = layers if config.scan else layers[0]
    given = {name: spec for name, spec in weights.items() if spec is not None}
    # The paper counts the projections of queries, keys and values as one annotation.
    shared = {given.pop(name) for name in ("w_q", "w_k", "w_v") if name in given}
    return len(given) + len(shared) + sum(name in LAYER_SITES for name in dict(strategy.sites))


def tensors_per_layer(config: Config) -> int:
    """Return how many tensors one more layer adds to the XLA graph of the uncompiled train step.

    The paper compares its annotations with this number: 7 per layer are 0.7 % (section 5.1).
    """
    step = training.part("train_step")

    def tensors(layers: int) -> int:
        """Return the number of tensors in the HLO text of a model with so many layers."""
        sized = replace(config, L=layers, scan=False)
        lowered = jax.jit(step.function(sized)).lower(*step.arguments(sized))
        program: Any = lowered.compiler_ir("hlo")
        # Counting " = " counts tensors, because each line of HLO text that defines one has one.
        return program.as_hlo_text().count(" = ")

    # The difference leaves out embedding, loss and everything else that a model has once.
    return tensors(2) - tensors(1)


def _speller(mesh: Mesh) -> Callable[[Dims], PartitionSpec]:
    """Return a function from axes of the paper, X and Y, to a sharding on this mesh's two axes.

    E.g. on a mesh with axes a and b, ("X", None, "Y") gives PartitionSpec("a", None, "b").

    Raises:
      StrategyError: the mesh has not two axes.
    """
    if len(mesh.axis_names) != 2:
        raise StrategyError(
            f"the strategies of Table 1 need a mesh of two axes (X, Y), got {mesh!r}."
        )
    names = dict(zip("XY", mesh.axis_names, strict=True))
    return lambda dims: PartitionSpec(*(axis and names.get(axis) for axis in dims))


def _is_dims(tree: Any) -> bool:
    """Return whether a tree node is a tuple of axis names, the leaf of a tree of shardings.

    A tuple of layers, which are dicts, is no leaf.
    """
    return isinstance(tree, tuple) and not any(isinstance(entry, dict) for entry in tree)


def _weight_dims(config: Config, part: training.Part) -> dict[str, Any]:
    """Return the axes of the dimensions of a part's weights.

    They are in a tree like the first argument of the part's function, its parameters.
    """
    if part.forward is not None:
        return {name: WEIGHTS[name] for name in part.weights}
    layer = {name: WEIGHTS[name] for name in config.weight_shapes()}
    # Table 1 has no axis for the leading dimension of scanned layers, so it is replicated.
    stacked = {name: (None, *dims) for name, dims in layer.items()}
    layers = stacked if config.scan else (layer,) * config.L
    return {"embedding": WEIGHTS["embedding"], "layers": layers}


def _state_specs(config: Config, spec: Callable[[Dims], PartitionSpec]) -> dict[str, Any]:
    """Return the shardings of Adafactor's moments, from the dimensions of the weights."""

    # Adafactor keeps means of the squared gradient over rows and over columns. A moment lacks the
    # dimensions of its mean, so it takes only the axes of the dimensions that remain.
    def moments(factors: Any, dims: Dims) -> dict[str, PartitionSpec]:
        row, column = factors.split(dims)
        return {"row": spec(row), "column": spec(column)}

    dims = _weight_dims(config, training.part("train_step"))
    return {"step": spec(()), "moments": jax.tree.map(moments, training.factoring(config), dims)}
