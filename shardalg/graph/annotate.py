"""Annotations inside a traced function: an identity primitive that carries axis names.

Beside the names stands the mesh of a `mesh_split`, as data: what it means on the mesh of a plan is
said in `planner.propagate.other_mesh`. Under `grad` the cotangent is annotated
like the value; under `vmap` the new dimension is left open, not replicated.
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
    """`x`, marked as a site that a strategy may shard; its cotangent carries the same name.

    Args:
      x: a JAX value or an array, never a pytree.
      name: what `Strategy(sites={name: ...})` refers to; several sites may share it. A spec there
        is for the rank that `x` has here: dimensions that `vmap` adds are open.

    Raises:
      TraceError: `x` is no array, or the name is no text.

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
    """`x`, of which only some dimensions are specified; completion may partition all others.

    Args:
      x: a JAX value or an array, never a pytree.
      axes: dimension (negative ones count from the end) to the mesh axis that partitions it, or
        None: not partitioned. The axes are those of the mesh on which the function is planned.
      name: of the site, by which a strategy may say something else.

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
    bad = [dim for dim in axes if not -rank <= dim < rank]
    if bad:
        raise NotationError(
            f"axes={dict(axes)} names dimension {bad[0]} of a value of shape {jnp.shape(x)}: its "
            f"dimensions are 0 to {rank - 1}."
        )
    stated = {dim % rank: (axis,) if axis else () for dim, axis in axes.items()}
    spec = tuple(stated.get(dim, ()) for dim in range(rank))
    open_dims = tuple(dim for dim in range(rank) if dim not in stated)
    return _bind(x, name=name, spec=spec, unspecified_dims=open_dims, mesh=None)


def mesh_split_value(
    x: Any, mesh: Mesh, dims_mapping: Sequence[int], unspecified_dims: Sequence[int] = ()
) -> Any:
    """`x`, annotated as tiled by `dims_mapping`: the paper's `mesh_split` on a value.

    Args:
      x: a JAX value or an array.
      mesh: the value lies on it as on that of a NamedSharding: the mesh on which the function is
        planned, or another one over the same devices.
      dims_mapping: per dimension of `x` the position of a mesh axis, several as a tuple (major
        first), or -1 for a dimension that is not partitioned.
      unspecified_dims: dimensions that completion may still partition.

    Raises:
      NotationError: an entry is no position of a mesh axis, or a dimension does not exist.
      ShardingError: wrong number of entries, or an axis on two dimensions.

    >>> mesh = Mesh({"X": 2, "Y": 4})
    >>> mesh_split_value(jnp.zeros((8, 4)), mesh, [1, -1]).shape
    (8, 4)

    Source: GSPMD (arXiv:2105.04663) section 3.1.
    """
    check_mapping(mesh, dims_mapping, unspecified_dims)
    rank = jnp.ndim(x)
    spec = mapping_spec(mesh, dims_mapping, rank=rank)
    open_dims = tuple(sorted({d % rank if -rank <= d < rank else d for d in unspecified_dims}))
    bad = [d for d in open_dims if not 0 <= d < rank]
    if bad:
        raise NotationError(
            f"unspecified_dims={tuple(unspecified_dims)} names dimension {bad[0]} of a value of "
            f"shape {jnp.shape(x)}: its dimensions are 0 to {rank - 1}."
        )
    plain = (mesh.axes, mesh.device_ids)
    return _bind(x, name=None, spec=spec, unspecified_dims=open_dims, mesh=plain)


def mesh_split(
    x: Any, mesh: Mesh, dims_mapping: Sequence[Any], unspecified_dims: Sequence[int] = ()
) -> Any:
    """The paper's `mesh_split`: of a shape the `Sharding`, of a JAX value the annotated value.

    See `shardalg.algebra.sharding.mesh_split` and `mesh_split_value`.

    >>> mesh_split((64, 1024, 8192), Mesh({"X": 8, "Y": 16}), [0, -1, 1])
    Sharding([X, None, Y], shape=(64, 1024, 8192), Mesh(X=8, Y=16))
    """
    of = split_shape if isinstance(x, tuple | list) else mesh_split_value
    return of(x, mesh, dims_mapping, unspecified_dims)


def mapping_spec(mesh: Mesh, dims_mapping: Sequence[int], *, rank: int) -> Spec:
    """Axis names per dimension of a `dims_mapping`, major first.

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
    twice = sorted({axis for axis in used if used.count(axis) > 1})
    if twice:
        raise ShardingError(
            f"dims_mapping={list(dims_mapping)} uses axis {twice[0]!r} of {mesh!r} twice: an axis "
            "partitions one dimension of a tensor. Put -1 in one of the places."
        )
    return spec


def _axis_names(mesh: Mesh, entry: object, dims_mapping: Sequence[int]) -> tuple[str, ...]:
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
    if not hasattr(x, "dtype"):
        try:
            x = jnp.asarray(x)
        except (TypeError, ValueError):
            raise TraceError(
                f"an annotation stands on one array, got {type(x).__name__}. "
                "Annotate the leaves of a pytree one by one."
            ) from None
    return annotate_p.bind(x, **params)


def _batch(values: tuple[Any], dims: tuple[int], **params: Any) -> tuple[Any, int]:
    """The batch dimension joins the annotated ones, open: `vmap` over stages may partition it."""
    (dim,), spec = dims, params["spec"]
    if spec is not None:
        spec = (*spec[:dim], (), *spec[dim:])
        if params["name"]:  # which of the open ones it is: a strategy's spec does not count it
            params = {**params, "added": _with(dim, params.get("added", ()))}
    params = {**params, "spec": spec, "unspecified_dims": _with(dim, params["unspecified_dims"])}
    return annotate_p.bind(*values, **params), dim


def _with(new: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions, with a new one among them."""
    return tuple(sorted({new, *(d + (d >= new) for d in dims)}))


annotate_p = Primitive("annotate")
annotate_p.def_impl(lambda x, **params: x)
annotate_p.def_abstract_eval(lambda x, **params: x)
ad.deflinear2(annotate_p, lambda cotangent, _, **params: [annotate_p.bind(cotangent, **params)])
batching.primitive_batchers[annotate_p] = _batch
mlir.register_lowering(annotate_p, lambda context, x, **params: [x])
