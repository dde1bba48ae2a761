"""The mesh for which a call is planned, and its shardings with one entry per array.

A user need not give a mesh. It is then found in the arguments, in `jax.set_mesh` or in the
function. Shardings are given as prefixes of pytrees, by the user or to `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.graph.arguments import declared_dims
from shardalg.graph.tracing.trace import Explicit, flatten_prefix, jaxpr_of
from shardalg.planner.calls.call import Call, Given, Returned
from shardalg.planner.calls.nnx_call import plain_state
from shardalg.planner.propagate.strategy import PerLeaf, Strategy


def flat_layouts(call: Call, trees: tuple[Any, Any], strategy: Strategy) -> tuple[PerLeaf, PerLeaf]:
    """Return the shardings of a strategy per leaf of the arguments, and per leaf of the results.

    New state that a framework returns has the sharding of the argument that it replaces, unless
    the function's own output shardings are used.

    Args:
      trees: the structures of the function's arguments and results.

    Raises:
      StrategyError: a prefix does not fit the arguments or the results.
    """
    arguments = entered(call, strategy.in_shardings)
    if isinstance(strategy.out_shardings, PerLeaf):
        return arguments, strategy.out_shardings
    results = trees[1].unflatten(range(trees[1].num_leaves))
    if strategy.out_shardings is None and call.out_shardings is not None:
        return arguments, PerLeaf(flatten_prefix(call.out_shardings, results, "out_shardings"))
    returned = _returned(call, trees[1])
    out = flatten_prefix(plain_state(strategy.out_shardings), returned.tree, "out_shardings")
    pairs = zip(returned.states, returned.places, strict=True)
    # A prefix of output shardings has entries for the user's results only. New state must have the
    # sharding of its argument, because the next step passes it again.
    return arguments, PerLeaf(
        out[place] if place is not None else None if state is None else arguments[state]
        for state, place in pairs
    )


def entered(call: Call, prefix: Any) -> PerLeaf:
    """Return the sharding of each leaf of the arguments, from a pytree prefix of shardings.

    Args:
      prefix: the `in_shardings` of the user; None to use the `in_shardings` of `jax.jit`.
    """
    if isinstance(prefix, PerLeaf):
        return prefix
    if prefix is not None:
        given = tuple(prefix) if isinstance(prefix, list) else prefix
        return PerLeaf(call.spread(plain_state(given), "in_shardings"))
    return PerLeaf(flatten_prefix(call.in_shardings, call.args, "in_shardings"))


def _returned(call: Call, tree: Any) -> Returned:
    """Return the results of a call, separated into new state of modules and the user's results.

    Args:
      tree: the structure of the results.
    """
    results = tree.unflatten(range(tree.num_leaves))
    if call.returned is not None:
        return call.returned(results)
    count = tree.num_leaves
    return Returned((None,) * count, results, tuple(range(count)))


class Placed(NamedTuple):
    """The result of `placed`.

    Attributes:
      strategy: the strategy with a mesh.
      explicit: the mesh axes of JAX's type `AxisType.Explicit`, along which shardings are part of
        the types of values, and the shardings of the arguments.
    """

    strategy: Strategy
    explicit: Explicit | None


def placed(call: Call, strategy: Strategy, given: Given = ((), {})) -> Placed:
    """Return a strategy with a mesh, which is searched for if the strategy has none.

    The first mesh that exists is used, in this order:
      1. the strategy's mesh, or the mesh that a program read from text states;
      2. the mesh of arrays and shardings;
      3. the mesh of `jax.set_mesh`;
      4. the mesh of sharding constraints and `shard_map`s in the function, which is traced for it.
    A mesh of JAX becomes a `Mesh`.

    Args:
      given: the user's arguments, by position and by name.

    Raises:
      StrategyError: there is no mesh, or there are several.
      TraceError: JAX cannot trace the function.

    >>> from shardalg.planner.calls.call import plain
    >>> mesh = AbstractMesh((2, 4), ("x", "y"))
    >>> x = jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(mesh, PartitionSpec("x")))
    >>> placed(plain(abs, (x,), {}), Strategy(None)).strategy.mesh
    Mesh(x=2, y=4)
    """
    # `_inside` traces the whole function, which is slow. It therefore is the last source, and runs
    # only if all others have no mesh.
    carried, around = list(_carried(call, strategy)), _around()
    named: Any = strategy.mesh
    ours = Mesh.from_jax(named) if _is_jax(named) else named or call.mesh
    if ours is None:
        ours = _only(carried or around or _inside(call, given))
    # Only meshes of JAX say which axes are explicit; a `shardalg.Mesh` does not.
    seen = [mesh for mesh in (named, *carried, *around) if _is_jax(mesh)]
    explicit = frozenset(
        name
        for mesh in seen
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Explicit and name in ours.axis_names
    )
    typed = next((mesh for mesh in seen if AxisType.Explicit in mesh.axis_types), None)
    axes = explicit or frozenset(ours.axis_names)
    # Along explicit axes, JAX infers shardings from the types of the arguments. The user's
    # `in_shardings` are preferred to an array's own sharding, because they say how it will enter.
    pairs = zip(entered(call, strategy.in_shardings), jax.tree.leaves(call.args), strict=True)
    specs = tuple(_spec(given) or _spec(getattr(leaf, "sharding", None)) for given, leaf in pairs)
    return Placed(replace(strategy, mesh=ours), Explicit(axes, specs, typed))


def _is_jax(mesh: Any) -> bool:
    return isinstance(mesh, jax.sharding.Mesh | AbstractMesh)


def _carried(call: Call, strategy: Strategy) -> Iterator[Any]:
    """Yield the meshes of the NamedShardings of arrays, of the strategy and of `jax.jit`.

    A mesh may be yielded several times.
    """
    sides = (strategy.in_shardings, strategy.out_shardings, call.in_shardings, call.out_shardings)
    given = jax.tree.leaves(sides, is_leaf=lambda s: hasattr(s, "mesh"))
    of_arrays = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(call.args)]
    for sharding in (*of_arrays, *given):
        # A mesh of one device shards nothing, so it does not decide the plan's mesh.
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            yield sharding.mesh


def _inside(call: Call, given: Given) -> list[Any]:
    """Return the meshes of sharding constraints and `shard_map`s inside the function.

    The list is empty if arguments have named sizes.
    """
    # Constraints are visible only in a jaxpr, so the function is traced unless it is a trace
    # already. Named sizes have no numbers yet, and a trace needs numbers.
    if hasattr(call.fn, "jaxpr"):
        return list(_at_sites(call.fn.jaxpr))
    if declared_dims(call.args) is not None:
        return []
    return list(_at_sites(call.inside(lambda *arrays: jaxpr_of(call.fn, *arrays), *given)))


def _at_sites(jaxpr: Any) -> Iterator[Any]:
    """Yield the meshes of sharding constraints and `shard_map`s in a jaxpr and its bodies.

    A mesh may be yielded several times. Nothing is yielded for values that are no jaxprs.
    """
    # A closed jaxpr has the open one, with the equations, as its attribute.
    for equation in getattr(getattr(jaxpr, "jaxpr", jaxpr), "eqns", ()):
        # A parameter is a sharding (a constraint), a mesh (a region) or the jaxpr of a body.
        for param in jax.tree.leaves([*equation.params.values()]):
            mesh = param.mesh if isinstance(param, NamedSharding) else param
            # A mesh of one device shards nothing, so it does not decide the plan's mesh.
            if _is_jax(mesh) and mesh.size > 1:
                yield mesh
            yield from _at_sites(param)


def _around() -> list[Any]:
    """Return a list with the mesh that `jax.set_mesh` has set, concrete if possible, or []."""
    for mesh in (jax.sharding.get_mesh(), jax.sharding.get_abstract_mesh()):
        if not mesh.empty:
            return [mesh]
    return []


def _only(meshes: list[Any]) -> Mesh:
    """Return the mesh to which all these meshes of JAX are equal.

    An abstract mesh counts as equal to a concrete one with the same axes.

    Raises:
      StrategyError: there is no mesh, or there are several.
    """
    found = {Mesh.from_jax(mesh) for mesh in meshes}
    # An abstract mesh says nothing about devices. If a concrete mesh has its axes, both can mean
    # the same devices, and there is no conflict.
    if len(found) > 1:
        abstract = {mesh for mesh in found if mesh.device_ids is None}
        concrete = {mesh.axes for mesh in found - abstract}
        found -= {mesh for mesh in abstract if mesh.axes in concrete}
    if len(found) == 1:
        return found.pop()
    which = ", ".join(sorted(map(repr, found))) or "none"
    raise StrategyError(
        f"plan() needs a mesh. The arguments, shardings and the function name {len(found)} meshes "
        f"({which}). Pass mesh=sa.Mesh({{'X': 8, 'Y': 16}}), a mesh of JAX, or a Strategy, or set "
        "one with jax.set_mesh."
    )


def _spec(layout: Any) -> Any:
    """Return the PartitionSpec of a NamedSharding, a PartitionSpec itself, or None for others."""
    if isinstance(layout, PartitionSpec):
        return layout
    return layout.spec if isinstance(layout, NamedSharding) else None
