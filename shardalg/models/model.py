"""A model in letters: every dimension of a weight, an activation or an input has the paper's name.

Shapes, random numbers, the optimizer's state and shardings all follow from the letters: a
`DimensionAxes` names the mesh axes that partition each letter, for weights and for activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.models import adafactor
from shardalg.plan.plan import Plan, plan
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import Strategy

Array = jax.Array
Axes = str | tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """The shape of a parameter, as letters.

    Attributes:
      dims: one letter per dimension.
      rows: the number of dimensions that a product with the parameter contracts; they come after
        the `stacked` ones and are the rows of Adafactor's moments.
      stacked: the number of leading dimensions that only count weights of one kind, such as layers.
    """

    dims: str
    rows: int = 1
    stacked: int = 0

    @property
    def contracted(self) -> str:
        """The letters of the dimensions that a product with the parameter contracts."""
        return self.dims[self.stacked : self.stacked + self.rows]


@dataclass(frozen=True)
class Data:
    """An input of a step: integers below the size of the letter `below`, or normal numbers."""

    dims: str
    below: str = ""


@dataclass(frozen=True)
class DimensionAxes:
    """The mesh axes that partition each dimension; axes that a mesh lacks are ignored.

    Attributes:
      weights, activations: the axis of each letter, or its axes, major first. If two letters of a
        tensor name one axis, the first letter has the axis. `weights` None leaves the weights to
        completion.
      sites: names of the sites that are annotated; None annotates all, () none.
    """

    weights: Mapping[str, Axes] | None = field(default_factory=dict)
    activations: Mapping[str, Axes] = field(default_factory=dict)
    sites: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Model:
    """A trainable model.

    Attributes:
      sizes: the size of each letter.
      weights: a pytree of `Parameter`.
      data: the inputs of a step in addition to parameters and optimizer state.
      loss: `(params, *data) -> mean loss`.
      sites: the letters of each annotated activation, by the name of the annotation.
    """

    sizes: Mapping[str, int]
    weights: Any
    data: tuple[Data, ...]
    loss: Callable[..., Array]
    sites: Mapping[str, str]

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.types()))

    def types(self) -> Any:
        """Return the shapes of the parameters, with type float32."""
        return self._each(lambda weight: jax.ShapeDtypeStruct(self._shape(weight), jnp.float32))

    def init(self, seed: int = 0) -> Any:
        """Return random parameters with deviation `1 / sqrt(size of the contracted dimensions)`."""
        rng = np.random.default_rng(seed)

        def draw(weight: Parameter) -> Array:
            # This deviation keeps the variance of the activations: a product sums fan_in terms.
            fan_in = math.prod(self.sizes[letter] for letter in weight.contracted)
            normal = rng.standard_normal(self._shape(weight), np.float32)
            return jnp.asarray(normal * np.float32(fan_in**-0.5))

        return self._each(draw)

    def random_arguments(self, seed: int = 0) -> tuple[Any, ...]:
        """Return random arguments of `train_step`, equal for equal seeds."""
        params, rng = self.init(seed), np.random.default_rng((seed, 1))
        return params, self._state(params), *(self._drawn(rng, data) for data in self.data)

    def arguments(self) -> tuple[Any, ...]:
        """Return the shapes and types of the arguments of `train_step`: weights, state, data."""
        types = self.types()
        state = jax.eval_shape(self._state, types)
        # Data below a dimension are indices along it (integers); other data are numbers.
        data = (
            jax.ShapeDtypeStruct(self._shape(each), jnp.int32 if each.below else jnp.float32)
            for each in self.data
        )
        return types, state, *data

    def train_step(self, params: Any, state: Any, *data: Array) -> tuple[Any, Any, Array]:
        """Return parameters and optimizer state after a step of Adafactor, and the loss before."""
        loss, grads = jax.value_and_grad(self.loss)(params, *data)
        params, state = adafactor.apply(params, grads, state, self._factoring())
        return params, state, loss

    def strategy(self, mesh: Mesh, layout: DimensionAxes) -> Strategy:
        """Return the shardings of `train_step` and its annotated sites on a mesh."""

        def spec(dims: str) -> PartitionSpec:
            return letters_spec(mesh, layout.activations, dims)

        # None annotates all sites, an empty tuple none: both are false, so compare with None.
        names = self.sites if layout.sites is None else layout.sites
        sites = {name: spec(self.sites[name]) for name in names}
        data = [spec(data.dims) for data in self.data]
        if layout.weights is None:
            return Strategy(mesh, (None, None, *data), sites=sites)
        # A weight's moments keep the axes of their own dimensions, so the update of a block reads
        # only the block's own moments.
        laid_out = partial(letters_spec, mesh, layout.weights)
        weights = self._each(lambda weight: laid_out(weight.dims))
        moments = self._each(partial(_moments, laid_out))
        given = (weights, {"step": PartitionSpec(), "moments": moments})
        return Strategy(mesh, (*given, *data), (*given, PartitionSpec()), sites)

    def plan(self, mesh: Mesh, layout: DimensionAxes, options: Options | None = None) -> Plan:
        """Plan `train_step`; parameters and state are donated."""
        return plan(
            self.train_step,
            *self.arguments(),
            strategy=self.strategy(mesh, layout),
            roles=("parameters", "optimizer_state", *["data"] * len(self.data)),
            donate_argnums=(0, 1),
            options=options,
        )

    def _each(self, function: Callable[[Parameter], Any]) -> Any:
        return jax.tree.map(function, self.weights)

    def _shape(self, lettered: Parameter | Data) -> tuple[int, ...]:
        return tuple(self.sizes[letter] for letter in lettered.dims)

    def _drawn(self, rng: np.random.Generator, data: Data) -> Array:
        if data.below:
            return jnp.asarray(rng.integers(0, self.sizes[data.below], self._shape(data), np.int32))
        return jnp.asarray(rng.standard_normal(self._shape(data), np.float32))

    def _factoring(self) -> Any:
        return self._each(lambda weight: adafactor.Factoring(weight.rows, weight.stacked))

    def _state(self, params: Any) -> dict[str, Any]:
        return adafactor.init_state(params, self._factoring())


def _moments(
    laid_out: Callable[[str], PartitionSpec], weight: Parameter
) -> dict[str, PartitionSpec]:
    """Return the shardings of a weight's Adafactor moments: the axes of the kept dimensions."""
    row, column = adafactor.Factoring(weight.rows, weight.stacked).split(tuple(weight.dims))
    whole = dict(zip(weight.dims, laid_out(weight.dims), strict=True))
    kept = {"row": row, "column": column}
    return {name: PartitionSpec(*(whole[d] for d in dims)) for name, dims in kept.items()}


def letters_spec(mesh: Mesh, where: Mapping[str, Axes], dims: str) -> PartitionSpec:
    """Return the sharding of a tensor with these letters: `where` maps a letter to its axes.

    An axis that the mesh lacks, or that an earlier letter uses, is left out.

    >>> tuple(letters_spec(Mesh({"X": 2, "Y": 4}), {"E": "X", "M": "X", "H": "Y"}, "EMH"))
    ('X', None, 'Y')
    """
    # JAX refuses a sharding with one axis in two dimensions, so the first letter keeps the axis.
    free_axes, entries = list(mesh.axis_names), []
    for letter in dims:
        letter_axes = where.get(letter, ())
        axes = [
            a
            for a in ((letter_axes,) if isinstance(letter_axes, str) else letter_axes)
            if a in free_axes
        ]
        free_axes = [axis for axis in free_axes if axis not in axes]
        entries.append(None if not axes else axes[0] if len(axes) == 1 else tuple(axes))
    return PartitionSpec(*entries)
