"""Shardings, shapes and types of the leaves of a call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardalg.errors import LoweringError, TraceError
from shardalg.graph.abstract import item_type
from shardalg.graph.ir import Graph


def own_shardings(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the NamedSharding of each leaf of `args`, or None for a leaf without one.

    A sharding on a mesh of one device counts as none.
    """
    leaves = jax.tree.leaves(tuple(args))
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    named_shardings = [s if isinstance(s, jax.sharding.NamedSharding) else None for s in shardings]
    return tuple(None if s is None or s.mesh.size == 1 else s for s in named_shardings)


def declared_dims(args: Sequence[Any]) -> tuple[tuple[Any, ...], ...] | None:
    """Return the shape of each leaf of `args` if some shape has a named size, else None.

    Raises:
      TraceError: a size is a tuple. `dims` returns a tuple for a single name too.

    >>> declared_dims((jax.ShapeDtypeStruct((8, 4), "float32"), 1.0)) is None
    True
    """
    shapes = tuple(tuple(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(tuple(args)))
    # `B = dims("B")`, without unpacking, is a tuple of one size.
    nested = next((shape for shape in shapes if any(isinstance(n, tuple) for n in shape)), None)
    if nested is not None:
        raise TraceError(
            f"the shape {nested} has a tuple in place of a size. dims returns a tuple of sizes for "
            "a single name too: (B,) = dims('B', hint=64)."
        )
    has_names = any(hasattr(size, "free_symbols") for shape in shapes for size in shape)
    return shapes if has_names else None


def types_of(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments with each array replaced by a `jax.ShapeDtypeStruct`.

    The result therefore keeps no array in memory. Other leaves are not changed.
    """

    def plain(leaf: Any) -> Any:
        # Only arrays are replaced: a Python number has no shape and uses no device memory.
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            return leaf
        weak = bool(getattr(leaf, "weak_type", False))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak)

    return jax.tree.map(plain, tuple(args))


def with_shapes(args: Sequence[Any], number: Callable[[Any], int]) -> tuple[Any, ...]:
    """Return the arguments' types with every named size replaced by `number(size)`.

    Leaves without a named size are not changed.

    >>> from shardalg.algebra.dims import dims, hint_of
    >>> (B,) = dims("B", hint=8)
    >>> with_shapes((jax.ShapeDtypeStruct((B, 4), "float32"),), hint_of)
    (ShapeDtypeStruct(shape=(8, 4), dtype=float32),)
    """

    def sized(leaf: Any) -> Any:
        """Return the type of one leaf, with numbers in place of its named sizes."""
        shape = tuple(getattr(leaf, "shape", ()))
        if not any(hasattr(size, "free_symbols") for size in shape):
            return leaf
        numbers = tuple(number(n) if hasattr(n, "free_symbols") else n for n in shape)
        is_weak = bool(getattr(leaf, "weak_type", False))
        return jax.ShapeDtypeStruct(numbers, leaf.dtype, weak_type=is_weak)

    return jax.tree.map(sized, tuple(args))


def planned_arguments(
    graph: Graph, args: Sequence[Any] | None, dims: Sequence[tuple[Any, ...]] | None = None
) -> Sequence[Any]:
    """Return `args`, or one `jax.ShapeDtypeStruct` per argument of the graph if `args` is None.

    Args:
      dims: the shapes of the structs, which may have named sizes; None for the graph's shapes.

    Raises:
      LoweringError: `args` is None and an argument of the graph is inside a pytree.
    """
    if args is not None:
        return args
    nested_paths = [path for path in graph.argument_paths if not path.isidentifier()]
    if nested_paths:
        raise LoweringError(
            f"the plan was made for pytrees ({nested_paths[0]} is an array inside one), and a "
            "plan file does not store their types. Pass the arguments too: "
            "plan.lower(fn=train_step, args=(params, batch)). Shapes and types are enough."
        )
    types = [graph.values[v].type for v in graph.arguments]
    # No argument is inside a pytree, as checked above. One struct per argument therefore has the
    # same structure as the user's call.
    shapes = dims or [t.shape for t in types]
    return tuple(
        jax.ShapeDtypeStruct(s, item_type(t.dtype)) for s, t in zip(shapes, types, strict=True)
    )


def with_named_lead(
    given: Any, places: Sequence[int], size: Any, count: int
) -> tuple[tuple[Any, ...], Any]:
    """Return positional and keyword arguments with a named leading dimension in some leaves.

    Args:
      given: the pair (args, kwargs).
      places: positions of the leaves to change, in the flattened `given`.
      size: the named size.
      count: the number of leaves that the traced function has.

    Raises:
      TraceError: the function's flat arguments are not the leaves of the user's.
    """
    leaves, tree = jax.tree.flatten(given)
    if len(leaves) != count:
        raise TraceError(
            f"the function has {count} flat arguments, the call {len(leaves)} leaves (static "
            "arguments, or state of a framework): name the batch yourself, with sa.dims."
        )
    for place in places:
        leaf = leaves[place]
        shape = (size, *leaf.shape[1:])
        leaves[place] = jax.ShapeDtypeStruct(shape, leaf.dtype)
    return jax.tree.unflatten(tree, leaves)
