"""Tracing of a JAX function to a `Graph`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh
from jax.tree_util import (
    keystr,
    tree_flatten_with_path,
    tree_leaves,
    tree_structure,
    treedef_is_leaf,
)

from shardalg.algebra.mesh import Mesh
from shardalg.errors import RoleError, StrategyError, TraceError
from shardalg.graph.evaluate import find_primitive, is_key
from shardalg.graph.ir import Graph, PlainMesh
from shardalg.graph.tracing import jaxpr as build
from shardalg.graph.tracing.attention import cudnn_as_on_gpu
from shardalg.graph.tracing.manual import equations
from shardalg.graph.tracing.opened import reader
from shardalg.graph.tracing.refused import REFUSALS, SPECS_DIFFER, function_name, refused, user_line
from shardalg.graph.tracing.written import refuse_float0, without_float0, written_out
from shardalg.graph.well_formed import check
from shardalg.pause import collection_paused


@collection_paused()
def trace(
    fn: Callable[..., Any],
    *args: Any,
    mesh_shape: Mapping[str, int] | None = None,
    rows: Container[str] = (),
    paths: Sequence[str] | None = None,
    explicit: Explicit | None = None,
) -> Graph:
    """Return the program of `fn(*args)` as a graph; no array is computed.

    A primitive of another package is expanded (`opened.py`). An effect without a result, such as
    `jax.debug.print`, is omitted and listed in `Graph.left_out`.

    Args:
      fn: any function that JAX can trace, or the result of `jax.jit(f).trace(...)`.
      args: arrays, numbers or `jax.ShapeDtypeStruct`s, in any pytrees. Their shardings are ignored.
      mesh_shape: axis sizes for a `jax.lax.with_sharding_constraint` with a bare spec inside `fn`.
        Its site stores only axis names. The site of a NamedSharding also stores the mesh.
      rows: names of operators that have a row; such a primitive of another package is not expanded.
      paths: names of the leaves of `args`; None: names from the parameters of `fn`.
      explicit: the explicit axes and shardings by which JAX types values, if `fn` uses explicit
        axes (`out_sharding=`, `jax.reshard`); None: all axes, from unsharded arguments.

    Raises:
      TraceError: a leaf of `args` is no array, JAX cannot trace `fn`, or it has an effect with
        a result, such as `jax.experimental.io_callback`.

    >>> shape = jax.ShapeDtypeStruct((4, 4), "float32")
    >>> print(trace(lambda params, x: jax.numpy.sin(x) + params["w"], {"w": shape}, shape))
    graph(%0 params['w']: f32[4,4], %1 x: f32[4,4]):
      %2: f32[4,4] = sin(%1) {accuracy=None}  # forward <doctest ...>:1
      %3: f32[4,4] = add(%2, %0)  # forward <doctest ...>:1
      return result = %3
    """
    found, leaves, tree = _leaves(fn, args)
    paths = found if paths is None else list(paths)
    specs = [_spec(path, leaf) for path, leaf in zip(paths, leaves, strict=True)]
    around = _around(mesh_shape)
    if hasattr(fn, "args_info"):
        traced: Any = fn
        closed, shapes = traced.jaxpr, traced.out_info
    else:
        closed, shapes = _jaxpr(fn, jax.tree.unflatten(tree, specs), around, explicit)
    result_paths = [f"result{keystr(path)}" for path, _ in tree_flatten_with_path(shapes)[0]]
    # The graph also has nodes for which the traced program has no equation.
    ours = {n: find_primitive(n) for n in ("annotate", "optimization_barrier", "reshape")}
    read, mesh_of = cache(partial(reader, rows)), partial(_own_mesh, around)
    new_builder = partial(
        build.GraphBuilder, ours, written_out=written_out, wrapped=wrapped, mesh_of=mesh_of
    )
    graph = new_builder(read).graph(closed, paths, result_paths)
    check(graph)
    if graph.block_axes:
        # Some `shard_map` was rewritten to whole values. The user's form is built on demand.
        def read_as_written(primitive: Any) -> build.Placing:
            return build.plain_node if primitive.name == "shard_map" else read(primitive)

        parts = closed, paths, result_paths
        graph = replace(graph, as_written=lambda: new_builder(read_as_written).graph(*parts))
    return replace(graph, trees=(tree, tree_structure(shapes)))


def _around(mesh_shape: Mapping[str, int] | None) -> AbstractMesh | None:
    """Return the mesh by which JAX resolves axes that constraints in a function name."""
    if not mesh_shape:
        return None
    kinds = (jax.sharding.AxisType.Auto,) * len(mesh_shape)
    return AbstractMesh(tuple(mesh_shape.values()), tuple(mesh_shape), axis_types=kinds)


def jaxpr_on(mesh_shape: Mapping[str, int] | None, fn: Callable[..., Any], *args: Any) -> Any:
    """Return the closed jaxpr of a function whose shapes may have JAX's symbolic dimensions.

    Args:
      mesh_shape: as in `trace`.
    """
    return _make_jaxpr(fn, args, _around(mesh_shape))[0]


def wrapped(array: Any) -> Any | None:
    """Return a closed jaxpr that builds random keys from their words; None for any other array.

    Words are plain numbers, which a plan file can store and a device can read by blocks.

    >>> print(wrapped(jax.random.key(3)).jaxpr)
    { lambda a:u32[2]; . let b:key<fry>[] = random_wrap[impl=fry] a in (b,) }
    """
    if not is_key(array):
        return None
    words: Any = np.asarray(jax.random.key_data(array))
    kind = jax.random.key_impl(array)
    return jax.make_jaxpr(lambda: jax.random.wrap_key_data(words, impl=kind))()


def jaxpr_of(fn: Callable[..., Any], *args: Any) -> Any:
    """Return the closed jaxpr of `fn` for arguments of these types, traced without a mesh.

    Raises:
      TraceError: JAX cannot trace the function.

    >>> jaxpr_of(jax.numpy.sin, 1.0).eqns[0].primitive.name
    'sin'
    """
    paths, leaves, tree = _leaves(fn, args)
    specs = [_spec(path, leaf) for path, leaf in zip(paths, leaves, strict=True)]
    return _jaxpr(fn, jax.tree.unflatten(tree, specs), None)[0]


def _leaves(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[list[str], list[Any], Any]:
    """Return the paths of the arguments' leaves, the leaves, and the structure of the arguments.

    A path is `params['w']` for a parameter `params` of `fn`.
    """
    names = parameter_names(fn, len(args))
    paths, leaves = [], []
    for name, arg in zip(names, args, strict=True):
        for path, leaf in tree_flatten_with_path(arg)[0]:
            paths.append(f"{name}{keystr(path)}")
            leaves.append(leaf)
    return paths, leaves, tree_structure(tuple(args))


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Return a name for each of the first `count` positional arguments of `fn`.

    A parameter has its own name. Arguments of `*args` are "args[0]", "args[1]", and so on.
    Arguments whose name is unknown are "arg0", "arg1".

    >>> parameter_names(lambda x, *rest: x, 3)
    ['x', 'rest[0]', 'rest[1]']
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        # Some callables, such as builtins, have no signature.
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    star_name = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), None)
    other_names = [
        f"{star_name}[{i}]" if star_name else f"arg{len(names) + i}"
        for i in range(count - len(names))
    ]
    return [*names[:count], *other_names]


def _spec(path: str, leaf: Any) -> Any:
    """Return a leaf of the arguments as a `jax.ShapeDtypeStruct` without a sharding.

    Python numbers are not changed.

    Raises:
      TraceError: the leaf is no array, or has the type `float0`.
    """
    if isinstance(leaf, bool | int | float | complex):
        return leaf
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TraceError(
            f"{path} is a {type(leaf).__name__} ({leaf!r:.60}), no array. Pass arrays or "
            "jax.ShapeDtypeStructs, and bind all other arguments with functools.partial."
        )
    refuse_float0(path, leaf)
    # A weak type is one that JAX derived from a Python number; it affects promotion.
    is_weak = bool(getattr(leaf, "weak_type", False))
    # JAX converts 64-bit types to 32 bits unless jax_enable_x64 is set. Keys have extended types.
    has_numpy_type = not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype) if has_numpy_type else leaf.dtype
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=is_weak)


class Explicit(NamedTuple):
    """Explicit axes and the shardings of the arguments along them, which JAX puts into types.

    Attributes:
      axes: the explicit axes.
      specs: per leaf of the arguments a PartitionSpec, or None.
      mesh: JAX's mesh with Explicit axes from arguments, shardings or the context, or None.
    """

    axes: frozenset[str]
    specs: tuple[Any, ...]
    mesh: Any = None


def _jaxpr(
    fn: Callable[..., Any],
    args: Sequence[Any],
    around: AbstractMesh | None,
    explicit: Explicit | None = None,
) -> tuple[Any, Any]:
    """Return the closed jaxpr of a function, and the tree of its results' shapes.

    The first attempt has the mesh `around` with automatic axes. If JAX's error says that the
    function needs explicit axes, or no mesh around it, the function is traced again.

    Args:
      fn, args: the function, and its arguments or their shapes.
      around: the mesh of the plan, or None.
      explicit: explicit axes and specs that the user gave, or None.
    """
    if not callable(fn):
        raise TraceError(f"{fn!r:.80} is no function. Pass the function and its arguments.")
    try:
        traced = _make_jaxpr(fn, args, around)
    except REFUSALS as error:
        message = str(error) if around and isinstance(error, ValueError) else ""
        # JAX refuses, along automatic axes, specs in types (`out_sharding=`), and specs that
        # differ.
        if around and ("axis names that are of type Auto" in message or SPECS_DIFFER in message):
            return _explicit_jaxpr(fn, args, around, explicit)
        # JAX's text for a mesh around a shard_map that differs from the mesh of the shard_map.
        if not message.startswith("The context mesh"):
            raise refused(fn, args, error) or error from None
        # A shard_map with its own mesh does not allow another mesh around it.
        try:
            traced = _make_jaxpr(fn, args, None)
        except REFUSALS as second:
            if around and SPECS_DIFFER in str(second):
                return _explicit_jaxpr(fn, args, around, explicit)
            raise refused(fn, args, second) or second from None
    has_region = any(e.primitive.name == "shard_map" for e in equations(traced[0]))
    if around and explicit and explicit.mesh is not None and has_region:
        # A shard_map without in_specs reads them from the types of its arguments.
        with suppress(TraceError):
            return _explicit_jaxpr(fn, args, around, explicit)
    return traced


def _make_jaxpr(fn: Callable[..., Any], args: Sequence[Any], around: AbstractMesh | None) -> Any:
    """Return the closed jaxpr of a function and the tree of its results' shapes.

    Args:
      around: the mesh of the context in which the function is traced, or None.
    """
    inside = nullcontext() if around is None else jax.sharding.use_abstract_mesh(around)
    with inside, cudnn_as_on_gpu():
        return jax.make_jaxpr(lambda *a: without_float0(fn(*a)), return_shape=True)(*args)


def _explicit_jaxpr(
    fn: Callable[..., Any], args: Sequence[Any], around: AbstractMesh, explicit: Explicit | None
) -> tuple[Any, Any]:
    """Return the jaxpr of a function in which types have the shardings along explicit axes.

    The second entry of the result is the tree of the results' shapes.
    The first attempt has no mesh around the function, like `jax.jit` by default: the mesh is in the
    types of the arguments. The second attempt has the mesh around it, like `jax.set_mesh`.

    Raises:
      TraceError: JAX finds shardings that contradict each other.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    axes, specs, user_mesh = explicit or Explicit(
        frozenset(around.axis_names), (None,) * len(leaves)
    )
    # A sharding inside the function may name the user's own mesh, and JAX does not accept two
    # unequal meshes in one function. The arguments' types use it too, if its sizes are the plan's.
    if user_mesh is not None and tuple(user_mesh.shape.items()) == tuple(around.shape.items()):
        mesh = user_mesh if isinstance(user_mesh, AbstractMesh) else user_mesh.abstract_mesh
    else:
        kinds = {True: jax.sharding.AxisType.Explicit, False: jax.sharding.AxisType.Auto}
        types = tuple(kinds[name in axes] for name in around.axis_names)
        mesh = AbstractMesh(around.axis_sizes, around.axis_names, axis_types=types)
    typed_leaves = [_typed_leaf(*pair, mesh, axes) for pair in zip(leaves, specs, strict=True)]
    typed_args = jax.tree.unflatten(tree, typed_leaves)
    first_error: Exception | None = None
    # A mesh that the user has set would be around the function in any case.
    if jax.sharding.get_abstract_mesh().empty:
        try:
            return _make_jaxpr(fn, typed_args, None)
        except REFUSALS as error:
            first_error = error
    try:
        return _make_jaxpr(fn, typed_args, mesh)
    except (TypeError, ValueError) as error:
        # Specs that contradict each other are the cause in either attempt, so report this error.
        for seen in (first_error, error):
            if SPECS_DIFFER in str(seen):
                raise refused(fn, typed_args, seen) or seen from None  # type: ignore[arg-type,misc]
        message = str(error).split("\n")[0]
        raise TraceError(
            f"JAX does not trace {function_name(fn)}{user_line(error)} on explicit axes "
            f"{sorted(axes)}: {message} Pass the shardings of the arguments as in_shardings, or "
            "remove out_sharding= and jax.reshard: the plan completes shardings."
        ) from None


def _typed_leaf(leaf: Any, spec: Any, mesh: AbstractMesh, axes: frozenset[str]) -> Any:
    """Return a leaf with its sharding along explicit axes.

    Python numbers, and leaves without a spec, are not changed.

    Args:
      spec: the PartitionSpec of the leaf, or None.
      axes: the explicit axes; other axes of the spec are left out.
    """
    if spec is None or not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    # A PartitionSpec has per dimension None, a name, or a tuple of names.
    names_of_dims = [entry if isinstance(entry, tuple) else (entry,) for entry in spec or ()]
    explicit_names = [
        tuple(name for name in names if name in axes) or None for names in names_of_dims
    ]
    layout = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(*explicit_names[: len(leaf.shape)])
    )
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout, weak_type=leaf.weak_type)


def _own_mesh(around: AbstractMesh | None, sharding: Any) -> PlainMesh | None:
    """Return the mesh of a constraint's sharding as plain data, or None.

    None if the sharding has no mesh, or if its mesh is `around`, the mesh of the context.
    """
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or mesh.empty or mesh == around:
        return None
    # The same mesh with explicit axes is unequal in JAX.
    if around is not None and isinstance(mesh, AbstractMesh) and mesh.shape == around.shape:
        return None
    user_mesh = Mesh.from_jax(mesh)
    return user_mesh.axes, user_mesh.device_ids


def flatten_prefix(prefix: Any, tree: Any, what: str) -> list[Any]:
    """Return the entry of `prefix` for every leaf of `tree`, in order.

    Args:
      prefix: a pytree prefix of `tree`: an entry applies to all leaves below it. None is an entry.
      what: the name of the prefix in messages, such as "in_shardings".

    Raises:
      StrategyError: `prefix` is no prefix of `tree` (RoleError if `what` is "roles").

    >>> flatten_prefix(("p", {"a": 1, "b": None}), ([0, 0], {"a": 0, "b": [0, 0]}), "roles")
    ['p', 'p', 1, None, None]
    """
    upper: Any = tree_structure(prefix, is_leaf=lambda node: node is None)
    try:
        below = upper.flatten_up_to(tree)
    except ValueError:
        # JAX requires equal types of nodes, such as two tuples. A comparison of keys also accepts a
        # list for a tuple, and its error names all keys that differ.
        return _flatten_by_keys(prefix, tree, what)
    entries = tree_leaves(prefix, is_leaf=lambda node: node is None)
    counts = [_leaf_count(part) for part in below]
    return [entry for entry, n in zip(entries, counts, strict=True) for entry in (entry,) * n]


def _leaf_count(tree: Any) -> int:
    """Return the number of leaves of a pytree."""
    structure: Any = tree_structure(tree)
    return structure.num_leaves


def _flatten_by_keys(prefix: Any, tree: Any, where: str) -> list[Any]:
    """Return the entry of `prefix` for every leaf of `tree`, by comparing the keys of nodes.

    A prefix is a tree with one entry for a whole branch: {"a": 1, "b": 2} for {"a": [x, y], "b": z}
    gives [1, 1, 2]. `flatten_prefix` compares the types of nodes too, for example of a list and a
    tuple.

    Args:
      where: the path of this part of the prefix, for messages.

    Raises:
      StrategyError, RoleError: see `flatten_prefix`.
    """
    # An entry of the prefix counts for all leaves below it.
    if prefix is None or treedef_is_leaf(tree_structure(prefix)):
        return [prefix] * _leaf_count(tree)
    entries, children = _children(prefix), _children(tree)
    # A user may write a spec as a plain tuple. JAX reads that as a tree with an entry per child.
    is_spec = isinstance(prefix, tuple) and all(e is None or isinstance(e, str) for e in prefix)
    if not children and is_spec:
        words = ", ".join(map(repr, prefix))
        raise StrategyError(
            f"{where} is the tuple ({words}) for a single array: a tuple is a tree of specs. Write "
            f"jax.sharding.PartitionSpec({words})."
        )
    if entries.keys() != children.keys():
        raise _mismatch(where, entries, children)
    entries_of_children = [
        _flatten_by_keys(entries[key], children[key], f"{where}{key}") for key in entries
    ]
    return [entry for part in entries_of_children for entry in part]


def _children(tree: Any) -> dict[str, Any]:
    """Return the subtrees below the root of a pytree, by their key as text; empty for a leaf."""
    if treedef_is_leaf(tree_structure(tree)):
        return {}
    flat, _ = tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    return {keystr(path): child for path, child in flat}


def _mismatch(where: str, entries: Mapping[str, Any], children: Mapping[str, Any]) -> StrategyError:
    """Return the error for a prefix with missing or additional keys.

    Args:
      where: the path of this part of the prefix.
      entries, children: the children of the prefix and of the tree at this path, by key.
    """
    missing = [key for key in children if key not in entries]
    extra = [key for key in entries if key not in children]
    parts = [f"has no entry for {', '.join(missing)}"] if missing else []
    parts += [f"has an entry for {', '.join(extra)}, which does not exist"] if extra else []
    # The path begins with the name of the user's argument, such as in_shardings['w'].
    argument_name = where.split("[")[0].split(".")[0]
    whose = "results" if argument_name == "out_shardings" else "arguments"
    return _PREFIX_ERRORS.get(argument_name, StrategyError)(
        f"{where} fits no prefix of the {whose}: it {' and '.join(parts)}. The {whose} have "
        f"{', '.join(children) or 'a single array'} there. Mirror them, or give one entry for all."
    )


_PREFIX_ERRORS = {"roles": RoleError}
