"""A `shard_map` over some axes of a mesh: its body for all places along them, as one program.

A body that is manual along some axes runs on blocks there, and is partitioned along the others by
whoever plans it (XLA: manual subgroups). Along its own axes it is a function of a block, applied to
all blocks: `jax.vmap` over them, with the new dimensions on these axes. What it sends along them is
then an operation along a dimension: a sum is its sum, a permutation its slices in another order.
The planner sees all of it, and lays the rest of every value out on the automatic axes.

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
"""Per dimension the manual axes that split it, major first."""


def mapped_over(
    body: Any, avals: Sequence[Any], axes: Axes, sides: tuple[Sequence[Dims], Sequence[Dims]]
) -> Any | None:
    """The region as a closed jaxpr of whole values; None where `vmap` has no rule for it.

    Args:
      body: of the region, on blocks. avals: of its operands outside.
      axes: (name, size) of those that become manual. sides: of operands and results.
    """
    structs = (jax.ShapeDtypeStruct(v.shape, v.dtype) for v in avals)
    try:
        with _batched_along():
            return jax.make_jaxpr(_whole(body, axes, sides))(*structs)
    except (AssertionError, NotImplementedError, ValueError):
        return None


def sides_of(params: Mapping[str, Any]) -> tuple[Axes, tuple[Sequence[Dims], Sequence[Dims]]]:
    """(axis, size) of the axes that become manual; per operand and result its dimensions' axes."""
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    axes = tuple((name, int(n)) for name, n in sizes if name in manual)
    sides = [
        [tuple((e,) if isinstance(e, str) else tuple(e or ()) for e in spec) for spec in specs]
        for specs in (params["in_specs"], params["out_specs"])
    ]
    return axes, (sides[0], sides[1])


def _on_blocks(
    body: Any, axes: Axes, sides: tuple[Sequence[Dims], Sequence[Dims]]
) -> Callable[..., Any]:
    """The body on all blocks."""
    blocks: Callable[..., Any] = partial(evaluated, body)
    for name, size in reversed(axes):
        given, made = ([_held(dims, name) for dims in side] for side in sides)
        blocks = jax.vmap(blocks, tuple(given), made, axis_name=name, axis_size=size)
    return blocks


def evaluated(body: Any, *operands: Any) -> list[Any]:
    """A body without what JAX's types say of copies, regions in it on all blocks too."""
    jaxpr, consts = getattr(body, "jaxpr", body), getattr(body, "consts", ())
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *operands), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        made = _applied(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, made, strict=True))
    return _arrays([read(atom) for atom in jaxpr.outvars])


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Numbers that a body has as literals as arrays of their item types."""
    return [x if hasattr(x, "shape") else jnp.asarray(x) for x in values]


def _applied(equation: Any, operands: list[Any]) -> Sequence[Any]:
    """The results of one equation."""
    primitive, params = equation.primitive, equation.params
    if primitive.name in _COPIES:
        return operands
    if primitive.name == "shard_map":
        return _in_region(params, _arrays(operands))
    if primitive.name == "cond" and (sums := _sums_behind(params["branches"])):
        return _summed_behind(equation, sums, operands)
    info = equation.source_info
    named = current_name_stack() + info.name_stack
    with user_context(info.traceback, name_stack=named):
        if primitive.name in _INVARIANT:
            return [_INVARIANT[primitive.name](x, params) for x in operands]
        plain = {name: _without_types(value) for name, value in params.items()}
        made = primitive.bind(*operands, **primitive.get_bind_params(plain))
    return made if primitive.multiple_results else [made]


def _in_region(params: Mapping[str, Any], operands: Sequence[Any]) -> list[Any]:
    """The results of a region that stands in another one.

    What JAX keeps of it for the backward pass also has blocks along the axes of the region around,
    of which a place there knows its own; the others are copies of it here.
    """
    axes, sides = sides_of(params)
    mesh, own = params["mesh"], {name for name, _ in axes}
    sizes = dict(zip(mesh.axis_names, map(int, mesh.axis_sizes), strict=True))
    given, made = [[_only(dims, own) for dims in side] for side in sides]
    taken = [_one_of(x, dims, sizes, own) for x, dims in zip(operands, sides[0], strict=True)]
    results = _whole(params["jaxpr"], axes, (given, made))(*taken)
    return [_copied(x, dims, sizes, own) for x, dims in zip(results, sides[1], strict=True)]


def _only(dims: Dims, own: set[str]) -> Dims:
    return tuple(tuple(name for name in names if name in own) for names in dims)


def _one_of(x: Any, dims: Dims, sizes: Mapping[str, int], own: set[str]) -> Any:
    """The first of the copies along axes that are not a region's own."""
    for dim, names in enumerate(dims):
        if not own.issuperset(names):
            counts = [sizes[name] for name in names]
            before, n, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
            cut = x.reshape(*before, *counts, n // int(np.prod(counts)), *after)
            first = tuple(slice(None) if name in own else 0 for name in names)
            rest = n // int(np.prod([sizes[name] for name in names if name not in own]))
            x = cut[(slice(None),) * dim + first].reshape(*before, rest, *after)
    return x


def _copied(x: Any, dims: Dims, sizes: Mapping[str, int], own: set[str]) -> Any:
    """Copies along axes that are not a region's own."""
    for dim, names in enumerate(dims):
        if not own.issuperset(names):
            before, n, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
            counts = [sizes[name] if name in own else 1 for name in names]
            block = n // int(np.prod(counts))
            whole = (*before, *(sizes[name] for name in names), block, *after)
            total = block * int(np.prod([sizes[name] for name in names]))
            cut = x.reshape(*before, *counts, block, *after)
            x = jnp.broadcast_to(cut, whole).reshape(*before, total, *after)
    return x


def _sums_behind(branches: Sequence[ClosedJaxpr]) -> dict[int, tuple[str, ...]]:
    """Results that every branch sums along the same axes as its last step, or leaves at zero.

    So are gradients of what all places share. Places need not take one branch, so that the sum is
    of what each of them makes in its own.
    """
    found: dict[int, tuple[str, ...]] = {}
    for place in range(len(branches[0].jaxpr.outvars)):
        last = [_maker(branch.jaxpr, branch.jaxpr.outvars[place]) for branch in branches]
        sums = [equation for equation in last if _is_sum(equation)]
        axes = {tuple(equation.params["axes"]) for equation in sums}
        if len(axes) == 1 and all(_is_sum(one) or _is_zero(one) for one in last):
            found[place] = axes.pop()
    return found


def _maker(jaxpr: Jaxpr, atom: Any) -> Any:
    return next((e for e in jaxpr.eqns if any(atom is made for made in e.outvars)), None)


def _is_sum(equation: Any) -> bool:
    return equation is not None and equation.primitive.name == "psum_invariant"


def _is_zero(equation: Any) -> bool:
    """Whether an equation is a constant of zeros."""
    given = [getattr(atom, "val", None) for atom in equation.invars] if equation else []
    is_spread = bool(given) and equation.primitive.name == "broadcast_in_dim"
    return is_spread and given[0] is not None and not np.any(given[0])


def _summed_behind(
    equation: Any, sums: Mapping[int, tuple[str, ...]], operands: list[Any]
) -> Sequence[Any]:
    """A choice of branches that leave their sums to what stands behind it."""

    def parts(branch: ClosedJaxpr) -> ClosedJaxpr:
        jaxpr = branch.jaxpr
        outs = list(jaxpr.outvars)
        for place in sums:
            if _is_sum(made := _maker(jaxpr, outs[place])):
                outs[place] = made.invars[made.outvars.index(outs[place])]
        return branch.replace(jaxpr=jaxpr.replace(outvars=outs))

    branches = tuple(map(parts, equation.params["branches"]))
    params = {**equation.params, "branches": branches}
    made = list(_applied(equation.replace(params=params), operands))
    for place, axes in sums.items():
        made[place] = lax.psum(made[place], axes)
    return made


def _without_types(param: Any) -> Any:
    """A parameter, of bodies those of plain types."""
    if isinstance(param, tuple | list):
        return type(param)(map(_without_types, param)) if type(param) in (tuple, list) else param
    if not isinstance(param, ClosedJaxpr | Jaxpr):
        return param
    jaxpr: Any = getattr(param, "jaxpr", param)
    given = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.invars)
    made = jax.make_jaxpr(partial(evaluated, param))(*given)
    if isinstance(param, ClosedJaxpr):
        return made
    if made.consts:
        raise NotImplementedError("a body with constants of its own")
    return getattr(made, "jaxpr", made)


def _held(dims: Dims, name: str) -> int | None:
    """Where blocks along an axis stand of a value that it splits, or does not."""
    return 0 if name in chain.from_iterable(dims) else None


def _whole(
    body: Any, axes: Axes, sides: tuple[Sequence[Dims], Sequence[Dims]]
) -> Callable[..., list[Any]]:
    """The function of whole values, from a body of their blocks."""
    blocks = _on_blocks(body, axes, sides)
    order, sizes = [name for name, _ in axes], dict(axes)

    def function(*operands: Any) -> list[Any]:
        cut = [_cut(x, dims, order, sizes) for x, dims in zip(operands, sides[0], strict=True)]
        made = blocks(*cut)
        return [_joined(x, dims, order, sizes) for x, dims in zip(made, sides[1], strict=True)]

    return function


def _cut(x: Any, dims: Dims, order: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """A value as blocks: a leading dimension per axis that splits it, in the order of the axes."""
    shape, names = [], []
    for n, own in zip(x.shape, (*dims, *[()] * x.ndim), strict=False):
        shape += [*(sizes[name] for name in own), n // int(np.prod([sizes[a] for a in own]))]
        names += [*own, ""]
    places = [names.index(name) for name in order if name in names]
    rest = [place for place, name in enumerate(names) if not name]
    return _on_axes(x.reshape(shape).transpose(*places, *rest), dims, order)


def _joined(x: Any, dims: Dims, order: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """The whole value, from its blocks."""
    x = _on_axes(x, dims, order)
    leading = [name for name in order if name in chain.from_iterable(dims)]
    places, shape, rest = [], [], x.shape[len(leading) :]
    for place, n in enumerate(rest):
        own = dims[place] if place < len(dims) else ()
        places += [*(leading.index(name) for name in own), len(leading) + place]
        shape.append(n * int(np.prod([sizes[name] for name in own])))
    return x.transpose(places).reshape(shape)


def _on_axes(x: Any, dims: Dims, order: Sequence[str]) -> Any:
    """Blocks on the axes that they are blocks along; their own dimensions are open."""
    leading = [(name,) for name in order if name in chain.from_iterable(dims)]
    if not leading:
        return x
    rest = range(len(leading), x.ndim)
    spec = (*leading, *[() for _ in rest])
    return annotate_p.bind(x, name=None, spec=spec, unspecified_dims=tuple(rest), mesh=None)


_COPIES = ("pvary", "pcast")
_INVARIANT: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "psum_invariant": lambda x, params: lax.psum(x, params["axes"]),
    "all_gather_invariant": lambda x, params: lax.all_gather(
        x, params["axis_name"], axis=params["all_gather_dimension"], tiled=params["tiled"]
    ),
}


@contextmanager
def _batched_along() -> Iterator[None]:
    """`vmap` makes of collectives what they are along a dimension.

    JAX's own rules sum with a collective, know no permutation with places that nobody serves, and
    lose a dimension of what is sent along another axis (jax 0.10.2).
    """
    table = batching.fancy_primitive_batchers
    own: dict[Any, Any] = {
        p: partial(_moved, p, *_MOVED[p.name]) for p in table if p.name in _MOVED
    }
    own |= {primitive: partial(_reduce, primitive) for primitive in _REDUCED}
    before = {primitive: table[primitive] for primitive in own}
    table.update(own)
    try:
        yield
    finally:
        table.update(before)


_REDUCED: dict[Any, tuple[Callable[[Any, int], Any], Callable[[Any, int], Any]]] = {
    lax.psum_p: (lambda x, dim: x.sum(dim, dtype=x.dtype), lambda x, size: x * size),
    lax.pmax_p: (lambda x, dim: x.max(dim), lambda x, size: x),
    lax.pmin_p: (lambda x, dim: x.min(dim), lambda x, size: x),
}
"""Reduction along an axis: of a dimension, and of a value that is alike on all of so many."""


def _reduce(
    primitive: Any, axis: Any, values: Sequence[Any], dims: Sequence[Any], **params: Any
) -> Any:
    """The members' values joined."""
    (x,), (dim,), axes, groups = values, dims, params["axes"], params["axis_index_groups"]
    rest = {**params, "axes": tuple(name for name in axes if name != axis.name)}
    if groups is not None and axis.name in axes:
        if len(axes) > 1:
            raise NotImplementedError(f"groups along {axes} at once")
        return _reduced_in_groups(primitive, x, dim, np.asarray(groups))
    if axis.name in axes:
        split, alike = _REDUCED[primitive]
        x, dim = alike(x, axis.size) if dim is None else split(x, dim), None
    return (primitive.bind(x, **rest) if rest["axes"] else x), dim


def _reduced_in_groups(primitive: Any, x: Any, dim: Any, groups: np.ndarray) -> tuple[Any, Any]:
    """Of each place what its group joins; groups of one size (others are no array)."""
    split, alike = _REDUCED[primitive]
    if dim is None:
        return alike(x, groups.shape[1]), None
    stack = jnp.moveaxis(x, dim, 0)
    is_strided = (groups.T.ravel() == np.arange(groups.size)).all()
    laid = groups.T if is_strided else groups
    member = 0 if is_strided else 1
    blocks = _reordered(stack, laid.ravel()).reshape(*laid.shape, *stack.shape[1:])
    joined = jnp.broadcast_to(jnp.expand_dims(split(blocks, member), member), blocks.shape)
    return _reordered(joined.reshape(stack.shape), np.argsort(laid.ravel())), 0


def _reordered(stack: Any, order: np.ndarray) -> Any:
    """Blocks of these places."""
    if (order == np.arange(order.size)).all():
        return stack
    return lax.concatenate(list(_pieces(stack, dict(enumerate(order.tolist())), order.size)), 0)


def _stack(axis: Any, x: Any, dim: Any) -> Any:
    """Blocks along the axis, leading."""
    return lax.broadcast(x, (axis.size,)) if dim is None else jnp.moveaxis(x, dim, 0)


def _on_axis(name: str, stack: Any) -> Any:
    """Blocks on the axis that they are blocks along; their own dimensions are open."""
    rest = tuple(range(1, stack.ndim))
    spec = ((name,), *[() for _ in rest])
    return annotate_p.bind(stack, name=None, spec=spec, unspecified_dims=rest, mesh=None)


def _is_along(axis: Any, primitive: Any, params: Mapping[str, Any]) -> bool:
    """Whether something is sent along the axis.

    Raises:
      NotImplementedError: along others as well, or over groups of it.
    """
    names = params["axis_name"]
    names = names if isinstance(names, tuple | list) else (names,)
    if axis.name not in names:
        return False
    if len(names) > 1 or params.get("axis_index_groups") is not None:
        raise NotImplementedError(f"{primitive.name} along {names}, or over groups")
    return True


def _moved(
    primitive: Any,
    along: Callable[..., tuple[Any, Any]],
    places: Sequence[str],
    axis: Any,
    values: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> tuple[Any, Any]:
    """A collective that moves blocks: `along` this axis, or another in all blocks of this one.

    Args:
      places: parameters that are a dimension of a block.
    """
    (x,), (dim,) = values, dims
    if _is_along(axis, primitive, params):
        stack = _stack(axis, x, dim)
        is_cut = dim is not None and along is _exchange
        return along(_on_axis(axis.name, stack) if is_cut else stack, params)
    if dim is None:
        return primitive.bind(x, **params), None
    behind = {name: params[name] + 1 for name in places}
    return primitive.bind(jnp.moveaxis(x, dim, 0), **params | behind), 0


def _permute(stack: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Blocks in another order, zeros where nobody sends: slices of their dimension side by side."""
    size = len(stack)
    sources = {target % size: source % size for source, target in params["perm"]}
    return lax.concatenate(list(_pieces(stack, sources, size)), 0), 0


def _gather(stack: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """All blocks, which are alike everywhere."""
    dim = params["all_gather_dimension"]
    made = jnp.moveaxis(stack, 0, dim)
    return (_merged(made, dim) if params["tiled"] else made), None


def _scatter(stack: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """The part of the sum that stands at a block's place."""
    dim = params["scatter_dimension"]
    made = stack.sum(0, dtype=stack.dtype)
    return (_split(made, dim, len(stack)) if params["tiled"] else made), dim


def _exchange(stack: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Of each block the part that is for a place.

    Its dimensions change places, so that completion would take the axis of one to the other.
    """
    split, concat = params["split_axis"] + 1, params["concat_axis"] + 1
    parts = _split(stack, split, len(stack)) if params["tiled"] else stack
    made = jnp.moveaxis(jnp.moveaxis(parts, split, 0), 1, concat)
    return (_merged(made, concat) if params["tiled"] else made), 0


def _merged(x: Any, dim: int) -> Any:
    """A dimension and the next one as one."""
    return x.reshape(*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2 :])


def _split(x: Any, dim: int, count: int) -> Any:
    """A dimension as so many parts, and what is in each."""
    return x.reshape(*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :])


_MOVED: dict[str, tuple[Callable[..., tuple[Any, Any]], Sequence[str]]] = {
    "ppermute": (_permute, ()),
    "all_gather": (_gather, ["all_gather_dimension"]),
    "reduce_scatter": (_scatter, ["scatter_dimension"]),
    "all_to_all": (_exchange, ["split_axis", "concat_axis"]),
}
"""What is sent along an axis as an operation on its dimension; parameters that name one."""


def _pieces(stack: Any, sources: Mapping[int, int], size: int) -> Iterator[Any]:
    """Runs of places that are served by a run of senders, and of those that nobody serves."""
    place = 0
    while place < size:
        end, first = place + 1, sources.get(place)
        while end < size and sources.get(end) == (None if first is None else first + end - place):
            end += 1
        if first is None:
            yield jnp.zeros((end - place, *stack.shape[1:]), stack.dtype)
        else:
            yield lax.slice_in_dim(stack, first, first + end - place, axis=0)
        place = end
