"""`jax.lax.ragged_dot` as a product with the group of each row as an operand.

JAX gives the sizes of the groups. The rows of a group are known only after the sizes of all groups
before it are added up, so no device could compute with a block of the rows or of the groups. The
expansion computes the group of each row, a vector that is sharded as the rows are:

    ragged_dot(x[m, k], w[g, k, n], sizes[g])  =  grouped_dot(x[m, k], w[g, k, n], group[m])
    group[m] = number of groups that end at or before row m

Row m selects matrix `group[m]` as a gather selects a row of a table. A device with a block of the
groups subtracts its first group from the numbers. Rows with a number outside of `[0, G)` meet no
matrix, as rows behind the last group do in JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

NO_GROUP = 1 << 30
"""The number of a row that is in no group."""


def grouped_rows(equation: Any) -> Callable[..., Any] | None:
    """Return a function equal to a `ragged_dot_general`, made of `row_groups` and `grouped_dot`.

    None if the equation has a group offset, or if the ragged dimension is a batch: the groups then
    have no effect on the product.

    Args:
      equation: the equation of the `ragged_dot_general` in JAX's program.
    """
    params = dict(equation.params)
    left, _, sizes = (var.aval for var in equation.invars)
    numbers = params["ragged_dot_dimension_numbers"]
    prefix = prefix_dims(numbers, left.ndim)
    if prefix is None or params["group_offset"] is not None:
        return None
    (dim,) = numbers.lhs_ragged_dimensions
    count = sizes.shape[-1]
    kept_params = {name: params[name] for name in ("precision", "preferred_element_type")}

    def run(x: Any, w: Any, sizes: Any) -> Any:
        """Return the grouped product, from the sizes of the groups."""
        shape = (*sizes.shape[:-1], left.shape[dim])
        # The rows are numbered from 0 here; on a device, its block's first row replaces the 0.
        group = row_groups_p.bind(np.int32(0), sizes, shape=shape)
        return grouped_dot_p.bind(
            x,
            w,
            group,
            ragged_dot_dimension_numbers=numbers,
            count=count,
            is_shifted=False,
            **kept_params,
        )

    return run


def row_groups(start: Any, sizes: Any, *, shape: tuple[int, ...]) -> Any:
    """Return the number of the group to which each row belongs, for the rows from `start` on.

    The result has the shape `shape`, with the rows along its last dimension. `sizes` has the number
    of rows of each group along its last dimension; its other dimensions are those of `shape`.
    A row after the last group has the number `NO_GROUP`. It is so large that it is no group of a
    device's block either, after the number of the block's first group is subtracted.

    >>> row_groups(1, jnp.array([2, 0, 1]), shape=(3,)).tolist()
    [0, 2, 1073741824]
    """
    ends = jnp.cumsum(sizes, -1, dtype="int32")[..., None, :]
    rows = start + lax.broadcasted_iota("int32", (*shape, 1), len(shape) - 1)
    # A row is behind all groups that end at or before it, so their number is the number of its own.
    group = (rows >= ends).sum(-1, dtype="int32")
    return jnp.where(group == sizes.shape[-1], NO_GROUP, group)


def prefix_dims(numbers: Any, rank: int) -> tuple[int, ...] | None:
    """Return the left operand's dimensions that may have groups of their own, in their order.

    These are the dimensions more major than the ragged one in its role: batch dimensions, then the
    free or contracting dimensions before it. None if the ragged dimension is a batch.

    Source: `jax._src.lax.lax._ragged_dot_prefix_dims`.

    Args:
      numbers: JAX's dimension numbers of the product.
      rank: the rank of the left operand.
    """
    (contracting, _), (batch, _) = numbers.dot_dimension_numbers
    (dim,) = numbers.lhs_ragged_dimensions
    if dim in batch:
        return None
    free = [d for d in range(rank) if d not in (*batch, *contracting)]
    role_dims = contracting if dim in contracting else free
    return (*batch, *role_dims[: list(role_dims).index(dim)])


def grouped_dot(x: Any, w: Any, group: Any, **params: Any) -> Any:
    """Return the product in which row m of `x` is multiplied by the group `group[m]` of `w`.

    A row whose group does not exist gives 0. The numbers in `group` do not decrease, except in the
    padding at the end of a block. The product is `jax.lax.ragged_dot_general`, so that a platform
    runs its own kernel.

    Args:
      group: the number of the group of each row.
      params: of the primitive. `count` is the number of groups. `is_shifted` says that numbers may
        be negative, because the first group of the device is not the first group of the product.

    >>> numbers = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
    >>> kept = {"ragged_dot_dimension_numbers": numbers, "precision": None}
    >>> kept |= {"preferred_element_type": None, "count": 2, "is_shifted": True}
    >>> x, w = jnp.ones((4, 1)), jnp.array([[[2.0]], [[3.0]]])
    >>> grouped_dot(x, w, jnp.array([-1, 0, 1, 2]), **kept)[:, 0].tolist()
    [0.0, 2.0, 3.0, 0.0]
    """
    numbers, count = params["ragged_dot_dimension_numbers"], params["count"]
    (dim,) = numbers.lhs_ragged_dimensions
    (contracting, paired), (batch, _) = numbers.dot_dimension_numbers
    # If the ragged dimension is contracted, the groups divide `w` too, along its dimension `pair`.
    pair = dict(zip(contracting, paired, strict=True)).get(dim)
    # Numbers in the padding at the end are arbitrary. The largest number so far stands in for them.
    group = lax.cummax(group, axis=group.ndim - 1)
    sizes = (group[..., None] == jnp.arange(count, dtype=group.dtype)).sum(-2, dtype="int32")
    run = partial(
        lax.ragged_dot_general,
        ragged_dot_dimension_numbers=numbers,
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    if not params["is_shifted"]:
        return run(x, w, sizes)
    # Negative numbers belong to groups of earlier devices: so many rows come before this device's.
    before = (group < 0).sum(-1, dtype="int32")
    # A result has the batch dimensions, then the free ones of `x`. `place` is the position of the
    # ragged dimension among these; None if it is contracted and the result lacks it.
    free = [d for d in range(x.ndim) if d not in (*batch, *contracting)]
    place = len(batch) + free.index(dim) if pair is None else None
    if group.ndim == 1:
        # The rows of the device's groups move to the front, where the sizes begin. A kernel then
        # computes nothing for the other rows.
        x = jnp.roll(x, -before, dim)
        w = w if pair is None else jnp.roll(w, -before, pair)
        made = run(x, w, sizes)
        made = made if place is None else jnp.roll(made, before, place)
    else:
        # Rows before the device's groups have a group of their own, whose matrix is 0.
        sizes = jnp.concatenate([before[..., None], sizes], -1)
        if place is None:
            return run(x, w, sizes)[1:]
        (groups,) = numbers.rhs_group_dimensions
        made = run(x, jnp.pad(w, [(int(d == groups), 0) for d in range(w.ndim)]), sizes)
    if place is None:
        return made
    # A kernel may leave rows without a group unwritten, and devices are summed. The numbers' last
    # dimension is the result's dimension `place`; the dimensions before it are the same in both.
    has_group = (group >= 0) & (group < count)
    dims = range(place + 1 - group.ndim, place + 1)
    return jnp.where(lax.broadcast_in_dim(has_group, made.shape, dims), made, 0)


# Tracing produces these primitives from `ragged_dot_general`; JAX has no equation of them. The
# start is an operand, so that a device can start at the first row of its block.
row_groups_p = Primitive("row_groups")
row_groups_p.def_impl(row_groups)
row_groups_p.def_abstract_eval(lambda start, sizes, *, shape: start.update(shape=shape))
mlir.register_lowering(row_groups_p, mlir.lower_fun(row_groups, multiple_results=False))

grouped_dot_p = Primitive("grouped_dot")
grouped_dot_p.def_impl(grouped_dot)


@grouped_dot_p.def_abstract_eval
def _result_type(x: Any, w: Any, group: Any, **params: Any) -> Any:
    made = jax.eval_shape(partial(grouped_dot, **params), x, w, group)
    return x.update(shape=made.shape, dtype=made.dtype, weak_type=False)


mlir.register_lowering(grouped_dot_p, mlir.lower_fun(grouped_dot, multiple_results=False))
