"""A trace of a plan's function on a mesh with explicit axes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardalg.errors import PatchError, ShardalgError

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan


def explicit_error(plan: Plan) -> Exception | None:
    """Return JAX's sharding error for a plan's function on explicit axes, or None if it is typed.

    The function is traced with the plan's shardings as the types of its arguments.

    Raises:
      PatchError: an argument's sharding has no PartitionSpec, or JAX refuses it for another reason.
    """
    import jax
    from jax.sharding import AbstractMesh, AxisType, NamedSharding

    names = tuple(name for name, _ in plan.mesh.axes)
    sizes = tuple(int(size) for _, size in plan.mesh.axes)
    mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Explicit,) * len(names))
    graph, call = plan.graph, plan._traced.call
    assert call is not None, "patch refuses plans without a function"
    # On explicit axes the sharding is a part of an array's type.
    leaves: list[Any] = []
    pairs = zip(graph.arguments, plan.program.argument_shardings, strict=True)
    for (value, sharding), path in zip(pairs, graph.argument_paths, strict=True):
        kind = graph.values[value].type
        # Every dimension is closed here: an explicit type leaves nothing to completion.
        try:
            spec = replace(sharding, unspecified_dims=(), replicated=()).to_spec()
            placed = NamedSharding(mesh, spec)
            leaves.append(jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=placed))
        except (ShardalgError, ValueError) as error:
            raise PatchError(f"argument {path} has no type on explicit axes: {error}") from None
    assert graph.trees is not None, "a plan that was made here has the trees of its arguments"
    given = jax.tree.unflatten(graph.trees[0], leaves)
    try:
        with jax.sharding.use_abstract_mesh(mesh):
            jax.eval_shape(call.fn, *given)
    # JAX has no public class for its sharding errors, and some of them are ValueErrors. All of them
    # name shardings.
    except Exception as error:
        if "shard" in str(error).lower():
            return error
        raise PatchError(f"JAX does not trace the function on explicit axes: {error}") from error
    return None
