"""A `shard_map` as a call: its body is what every device runs on its own blocks.

Functions that run by hand along some mesh axes, and are partitioned along the others.
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
    """The operands and results behind sites that lay them out as the region's specs say.

    Of a region over some axes of the mesh the body is planned on the others (`subgroups.py`), as is
    one that sums over groups of an axis.
    """
    axes, sides = region_axes(equation.params, place.source)
    _check_permutations(equation, place)
    _check_dimensions(equation, place)
    if not place.manual and (_leaves_axes(equation.params, axes) or _sums_in_groups(equation)):
        avals = [var.aval for var in equation.invars]
        body = mapped_over(equation.params["jaxpr"], avals, axes, sides)
        if body is not None:
            builder.block_axes.update(_axes_within(equation))
            given = _laid_out(builder, operands, sides[0], place, is_open=True)
            made = builder.run(body, given, place)
            return _laid_out(builder, made, sides[1], place, is_open=True)
    order = tuple(map(str, equation.params["mesh"].axis_names))
    inner = place._replace(manual=place.manual | dict(axes).keys(), order=order)
    body = equation.params["jaxpr"]
    labels = [f"operand{i}" for i in range(len(operands))]
    given = _laid_out(builder, operands, sides[0], place)
    plain = {"axes": axes, "in_axes": sides[0], "out_axes": sides[1]}
    results = call(builder, equation, given, inner, Bodies([(body, labels)], (), plain))
    return _laid_out(builder, results, sides[1], place)


def _check_permutations(equation: Any, place: Scope) -> None:
    """Raise unless places that `ppermute` names are there, each at most once on either side."""
    mesh = equation.params["mesh"]
    sizes = dict(zip(mesh.axis_names, map(int, mesh.axis_sizes), strict=True))
    for inner in equations(equation.params["jaxpr"]):
        if inner.primitive.name != "ppermute":
            continue
        names, pairs = _axes(inner), inner.params["perm"]
        if not all(name in sizes for name in names):
            continue
        size = math.prod(sizes[str(name)] for name in names)
        # JAX counts negative places from the end
        sides = [[n % size for n in side if -size <= n < size] for side in zip(*pairs, strict=True)]
        if any(len({*side}) < len(pairs) for side in sides):
            source = Sources().line(inner.source_info.traceback, place.source) or "an unknown line"
            raise TraceError(
                f"ppermute at {source} along {names} of {size} places has the pairs {pairs}: write "
                f"each place from 0 to {size - 1} at most once as a sender, and once as a receiver."
            )


def _check_dimensions(equation: Any, place: Scope) -> None:
    """Raise where a dimension is counted from the end: JAX traces some, and lowers none."""
    for inner in equations(equation.params["jaxpr"]):
        for name in ("split_axis", "concat_axis", "scatter_dimension"):
            if inner.params.get(name, 0) < 0:
                source = Sources().line(inner.source_info.traceback, place.source)
                raise TraceError(
                    f"{inner.primitive.name} at {source or 'an unknown line'} has {name}="
                    f"{inner.params[name]}, which jax.jit does not lower. Count from 0."
                )


def _leaves_axes(params: Mapping[str, Any], axes: Axes) -> bool:
    """Whether the mesh has other axes, of more than one device."""
    sizes = dict(zip(params["mesh"].axis_names, params["mesh"].axis_sizes, strict=True))
    return any(int(n) > 1 for name, n in sizes.items() if name not in dict(axes))


def _sums_in_groups(equation: Any) -> bool:
    """Whether something in the region is reduced over groups of an axis: over part of it."""
    return any(
        inner.primitive.name in _REDUCTIONS and inner.params.get("axis_index_groups") is not None
        for inner in equations(equation.params["jaxpr"])
    )


def _axes_within(equation: Any) -> Iterator[str]:
    """The axes that a region makes manual, and those of regions in it."""
    yield from equation.params["newly_manual_axes"]
    for inner in equations(equation.params["jaxpr"]):
        yield from inner.params.get("newly_manual_axes", ())


def equations(body: Any) -> Iterator[Any]:
    """Those of a body, and of bodies in it."""
    for equation in getattr(body, "jaxpr", body).eqns:
        yield equation
        for param in equation.params.values():
            for part in param if isinstance(param, tuple | list) else (param,):
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield from equations(part)


_REDUCTIONS = ("psum", "pmax", "pmin")
Sides = tuple[tuple[Dims, ...], tuple[Dims, ...]]


def region_axes(params: Mapping[str, Any], source: str) -> tuple[Axes, Sides]:
    """(axis, size) of the axes that become manual; per operand, per result and dimension, its axes.

    Raises:
      TraceError: a spec says more than axes per dimension.
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
                    "partial sums do not cross its border here. Sum them inside, with jax.lax.psum."
                )
        sides.append(tuple(site_params(spec, len(spec))["spec"] for spec in params[name]))
    return axes, (sides[0], sides[1])


def _laid_out(
    builder: GraphBuilder,
    values: Sequence[int],
    specs: Sequence[Sequence[object]],
    place: Scope,
    *,
    is_open: bool = False,
) -> list[int]:
    """Each value behind a site with its spec.

    Args:
      is_open: whether other axes may split what the spec leaves, where it says something.
    """
    made: list[int] = []
    for value, spec in zip(values, specs, strict=True):
        rank = len(builder.parts.values[value].type.shape)
        params = site_params([s or None for s in spec], rank)
        if is_open:
            params["unspecified_dims"] = tuple(range(rank))
        said = any(spec) or not is_open
        made += site(builder, [value], params, place) if said else [value]
    return made


def _collective(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """A collective of the user's over whole axes; over dimensions (`vmap`) each device's own."""
    _check(equation, place)
    named = [axis for axis in _axes(equation) if isinstance(axis, str)]
    if len(named) == len(_axes(equation)):
        return plain_node(builder, equation, operands, place)
    made = builder.run(builder.written_out(equation), operands, place)
    if not named:
        return made
    parts, params = builder.parts, {**equation.params, "axes": tuple(named)}
    types = [parts.type_of(var.aval) for var in equation.outvars]
    results = parts.results(types, parts.label(equation.primitive.name, place.source))
    builder.node(equation.primitive, params, made, results, place=place)
    return results


def _permute(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """JAX counts along the mesh of the region, however axes are named; nodes count as named.

    Newer versions of JAX, which ask about another order, count as named where it is allowed.
    """
    named = sorted(_axes(equation), key=lambda axis: (*place.order, axis).index(axis))
    if len(named) > 1 and sorts_permutes():
        equation = equation.replace(params={**equation.params, "axis_name": tuple(named)})
    return _collective(builder, equation, operands, place)


def _axes(equation: Any) -> tuple[object, ...]:
    """Axes by name, and dimensions of the operand that `vmap` has put in the place of one."""
    axes = equation.params.get("axes", equation.params.get("axis_name"))
    return axes if isinstance(axes, tuple) else (axes,)


def _check(equation: Any, place: Scope) -> None:
    if equation.params.get("axis_index_groups") is not None:
        raise TraceError(
            f"{equation.primitive.name} at {place.source or 'an unknown line'} is over groups of "
            f"an axis ({_axes(equation)}): only psum, pmax and pmin along one axis, over groups of "
            "one size, are planned so. Give the mesh an axis for each group."
        )


def _axis_index(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """A number of the device: 0, to which its place is added."""
    zero = builder.parts.constant(equation.outvars[0].aval, 0)
    return _collective(builder, equation, [zero], place)


def _all_gather(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Blocks on a new dimension are blocks side by side along one of size 1."""
    _check(equation, place)
    params = equation.params
    if params["tiled"]:
        return plain_node(builder, equation, operands, place)
    kind, dim = builder.parts.values[operands[0]].type, params["all_gather_dimension"]
    blocks = _reshaped(builder, operands[0], (*kind.shape[:dim], 1, *kind.shape[dim:]), place)
    return _tiled(builder, equation, list(blocks), place)


def _reduce_scatter(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """A dimension that is scattered entirely is left with size 1, and dropped."""
    _check(equation, place)
    if equation.params["tiled"]:
        return plain_node(builder, equation, operands, place)
    (made,) = _tiled(builder, equation, operands, place)
    return _reshaped(builder, made, tuple(map(int, equation.outvars[0].aval.shape)), place)


def _tiled(
    builder: GraphBuilder, equation: Any, operands: Sequence[int], place: Scope
) -> Sequence[int]:
    """The tiled form of a gather or a scatter."""
    parts, params = builder.parts, {**equation.params, "tiled": True}
    kind, size = parts.values[operands[0]].type, int(params["axis_size"])
    shape = list(kind.shape)
    if "scatter_dimension" in params:
        shape[params["scatter_dimension"]] //= size
    else:
        shape[params["all_gather_dimension"]] *= size
    label = parts.label(equation.primitive.name, place.source)
    results = parts.results([ValueType(tuple(shape), kind.dtype)], label)
    builder.node(equation.primitive, params, operands, results, place=place)
    return results


def _reshaped(
    builder: GraphBuilder, value: int, shape: tuple[int, ...], place: Scope
) -> tuple[int, ...]:
    parts = builder.parts
    kind = ValueType(shape, parts.values[value].type.dtype)
    results = parts.results([kind], parts.label("reshape", place.source))
    params = {"new_sizes": shape, "dimensions": None, "sharding": None}
    builder.node(builder.primitives["reshape"], params, [value], results, place=place)
    return results


def _alike(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """What JAX's types say about copies: nothing happens to the value."""
    return operands


def _refused(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    raise TraceError(
        f"{equation.primitive.name} at {place.source or 'an unknown line'} has no plan: inside "
        f"shard_map these are planned: {', '.join(sorted(PLANNED))}. Write it with them."
    )


PLANNED: dict[str, Placing] = {
    **dict.fromkeys("all_to_all pmax pmin psum psum_invariant".split(), _collective),
    "axis_index": _axis_index,
    "ppermute": _permute,
    **dict.fromkeys(("all_gather", "all_gather_invariant"), _all_gather),
    "reduce_scatter": _reduce_scatter,
}
UNPLANNED = """
all_gather_done all_gather_reduced all_gather_reduced_start all_gather_start all_to_all_done
all_to_all_start pbroadcast pbroadcast_done pbroadcast_start ppermute_done ppermute_start precv
psend psum_done psum_invariant_start psum_start ragged_all_to_all reduce_scatter_done
reduce_scatter_start unreduced_pmax unreduced_pmin unreduced_psum unreduced_psum_start
unreduced_reduce_scatter unreduced_reduce_scatter_start
""".split()
MANUAL_HANDLERS: dict[str, Placing] = {
    "shard_map": _region,
    "pvary": _alike,
    **PLANNED,
    **dict.fromkeys(UNPLANNED, _refused),
}


def manual(
    fn: Callable[..., Any],
    axes: str | Sequence[str],
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    mesh: Any = None,
) -> Callable[..., Any]:
    """`fn` on each device's blocks along some axes: `jax.shard_map`, planned on the other axes.

    Inside, `jax.lax.psum`, `ppermute` and the others send along `axes`; dimensions that the specs
    leave open, and all values inside, are laid out on the other axes as anywhere else, with
    annotations as anywhere else.

    Args:
      axes: of the mesh, one or several.
      in_specs, out_specs: as of `jax.shard_map`, of `axes` alone; None: the leading dimension of
        every array lies on all of them, in their order.
      mesh: of JAX; None: the one that is planned on, or that `jax.set_mesh` has set.

    Raises:
      TraceError: no axis, no name, one that stands twice or is manual already, one that the mesh
        lacks, or a mesh that is not of JAX.

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
            f"manual(fn, {axes!r}, mesh={mesh!r}): jax.shard_map takes a mesh of JAX. Leave mesh "
            "out for the mesh that is planned on, or pass what its to_jax() gives."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise TraceError(
            f"manual(fn, {axes!r}) names {f'{twice[0]!r} twice' if twice else 'no axis'}. Name "
            "each axis along which fn runs by hand once, as in manual(fn, ('L',))."
        )
    blocks = PartitionSpec(names)
    sides = blocks if in_specs is None else in_specs, blocks if out_specs is None else out_specs

    @wraps(fn)
    def on_blocks(*operands: Any) -> Any:
        _check_axes(names, mesh or jax.sharding.get_abstract_mesh())
        run = jax.shard_map(
            fn, mesh=mesh, in_specs=sides[0], out_specs=sides[1], axis_names=set(names)
        )
        return run(*operands)

    return on_blocks


def _names(axes: Any) -> tuple[str, ...]:
    """`axes` as names of axes."""
    names = (axes,) if isinstance(axes, str) else axes
    if isinstance(names, Collection) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise TraceError(
        f"manual(fn, {axes!r}): axes are given by their names, one or several. Name those along "
        "which fn runs by hand, as in manual(fn, ('L',))."
    )


def _check_axes(names: Sequence[str], mesh: Any) -> None:
    """Raise unless the mesh has these axes, none of them manual yet."""
    here = jax.sharding.get_abstract_mesh()
    inside = set(getattr(here, "manual_axes", ()))
    for name in names:
        if name in inside:
            raise TraceError(
                f"axis {name!r} is manual already where manual(fn, {list(names)}) is called: "
                "inside of a region an axis has one block. Leave it out of the inner one."
            )
        if name not in mesh.axis_names:
            raise TraceError(
                f"manual(fn, {list(names)}) runs along {name!r}, which the mesh does not have: its "
                f"axes are {list(mesh.axis_names)}. Plan on a mesh that has it, or pass mesh=."
            )
