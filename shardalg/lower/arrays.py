"""The border of a lowered program: conversion of global arrays to padded shards, and back.

Inside, every device holds `ceil(size / parts)` elements of a dimension. JAX arrays cannot be
uneven, so an uneven dimension of an argument is padded. In a result the padding is removed, and the
dimension is sharded along the longest prefix of its axes that divides it.

An array without elements is not sharded at the border: XLA refuses it as an argument of a
`shard_map`, and returns it in blocks of the global shape (jaxlib 0.10.2). Outside it has its
planned sharding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from shardalg.algebra.derived_layouts import even_prefix, whole
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import LoweringError
from shardalg.graph.abstract import item_type
from shardalg.graph.evaluate import by_word
from shardalg.graph.ir import Graph
from shardalg.graph.tracing.written import with_float0
from shardalg.lower.axes import Axes, Blocks, on_whole_axes

Array = Any


@dataclass(frozen=True)
class ArrayBorder:
    """One flattened argument or result, with its shardings inside and outside of the program.

    Attributes:
      path: its name in the user's pytree.
      dtype: name of its item type.
      sharding: the planned sharding, perhaps uneven.
      inner: JAX's sharding of the padded array that the executable takes or returns.
      outer: JAX's sharding of the array without padding: each dimension of `sharding` along the
        longest prefix of its axes that divides it.
      seen: `inner` in the order of devices and with the axes of the program, if these are others:
        the same blocks on the same devices; None if `inner` has them.
    """

    path: str
    dtype: str
    sharding: Sharding
    inner: NamedSharding
    outer: NamedSharding
    seen: NamedSharding | None = None

    @property
    def run(self) -> NamedSharding:
        """JAX's sharding of the array that the executable takes or returns."""
        return self.seen or self.inner

    @property
    def is_empty(self) -> bool:
        """True if the array has no elements."""
        return 0 in self.sharding.shape

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Global shape with padding, in which all devices have blocks of equal size."""
        sharding = self.sharding
        return tuple(
            n * block for n, block in zip(sharding.parts, sharding.shard_shape, strict=True)
        )

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Shape, item type and sharding of the padded array, for tracing."""
        return jax.ShapeDtypeStruct(self.padded_shape, item_type(self.dtype), sharding=self.run)

    def block(self) -> Array:
        """Return a device's block of an array without elements."""
        return _empty(self.sharding.shard_shape, self.dtype)

    def fits(self, array: Any) -> bool:
        """Return True if `array` can be an argument: its shape and its item type are right.

        The shape is the tensor's own or the padded shape. The item type is the one that JAX uses,
        for example float32 for float64 if 64-bit types are off. A function that returns blocks is
        accepted here; each block is checked when the function has returned it.
        """
        if callable(array):
            return True
        shape, dtype = np.shape(array), getattr(array, "dtype", None)
        if dtype is None:
            dtype = np.asarray(array).dtype
        known = shape in (self.sharding.shape, self.padded_shape)
        # JAX has no canonical type for random keys, objects and text, and would raise an error.
        if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) and dtype.kind not in "OSU":
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        return known and dtype == item_type(self.dtype)

    def reaches(self, array: Any) -> bool:
        """Return True if this process, or the plan's devices, have all of `array`.

        Otherwise the array cannot be sharded as planned.
        """
        here = not isinstance(array, jax.Array) or array.is_fully_addressable
        return here or array.sharding.device_set == self.inner.device_set

    def placed(self, array: Any) -> jax.Array:
        """Return the array padded and sharded as the program reads it.

        An array that already has this shape and sharding is returned itself.

        Args:
          array: an array of JAX or NumPy, or a function from an index to a block.
        """
        # An array in the host's memory is sent block by block, padded on the way.
        blocks = self.blocks(array)
        if blocks is not None:
            return blocks.placed(self.padded_shape, self.inner)
        # An array on devices may have its padding from an earlier call.
        if np.shape(array) == self.padded_shape:
            return put(array, self.inner)
        # Otherwise a compiled program pads it on the devices.
        return _padder(self.padded_shape, self.inner)(put(array, self.outer))

    def blocks(self, array: Any) -> Blocks | None:
        """Return a reader of blocks of an array in the host's memory.

        None if the array is on devices already, and can move between them without the host.

        Args:
          array: an array of JAX or NumPy, or a function from an index to a block.
        """
        item = item_type(self.dtype)
        # A function's blocks have shapes of the user's making, so they are checked.
        if callable(array):
            return Blocks(self.path, self.sharding.shape, item, array, checked=True)
        if isinstance(array, jax.Array):
            # An array that the devices of all processes hold never passes through one host.
            stays = not array.is_fully_addressable or self.inner.is_fully_addressable
            # Random keys have no numpy type; JAX itself moves them between devices.
            if stays or jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
                return None
        in_host_memory = np.asarray(array)
        return Blocks(self.path, in_host_memory.shape, item, in_host_memory.__getitem__)

    def true(self, array: Any) -> Any:
        """Return an array without its padding.

        In place of an array, a function may be given that returns the block at an index (slices).
        The array is then made from its blocks.
        """
        shape = self.sharding.shape
        blocks = self.blocks(array) if callable(array) else None
        if blocks is not None:
            return blocks.placed(shape, self.outer)
        return array if np.shape(array) == shape else array[tuple(map(slice, shape))]

    def taken(self, array: jax.Array) -> jax.Array:
        """Return an array that `placed` returned, with the sharding that the executable takes."""
        return _seen(array, self.seen)

    def handed(self, array: jax.Array) -> jax.Array:
        """Return a result of the executable as an array with the sharding `inner`.

        This sharding is on the user's mesh, in the user's order of devices. Each device keeps its
        block.
        """
        return array if self.seen is None else _seen(array, self.inner)

    def leave(self, array: jax.Array) -> jax.Array:
        """Return a result of the program as the user gets it: without padding.

        An even result has no padding and is returned itself.
        """
        array = self.handed(array)
        # XLA does not shard arrays without elements, so this one gets its sharding here.
        if self.is_empty:
            return put(_strip(array, shape=self.sharding.shape), self.outer)
        if self.sharding.is_even:
            return array
        return _stripper(self.sharding.shape, self.outer)(array)


def without_empty(
    function: Callable[..., Sequence[Array]],
    arguments: Sequence[ArrayBorder],
    results: Sequence[ArrayBorder],
) -> Callable[..., list[Array]]:
    """Return a function that takes and returns only the arrays that have elements.

    JAX refuses to shard an array of size 0. The returned function calls `function`, for which it
    creates the empty arguments, and leaves out the empty results.

    Args:
      function: the function that a device runs, from all argument blocks to all result blocks.
      arguments, results: the descriptions of all arguments and results.
    """

    def run(*blocks: Array) -> list[Array]:
        """Call `function`; the blocks and the results are those with elements, in order."""
        given = iter(blocks)
        all_results = function(*(b.block() if b.is_empty else next(given) for b in arguments))
        return [x for b, x in zip(results, all_results, strict=True) if not b.is_empty]

    return run


def with_empty(
    function: Callable[..., Sequence[Array]],
    arguments: Sequence[ArrayBorder],
    results: Sequence[ArrayBorder],
) -> Callable[..., list[Array]]:
    """Return a function that takes and returns all arrays, also those without elements.

    It reverses `without_empty`: empty arguments are dropped, and empty results are created.

    Args:
      function: a function that takes and returns only global arrays with elements.
      arguments, results: the descriptions of all arguments and results.
    """

    def run(*arrays: Array) -> list[Array]:
        """Call `function` without the empty arrays; return all results in order."""
        given = zip(arguments, arrays, strict=True)
        non_empty = iter(function(*(x for b, x in given if not b.is_empty)))
        return [_empty(b.padded_shape, b.dtype) if b.is_empty else next(non_empty) for b in results]

    return run


def _empty(shape: tuple[int, ...], dtype: str) -> Array:
    return lax.full(shape, 0, item_type(dtype))


def border(path: str, dtype: str, sharding: Sharding, *, run: Axes, user: Axes) -> ArrayBorder:
    """Return the border of one value: its shardings inside and outside of the program.

    They are on the user's mesh if axes of that mesh can name them, else on the program's mesh.

    Args:
      path: name of the value in the user's pytree.
      dtype: name of its item type.
      run: axes of the mesh that the program runs on.
      user: axes of the user's mesh.
    """
    # XLA takes no sharded array without elements, so such an array is replicated inside.
    held = whole(sharding) if 0 in sharding.shape else sharding
    outer = even_prefix(sharding)
    return ArrayBorder(
        path=path,
        dtype=dtype,
        sharding=sharding,
        inner=_named_sharding(held, run, user),
        outer=_named_sharding(outer, run, user),
    )


def border_in_other_order(
    plain: ArrayBorder, sharding: Sharding, mesh: Mesh, *, run: Axes, user: Axes
) -> ArrayBorder:
    """Return the shardings of a value whose order of devices is not that of the program's mesh.

    A program of JAX has one order of devices. It therefore sees the value's array under a sharding
    in its own order, which has the same blocks on the same devices (the field `seen`).

    Args:
      plain: border of the value in the program's order.
      sharding: sharding in the other order.
      mesh: the program's mesh.
      run, user: axes of the program's mesh, and of the user's mesh.
    """
    # The position in the program's mesh of each device of the other order. With it, both kinds of
    # axes name the devices in the other order.
    places = sharding.mesh.places(mesh)
    axes = {"run": run.turned(places), "user": user.turned(places)}
    return replace(border(plain.path, plain.dtype, sharding, **axes), seen=plain.inner)


def on_axes(plain: ArrayBorder, axes: Axes) -> ArrayBorder:
    """Return the border of an array with its sharding rewritten on the program's own axes.

    JAX requires that all shardings of some programs name the same axes. The field `seen` has the
    sharding that JAX gets.

    Args:
      axes: the axes of the mesh that the program runs on.
    """
    held = whole(plain.sharding) if plain.is_empty else plain.sharding
    return replace(plain, seen=axes.named(held))


def even_on(plain: ArrayBorder, axes: Axes) -> ArrayBorder:
    """Return the shardings of a value for a program that takes and returns unpadded arrays.

    Args:
      plain: the shardings for a program with padded arrays.
      axes: the axes of the program's mesh.
    """
    return replace(plain, inner=plain.run, outer=axes.named(even_prefix(plain.sharding)))


def _seen(array: jax.Array, target: NamedSharding | None) -> jax.Array:
    """Return the same blocks on the same devices, as an array with the sharding `target`."""
    if target is None or array.sharding == target:
        return array
    # Only the label changes: each device keeps its block.
    blocks = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, target, blocks)


def _named_sharding(sharding: Sharding, run: Axes, user: Axes) -> NamedSharding:
    """Return a sharding in JAX's form, on the user's axes if these can name its digits.

    Digits that are only parts of the user's axes are named by the program's axes (`run`).
    """
    digits = [digit for dim in sharding.dims for digit in dim]
    return (user if on_whole_axes(sharding.mesh, digits) else run).named(sharding)


def put(array: Any, target: NamedSharding) -> jax.Array:
    """Return `array` with the sharding `target`; itself if it already has it."""
    if isinstance(array, jax.Array) and (
        array.sharding == target or array.sharding.is_equivalent_to(target, array.ndim)
    ):
        return array
    return jax.device_put(array, target)


def place(
    graph: Graph, borders: Sequence[ArrayBorder], args: Sequence[Any], *, padded: bool = True
) -> list[jax.Array]:
    """Return the flattened arguments, checked, and sharded as their `borders` say.

    Args:
      graph: the planned function, whose pytree of arguments the call must have.
      borders: for each leaf, its name, shape, type and shardings.
      args: the user's arguments.
      padded: whether uneven arguments are padded to blocks of equal size.

    Raises:
      LoweringError: JAX traces the call, an argument has no numbers, is masked or is deleted, or
        the pytree, a shape or an item type is another than what was planned.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    # JAX would trace into the executable's arguments and fail with an internal message.
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise LoweringError(
            "a lowered program is compiled for its devices and takes arrays: it cannot be called "
            "while JAX traces (jit, grad, vmap, scan). Plan the whole function, its gradient or "
            "its vmap, and call what that lowers to."
        )
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise LoweringError(
            "a lowered program computes with numbers: an argument is a jax.ShapeDtypeStruct, which "
            "has none. Pass arrays of numpy or JAX."
        )
    if graph.trees is not None and tree != graph.trees[0]:
        raise LoweringError(
            "the arguments have another structure than those the plan was made for: "
            f"{_difference(tree, graph.trees[0], '')}. Pass the arguments given to plan()."
        )
    if len(leaves) != len(borders):
        raise LoweringError(f"the plan takes {len(borders)} arrays, got {len(leaves)}.")
    pairs = list(zip(borders, leaves, strict=True))
    _check(pairs)
    with jax.ensure_compile_time_eval():  # arrays are placed now, even while a function is traced
        return [b.placed(x) if padded else put(b.true(x), b.outer) for b, x in pairs]


def _difference(got: Any, planned: Any, where: str) -> str:
    """Return the place and the kind of the first difference between two pytree structures.

    For example, "at [0]['w'] tuple of 2 stands instead of an array".

    Args:
      where: path of both structures in the whole pytree, such as "[0]['w']".
    """
    # A node has a kind (dict, tuple, ...) and data, for example the keys of a dictionary.
    (kind, data), (planned_kind, planned_data) = _node(got), _node(planned)
    children, planned_children = got.children(), planned.children()
    is_same_node = kind is planned_kind and data == planned_data
    if is_same_node and len(children) == len(planned_children):
        # The message names the innermost difference, because the whole structures may be long.
        keys = data if kind is dict else range(len(children))
        for key, one, other in zip(keys, children, planned_children, strict=True):
            if one != other:
                return _difference(one, other, f"{where}[{key!r}]")
    # The two nodes themselves differ: in their data, or in their kind or number of children.
    place = f"at {where}" if where else "in all"
    if kind is planned_kind and data != planned_data:
        # Long data are cut to the surroundings of the first difference.
        texts = repr(data), repr(planned_data)
        pairs = zip(*texts, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        start = max(0, same - _AROUND)
        cut = (f"{'...' if start else ''}{text[start : same + _AROUND]}" for text in texts)
        return f"{place} {kind.__name__} holds {' instead of '.join(cut)}"
    return f"{place} {_kind(got)} stands instead of {_kind(planned)}"


def _node(tree: Any) -> tuple[Any, Any]:
    """Return the type and the data of a pytree's root; a leaf counts as an array."""
    data: tuple[Any, Any] | None = tree.node_data()
    return data or (jax.Array, None)


def _kind(tree: Any) -> str:
    """Return the kind of a pytree as text, such as "an array", "tuple of 2" or "None"."""
    kind, _ = _node(tree)
    if kind is jax.Array:
        return "an array"
    name = "None" if kind is type(None) else str(kind.__name__)
    return f"{name} of {len(tree.children())}" if tree.num_leaves else name


_AROUND = 60
"""Characters of a long value shown before and after the first difference."""


def _check(pairs: Sequence[tuple[ArrayBorder, Any]]) -> None:
    """Raise unless each array exists, has the planned shape and type, and can be sharded.

    Masked arrays of numpy are refused too. An array can be sharded if this process, or the plan's
    devices together, hold all of it. Each kind of fault is one LoweringError that names all arrays
    with it.

    XLA ends the process where an array is given again that a call has consumed (jaxlib 0.10.2).

    Args:
      pairs: per argument, its description in the plan and the user's array.
    """
    # Deleted arrays are checked before other properties, because XLA aborts the process on them.
    gone = [b.path for b, x in pairs if isinstance(x, jax.Array) and x.is_deleted()]
    if gone:
        raise LoweringError(
            f"{', '.join(gone)} was deleted, or donated to an earlier call, which made its results "
            "in that memory. Pass what that call returned, or plan without donate_argnums."
        )
    masked = [b.path for b, x in pairs if isinstance(x, np.ma.MaskedArray)]
    if masked:
        raise LoweringError(
            f"{', '.join(masked)} is a masked array of numpy, whose mask JAX does not take. Pass "
            "its data, or what its filled(value) gives."
        )
    # A process cannot read the devices of another one, so such blocks cannot be moved.
    unreachable = [f"  {b.path}: laid out as {x.sharding}" for b, x in pairs if not b.reaches(x)]
    if unreachable:
        raise LoweringError(
            "arrays that lie on other devices than the plan's, some of other processes:\n"
            + "\n".join(unreachable)
            + "\nPass what every process has whole, or a function that gives the block of a place."
        )
    misfits = []
    for b, x in pairs:
        if not b.fits(x):
            try:
                got = str(jax.typeof(x))
            except TypeError:  # no array: its value tells the user more
                got = f"{x!r:.40}, a {type(x).__name__}"
            misfits.append(f"  {b.path}: got {got}, planned for {b.dtype}{list(b.sharding.shape)}")
    if misfits:
        raise LoweringError(
            "arguments of other shapes or item types than planned:\n"
            + "\n".join(misfits)
            + "\nPass arrays as planned, or plan again for these."
        )


def call_executable(compiled: Any, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Call JAX's compiled program.

    Raises:
      LoweringError: JAX lays an argument out otherwise than it compiled for, as it does integers of
        4 bits (jaxlib 0.10.2).
    """
    try:
        return compiled(*arrays)
    except ValueError as error:
        # JAX raises a bare ValueError for this case only; others are not ours to explain.
        if "compiled for input layouts" not in str(error):
            raise
        told = [line for line in str(error).split("\n") if line.startswith("Argument")]
        raise LoweringError(
            "JAX lays these out otherwise than its compiled program takes them: "
            f"{'; '.join(told)} Pass values of 8 bits, and convert them inside."
        ) from None


def results_of_call(graph: Graph, leaves: list[Any]) -> Any:
    """Return the flat results in the function's pytree, with arrays for leaves of type float0."""
    return leaves if graph.trees is None else with_float0(graph.trees[1].unflatten(leaves))


@lru_cache
def _padder(shape: tuple[int, ...], target: NamedSharding) -> Any:
    return jax.jit(partial(_pad, shape=shape), out_shardings=target)


def _pad(x: jax.Array, *, shape: tuple[int, ...]) -> jax.Array:
    widths = [(0, full - n) for full, n in zip(shape, x.shape, strict=True)]
    (padded,) = by_word(lambda part: [jax.numpy.pad(part, widths)], x)
    return padded


@lru_cache
def _stripper(shape: tuple[int, ...], target: NamedSharding) -> Any:
    return jax.jit(partial(_strip, shape=shape), out_shardings=target)


def _strip(x: jax.Array, *, shape: tuple[int, ...]) -> jax.Array:
    return lax.slice(x, (0,) * x.ndim, shape)
