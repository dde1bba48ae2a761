"""Rewrite of a `shard_map` over some axes of a mesh to a program on whole values.

The body of such a region runs on blocks along its manual axes and is partitioned along the other
axes (XLA: manual subgroups). Here it becomes `jax.vmap` of the body over all blocks, and the new
dimensions are annotated with the manual axes. A collective then becomes an operation along a
dimension: a `psum` is the sum over the dimension, and a `ppermute` concatenates slices in another
order. The planner sees the whole program and shards the other dimensions on the automatic axes.

    x: f32[8, 16], P("p")  =  blocks f32[2, 4, 16] on p  ->  vmap(body, axis_name="p")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.extend.source_info_util import current_name_stack, user_context
from jax.interpreters import batching

from shardalg.graph.annotate import annotate_p

Axes = tuple[tuple[str, int], ...]
Dims = tuple[tuple[str, ...], ...]
"""By dimension of a value, the manual axes along which it is split into blocks, major first."""


def mapped_over(
    body: Any, avals: Sequence[Any], axes: Axes, sides: tuple[Sequence[Dims], Sequence[Dims]]
) -> Any | None:
    """Return a `shard_map` as a closed jaxpr that computes on whole values.

    Return None if `vmap` has no rule for an equation of its body.

    Args:
      body: the body, which computes on blocks.
      avals: the types of the operands outside of the region.
      axes: (name, size) of the axes that become manual.
      sides: the specs of operands and of results.
    """
    structs = (jax.ShapeDtypeStruct(v.shape, v.dtype) for v in avals)
    try:
        with _batching_rules():
            return jax.make_jaxpr(_on_whole_values(body, axes, sides))(*structs)
    except (AssertionError, NotImplementedError, ValueError):
        return None


def sides_of(params: Mapping[str, Any]) -> tuple[Axes, tuple[Sequence[Dims], Sequence[Dims]]]:
    """Return the manual axes of a `shard_map` with their sizes, and its specs.

    The specs are a pair, of operands and of results. A spec has a tuple of axis names for each
    dimension.
    """
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    axes = tuple((name, int(n)) for name, n in sizes if name in manual)
    # JAX allows three forms of an entry: an axis name, a tuple of names, and None for no axis.
    sides = [
        [tuple((e,) if isinstance(e, str) else tuple(e or ()) for e in spec) for spec in specs]
        for specs in (params["in_specs"], params["out_specs"])
    ]
    return axes, (sides[0], sides[1])


def evaluated(body: Any, *operands: Any) -> list[Any]:
    """Return the results of a `shard_map`'s body, evaluated equation by equation.

    Regions inside of the body are rewritten to whole values too.
    JAX's types say along which manual axes a value varies. Whole values have no such types, so the
    primitives that only change them are left out.
    """
    jaxpr, consts = getattr(body, "jaxpr", body), getattr(body, "consts", ())
    value_of = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *operands), strict=True))

    def read(atom: Any) -> Any:
        """Return the value of a variable, or of a literal, which has its value itself."""
        return atom.val if hasattr(atom, "val") else value_of[atom]

    for equation in jaxpr.eqns:
        results = _bind_equation(equation, [read(atom) for atom in equation.invars])
        value_of.update(zip(equation.outvars, results, strict=True))
    return _arrays([read(atom) for atom in jaxpr.outvars])


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Return the values with each Python number converted to an array."""
    return [x if hasattr(x, "shape") else jnp.asarray(x) for x in values]


def _bind_equation(equation: Any, operands: list[Any]) -> Sequence[Any]:
    """Return the results of one equation of a body for these operands."""
    primitive, params = equation.primitive, equation.params
    # `pvary` and `pcast` change only JAX's type of a value: the axes along which it varies.
    if primitive.name in _COPIES:
        return operands
    if primitive.name == "shard_map":
        return _nested_region(params, _arrays(operands))
    # Devices may take different branches, so a sum over devices is taken behind the branches.
    if primitive.name == "cond" and (sums := _common_sums(params["branches"])):
        return _sum_after_branches(equation, sums, operands)
    # Messages and modules of nodes name the user's line and scopes, so new equations keep them.
    info = equation.source_info
    named = current_name_stack() + info.name_stack
    with user_context(info.traceback, name_stack=named):
        # On whole values there are no types of varying axes: use the plain collective.
        if primitive.name in _INVARIANT:
            return [_INVARIANT[primitive.name](x, params) for x in operands]
        plain = {name: _without_types(value) for name, value in params.items()}
        results = primitive.bind(*operands, **primitive.get_bind_params(plain))
    return results if primitive.multiple_results else [results]


def _nested_region(params: Mapping[str, Any], operands: Sequence[Any]) -> list[Any]:
    """Return the results of a `shard_map` inside another one, computed on whole values.

    The specs of an operand may also name axes of the outer region, as those of residuals do. Along
    these axes, the operand has equal copies of one block. The body runs on the first copy, and its
    results are copied again along these axes.
    """
    axes, sides = sides_of(params)
    mesh, own = params["mesh"], {name for name, _ in axes}
    sizes = dict(zip(mesh.axis_names, map(int, mesh.axis_sizes), strict=True))
    # The body has blocks along its own axes only, so the specs are cut to these.
    inner = [
        [tuple(tuple(name for name in names if name in own) for names in dims) for dims in side]
        for side in sides
    ]
    first = [_first_copy(x, dims, sizes, own) for x, dims in zip(operands, sides[0], strict=True)]
    results = _on_whole_values(params["jaxpr"], axes, (inner[0], inner[1]))(*first)
    return [_all_copies(x, dims, sizes, own) for x, dims in zip(results, sides[1], strict=True)]


def _first_copy(x: Any, dims: Dims, sizes: Mapping[str, int], own: set[str]) -> Any:
    """Return the first of the copies of a value along the axes of the outer region.

    Each block along an outer axis has a copy of the inner region's value. For example, a dimension
    of 12 elements on an outer axis of size 3 has 3 copies of 4 elements; the first 4 are returned.

    Args:
      dims: the axes that split each dimension of `x`.
      sizes: the size of each axis.
      own: the axes of the inner region, along which there are no copies.
    """
    for dim, names in enumerate(dims):
        if not own.issuperset(names):
            # With one dimension per axis, index 0 selects the first copy along an outer axis.
            axis_sizes = [sizes[name] for name in names]
            before, n, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
            split_x = x.reshape(*before, *axis_sizes, n // int(np.prod(axis_sizes)), *after)
            index_of_axes = tuple(slice(None) if name in own else 0 for name in names)
            new_size = n // int(np.prod([sizes[name] for name in names if name not in own]))
            x = split_x[(slice(None),) * dim + index_of_axes].reshape(*before, new_size, *after)
    return x


def _all_copies(x: Any, dims: Dims, sizes: Mapping[str, int], own: set[str]) -> Any:
    """Return a value with each of its blocks repeated along the axes of the outer region.

    This is the inverse of `_first_copy`, which keeps one of these equal blocks.

    Args:
      dims: the axes that split each dimension of the result.
      sizes: the size of each axis.
      own: the axes of the inner region, along which blocks differ and are not repeated.
    """
    for dim, names in enumerate(dims):
        if not own.issuperset(names):
            # With one dimension per axis, a broadcast of size 1 gives the copies along outer axes.
            before, n, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
            counts = [sizes[name] if name in own else 1 for name in names]
            block = n // int(np.prod(counts))
            whole = (*before, *(sizes[name] for name in names), block, *after)
            total = block * int(np.prod([sizes[name] for name in names]))
            cut = x.reshape(*before, *counts, block, *after)
            x = jnp.broadcast_to(cut, whole).reshape(*before, total, *after)
    return x


def _common_sums(branches: Sequence[ClosedJaxpr]) -> dict[int, tuple[str, ...]]:
    """Return the results that every branch sums over the same axes in its last step, or sets to 0.

    Keys are positions of results, values are the axes. Gradients of replicated values are such
    results. Devices may take different branches. The sum behind the branches then adds each
    device's own branch.
    """
    axes_of_result: dict[int, tuple[str, ...]] = {}
    for result in range(len(branches[0].jaxpr.outvars)):
        last_equations = [
            _producer(branch.jaxpr, branch.jaxpr.outvars[result]) for branch in branches
        ]
        sums = [equation for equation in last_equations if _is_sum(equation)]
        axes = {tuple(equation.params["axes"]) for equation in sums}
        # A branch that returns 0 contributes nothing to the sum, so it may lack the sum.
        if len(axes) == 1 and all(_is_sum(one) or _is_zero(one) for one in last_equations):
            axes_of_result[result] = axes.pop()
    return axes_of_result


def _producer(jaxpr: Jaxpr, atom: Any) -> Any:
    """Return the equation of a jaxpr that computes a variable; None for inputs and literals."""
    return next((e for e in jaxpr.eqns if any(atom is out for out in e.outvars)), None)


def _is_sum(equation: Any) -> bool:
    """Return whether an equation is a `psum_invariant`: a sum that is equal on each device."""
    return equation is not None and equation.primitive.name == "psum_invariant"


def _is_zero(equation: Any) -> bool:
    """Return whether an equation is a broadcast of the literal 0."""
    given = [getattr(atom, "val", None) for atom in equation.invars] if equation else []
    is_fill = bool(given) and equation.primitive.name == "broadcast_in_dim"
    return is_fill and given[0] is not None and not np.any(given[0])


def _sum_after_branches(
    equation: Any, sums: Mapping[int, tuple[str, ...]], operands: list[Any]
) -> Sequence[Any]:
    """Return the results of a `cond`, with the last sum of some results moved after the branches.

    A sum in a branch would wait for devices that take another branch.

    Args:
      equation: the `cond`.
      sums: the axes of these sums, by the position of the result.
      operands: the operands of the `cond`.
    """

    def without_sums(branch: ClosedJaxpr) -> ClosedJaxpr:
        """Return a branch that omits the last sum of each result whose index is in `sums`.

        The branch then returns the operand of this sum. The caller sums after the conditional.
        """
        jaxpr = branch.jaxpr
        outs = list(jaxpr.outvars)
        for result in sums:
            if _is_sum(last := _producer(jaxpr, outs[result])):
                outs[result] = last.invars[last.outvars.index(outs[result])]
        return branch.replace(jaxpr=jaxpr.replace(outvars=outs))

    branches = tuple(map(without_sums, equation.params["branches"]))
    params = {**equation.params, "branches": branches}
    results = list(_bind_equation(equation.replace(params=params), operands))
    for result, axes in sums.items():
        results[result] = lax.psum(results[result], axes)
    return results


def _without_types(param: Any) -> Any:
    """Return an equation's parameter with its jaxprs traced again, on whole values.

    JAX's types in a jaxpr of a region say along which axes a value varies. The new jaxprs have no
    such types. Parameters without jaxprs are not changed.
    """
    if isinstance(param, tuple | list):
        return type(param)(map(_without_types, param)) if type(param) in (tuple, list) else param
    if not isinstance(param, ClosedJaxpr | Jaxpr):
        return param
    jaxpr: Any = getattr(param, "jaxpr", param)
    input_types = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.invars)
    retraced = jax.make_jaxpr(partial(evaluated, param))(*input_types)
    if isinstance(param, ClosedJaxpr):
        return retraced
    # An open jaxpr has no place for constants that the new trace captured.
    if retraced.consts:
        raise NotImplementedError("a body with constants of its own")
    return getattr(retraced, "jaxpr", retraced)


def _on_whole_values(
    body: Any, axes: Axes, sides: tuple[Sequence[Dims], Sequence[Dims]]
) -> Callable[..., list[Any]]:
    """Return a function on whole values that computes the same as a `shard_map`.

    It splits its operands into blocks, maps the body over the blocks, and joins their results.

    Args:
      body: the body, which computes on blocks.
      axes: (name, size) of the manual axes.
      sides: the specs of operands and of results.
    """
    blocks: Callable[..., Any] = partial(evaluated, body)
    # The last axis is the innermost `vmap`, so that the blocks' leading dimensions have the order
    # of the axes, as in `_to_blocks`.
    for name, size in reversed(axes):
        # A value that the axis splits has its blocks along the leading dimension.
        in_axes, out_axes = (
            [0 if name in chain.from_iterable(dims) else None for dims in side] for side in sides
        )
        blocks = jax.vmap(blocks, tuple(in_axes), out_axes, axis_name=name, axis_size=size)
    order, sizes = [name for name, _ in axes], dict(axes)

    def function(*operands: Any) -> list[Any]:
        pairs = zip(operands, sides[0], strict=True)
        results = blocks(*[_to_blocks(x, dims, order, sizes) for x, dims in pairs])
        pairs = zip(results, sides[1], strict=True)
        return [_from_blocks(x, dims, order, sizes) for x, dims in pairs]

    return function


def _to_blocks(x: Any, dims: Dims, order: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """Return a value as blocks, with a leading dimension for each axis that splits it.

    Args:
      dims: the axes that split each dimension of `x`.
      order: all manual axes; the leading dimensions have this order.
      sizes: the size of each axis.
    """
    shape, names = [], []
    # `dims` may be shorter than the rank: no axis splits the dimensions behind it. A dimension of 8
    # that an axis of size 2 splits becomes (2, 4).
    for n, own in zip(x.shape, (*dims, *[()] * x.ndim), strict=False):
        shape += [*(sizes[name] for name in own), n // int(np.prod([sizes[a] for a in own]))]
        names += [*own, ""]
    # Dimensions of blocks move to the front, in the order in which `vmap` removes them.
    places = [names.index(name) for name in order if name in names]
    rest = [place for place, name in enumerate(names) if not name]
    return _on_axes(x.reshape(shape).transpose(*places, *rest), dims, order)


def _from_blocks(x: Any, dims: Dims, order: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """Return the whole value from its blocks: the inverse of `_to_blocks`.

    Args:
      x: the blocks, with a leading dimension for each axis that splits the value.
      dims: the axes that split each dimension of the value.
      order: all manual axes; the leading dimensions of `x` have this order.
      sizes: the size of each axis.
    """
    x = _on_axes(x, dims, order)
    leading = [name for name in order if name in chain.from_iterable(dims)]
    places, shape, rest = [], [], x.shape[len(leading) :]
    # Each dimension follows the dimensions of its blocks, major first, and is merged with them.
    for place, n in enumerate(rest):
        own = dims[place] if place < len(dims) else ()
        places += [*(leading.index(name) for name in own), len(leading) + place]
        shape.append(n * int(np.prod([sizes[name] for name in own])))
    return x.transpose(places).reshape(shape)


def _on_axes(x: Any, dims: Dims, order: Sequence[str]) -> Any:
    """Return stacked blocks with each leading dimension annotated with the mesh axis of its blocks.

    Other dimensions are left open.

    Args:
      dims: the axes that split each dimension of the value.
      order: the order of the axes among the leading dimensions.
    """
    return _annotate_leading(x, [name for name in order if name in chain.from_iterable(dims)])


def _annotate_leading(x: Any, names: Sequence[str]) -> Any:
    """Return `x` with its leading dimensions annotated with mesh axes; other dimensions are open.

    Without axes, return `x` itself.

    Args:
      names: the axis of each leading dimension.
    """
    if not names:
        return x
    open_dims = tuple(range(len(names), x.ndim))
    spec = (*((name,) for name in names), *[() for _ in open_dims])
    return annotate_p.bind(x, name=None, spec=spec, unspecified_dims=open_dims, mesh=None)


_COPIES = ("pvary", "pcast")
_INVARIANT: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "psum_invariant": lambda x, params: lax.psum(x, params["axes"]),
    "all_gather_invariant": lambda x, params: lax.all_gather(
        x, params["axis_name"], axis=params["all_gather_dimension"], tiled=params["tiled"]
    ),
}


@contextmanager
def _batching_rules() -> Iterator[None]:
    """Replace the `vmap` rules of collectives by operations along a dimension, within a `with`.

    JAX's own rules are not suitable (jax 0.10.2): they sum with a collective, do not support
    permutations with devices that receive nothing, and lose a dimension of a value that is sent
    along another axis.
    """
    # The table is global in JAX, so the rules are replaced only while the region is traced.
    table = batching.fancy_primitive_batchers
    own_rules: dict[Any, Any] = {
        p: partial(_batch_movement, p, *_MOVEMENTS[p.name]) for p in table if p.name in _MOVEMENTS
    }
    own_rules |= {primitive: partial(_batch_reduction, primitive) for primitive in _REDUCED}
    before = {primitive: table[primitive] for primitive in own_rules}
    table.update(own_rules)
    try:
        yield
    finally:
        table.update(before)


_REDUCED: dict[Any, tuple[Callable[[Any, int], Any], Callable[[Any, int], Any]]] = {
    lax.psum_p: (lambda x, dim: x.sum(dim, dtype=x.dtype), lambda x, size: x * size),
    lax.pmax_p: (lambda x, dim: x.max(dim), lambda x, size: x),
    lax.pmin_p: (lambda x, dim: x.min(dim), lambda x, size: x),
}
"""By reduction along an axis, two functions.

The first one is for a value whose dimension `dim` is the axis. The second one is for a value that
is equal on all `size` devices and therefore has no such dimension.
"""


def _batch_reduction(
    primitive: Any, axis: Any, values: Sequence[Any], dims: Sequence[Any], **params: Any
) -> Any:
    """Return the result and its batch dimension: the `vmap` rule of a `psum`, `pmax` or `pmin`.

    The reduction along the mapped axis is along a dimension. A reduction along other axes remains a
    collective.
    """
    (x,), (dim,), axes, groups = values, dims, params["axes"], params["axis_index_groups"]
    other_params = {**params, "axes": tuple(name for name in axes if name != axis.name)}
    if groups is not None and axis.name in axes:
        if len(axes) > 1:
            raise NotImplementedError(f"groups along {axes} at once")
        return _reduce_in_groups(primitive, x, dim, np.asarray(groups))
    # Devices along the mapped axis are the elements of the dimension `dim`. A value without it is
    # equal on all of them, so that its sum is `size` times the value.
    if axis.name in axes:
        of_dimension, of_equal = _REDUCED[primitive]
        x, dim = of_equal(x, axis.size) if dim is None else of_dimension(x, dim), None
    return (primitive.bind(x, **other_params) if other_params["axes"] else x), dim


def _reduce_in_groups(primitive: Any, x: Any, dim: Any, groups: np.ndarray) -> tuple[Any, Any]:
    """Return a reduction over groups of the mapped axis, and its batch dimension.

    Args:
      dim: the dimension of `x` that is the axis; None if `x` is equal on all its devices.
      groups: the devices of each group, one row per group.
    """
    of_dimension, of_equal = _REDUCED[primitive]
    if dim is None:
        return of_equal(x, groups.shape[1]), None
    stack = jnp.moveaxis(x, dim, 0)
    # Strided groups, such as (0, 2), (1, 3), need no reordering if the group's dimension is minor.
    is_strided = (groups.T.ravel() == np.arange(groups.size)).all()
    table = groups.T if is_strided else groups
    # Along `member` are the devices of one group, so a reduction over it has a result per group.
    member = 0 if is_strided else 1
    blocks = _reorder(stack, table.ravel()).reshape(*table.shape, *stack.shape[1:])
    reduced = jnp.expand_dims(of_dimension(blocks, member), member)
    # Every device of a group has the result. `argsort` is the inverse permutation: it puts the
    # devices back into their old order.
    everywhere = jnp.broadcast_to(reduced, blocks.shape).reshape(stack.shape)
    return _reorder(everywhere, np.argsort(table.ravel())), 0


def _reorder(stack: Any, order: np.ndarray) -> Any:
    """Return blocks, stacked along the leading dimension, in another order.

    Args:
      order: the old position of each block.
    """
    if (order == np.arange(order.size)).all():
        return stack
    return lax.concatenate(list(_pieces(stack, dict(enumerate(order.tolist())), order.size)), 0)


def _is_along(axis: Any, primitive: Any, params: Mapping[str, Any]) -> bool:
    """Return whether a collective is along the mapped axis.

    The mapped axis is the one whose blocks `vmap` maps over.

    Raises:
      NotImplementedError: the collective is along other axes too, or over groups of the axis.
    """
    names = params["axis_name"]
    names = names if isinstance(names, tuple | list) else (names,)
    if axis.name not in names:
        return False
    if len(names) > 1 or params.get("axis_index_groups") is not None:
        raise NotImplementedError(f"{primitive.name} along {names}, or over groups")
    return True


def _batch_movement(
    primitive: Any,
    along: Callable[..., tuple[Any, Any]],
    places: Sequence[str],
    axis: Any,
    values: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> tuple[Any, Any]:
    """Return the result and its batch dimension: the `vmap` rule of a collective that moves blocks.

    Along the mapped axis, the blocks are moved along a dimension. Along another axis, the
    collective is bound on all blocks of the mapped axis at once.

    Args:
      along: the operation on the leading dimension of the stacked blocks.
      places: names of the parameters that are a dimension of a block.
    """
    (x,), (dim,) = values, dims
    if _is_along(axis, primitive, params):
        stack = lax.broadcast(x, (axis.size,)) if dim is None else jnp.moveaxis(x, dim, 0)
        # Without the annotation, completion would move the axis to the other dimension.
        is_split = dim is not None and along is _exchange
        return along(_annotate_leading(stack, [axis.name]) if is_split else stack, params)
    if dim is None:
        return primitive.bind(x, **params), None
    shifted = {name: params[name] + 1 for name in places}
    return primitive.bind(jnp.moveaxis(x, dim, 0), **params | shifted), 0


def _permute(stack: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the result of a `ppermute` on stacked blocks, and its batch dimension.

    The blocks are in another order, with zeros for devices that receive nothing.
    """
    # JAX counts negative device numbers from the end.
    size = len(stack)
    sources = {target % size: source % size for source, target in params["perm"]}
    return lax.concatenate(list(_pieces(stack, sources, size)), 0), 0


def _gather(stack: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the result of an `all_gather` of stacked blocks.

    The result is equal on all devices, so its batch dimension is None.
    """
    dim = params["all_gather_dimension"]
    gathered = jnp.moveaxis(stack, 0, dim)
    return (_merge_dims(gathered, dim) if params["tiled"] else gathered), None


def _scatter(stack: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the result of a `reduce_scatter` of stacked blocks, and its batch dimension.

    It is the sum of the blocks, in which the batch dimension separates the devices' parts.
    """
    dim = params["scatter_dimension"]
    total = stack.sum(0, dtype=stack.dtype)
    return (_split_dim(total, dim, len(stack)) if params["tiled"] else total), dim


def _exchange(stack: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the result of an `all_to_all` of stacked blocks, and its batch dimension.

    The dimension of the senders and the dimension of the parts change places.
    """
    split, concat = params["split_axis"] + 1, params["concat_axis"] + 1
    parts = _split_dim(stack, split, len(stack)) if params["tiled"] else stack
    exchanged = jnp.moveaxis(jnp.moveaxis(parts, split, 0), 1, concat)
    return (_merge_dims(exchanged, concat) if params["tiled"] else exchanged), 0


def _merge_dims(x: Any, dim: int) -> Any:
    """Return `x` with the dimensions `dim` and `dim + 1` merged into one."""
    return x.reshape(*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2 :])


def _split_dim(x: Any, dim: int, count: int) -> Any:
    """Return `x` with the dimension `dim` split into `count` parts and the elements of a part."""
    return x.reshape(*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :])


_MOVEMENTS: dict[str, tuple[Callable[..., tuple[Any, Any]], Sequence[str]]] = {
    "ppermute": (_permute, ()),
    "all_gather": (_gather, ["all_gather_dimension"]),
    "reduce_scatter": (_scatter, ["scatter_dimension"]),
    "all_to_all": (_exchange, ["split_axis", "concat_axis"]),
}
"""By collective, (the operation on stacked blocks, the parameters that are a block's dimension)."""


def _pieces(stack: Any, sources: Mapping[int, int], size: int) -> Iterator[Any]:
    """Yield slices of stacked blocks whose concatenation is the blocks that `size` receivers get.

    Consecutive receivers with consecutive senders share one slice. Receivers without a sender get
    zeros.

    Args:
      sources: the sender of each receiver that has one.
    """
    place = 0
    while place < size:
        end, first = place + 1, sources.get(place)
        # One slice for a run of consecutive senders, and one array of zeros for a run of receivers
        # without a sender, keep the program small.
        while end < size and sources.get(end) == (None if first is None else first + end - place):
            end += 1
        if first is None:
            yield jnp.zeros((end - place, *stack.shape[1:]), stack.dtype)
        else:
            yield lax.slice_in_dim(stack, first, first + end - place, axis=0)
        place = end
