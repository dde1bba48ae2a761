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
            annotated = _with_sites(builder, operands, sides[0], place, is_open=True)
            return _with_sites(
                builder, builder.run(body, annotated, place), sides[1], place, is_open=True
            )
    # Otherwise all axes are manual (or `vmap` has no rule): the region is a call with a body.
    order = tuple(map(str, equation.params["mesh"].axis_names))
    inner = place._replace(manual=place.manual | dict(axes).keys(), order=order)
    body = equation.params["jaxpr"]
    labels = [f"operand{i}" for i in range(len(operands))]
    annotated = _with_sites(builder, operands, sides[0], place)
    plain = {"axes": axes, "in_axes": sides[0], "out_axes": sides[1]}
    results = call(builder, equation, annotated, inner, Bodies([(body, labels)], (), plain))
    return _with_sites(builder, results, sides[1], place)


def _check_permutations(equation: Any, place: Scope) -> None:
    """Raise TraceError if a `ppermute` of a `shard_map` names a sender or a receiver twice.

    JAX traces such a `ppermute` without an error, for example with the pairs [(0, 1), (0, 2)].

    Args:
      equation: the `shard_map` equation; its body is searched, with all loops inside of it.
    """
    mesh = equation.params["mesh"]
    sizes = dict(zip(mesh.axis_names, map(int, mesh.axis_sizes), strict=True))
    for inner in equations(equation.params["jaxpr"]):
        if inner.primitive.name != "ppermute":
            continue
        names, pairs = _axes(inner), inner.params["perm"]
        # The sizes of axes of `vmap` are unknown here, so that their permutations are not checked.
        if not all(name in sizes for name in names):
            continue
        # Several axes count as one: a place is a number from 0 to the product of their sizes - 1.
        size = math.prod(sizes[str(name)] for name in names)
        # One side has all senders, the other one all receivers. JAX counts negative numbers from
        # the end. A number out of range is left out, so its side is too short and is an error as
        # well.
        sides = [[n % size for n in side if -size <= n < size] for side in zip(*pairs, strict=True)]
        if any(len({*side}) < len(pairs) for side in sides):
            source = Sources().line(inner.source_info.traceback, place.source) or "an unknown line"
            raise TraceError(
                f"ppermute at {source} along {names} with {size} places has the pairs {pairs}. Use "
                f"each place from 0 to {size - 1} at most once as sender and once as receiver."
            )


def _check_dimensions(equation: Any, place: Scope) -> None:
    """Raise TraceError if a collective in a `shard_map` has a negative dimension.

    JAX traces some of these collectives, but cannot lower them.

    Args:
      equation: the `shard_map` equation; its body is searched, with all loops inside of it.
    """
    for inner in equations(equation.params["jaxpr"]):
        # No collective has all three parameters. An absent one counts as 0, which is allowed.
        for name in ("split_axis", "concat_axis", "scatter_dimension"):
            if inner.params.get(name, 0) < 0:
                source = Sources().line(inner.source_info.traceback, place.source)
                raise TraceError(
                    f"{inner.primitive.name} at {source or 'an unknown line'} has {name}="
                    f"{inner.params[name]}, which jax.jit cannot lower. Count from 0."
                )


def _is_rewritten(equation: Any, axes: Axes) -> bool:
    """Return whether a `shard_map` must be rewritten so that its body computes on whole values.

    It must in two cases. Some axis of its mesh is not manual, so that completion may still shard
    values inside along it. Or a reduction runs over groups of devices within an axis, which no node
    of a body can express. Axes of one device do not count.

    Args:
      equation: the `shard_map` equation.
      axes: (name, size) of the manual axes.
    """
    mesh = equation.params["mesh"]
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    has_other_axes = any(int(n) > 1 for name, n in sizes if name not in dict(axes))
    return has_other_axes or any(
        inner.primitive.name in _REDUCTIONS and inner.params.get("axis_index_groups") is not None
        for inner in equations(equation.params["jaxpr"])
    )


def equations(body: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of all jaxprs inside of it, such as bodies of loops.

    Args:
      body: a `Jaxpr`, or a `ClosedJaxpr`, which has the jaxpr in its attribute `jaxpr`.
    """
    for equation in getattr(body, "jaxpr", body).eqns:
        yield equation
        # An equation has its bodies among its parameters: one jaxpr, or a tuple of them (branches).
        # All other parameters are skipped.
        for param in equation.params.values():
            for part in param if isinstance(param, tuple | list) else (param,):
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield from equations(part)


_REDUCTIONS = ("psum", "pmax", "pmin")
Sides = tuple[tuple[Dims, ...], tuple[Dims, ...]]


def region_axes(params: Mapping[str, Any], source: str) -> tuple[Axes, Sides]:
    """Return the manual axes of a `shard_map` with their sizes, and its specs.

    The first part is a tuple of (name, size). The second part is a pair: the specs of the operands
    and the specs of the results. A spec has a tuple of axis names for each dimension, such as
    (("x",), ()).

    Args:
      params: the parameters of the `shard_map`.
      source: its source line, for messages.

    Raises:
      TraceError: a spec is unreduced or reduced along an axis.
    """
    mesh, manual_names = params["mesh"], params["newly_manual_axes"]
    mesh_sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    # The parameter is a set without an order, so the axes get the order of the mesh.
    axes = tuple((name, int(n)) for name, n in mesh_sizes.items() if name in manual_names)
    specs_of_side: list[tuple[Dims, ...]] = []
    for name in ("in_specs", "out_specs"):
        for spec in params[name]:
            if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
                raise TraceError(
                    f"the shard_map at {source or 'an unknown line'} has {spec} among its {name}: "
                    "partial sums cannot cross its border. Sum them inside, with jax.lax.psum."
                )
        # `site_params` puts a spec of JAX (None, a name or names per dimension) into one form.
        specs_of_side.append(tuple(site_params(spec, len(spec))["spec"] for spec in params[name]))
    return axes, (specs_of_side[0], specs_of_side[1])


def _with_sites(
    builder: GraphBuilder,
    values: Sequence[int],
    specs: Sequence[Sequence[object]],
    place: Scope,
    *,
    is_open: bool = False,
) -> list[int]:
    """Add an annotation node (a site) for each value with its spec; return the annotated values.

    The site states how the user's `shard_map` shards the value at its border.

    Args:
      values: value indices of the graph.
      specs: for each value, the axes along which each of its dimensions is split.
      is_open: whether completion may add other axes. A value with an empty spec has no site then.
    """
    annotated: list[int] = []
    for value, spec in zip(values, specs, strict=True):
        rank = len(builder.parts.values[value].type.shape)
        params = site_params([s or None for s in spec], rank)
        if is_open:
            params["unspecified_dims"] = tuple(range(rank))
        # An open annotation without axes would say nothing. A closed one says: replicated.
        has_site = any(spec) or not is_open
        # `site` returns a list with one value, as does the other case.
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
    axis_names = [axis for axis in _axes(equation) if isinstance(axis, str)]
    # Without `vmap`, all axes are mesh axes: the equation becomes one node.
    if len(axis_names) == len(_axes(equation)):
        return plain_node(builder, equation, operands, place)
    # The expansion reduces the numbered dimensions on each device. The collective over the mesh
    # axes that are left, if there are any, is the node below.
    reduced_values = builder.run(builder.written_out(equation), operands, place)
    if not axis_names:
        return reduced_values
    parts, params = builder.parts, {**equation.params, "axes": tuple(axis_names)}
    types = [parts.type_of(var.aval) for var in equation.outvars]
    results = parts.results(types, parts.label(equation.primitive.name, place.source))
    builder.node(equation.primitive, params, reduced_values, results, place=place)
    return results


def _permute(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a `ppermute` with its axes in the order in which its pairs count devices; return results.

    Nodes count in the order of the names. This version of JAX may count in mesh order instead (see
    `sorts_permutes`).
    """
    axis_names = sorted(_axes(equation), key=lambda axis: (*place.order, axis).index(axis))
    if len(axis_names) > 1 and sorts_permutes():
        equation = equation.replace(params={**equation.params, "axis_name": tuple(axis_names)})
    return _collective(builder, equation, operands, place)


def _axes(equation: Any) -> tuple[object, ...]:
    """Return a collective's axes: names, or numbers of dimensions if `vmap` replaced a name."""
    axes = equation.params.get("axes", equation.params.get("axis_name"))
    return axes if isinstance(axes, tuple) else (axes,)


def _check_groups(equation: Any, place: Scope) -> None:
    """Raise TraceError if a collective runs over groups of devices within an axis.

    Groups split one axis, as in `axis_index_groups=[[0, 1], [2, 3]]`. A node of the graph names
    whole axes only. The reductions `psum`, `pmax` and `pmin` with groups are rewritten before this
    check.
    """
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
    """Add a reshape node for a value; return the index of its result, as a tuple of one.

    Args:
      value: a value index of the graph.
      shape: the new shape, with as many elements as the old one.
    """
    parts = builder.parts
    type_ = ValueType(shape, parts.values[value].type.dtype)
    results = parts.results([type_], parts.label("reshape", place.source))
    # JAX's `reshape` has these parameters; the last two are not used here.
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
    repeated = sorted({name for name in names if names.count(name) > 1})
    if not names or repeated:
        fault = f"{repeated[0]!r} twice" if repeated else "no axis"
        raise TraceError(
            f"manual(fn, {axes!r}) names {fault}. Name each manual axis once: manual(fn, ('L',))."
        )
    blocks = PartitionSpec(names)
    both_specs = (
        blocks if in_specs is None else in_specs,
        blocks if out_specs is None else out_specs,
    )

    @wraps(fn)
    def on_blocks(*operands: Any) -> Any:
        """Check the axes, and run `fn` as a `jax.shard_map` on the operands."""
        # The mesh of the plan is known only while the function is traced.
        _check_axes(names, mesh or jax.sharding.get_abstract_mesh())
        run = jax.shard_map(
            fn, mesh=mesh, in_specs=both_specs[0], out_specs=both_specs[1], axis_names=set(names)
        )
        return run(*operands)

    return on_blocks


def _names(axes: Any) -> tuple[str, ...]:
    """Return `axes`, one name or a collection of names, as a tuple of names.

    Raises:
      TraceError: `axes` is neither.
    """
    # A str is a collection too, of its letters, so a single name is wrapped first.
    names = (axes,) if isinstance(axes, str) else axes
    if isinstance(names, Collection) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise TraceError(
        f"manual(fn, {axes!r}): axes must be one or several names. Name the manual axes: "
        "manual(fn, ('L',))."
    )


def _check_axes(names: Sequence[str], mesh: Any) -> None:
    """Raise TraceError if the mesh lacks one of these axes, or if one is manual already."""
    # Inside a `shard_map`, JAX's current mesh lists the axes that are manual already.
    context_mesh = jax.sharding.get_abstract_mesh()
    manual_axes = set(getattr(context_mesh, "manual_axes", ()))
    for name in names:
        if name in manual_axes:
            raise TraceError(
                f"axis {name!r} is already manual where manual(fn, {list(names)}) is called. "
                "Remove it from the inner call."
            )
        if name not in mesh.axis_names:
            raise TraceError(
                f"manual(fn, {list(names)}) names {name!r}, which the mesh does not have: its axes "
                f"are {list(mesh.axis_names)}. Plan on a mesh that has this axis, or pass mesh=."
            )
