"""Strategies of `models.dense.DenseTransformer`: the dimensions that each axis splits, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.models.training import Optimizer
from shardalg.models.transformer import Config
from shardalg.planner.propagate.strategy import Strategy

Axes = tuple[str, ...]
Dims = tuple[Axes, ...]


@dataclass(frozen=True)
class StrategyAxes:
    """The mesh axes that split each kind of dimension.

    Attributes:
      batch: axes that split the batch, major first.
      weights: axes that split the model's features of each weight.
      tensor: axes that split heads, hidden features and vocabulary of weights, and the features of
        the activations between layers.
    """

    batch: Axes
    weights: Axes
    tensor: Axes = ()

    @property
    def axes(self) -> Axes:
        """The axes that a mesh for this strategy may have."""
        return (*self.batch, *self.tensor)

    def on(self, mesh: Mesh) -> StrategyAxes:
        """Return the same strategy without the axes of size 1 of a mesh, or those that it lacks."""
        names = {axis for axis, size in mesh.axes if size > 1}
        batch, weights, tensor = (
            tuple(axis for axis in axes if axis in names)
            for axes in (self.batch, self.weights, self.tensor)
        )
        return StrategyAxes(batch, weights, tensor)


SLICE = "slice"
"""The mesh axis from slice to slice; weights are replicated along it."""
_DATA = (SLICE, "data", "fsdp")
LAYOUTS: Mapping[str, StrategyAxes] = {
    "finalized": StrategyAxes(("X",), ("X",), ("Y",)),
    "fsdp": StrategyAxes(_DATA, ("data", "fsdp")),
    "fsdp_tensor": StrategyAxes(_DATA, ("data", "fsdp"), ("tensor",)),
}
_WEIGHTS = {
    "w_q": (0, 1), "w_k": (0, 1), "w_v": (0, 1), "w_o": (2, 0), "w_in": (0, 1), "w_gate": (0, 1),
    "w_out": (1, 0), "embedding": (1, 0),
}  # fmt: skip
"""Per weight: the dimension of the model's features, and the dimension that `tensor` splits."""


def mesh_of(mesh: Mesh | Mapping[str, int]) -> Mesh:
    """Return the mesh, or make one from axis sizes.

    >>> mesh_of({"fsdp": 8})
    Mesh(fsdp=8)

    Raises:
      StrategyError: `mesh` is neither a mesh nor a mapping.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if not isinstance(mesh, Mapping):
        raise StrategyError(f'mesh is {mesh!r}: give a sa.Mesh or sizes such as {{"fsdp": 8}}.')
    return Mesh(dict(mesh))


def layout_on(name: str, mesh: Mesh) -> StrategyAxes:
    """Return the strategy with this name, without the mesh axes of size 1.

    >>> layout_on("fsdp", Mesh({"slice": 2, "data": 1, "fsdp": 8})).weights
    ('fsdp',)

    Raises:
      StrategyError: no strategy of that name, or a mesh axis that the strategy does not have.
    """
    if name not in LAYOUTS:
        raise StrategyError(f"strategy {name!r}: write one of {', '.join(LAYOUTS)}.")
    layout = LAYOUTS[name]
    unknown = [axis for axis in mesh.axis_names if axis not in layout.axes]
    if unknown:
        raise StrategyError(
            f"strategy {name!r} has no use for {', '.join(unknown)} of {mesh!r}: "
            f"its axes are {', '.join(layout.axes)}."
        )
    return layout.on(mesh)


def strategy(config: Config, optimizer: Optimizer, mesh: Mesh, name: str) -> Strategy:
    """Return shardings of the training step's arguments and results, and of its sites.

    The arguments are (parameters, optimizer state, tokens, targets).

    >>> from shardalg.models.training import OPTIMIZERS
    >>> found = strategy(Config(), OPTIMIZERS["sgd"], Mesh({"fsdp": 4}), "fsdp")
    >>> tuple(found.in_shardings[0]["embedding"]), tuple(found.in_shardings[2])
    ((None, 'fsdp'), ('fsdp', None))
    """
    layout = layout_on(name, mesh)
    dims = partial(_weight_dims, layout, mesh)
    layer = {weight: dims(weight, shape) for weight, shape in config.weight_shapes().items()}
    weights = {
        "embedding": dims("embedding", (config.V, config.M)),
        "layers": layer if config.scan else (layer,) * config.L,
    }
    state = _spelled(optimizer.laid_out(config, weights))
    tokens = _spec((layout.batch, ()))
    given = (_spelled(weights), state, tokens, tokens)
    results = (given[0], state, PartitionSpec())
    return Strategy(mesh, in_shardings=given, out_shardings=results, sites=_sites(layout))


def _weight_dims(layout: StrategyAxes, mesh: Mesh, weight: str, shape: tuple[int, ...]) -> Dims:
    """Return the axes that split each dimension of a weight.

    The axes `layout.tensor` split the dimension in `_WEIGHTS`; the axes `layout.weights` split the
    model's features, or the first other dimension that they divide.
    """
    features, cut = _WEIGHTS[weight]
    sizes = dict(mesh.axes)
    weight_parts = math.prod(sizes[axis] for axis in layout.weights)
    tensor_parts = math.prod(sizes[axis] for axis in layout.tensor)
    found: list[Axes] = [()] * len(shape)
    # JAX refuses arguments with uneven blocks, so an axis that does not divide is left out.
    if shape[cut] % tensor_parts == 0:
        found[cut] = layout.tensor
    # Every weight has the model's features, so that this choice gives all weights one sharding.
    free = [features, *(dim for dim in range(len(shape)) if dim not in (features, cut))]
    # Next to tensor axes the features are the only choice, and they are the choice if nothing
    # divides: uneven blocks are refused where the strategy is used.
    divided = [dim for dim in free if shape[dim] % weight_parts == 0]
    place = divided[0] if divided and not found[cut] else features
    found[place] = layout.weights
    return tuple(found)


def _sites(layout: StrategyAxes) -> dict[str, PartitionSpec]:
    """Return the shardings of the annotated values in the model, by the names of their sites."""
    batch, tensor = layout.batch, layout.tensor
    narrow = _spec((batch, (), tensor))
    names = ("ffn_hidden", "layer_output", "embedded", "logits")
    return {"attention_heads": _spec((batch, (), tensor, ())), **dict.fromkeys(names, narrow)}


def _is_dims(tree: Any) -> bool:
    """Return True for a tuple of axes per dimension, False for a tuple of layers."""
    return isinstance(tree, tuple) and not any(isinstance(entry, dict) for entry in tree)


def _spelled(tree: Any) -> Any:
    """Return a tree of `PartitionSpec` from a tree of axes per dimension."""
    return jax.tree.map(_spec, tree, is_leaf=_is_dims)


def _spec(dims: Dims) -> PartitionSpec:
    return PartitionSpec(*(axes if len(axes) > 1 else axes[0] if axes else None for axes in dims))
