"""The XLA twin: the same function, partitioned by XLA from the same annotations.

`UserCall` converts a user's call to a call of an executable that takes arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import Mesh as JaxMesh

from shardalg.algebra.sharding import Sharding
from shardalg.graph.abstract import item_type
from shardalg.graph.evaluate import evaluate
from shardalg.graph.ir import Graph, Node
from shardalg.lower.arrays import ArrayBorder, call_executable, place, results_of_call
from shardalg.lower.axes import Axes

Inner = Callable[..., Any]


class UserCall(Protocol):
    """Conversion between a call as the user writes it and a call of a function of arrays."""

    @property
    def through(self) -> Callable[[Inner, tuple[Any, ...], Mapping[str, Any]], Any]:
        """Function (inner, args, kwargs) -> the user's result, which calls `inner` on arrays."""

    def inside(self, work: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return `work(*arrays)` for the arrays in a call's arguments.

        The user's function is not called. For example, `work` checks and shards the arrays.
        """


class _OnArrays:
    """A function that takes the user's pytrees of arrays as they are, without conversion."""

    def through(self, inner: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of `inner`, whose arguments are the user's own."""
        return inner(*args, **kwargs)

    inside = through


ON_ARRAYS: UserCall = _OnArrays()


def explicit_mesh(arrays: Iterable[Any]) -> JaxMesh | AbstractMesh | None:
    """Return the mesh of arrays whose axes are Explicit, else the one that is set, else None.

    >>> explicit_mesh([jax.numpy.ones(2)]) is None
    True
    """
    layouts = (getattr(array, "sharding", None) for array in arrays)
    carried = [layout.mesh for layout in layouts if isinstance(layout, NamedSharding)]
    # Arguments come first, because the mesh that is set may be another one than theirs.
    for mesh in (*carried, jax.sharding.get_abstract_mesh()):
        if AxisType.Explicit in (mesh.axis_types or ()):
            return mesh
    return None


def on_explicit_axes(
    results: Sequence[jax.Array], mesh: JaxMesh | AbstractMesh | None
) -> list[jax.Array]:
    """Return the results as arrays on `mesh` if their own mesh has the same axes and devices.

    JAX does not combine an array on Explicit axes with one on Auto axes of the same names. Other
    results, and all if `mesh` is None, are returned unchanged.
    """
    return [_on_mesh(result, mesh) for result in results]


def _on_mesh(result: jax.Array, mesh: JaxMesh | AbstractMesh | None) -> jax.Array:
    """Return one result of a call on `mesh`, if its own mesh has the same axes and devices.

    Only the types of the axes (Explicit or Auto) differ then. Other results are returned unchanged.
    """
    layout = result.sharding
    if mesh is None or not isinstance(layout, NamedSharding):
        return result
    result_mesh = layout.mesh
    # Other axes name other blocks: the sharding then has no spec on the user's mesh.
    if result_mesh.axis_names != mesh.axis_names or result_mesh.axis_sizes != mesh.axis_sizes:
        return result
    # An abstract mesh has no devices, so an array cannot be on one, and there is none to compare.
    if not isinstance(result_mesh, JaxMesh):
        return result
    if isinstance(mesh, JaxMesh) and list(result_mesh.devices.flat) != list(mesh.devices.flat):
        return result
    typed_mesh = JaxMesh(result_mesh.devices, result_mesh.axis_names, axis_types=mesh.axis_types)
    target = NamedSharding(typed_mesh, layout.spec)
    # The same blocks on the same devices become a new array, so nothing is copied.
    blocks = [shard.data for shard in result.addressable_shards]
    return jax.make_array_from_single_device_arrays(
        result.shape, target, blocks, dtype=result.dtype
    )


def platforms(named: str | None) -> tuple[str, ...] | None:
    """Return the platforms that JAX lowers for; None for the platforms of its devices."""
    return None if named is None else (named,)


@dataclass(frozen=True, eq=False)
class Twin:
    """`jax.jit` of the traced function with our shardings at its border and at its sites.

    JAX takes no arguments or results with uneven shardings. There, such a value is sharded only
    along the longest prefix of its axes that divides each dimension. Right inside, it is
    constrained to its full sharding.

    Attributes:
      arguments, results: shardings of the flattened arguments and results.
      axes: axes of the mesh on which XLA partitions.
      sites: per annotation node of the graph, its sharding.
      donated: numbers of the flattened arguments that a call consumes.
      platform: platform to lower for ("tpu", "cuda"); None for that of the devices.
      call: conversion of the user's calls.
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
        """Return the results of the traced function, constrained to the shardings of the plan."""
        given = [self._uneven(b, x) for b, x in zip(self.arguments, leaves, strict=True)]
        results = evaluate(self.graph, *given, annotate=self._constrain)
        return tuple(self._uneven(b, x) for b, x in zip(self.results, results, strict=True))

    def _uneven(self, border: ArrayBorder, x: jax.Array) -> jax.Array:
        """Return an argument or result with its planned sharding, which JAX's border cannot have.

        An even sharding is already that of the border, so the value is returned unchanged.
        """
        if border.sharding.is_even:
            return x
        return jax.lax.with_sharding_constraint(x, self.axes.named(border.sharding))

    def _constrain(self, node: Node, x: jax.Array) -> jax.Array:
        """Return the value of an annotation node with its sharding; unchanged if it has none.

        Args:
          node: a node at which the user annotated the value, such as `with_sharding_constraint`.
        """
        sharding = self.sites.get(node.index)
        if sharding is None:
            return x
        spec = list(self.axes.spec(sharding))
        for dim in sharding.unspecified_dims:
            # XLA may shard an open dimension further, as completion may.
            spec[dim] = jax.sharding.PartitionSpec.UNCONSTRAINED
        target = jax.sharding.NamedSharding(self.axes.mesh, jax.sharding.PartitionSpec(*spec))
        return jax.lax.with_sharding_constraint(x, target)

    @cached_property
    def stage(self) -> Any:
        """JAX's lowered program, which XLA has not partitioned yet."""
        # The executable takes arrays without padding, so each has its even sharding (`outer`).
        structs = [
            jax.ShapeDtypeStruct(b.sharding.shape, item_type(b.dtype), sharding=b.outer)
            for b in self.arguments
        ]
        jitted = jax.jit(
            self._function,
            in_shardings=tuple(b.outer for b in self.arguments),
            # XLA cannot return a sharded array without elements: such a result is replicated
            # (`inner`), and `leave` shards it afterwards.
            out_shardings=tuple(b.inner if b.is_empty else b.outer for b in self.results),
            donate_argnums=self.donated,
        )
        # The caller may have set another mesh, which JAX would use inside of this program.
        with jax.sharding.use_abstract_mesh(self.axes.mesh.abstract_mesh):
            traced = jitted.trace(*structs)
            return traced.lower(lowering_platforms=platforms(self.platform))

    @cached_property
    def compiled(self) -> Any:
        """JAX's compiled program."""
        return self.stage.compile()

    def entering(self, *args: Any, **kwargs: Any) -> list[jax.Array]:
        """Return the flattened arguments in the executable's shardings."""
        return self.call.inside(self._placed, args, kwargs)

    def _placed(self, *arrays: Any) -> list[jax.Array]:
        return place(self.graph, self.arguments, arrays, padded=False)

    def leave(self, outputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the results at their true sizes.

        XLA returns results without elements unsharded, so they get their sharding here.
        """
        pairs = zip(self.results, outputs, strict=True)
        return [b.leave(x) if b.is_empty else x for b, x in pairs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's results."""
        return self.call.through(self._run, args, kwargs)

    def _run(self, *arrays: Any) -> Any:
        return results_of_call(
            self.graph, self.leave(call_executable(self.compiled, self._placed(*arrays)))
        )
