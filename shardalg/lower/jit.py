"""The XLA twin: the same function, partitioned by XLA from the same annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from shardalg.algebra.sharding import Sharding
from shardalg.graph.abstract import item_type
from shardalg.graph.evaluate import evaluate
from shardalg.graph.ir import Graph, Node
from shardalg.lower.arrays import ArrayBorder, called, filled, place
from shardalg.lower.axes import Axes
from shardalg.lower.border_calls import ON_ARRAYS, UserCall


def platforms(named: str | None) -> tuple[str, ...] | None:
    """What JAX lowers for; None: for its devices."""
    return None if named is None else (named,)


@dataclass(frozen=True, eq=False)
class Twin:
    """`jax.jit` of the traced function with our shardings at its border and at its sites.

    JAX takes no uneven arguments or results: at the border each has its longest even prefix, and
    an uneven one is constrained to its full sharding right inside.

    Attributes:
      axes: of the mesh on which XLA partitions.
      sites: annotation node to sharding.
      donated: flattened arguments that a call consumes.
      platform: as of `Lowered`.
      call: as of the lowered program.
    """

    graph: Graph
    arguments: tuple[ArrayBorder, ...]
    results: tuple[ArrayBorder, ...]
    axes: Axes
    sites: Mapping[int, Sharding]
    donated: tuple[int, ...] = ()
    platform: str | None = None
    call: UserCall = ON_ARRAYS

    def _function(self, *leaves: jax.Array) -> tuple[jax.Array, ...]:
        given = [self._uneven(b, x) for b, x in zip(self.arguments, leaves, strict=True)]
        results = evaluate(self.graph, *given, annotate=self._constrain)
        return tuple(self._uneven(b, x) for b, x in zip(self.results, results, strict=True))

    def _uneven(self, border: ArrayBorder, x: jax.Array) -> jax.Array:
        if border.sharding.is_even:
            return x
        return jax.lax.with_sharding_constraint(x, self.axes.named(border.sharding))

    def _constrain(self, node: Node, x: jax.Array) -> jax.Array:
        sharding = self.sites.get(node.index)
        if sharding is None:
            return x
        spec = list(self.axes.spec(sharding))
        for dim in sharding.unspecified_dims:
            spec[dim] = jax.sharding.PartitionSpec.UNCONSTRAINED
        target = jax.sharding.NamedSharding(self.axes.mesh, jax.sharding.PartitionSpec(*spec))
        return jax.lax.with_sharding_constraint(x, target)

    @cached_property
    def stage(self) -> Any:
        """JAX's lowered (not yet partitioned) program."""
        structs = [
            jax.ShapeDtypeStruct(b.sharding.shape, item_type(b.dtype), sharding=b.outer)
            for b in self.arguments
        ]
        jitted = jax.jit(
            self._function,
            in_shardings=tuple(b.outer for b in self.arguments),
            out_shardings=tuple(b.inner if b.is_empty else b.outer for b in self.results),
            donate_argnums=self.donated,
        )
        with jax.sharding.use_abstract_mesh(self.axes.mesh.abstract_mesh):
            traced = jitted.trace(*structs)
            return traced.lower(lowering_platforms=platforms(self.platform))

    @cached_property
    def compiled(self) -> Any:
        """JAX's compiled program."""
        return self.stage.compile()

    def entering(self, *args: Any, **kwargs: Any) -> list[jax.Array]:
        """The flattened arguments as the executable takes them."""
        return self.call.inside(self._placed, args, kwargs)

    def _placed(self, *arrays: Any) -> list[jax.Array]:
        return place(self.graph, self.arguments, arrays, padded=False)

    def leave(self, outputs: Sequence[jax.Array]) -> list[jax.Array]:
        """The results, at their true sizes already; those without elements are laid out."""
        pairs = zip(self.results, outputs, strict=True)
        return [b.leave(x) if b.is_empty else x for b, x in pairs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results."""
        return self.call.through(self._run, args, kwargs)

    def _run(self, *arrays: Any) -> Any:
        return filled(self.graph, self.leave(called(self.compiled, self._placed(*arrays))))
