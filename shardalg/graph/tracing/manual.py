"""Translation of `shard_map` to a call whose body every device runs on its own blocks.

`manual` is the public wrapper for functions that are manual along some mesh axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardalg.errors import TraceError
from shardalg.graph.ir import ValueType
from shardalg.graph.source import Sources
from shardalg.graph.tracing.jaxpr import (
    Bodies,
    GraphBuilder,
    Placing,
    Scope,
    call,
    plain_node,
    site,
    site_params,
)
from shardalg.graph.tracing.parts import sorts_permutes
from shardalg.graph.tracing.subgroups import Axes, Dims, mapped_over


def _region(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a `shard_map`, and annotate its operands and results with its specs; return the results.

    A region over some axes of the mesh is rewritten to whole values (`subgroups.py`), so that its
    body is planned on the other axes. A region that reduces over groups of an axis is rewritten
    too.
    """
    axes, sides = region_axes(equation.params, place.source)
    _check_permutations(equation, place)
    _check_dimensions(equation, place)
    # Regions inside of a manual region are rewritten together with it, or stay manual with it.
    if not place.manual and _is_rewritten(equation, axes):
        avals = [var.aval for var in equation.invars]
        body = mapped_over(equation.params["jaxpr"], avals, axes, sides)
        if body is not None:
            # The rewritten region depends on the sizes of its axes, and of regions in it.
            builder.block_axes.update(equation.params["newly_manual_axes"])
            for inner_equation in equations(equation.params["jaxpr"]):
                builder.block_axes.update(inner_equation.params.get("newly_manual_axes", ()))
            given = _with_sites(builder, operands, sides[0], place, is_open=True)
            return _with_sites(
                builder, builder.run(body, given, place), sides[1], place, is_open=True
            )
    # Otherwise all axes are manual (or `vmap` has no rule): the region is a call with a body.
    order = tuple(map(str, equation.params["mesh"].axis_names))
    inner = place._replace(manual=place.manual | dict(axes).keys(), order=order)
    body = equation.params["jaxpr"]
    labels = [f"operand{i}" for i in range(len(operands))]
    given = _with_sites(builder, operands, sides[0], place)
    plain = {"axes": axes, "in_axes": sides[0], "out_axes": sides[1]}
    results = call(builder, equation, given, inner, Bodies([(body, labels)], (), plain))
    return _with_sites(builder, results, sides[1], place)


def _check_permutations(equation: Any, place: Scope) -> None:
    """Raise TraceError if a `ppermute` of a region names a sender or a receiver twice."""
    mesh = equation.params["mesh"]
    sizes = dict(zip(mesh.axis_names, map(int, mesh.axis_sizes), strict=True))
    for inner in equations(equation.params["jaxpr"]):
        if inner.primitive.name != "ppermute":
            continue
        names, pairs = _axes(inner), inner.params["perm"]
        # The sizes of axes of `vmap` are unknown here, so that their permutations are not checked.
        if not all(name in sizes for name in names):
            continue
        size = math.prod(sizes[str(name)] for name in names)
        # JAX counts negative numbers from the end.
        sides = [[n % size for n in side if -size <= n < size] for side in zip(*pairs, strict=True)]
        if any(len({*side}) < len(pairs) for side in sides):
            source = Sources().line(inner.source_info.traceback, place.source) or "an unknown line"
            raise TraceError(
                f"ppermute at {source} along {names} with {size} places has the pairs {pairs}. Use "
                f"each place from 0 to {size - 1} at most once as sender and once as receiver."
            )


def _check_dimensions(equation: Any, place: Scope) -> None:
    """Raise TraceError if a collective of a region has a negative dimension.

    JAX traces some of them, but cannot lower them.
    """
    for inner in equations(equation.params["jaxpr"]):
        for name in ("split_axis", "concat_axis", "scatter_dimension"):
            if inner.params.get(name, 0) < 0:
                source = Sources().line(inner.source_info.traceback, place.source)
                raise TraceError(
                    f"{inner.primitive.name} at {source or 'an unknown line'} has {name}="
                    f"{inner.params[name]}, which jax.jit cannot lower. Count from 0."
                )


def _is_rewritten(equation: Any, axes: Axes) -> bool:
    """Return whether a `shard_map` must be rewritten to whole values.

    It must if some axis of its mesh is not manual, or if it reduces over groups of an axis. Axes of
    one device do not count.

    Args:
      axes: (name, size) of the manual axes.
    """
    mesh = equation.params["mesh"]
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    leaves_axes = any(int(n) > 1 for name, n in sizes if name not in dict(axes))
    return leaves_axes or any(
        inner.primitive.name in _REDUCTIONS and inner.params.get("axis_index_groups") is not None
        for inner in equations(equation.params["jaxpr"])
    )


def equations(body: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of all jaxprs inside of it, such as bodies of loops."""
    for equation in getattr(body, "jaxpr", body).eqns:
        yield equation
        for param in equation.params.values():
            for part in param if isinstance(param, tuple | list) else (param,):
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield from equations(part)


_REDUCTIONS = ("psum", "pmax", "pmin")
Sides = tuple[tuple[Dims, ...], tuple[Dims, ...]]


def region_axes(params: Mapping[str, Any], source: str) -> tuple[Axes, Sides]:
    """Return the manual axes of a `shard_map` with their sizes, and its specs.

    The specs are a pair, of operands and of results. A spec has a tuple of axis names for each
    dimension.

    Args:
      params: the parameters of the `shard_map`.
      source: its source line, for messages.

    Raises:
      TraceError: a spec is unreduced or reduced along an axis.
    """
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    axes = tuple((name, int(n)) for name, n in sizes.items() if name in manual)
    sides: list[tuple[Dims, ...]] = []
    for name in ("in_specs", "out_specs"):
        for spec in params[name]:
            if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
                raise TraceError(
                    f"the shard_map at {source or 'an unknown line'} has {spec} among its {name}: "
                    "partial sums cannot cross its border. Sum them inside, with jax.lax.psum."
                )
        sides.append(tuple(site_params(spec, len(spec))["spec"] for spec in params[name]))
    return axes, (sides[0], sides[1])


def _with_sites(
    builder: GraphBuilder,
    values: Sequence[int],
    specs: Sequence[Sequence[object]],
    place: Scope,
    *,
    is_open: bool = False,
) -> list[int]:
    """Annotate each value with its spec; return the annotated values.

    Args:
      specs: for each value, the axes along which each of its dimensions is split.
      is_open: whether completion may add other axes. A value with an empty spec has no site then.
    """
    annotated: list[int] = []
    for value, spec in zip(values, specs, strict=True):
        rank = len(builder.parts.values[value].type.shape)
        params = site_params([s or None for s in spec], rank)
        if is_open:
            params["unspecified_dims"] = tuple(range(rank))
        has_site = any(spec) or not is_open
        annotated += site(builder, [value], params, place) if has_site else [value]
    return annotated


def _collective(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a collective of the user; return its results.

    `vmap` may have replaced an axis name of the collective by a dimension of its operand. Such
    dimensions are reduced on the device first.
    """
    _check_groups(equation, place)
    # `vmap` replaces its own axis name by the number of a dimension.
    named = [axis for axis in _axes(equation) if isinstance(axis, str)]
    if len(named) == len(_axes(equation)):
        return plain_node(builder, equation, operands, place)
    local = builder.run(builder.written_out(equation), operands, place)
    if not named:
        return local
    parts, params = builder.parts, {**equation.params, "axes": tuple(named)}
    types = [parts.type_of(var.aval) for var in equation.outvars]
    results = parts.results(types, parts.label(equation.primitive.name, place.source))
    builder.node(equation.primitive, params, local, results, place=place)
    return results


def _permute(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a `ppermute` with its axes in the order in which its pairs count devices; return results.

    Nodes count in the order of the names. This version of JAX may count in mesh order instead (see
    `sorts_permutes`).
    """
    named = sorted(_axes(equation), key=lambda axis: (*place.order, axis).index(axis))
    if len(named) > 1 and sorts_permutes():
        equation = equation.replace(params={**equation.params, "axis_name": tuple(named)})
    return _collective(builder, equation, operands, place)


def _axes(equation: Any) -> tuple[object, ...]:
    """Return a collective's axes: names, or numbers of dimensions if `vmap` replaced a name."""
    axes = equation.params.get("axes", equation.params.get("axis_name"))
    return axes if isinstance(axes, tuple) else (axes,)


def _check_groups(equation: Any, place: Scope) -> None:
    """Raise TraceError if a collective is over groups of devices within an axis."""
    if equation.params.get("axis_index_groups") is not None:
        raise TraceError(
            f"{equation.primitive.name} at {place.source or 'an unknown line'} is over groups of "
            f"an axis ({_axes(equation)}). Groups are supported only for psum, pmax and pmin along "
            "one axis, with groups of one size. Give the mesh an axis for each group."
        )


def _all_gather(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add an all-gather; return its result.

    An all-gather that adds a dimension (`tiled=False`) becomes a reshape, which adds a dimension of
    size 1, and a tiled all-gather along it.
    """
    _check_groups(equation, place)
    params = equation.params
    if params["tiled"]:
        return plain_node(builder, equation, operands, place)
    type_, dim = builder.parts.values[operands[0]].type, params["all_gather_dimension"]
    blocks = _reshape(builder, operands[0], (*type_.shape[:dim], 1, *type_.shape[dim:]), place)
    return _tiled(builder, equation, list(blocks), place)


def _reduce_scatter(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a reduce-scatter; return its result.

    A reduce-scatter that removes a dimension (`tiled=False`) becomes a tiled one and a reshape.
    """
    _check_groups(equation, place)
    if equation.params["tiled"]:
        return plain_node(builder, equation, operands, place)
    (scattered,) = _tiled(builder, equation, operands, place)
    return _reshape(builder, scattered, tuple(map(int, equation.outvars[0].aval.shape)), place)


def _tiled(
    builder: GraphBuilder, equation: Any, operands: Sequence[int], place: Scope
) -> Sequence[int]:
    """Add the tiled form of an all-gather or a reduce-scatter; return its result."""
    parts, params = builder.parts, {**equation.params, "tiled": True}
    type_, size = parts.values[operands[0]].type, int(params["axis_size"])
    # The tiled form keeps the rank: it multiplies or divides a dimension by the number of devices.
    # Without `tiled`, JAX adds or removes a dimension of this size.
    shape = list(type_.shape)
    if "scatter_dimension" in params:
        shape[params["scatter_dimension"]] //= size
    else:
        shape[params["all_gather_dimension"]] *= size
    label = parts.label(equation.primitive.name, place.source)
    results = parts.results([ValueType(tuple(shape), type_.dtype)], label)
    builder.node(equation.primitive, params, operands, results, place=place)
    return results


def _reshape(
    builder: GraphBuilder, value: int, shape: tuple[int, ...], place: Scope
) -> tuple[int, ...]:
    """Add a reshape of a value to `shape`; return its result."""
    parts = builder.parts
    type_ = ValueType(shape, parts.values[value].type.dtype)
    results = parts.results([type_], parts.label("reshape", place.source))
    params = {"new_sizes": shape, "dimensions": None, "sharding": None}
    builder.node(builder.primitives["reshape"], params, [value], results, place=place)
    return results


def _unplanned(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Raise TraceError: a collective is not supported inside a `shard_map`."""
    raise TraceError(
        f"{equation.primitive.name} at {place.source or 'an unknown line'} is not supported inside "
        f"shard_map. Supported collectives: {', '.join(sorted(PLANNED))}."
    )


PLANNED: dict[str, Placing] = {
    **dict.fromkeys(
        "all_to_all pmax pmin psum psum_invariant ragged_all_to_all".split(), _collective
    ),
    # The node has the number 0 as an operand, to which each device adds its position.
    "axis_index": lambda builder, equation, _, place: _collective(
        builder, equation, [builder.parts.constant(equation.outvars[0].aval, 0)], place
    ),
    "ppermute": _permute,
    **dict.fromkeys(("all_gather", "all_gather_invariant"), _all_gather),
    "reduce_scatter": _reduce_scatter,
}
UNPLANNED = """
all_gather_done all_gather_reduced all_gather_reduced_start all_gather_start all_to_all_done
all_to_all_start pbroadcast pbroadcast_done pbroadcast_start ppermute_done ppermute_start precv
psend psum_done psum_invariant_start psum_start reduce_scatter_done
reduce_scatter_start unreduced_pmax unreduced_pmin unreduced_psum unreduced_psum_start
unreduced_reduce_scatter unreduced_reduce_scatter_start
""".split()
"""Collectives that are refused: asynchronous or point-to-point ones, and unreduced results."""
MANUAL_HANDLERS: dict[str, Placing] = {
    "shard_map": _region,
    # `pvary` changes only JAX's type, which says along which axes a value varies: no node.
    "pvary": lambda builder, equation, operands, place: operands,
    **PLANNED,
    **dict.fromkeys(UNPLANNED, _unplanned),
}


def manual(
    fn: Callable[..., Any],
    axes: str | Sequence[str],
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    mesh: Any = None,
) -> Callable[..., Any]:
    """Return `fn` as a `jax.shard_map` along some axes, which is planned on the other axes.

    Inside, collectives such as `jax.lax.psum` run along `axes`. Along the other axes, values inside
    and dimensions without a manual axis are sharded as usual, and may be annotated.

    Args:
      axes: one or several axis names of the mesh.
      in_specs, out_specs: specs of `jax.shard_map` with only `axes`; None: the leading dimension of
        every array is sharded along all of `axes`, in their order.
      mesh: a mesh of JAX; None: the mesh of the plan, or the mesh of `jax.set_mesh`.

    Raises:
      TraceError: `axes` is empty, has other entries than names, or has a name twice; an axis is
        already manual or not in the mesh; or the mesh is not JAX's.

    >>> import shardalg as sa
    >>> on = manual(lambda x: jax.lax.ppermute(x, "L", [(0, 1), (1, 2), (2, 3)]), "L")
    >>> x, mesh = jax.ShapeDtypeStruct((8, 6), "float32"), sa.Mesh({"L": 4, "Y": 2})
    >>> plan = sa.plan(on, x, mesh=mesh, in_shardings=(PartitionSpec("L", "Y"),))
    >>> plan.collectives()[["kind", "mesh_axes", "wire_bytes"]].values.tolist()
    [['collective_permute', 'L', 24]]
    """
    names = _names(axes)
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh | None):
        raise TraceError(
            f"manual(fn, {axes!r}, mesh={mesh!r}): jax.shard_map needs a mesh of JAX. Omit mesh to "
            "use the mesh of the plan, or pass mesh.to_jax()."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise TraceError(
            f"manual(fn, {axes!r}) names {f'{twice[0]!r} twice' if twice else 'no axis'}. Name "
            "each manual axis once: manual(fn, ('L',))."
        )
    blocks = PartitionSpec(names)
    sides = blocks if in_specs is None else in_specs, blocks if out_specs is None else out_specs

    @wraps(fn)
    def on_blocks(*operands: Any) -> Any:
        """Check the axes, and run `fn` as a `jax.shard_map` on the operands."""
        # The mesh of the plan is known only while the function is traced.
        _check_axes(names, mesh or jax.sharding.get_abstract_mesh())
        run = jax.shard_map(
            fn, mesh=mesh, in_specs=sides[0], out_specs=sides[1], axis_names=set(names)
        )
        return run(*operands)

    return on_blocks


def _names(axes: Any) -> tuple[str, ...]:
    """Return `axes` as a tuple of names; raise TraceError if they are no names."""
    names = (axes,) if isinstance(axes, str) else axes
    if isinstance(names, Collection) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise TraceError(
        f"manual(fn, {axes!r}): axes must be one or several names. Name the manual axes: "
        "manual(fn, ('L',))."
    )


def _check_axes(names: Sequence[str], mesh: Any) -> None:
    """Raise TraceError if the mesh lacks one of these axes, or if one is manual already."""
    here = jax.sharding.get_abstract_mesh()
    inside = set(getattr(here, "manual_axes", ()))
    for name in names:
        if name in inside:
            raise TraceError(
                f"axis {name!r} is already manual where manual(fn, {list(names)}) is called. "
                "Remove it from the inner call."
            )
        if name not in mesh.axis_names:
            raise TraceError(
                f"manual(fn, {list(names)}) names {name!r}, which the mesh does not have: its axes "
                f"are {list(mesh.axis_names)}. Plan on a mesh that has this axis, or pass mesh=."
            )
