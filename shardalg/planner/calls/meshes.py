"""The mesh of a call that names none, and prefixes of shardings as one entry per array.

The mesh is that of the arguments, of the function, or the one that is set. A prefix is the user's,
or else the function's own.
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
    """Return a strategy's entry per leaf of the arguments, and per leaf of the results.

    State that a framework returns again keeps the sharding of its argument, if nothing else is
    given.

    Raises:
      StrategyError: a prefix that does not fit the arguments or the results.
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
    # A result of the user's has the given entry, returned state that of its argument.
    return arguments, PerLeaf(
        out[place] if place is not None else None if state is None else arguments[state]
        for state, place in pairs
    )


def entered(call: Call, prefix: Any) -> PerLeaf:
    """Return a prefix's entry per leaf of the arguments; None means the function's own prefix."""
    if isinstance(prefix, PerLeaf):
        return prefix
    if prefix is not None:
        given = tuple(prefix) if isinstance(prefix, list) else prefix
        return PerLeaf(call.spread(plain_state(given), "in_shardings"))
    return PerLeaf(flatten_prefix(call.in_shardings, call.args, "in_shardings"))


def _returned(call: Call, tree: Any) -> Returned:
    """Return which results of the call are state; without a framework, none of them."""
    results = tree.unflatten(range(tree.num_leaves))
    if call.returned is not None:
        return call.returned(results)
    count = tree.num_leaves
    return Returned((None,) * count, results, tuple(range(count)))


class Placed(NamedTuple):
    """A strategy with its mesh, and the types that JAX gives values along its explicit axes."""

    strategy: Strategy
    explicit: Explicit | None


def placed(call: Call, strategy: Strategy, given: Given = ((), {})) -> Placed:
    """Return the strategy with a mesh: its own, or else the mesh of the call or of the context.

    A mesh of JAX becomes a `Mesh`. The order of precedence is: the given mesh, the meshes of arrays
    and shardings, the mesh of `jax.set_mesh`, and the meshes of constraints and regions inside the
    function, for which it is traced.

    Args:
      given: the user's arguments, by position and by name.

    Raises:
      StrategyError: there is none, or several. TraceError: JAX cannot trace the function.

    >>> from shardalg.planner.calls.call import plain
    >>> mesh = AbstractMesh((2, 4), ("x", "y"))
    >>> x = jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(mesh, PartitionSpec("x")))
    >>> placed(plain(abs, (x,), {}), Strategy(None)).strategy.mesh
    Mesh(x=2, y=4)
    """
    # Later sources are used only if the earlier ones have no mesh.
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
    # JAX types the arguments along explicit axes: a given sharding comes before an array's own.
    pairs = zip(entered(call, strategy.in_shardings), jax.tree.leaves(call.args), strict=True)
    specs = tuple(_spec(given) or _spec(getattr(leaf, "sharding", None)) for given, leaf in pairs)
    return Placed(replace(strategy, mesh=ours), Explicit(axes, specs, typed))


def _is_jax(mesh: Any) -> bool:
    return isinstance(mesh, jax.sharding.Mesh | AbstractMesh)


def _carried(call: Call, strategy: Strategy) -> Iterator[Any]:
    """Yield the meshes of the arguments' own shardings and of the given shardings."""
    sides = (strategy.in_shardings, strategy.out_shardings, call.in_shardings, call.out_shardings)
    given = jax.tree.leaves(sides, is_leaf=lambda s: hasattr(s, "mesh"))
    own = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(call.args)]
    for sharding in (*own, *given):
        # A mesh of one device shards nothing, so it does not decide the plan's mesh.
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            yield sharding.mesh


def _inside(call: Call, given: Given) -> list[Any]:
    """Return the meshes of constraints and regions inside the function; none for named sizes."""
    # The function is traced for it. Named sizes are no numbers, which this trace would need.
    if hasattr(call.fn, "jaxpr"):
        return list(_at_sites(call.fn.jaxpr))
    if declared_dims(call.args) is not None:
        return []
    return list(_at_sites(call.inside(lambda *arrays: jaxpr_of(call.fn, *arrays), *given)))


def _at_sites(jaxpr: Any) -> Iterator[Any]:
    """Yield the meshes of the constraints and regions of a jaxpr, including loops and branches."""
    for equation in getattr(getattr(jaxpr, "jaxpr", jaxpr), "eqns", ()):
        # A parameter is a sharding (a constraint), a mesh (a region) or the jaxpr of a body.
        for param in jax.tree.leaves([*equation.params.values()]):
            mesh = param.mesh if isinstance(param, NamedSharding) else param
            if _is_jax(mesh) and mesh.size > 1:
                yield mesh
            yield from _at_sites(param)


def _around() -> list[Any]:
    """Return [the mesh that `jax.set_mesh` has set], a concrete one if possible, or []."""
    for mesh in (jax.sharding.get_mesh(), jax.sharding.get_abstract_mesh()):
        if not mesh.empty:
            return [mesh]
    return []


def _only(meshes: list[Any]) -> Mesh:
    """Return the one mesh that all meshes of JAX mean.

    Raises:
      StrategyError: there is none, or there are several.
    """
    found = {Mesh.from_jax(mesh) for mesh in meshes}
    # An abstract mesh means any mesh with its axes, so that a concrete one decides.
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
    """Return a sharding as a PartitionSpec, or None if it has another form."""
    if isinstance(layout, PartitionSpec):
        return layout
    return layout.spec if isinstance(layout, NamedSharding) else None
