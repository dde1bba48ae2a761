"""The mesh of a call, where it is not given: of the arguments, of the function, of what is set.

Prefixes of layouts as one entry per array: those of the user, else the function's own.
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
    """Per leaf of the arguments, and of the results, what a strategy says of it.

    State that a framework hands out again lies as it came in, where nothing else is said.

    Raises:
      StrategyError: a prefix that is none of the arguments, or of the results.
    """
    arguments = entered(call, strategy.in_shardings)
    results = trees[1].unflatten(range(trees[1].num_leaves))
    if strategy.out_shardings is None and call.out_shardings is not None:
        return arguments, PerLeaf(flatten_prefix(call.out_shardings, results, "out_shardings"))
    returned = _returned(call, trees[1])
    out = flatten_prefix(plain_state(strategy.out_shardings), returned.tree, "out_shardings")
    pairs = zip(returned.states, returned.places, strict=True)
    return arguments, PerLeaf(
        out[place] if place is not None else None if state is None else arguments[state]
        for state, place in pairs
    )


def entered(call: Call, prefix: Any) -> PerLeaf:
    """Per leaf of the arguments what a prefix says of it; None: what the function itself says."""
    if isinstance(prefix, PerLeaf):
        return prefix
    if prefix is not None:
        given = tuple(prefix) if isinstance(prefix, list) else prefix
        return PerLeaf(call.spread(plain_state(given), "in_shardings"))
    return PerLeaf(flatten_prefix(call.in_shardings, call.args, "in_shardings"))


def _returned(call: Call, tree: Any) -> Returned:
    results = tree.unflatten(range(tree.num_leaves))
    if call.returned is not None:
        return call.returned(results)
    count = tree.num_leaves
    return Returned((None,) * count, results, tuple(range(count)))


class Placed(NamedTuple):
    """A strategy with its mesh, and how JAX types values along axes that it knows as explicit."""

    strategy: Strategy
    explicit: Explicit | None


def placed(call: Call, strategy: Strategy, given: Given = ((), {})) -> Placed:
    """The strategy on a mesh: its own, or the one that the call or the context brings.

    A mesh of JAX becomes ours. In this order counts what is given, what arrays and layouts carry,
    what `jax.set_mesh` has set, and what constraints and regions inside the function say, for which
    it is traced.

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
    carried, around = list(_carried(call, strategy)), _around()
    asked: Any = strategy.mesh
    ours = Mesh.from_jax(asked) if _is_jax(asked) else asked or call.mesh
    if ours is None:
        ours = _only(carried or around or _inside(call, given))
    seen = [mesh for mesh in (asked, *carried, *around) if _is_jax(mesh)]
    explicit = frozenset(
        name
        for mesh in seen
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Explicit and name in ours.axis_names
    )
    typed = next((mesh for mesh in seen if AxisType.Explicit in mesh.axis_types), None)
    axes = explicit or frozenset(ours.axis_names)
    return Placed(replace(strategy, mesh=ours), Explicit(axes, _specs(call, strategy), typed))


def _is_jax(mesh: Any) -> bool:
    return isinstance(mesh, jax.sharding.Mesh | AbstractMesh)


def _carried(call: Call, strategy: Strategy) -> Iterator[Any]:
    """Meshes of the layouts that arguments carry and that are asked for."""
    sides = (strategy.in_shardings, strategy.out_shardings, call.in_shardings, call.out_shardings)
    asked = jax.tree.leaves(sides, is_leaf=lambda s: hasattr(s, "mesh"))
    own = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(call.args)]
    for sharding in (*own, *asked):
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            yield sharding.mesh


def _inside(call: Call, given: Given) -> list[Any]:
    """Meshes that the function itself names; of named sizes it is not asked."""
    if hasattr(call.fn, "jaxpr"):
        return list(_at_sites(call.fn.jaxpr))
    if declared_dims(call.args) is not None:
        return []
    return list(_at_sites(call.inside(lambda *arrays: jaxpr_of(call.fn, *arrays), *given)))


def _at_sites(jaxpr: Any) -> Iterator[Any]:
    """Meshes of the constraints and regions of a jaxpr, those in its loops and branches too."""
    for equation in getattr(getattr(jaxpr, "jaxpr", jaxpr), "eqns", ()):
        for said in jax.tree.leaves([*equation.params.values()]):
            mesh = said.mesh if isinstance(said, NamedSharding) else said
            if _is_jax(mesh) and mesh.size > 1:
                yield mesh
            yield from _at_sites(said)


def _around() -> list[Any]:
    """The mesh that is set, if one is: the concrete one where there is one."""
    for mesh in (jax.sharding.get_mesh(), jax.sharding.get_abstract_mesh()):
        if not mesh.empty:
            return [mesh]
    return []


def _only(meshes: list[Any]) -> Mesh:
    found = {Mesh.from_jax(mesh) for mesh in meshes}
    if len(found) > 1:  # an abstract mesh is any of its axes
        abstract = {mesh for mesh in found if mesh.device_ids is None}
        held = {mesh.axes for mesh in found - abstract}
        found -= {mesh for mesh in abstract if mesh.axes in held}
    if len(found) == 1:
        return found.pop()
    which = ", ".join(sorted(map(repr, found))) or "none"
    raise StrategyError(
        f"plan() needs a mesh: arguments, layouts and function carry {which}, and "
        f"{len(found)} meshes are no answer. Pass mesh=sa.Mesh({{'X': 8, 'Y': 16}}), a mesh of "
        "JAX, or a Strategy, or set one with jax.set_mesh."
    )


def _specs(call: Call, strategy: Strategy) -> tuple[Any, ...]:
    """Per leaf of the arguments its layout as a PartitionSpec, where one is known."""
    leaves = jax.tree.leaves(call.args)
    asked = entered(call, strategy.in_shardings)
    pairs = zip(asked, (getattr(leaf, "sharding", None) for leaf in leaves), strict=True)
    return tuple(_spec(said) or _spec(own) for said, own in pairs)


def _spec(layout: Any) -> Any:
    if isinstance(layout, PartitionSpec):
        return layout
    return layout.spec if isinstance(layout, NamedSharding) else None
