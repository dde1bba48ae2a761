"""Arrays with names for their dimensions, read from tuples, flax boxes or variables of nnx."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from shardalg.errors import StrategyError
from shardalg.graph.abstract import item_type

Names = tuple[str | None, ...]
_EXAMPLE = '{"w": ((512, 2048), "bfloat16", ("embed", "mlp"))}'
_NNX_KEYS = ("out_sharding", "sharding_names", "sharding")
"""Where a variable of nnx has the names of its dimensions, the newest key first."""


@dataclass(frozen=True)
class NamedArray:
    """An array, the names of its dimensions, and its place in a pytree.

    Attributes:
      key: its path, as "params/up/kernel".
      names: a name or None per dimension; None if the array has none.
      shape: None if only names are known, as of an activation.
    """

    key: str
    names: Names | None
    shape: tuple[int, ...] | None = None
    dtype: str = "float32"

    @property
    def num_bytes(self) -> int | None:
        """Bytes of the whole array; None if its shape is not known."""
        if self.shape is None:
            return None
        return math.prod(self.shape) * int(item_type(self.dtype).itemsize)


class NamedTree(NamedTuple):
    """The arrays of a pytree.

    Attributes:
      arrays: one per leaf. structure: the structure of the pytree, to build trees of specs.
    """

    arrays: tuple[NamedArray, ...]
    structure: Any

    def filled(self, leaves: Sequence[Any]) -> Any:
        """Return a pytree with this structure, and `leaves` in place of the arrays."""
        return jax.tree.unflatten(self.structure, leaves)


def named_arrays(arrays: Any, names: Any = None) -> NamedTree:
    """Return the arrays of a pytree with the names of their dimensions.

    Args:
      names: a pytree of names that is parallel to `arrays`, whose leaves then need no names.

    Raises:
      StrategyError: no arrays, a leaf that is none, trees that differ, or another number of names
        than dimensions.

    >>> named_arrays({"w": ((4, 8), "bfloat16", ("embed", "mlp"))}).arrays[0].num_bytes
    64
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(arrays, is_leaf=_is_leaf)
    if not leaves:
        raise StrategyError(f"there are no arrays to lint: pass a pytree such as {_EXAMPLE}.")
    found = [
        _array(jax.tree_util.keystr(path, simple=True, separator="/"), x) for path, x in leaves
    ]
    if names is not None:
        given = jax.tree_util.tree_flatten_with_path(names, is_leaf=_is_names)[0]
        by_key = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in given}
        # `nnx.get_partition_spec` keeps a variable around each spec, so its path ends in "value", a
        # word that the path of the array does not have.
        by_key |= {key.removesuffix("/value"): x for key, x in by_key.items()}
        missing = [one.key for one in found if one.names is None and one.key not in by_key]
        if missing:
            near = get_close_matches(missing[0], list(by_key), 2) or sorted(by_key)[:2]
            raise StrategyError(
                f"`names` has no names for array {missing[0]!r}; near: {', '.join(near)}. Give "
                "`arrays` and `names` the same keys."
            )
        found = [
            one
            if one.names is not None
            else _checked(one.key, by_key[one.key], one.shape, one.dtype)
            for one in found
        ]
    elif all(one.names is None for one in found):
        raise StrategyError(
            f"no array has names for its dimensions. Write arrays as {_EXAMPLE}, or pass names=... "
            "with the same keys."
        )
    return NamedTree(tuple(found), structure)


def _array(key: str, leaf: Any) -> NamedArray:
    """Return one leaf of a pytree as an array with names.

    Raises:
      StrategyError: the leaf is no array, names or pair of these.
    """
    if _is_names(leaf):
        return _checked(key, leaf, None, "float32")
    # A leaf is (shape, names) or (shape, dtype, names). Without a dtype, an array counts as
    # float32, the usual type of parameters.
    if isinstance(leaf, tuple) and len(leaf) in (2, 3) and _is_shape(leaf[0]):
        dtype = leaf[1] if len(leaf) == 3 else "float32"
        return _checked(key, leaf[-1], tuple(leaf[0]), _dtype_text(key, dtype))
    names = getattr(leaf, "names", None)
    value = leaf
    if hasattr(leaf, "unbox"):
        value = leaf.unbox()
    elif hasattr(leaf, "get_metadata"):
        known = leaf.get_metadata()
        names = next((known[k] for k in _NNX_KEYS if known.get(k) is not None), None)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _checked(key, names, tuple(value.shape), str(value.dtype))
    raise StrategyError(
        f"array {key!r} is {leaf!r:.80}: write arrays as {_EXAMPLE}, or as boxes of flax or "
        "variables of nnx."
    )


def _checked(key: str, names: Any, shape: tuple[int, ...] | None, dtype: str) -> NamedArray:
    """Return an array, if its names fit its shape.

    Raises:
      StrategyError: `names` are no names, or are not as many as dimensions.
    """
    if names is None:
        return NamedArray(key, None, shape, dtype)
    if not _is_names(names):
        raise StrategyError(
            f"array {key!r} has the names {names!r:.80}: give a name or None per dimension, as "
            f"in {_EXAMPLE}."
        )
    given = tuple(names)
    # JAX lets a PartitionSpec leave out trailing dimensions, which then have no name here.
    if shape is not None and isinstance(names, PartitionSpec):
        given += (None,) * (len(shape) - len(given))
    if shape is not None and len(given) != len(shape):
        raise StrategyError(
            f"array {key!r} has {len(shape)} dimensions, {list(shape)}, and {len(given)} names, "
            f"{list(given)}: give a name or None per dimension."
        )
    return NamedArray(key, given, shape, dtype)


def structs(arrays: Sequence[NamedArray]) -> list[jax.ShapeDtypeStruct]:
    """Return the arrays as shapes that jax can trace a function with.

    Raises:
      StrategyError: an array has no shape.
    """
    bare = [one.key for one in arrays if one.shape is None]
    if bare:
        raise StrategyError(
            f"array {bare[0]!r} is an argument of the function and has names alone: write it as "
            f"{_EXAMPLE}."
        )
    return [jax.ShapeDtypeStruct(one.shape, item_type(one.dtype)) for one in arrays]


def argument_trees(
    fn: Any, tree: NamedTree, arrays: Any, parameters: Sequence[str]
) -> tuple[NamedTree, ...]:
    """Return the arrays of each parameter of a function, as pytrees.

    Args:
      tree: all arrays. arrays: the pytree that they were read from.
      parameters: the parameters of the function that need a value.

    Raises:
      StrategyError: `arrays` is no mapping, or a parameter is no key.
    """
    if not isinstance(arrays, Mapping):
        raise StrategyError(
            "with a function, `arrays` is a mapping whose keys are the function's parameters, and "
            f"names of its sites. It is a {type(arrays).__name__}."
        )
    missing = [name for name in parameters if name not in arrays]
    if missing:
        near = get_close_matches(missing[0], list(map(str, arrays)), 2) or sorted(map(str, arrays))
        raise StrategyError(
            f"parameter {missing[0]!r} of {getattr(fn, '__name__', fn)} is no key of `arrays`; "
            f"near: {', '.join(near[:4])}. Add it, or rename the key."
        )
    # The key of an array is its path in `arrays`, so the arrays of a parameter are those whose path
    # begins with the parameter's name.
    found = []
    for name in parameters:
        inside = [one for one in tree.arrays if one.key == name or one.key.startswith(f"{name}/")]
        structure = jax.tree.structure(arrays[name], is_leaf=_is_leaf)
        found.append(NamedTree(tuple(inside), structure))
    return tuple(found)


def _dtype_text(key: str, dtype: Any) -> str:
    """Return the name of a dtype, such as "bfloat16"; `key` names the array in an error."""
    try:
        return str(item_type(dtype) if isinstance(dtype, str) else jax.numpy.dtype(dtype))
    except (TypeError, StopIteration):
        raise StrategyError(
            f"array {key!r} has the dtype {dtype!r:.40}: write it as 'bfloat16' or jnp.bfloat16."
        ) from None


def _is_shape(given: Any) -> bool:
    return isinstance(given, tuple | list) and all(isinstance(n, int | np.integer) for n in given)


def _is_names(leaf: Any) -> bool:
    """Return whether a leaf is a tuple or list of dimension names, not a named tuple of arrays."""
    if isinstance(leaf, PartitionSpec):
        return True
    plain = isinstance(leaf, tuple | list) and not hasattr(leaf, "_fields")
    # An empty tuple is a node of a pytree, and a scalar has no names to read.
    return plain and bool(leaf) and all(n is None or isinstance(n, str) for n in leaf)


def _is_leaf(leaf: Any) -> bool:
    """Return whether a node of a pytree is one array with its names."""
    tuples = isinstance(leaf, tuple) and len(leaf) in (2, 3) and _is_shape(leaf[0])
    boxed = hasattr(leaf, "unbox") or hasattr(leaf, "get_metadata")
    return bool(tuples) or boxed or _is_names(leaf)
