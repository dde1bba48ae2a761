"""Annotations inside a traced function: an identity primitive with axis names as parameters.

`mesh_split` also stores its mesh, as plain data. The module `planner.propagate.other_mesh`
translates it to the mesh of a plan. Under `jax.grad` the cotangent has the same annotation as the
value. Under `jax.vmap` the new dimension is open, not replicated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shardalg.algebra.derived_layouts import check_mapping
from shardalg.algebra.derived_layouts import mesh_split as split_shape
from shardalg.algebra.mesh import Mesh
from shardalg.errors import NotationError, ShardingError, TraceError

Spec = tuple[tuple[str, ...], ...]


Value = TypeVar("Value")


def annotate(x: Value, name: str) -> Value:
    """Return `x`, marked as a site that a strategy may shard; its cotangent has the same name.

    Args:
      x: a JAX value or an array, not a pytree.
      name: the key in `Strategy(sites={name: ...})`. Several sites may share a name. The spec of
        the strategy is for the rank of `x` here: dimensions that `vmap` adds are open.

    Raises:
      TraceError: `x` is not an array, or the name is not a nonempty string.

    >>> import jax, jax.numpy as jnp
    >>> jax.make_jaxpr(lambda x: annotate(x, "hidden"))(jnp.ones(2)).eqns[0].params["name"]
    'hidden'
    """
    if not isinstance(name, str) or not name:
        raise TraceError(
            f"annotate(x, name) needs a name, got {name!r}. Pass annotate(x, 'hidden')."
        )
    return _bind(x, name=name, spec=None, unspecified_dims=(), mesh=None)


def annotate_dims(x: Any, axes: Mapping[int, str | None], name: str | None = None) -> Any:
    """Return `x` with mesh axes for some dimensions; completion may partition the others.

    Args:
      x: a JAX value or an array, not a pytree.
      axes: for a dimension the name of the mesh axis that partitions it, or None if it must not be
        partitioned. Negative dimensions count from the end. The names are axes of the plan's mesh.
      name: the name of the site, by which a strategy may override the annotation.

    Raises:
      NotationError: a dimension that the value does not have.

    >>> import jax
    >>> jax.make_jaxpr(lambda x: annotate_dims(x, {0: "L", 1: None}))(jnp.ones((4, 6, 8))).eqns[
    ...     0
    ... ].params["unspecified_dims"]
    (2,)

    Source: GSPMD (arXiv:2105.04663) section 3.6, `unspecified_dims`.
    """
    rank = jnp.ndim(x)
    wrong_dims = [dim for dim in axes if not -rank <= dim < rank]
    if wrong_dims:
        raise NotationError(
            f"axes={dict(axes)} names dimension {wrong_dims[0]} of a value of shape "
            f"{jnp.shape(x)}: its dimensions are 0 to {rank - 1}."
        )
    # Completion may shard a dimension that `axes` does not name. A dimension that maps to None must
    # stay unsharded, so it has an entry here, without an axis.
    stated = {dim % rank: (axis,) if axis else () for dim, axis in axes.items()}
    spec = tuple(stated.get(dim, ()) for dim in range(rank))
    open_dims = tuple(dim for dim in range(rank) if dim not in stated)
    return _bind(x, name=name, spec=spec, unspecified_dims=open_dims, mesh=None)


def mesh_split_value(
    x: Any, mesh: Mesh, dims_mapping: Sequence[int], unspecified_dims: Sequence[int] = ()
) -> Any:
    """Return `x`, annotated as tiled by `dims_mapping`: the paper's `mesh_split` on a value.

    Args:
      x: a JAX value or an array.
      mesh: the mesh of the sharding, as in a NamedSharding. It is the mesh of the plan or another
        one over the same devices.
      dims_mapping: per dimension of `x` the position of a mesh axis, a tuple of positions (major
        first), or -1 for a dimension that is not partitioned.
      unspecified_dims: dimensions that completion may still partition.

    Raises:
      NotationError: an entry is not the position of a mesh axis, or a dimension does not exist.
      ShardingError: the number of entries is wrong, or an axis is used for two dimensions.

    >>> mesh = Mesh({"X": 2, "Y": 4})
    >>> mesh_split_value(jnp.zeros((8, 4)), mesh, [1, -1]).shape
    (8, 4)

    Source: GSPMD (arXiv:2105.04663) section 3.1.
    """
    check_mapping(mesh, dims_mapping, unspecified_dims)
    rank = jnp.ndim(x)
    spec = mapping_spec(mesh, dims_mapping, rank=rank)
    # A number out of range stays as it is, so that the error can name it.
    open_dims = tuple(sorted({d % rank if -rank <= d < rank else d for d in unspecified_dims}))
    wrong_dims = [d for d in open_dims if not 0 <= d < rank]
    if wrong_dims:
        raise NotationError(
            f"unspecified_dims={tuple(unspecified_dims)} names dimension {wrong_dims[0]} of a "
            f"value of shape {jnp.shape(x)}: its dimensions are 0 to {rank - 1}."
        )
    # Parameters of nodes must be plain data, so that graphs can be hashed and saved.
    plain = (mesh.axes, mesh.device_ids)
    return _bind(x, name=None, spec=spec, unspecified_dims=open_dims, mesh=plain)


def mesh_split(
    x: Any, mesh: Mesh, dims_mapping: Sequence[Any], unspecified_dims: Sequence[int] = ()
) -> Any:
    """Return the `Sharding` of a shape, or the annotated value for a JAX value.

    This is the paper's `mesh_split`. See `shardalg.algebra.sharding.mesh_split` for shapes and
    `mesh_split_value` for values.

    >>> mesh_split((64, 1024, 8192), Mesh({"X": 8, "Y": 16}), [0, -1, 1])
    Sharding([X, None, Y], shape=(64, 1024, 8192), Mesh(X=8, Y=16))
    """
    # A shape is a tuple or list; JAX values never are.
    split = split_shape if isinstance(x, tuple | list) else mesh_split_value
    return split(x, mesh, dims_mapping, unspecified_dims)


def mapping_spec(mesh: Mesh, dims_mapping: Sequence[int], *, rank: int) -> Spec:
    """Return the axis names of each dimension of a `dims_mapping`, major first.

    Raises:
      ShardingError: not one entry per dimension, or an axis is used twice.
      NotationError: an entry is no position of an axis in the mesh.

    >>> mapping_spec(Mesh({"X": 2, "Y": 4}), [-1, (0, 1)], rank=2)
    ((), ('X', 'Y'))
    """
    if len(dims_mapping) != rank:
        raise ShardingError(
            f"dims_mapping={list(dims_mapping)} has {len(dims_mapping)} entries for a value of "
            f"{rank} dimensions: give each dimension a mesh axis, or -1."
        )
    spec = tuple(_axis_names(mesh, entry, dims_mapping) for entry in dims_mapping)
    used = [axis for axes in spec for axis in axes]
    repeated = sorted({axis for axis in used if used.count(axis) > 1})
    if repeated:
        raise ShardingError(
            f"dims_mapping={list(dims_mapping)} uses axis {repeated[0]!r} of {mesh!r} twice: an "
            "axis partitions one dimension of a tensor. Put -1 in one of the places."
        )
    return spec


def _axis_names(mesh: Mesh, entry: object, dims_mapping: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the mesh axes at the positions in one entry of a `dims_mapping`.

    Args:
      entry: a position, a tuple of positions, or -1 for no axis.
      dims_mapping: the whole mapping, for the error message.

    Raises:
      NotationError: a position is not in the mesh.
    """
    positions = entry if isinstance(entry, tuple | list) else () if entry == -1 else (entry,)
    names = mesh.axis_names
    for position in positions:
        if not isinstance(position, int) or not 0 <= position < len(names):
            raise NotationError(
                f"{position!r} in dims_mapping={list(dims_mapping)} is no axis of {mesh!r}: its "
                f"axes are {dict(enumerate(names))}, and -1 leaves a dimension unpartitioned."
            )
    return tuple(names[position] for position in positions)


def _bind(x: Any, **params: object) -> Any:
    """Return `x` as the result of an `annotate` equation with these parameters.

    Raises:
      TraceError: `x` is neither an array nor a number.
    """
    if not hasattr(x, "dtype"):
        try:
            x = jnp.asarray(x)
        except (TypeError, ValueError):
            raise TraceError(
                f"an annotation needs one array, got {type(x).__name__}. "
                "Annotate the leaves of a pytree one by one."
            ) from None
    return annotate_p.bind(x, **params)


def _batch(values: tuple[Any], dims: tuple[int], **params: Any) -> tuple[Any, int]:
    """Return the annotated batch and its batch dimension: the batching rule for `vmap`.

    Completion may shard the batch dimension.
    """
    (dim,), spec = dims, params["spec"]
    if spec is not None:
        spec = (*spec[:dim], (), *spec[dim:])
        if params["name"]:
            # A strategy's spec for this site does not count dimensions that `vmap` added.
            params = {**params, "added": _insert_dim(dim, params.get("added", ()))}
    open_dims = _insert_dim(dim, params["unspecified_dims"])
    params = {**params, "spec": spec, "unspecified_dims": open_dims}
    return annotate_p.bind(*values, **params), dim


def _insert_dim(new: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return dimension numbers after a dimension `new` is inserted, together with `new`.

    >>> _insert_dim(1, (0, 2))
    (0, 1, 3)
    """
    return tuple(sorted({new, *(d + (d >= new) for d in dims)}))


# An identity when it is lowered, so that annotated code also runs without a plan.
annotate_p = Primitive("annotate")
annotate_p.def_impl(lambda x, **params: x)
annotate_p.def_abstract_eval(lambda x, **params: x)
ad.deflinear2(annotate_p, lambda cotangent, _, **params: [annotate_p.bind(cotangent, **params)])
batching.primitive_batchers[annotate_p] = _batch
mlir.register_lowering(annotate_p, lambda context, x, **params: [x])
