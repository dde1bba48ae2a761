"""Arrays with names for their dimensions, read from tuples, flax, nnx or haliax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from shardalg.errors import StrategyError
from shardalg.graph.abstract import item_type

if TYPE_CHECKING:
    from shardalg.plan.rules.logical_rules import LogicalRules

Names = tuple[str | None, ...]
_EXAMPLE = '{"w": ((512, 2048), "bfloat16", ("embed", "mlp"))}'
EXAMPLE_ARGUMENTS = '({"w": ("embed", "mlp")}, ("batch", None))'
"""Names of two arguments of a function, for messages."""
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

    def specs(self, rules: LogicalRules) -> Any:
        """Return a pytree of the arrays' layouts by rules; None for arrays without names."""
        named = [None if one.names is None else rules.spec(one.names) for one in self.arrays]
        return self.filled(named)


def named_arrays(arrays: Any, names: Any = None) -> NamedTree:
    """Return the arrays of a pytree with the logical names of their dimensions.

    Names are in the leaves, such as ((4, 8), "bfloat16", ("embed", "mlp")), or in a second pytree.

    Args:
      names: a pytree of names that is parallel to `arrays`, whose leaves then need no names.

    Raises:
      StrategyError: no arrays, a leaf that is none, trees that differ, or another number of names
        than dimensions.

    >>> named_arrays({"w": ((4, 8), "bfloat16", ("embed", "mlp"))}).arrays[0].num_bytes
    64
    """
    arrays_found, structure = named_tree(arrays)
    if not arrays_found:
        raise StrategyError(f"there are no arrays to lint: pass a pytree such as {_EXAMPLE}.")
    if names is not None:
        name_leaves = jax.tree_util.tree_flatten_with_path(names, is_leaf=_is_names)[0]
        by_key = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in name_leaves}
        # `nnx.get_partition_spec` keeps a variable around each spec, so its path ends in "value", a
        # word that the path of the array does not have.
        by_key |= {key.removesuffix("/value"): x for key, x in by_key.items()}
        # Called for its error, also for names that belong to no array.
        for key, each in by_key.items():
            checked_names(key, each, None)
        missing = [
            array.key for array in arrays_found if array.names is None and array.key not in by_key
        ]
        if missing:
            near = get_close_matches(missing[0], list(by_key), 2) or sorted(by_key)[:2]
            raise StrategyError(
                f"`names` has no names for array {missing[0]!r}; near: {', '.join(near)}. Give "
                "`arrays` and `names` the same keys."
            )
        # Names in a leaf have precedence over those in `names`.
        arrays_found = tuple(
            array
            if array.names is not None
            else checked_names(array.key, by_key[array.key], array.shape, array.dtype)
            for array in arrays_found
        )
    elif not any(array.names for array in arrays_found):
        raise StrategyError(
            f"no array has names for its dimensions. Write arrays as {_EXAMPLE}, or pass names=... "
            "with the same keys."
        )
    return NamedTree(arrays_found, structure)


def named_tree(arrays: Any, path: str = "") -> NamedTree:
    """Return the arrays of a pytree; those without names have None in place of names.

    Args:
      path: the path of the pytree itself, with which the keys of its arrays begin.

    Raises:
      StrategyError: a leaf is no array, or has another number of names than dimensions.

    >>> named_tree({"w": ("embed", "mlp")}, "params").arrays[0].key
    'params/w'
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(arrays, is_leaf=_is_leaf)
    found = []
    for keys, leaf in leaves:
        inside = jax.tree_util.keystr(keys, simple=True, separator="/")
        found.append(_array("/".join(part for part in (path, inside) if part), leaf))
    return NamedTree(tuple(found), structure)


def arguments_of(arrays: Any) -> tuple[NamedTree, ...]:
    """Return the named arrays of each argument of a function.

    Raises:
      StrategyError: `arrays` is no tuple or list, or an entry cannot be read.
    """
    if not isinstance(arrays, tuple | list) or hasattr(arrays, "_fields"):
        raise StrategyError(
            f"arrays is a {type(arrays).__name__}: give a tuple with an entry per argument of the "
            f"function, as in {EXAMPLE_ARGUMENTS}. An argument without names is None."
        )
    return tuple(named_tree(each, f"{number}") for number, each in enumerate(arrays))


def named_site(site: str, names: Any) -> NamedArray:
    """Return a site with the names of its dimensions.

    Raises:
      StrategyError: `names` are no names.
    """
    if names is None:
        raise StrategyError(f"site {site!r} has no names: give a name or None per dimension.")
    return checked_names(f"site {site}", names, None)


def specs_by_path(specs: Any) -> dict[str, Any]:
    """Return a dictionary from paths to layouts, of a pytree of layouts; None has a path, too.

    >>> specs_by_path(({"w": "[data]"}, None))
    {'0/w': '[data]', '1': None}
    """
    leaves = jax.tree_util.tree_flatten_with_path(specs, is_leaf=_is_spec)[0]
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}
    # A variable of nnx is a node whose only leaf has the path "value".
    return found | {key.removesuffix("/value"): spec for key, spec in found.items()}


def _is_spec(node: Any) -> bool:
    """Return whether a node of a strategy's tree is the layout of all arrays below it."""
    return node is None or isinstance(node, PartitionSpec | str) or hasattr(node, "shard_shape")


def _array(key: str, leaf: Any) -> NamedArray:
    """Return one leaf of a pytree as an array with names.

    A leaf is the names alone, a tuple with shape and names, an array of haliax, a box of flax, a
    variable of nnx, or an array without names.

    Args:
      key: the path of the leaf, which becomes the key of the array.

    Raises:
      StrategyError: the leaf is no array, names or pair of these.
    """
    if _is_names(leaf):
        return checked_names(key, leaf, None, "float32")
    # A leaf is (shape, names) or (shape, dtype, names). Without a dtype, an array counts as
    # float32, the usual type of parameters.
    if _is_written(leaf):
        dtype = leaf[1] if len(leaf) == 3 else "float32"
        shape = _checked_shape(key, leaf[0])
        return checked_names(key, leaf[-1], shape, _dtype_text(key, dtype))
    # Libraries wrap arrays in their own types, which are recognised by their attributes.
    names = getattr(leaf, "names", None)
    value = leaf
    if _is_haliax(leaf):
        names, value = tuple(axis.name for axis in leaf.axes), leaf.array
    elif hasattr(leaf, "unbox"):
        value = leaf.unbox()
    elif hasattr(leaf, "get_metadata"):
        known = leaf.get_metadata()
        names = next((known[k] for k in _NNX_KEYS if known.get(k) is not None), None)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return checked_names(key, names, tuple(value.shape), str(value.dtype))
    raise StrategyError(
        f"array {key!r} is {leaf!r:.80}: write arrays as {_EXAMPLE}, or as boxes of flax or "
        "variables of nnx."
    )


def checked_names(
    key: str, names: Any, shape: tuple[int, ...] | None, dtype: str = "float32"
) -> NamedArray:
    """Return an array with names, after checking that the names fit its shape.

    Args:
      key: the path of the array, for the error.
      names: a name or None per dimension; None for an array without names.
      shape: None if it is not known; then only the form of the names is checked.

    Raises:
      StrategyError: `names` are no names, or are not as many as dimensions.
    """
    # A scalar has no dimension to name.
    if shape == () and (names is None or not len(names)):
        return NamedArray(key, (), shape, dtype)
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
    """Return the arrays as `jax.ShapeDtypeStruct`, with which a function can be traced.

    Raises:
      StrategyError: an array has names alone, and no shape.
    """
    without_shape = [one.key for one in arrays if one.shape is None]
    if without_shape:
        raise StrategyError(
            f"array {without_shape[0]!r} is an argument of the function and has names alone: write "
            f"it as {_EXAMPLE}."
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


def _is_plain(given: Any) -> bool:
    """Return whether a node is a tuple or list; a named tuple is a node of other arrays."""
    return isinstance(given, tuple | list) and not hasattr(given, "_fields")


def _is_written(leaf: Any) -> bool:
    """Return whether a node is an array as (shape, dtype, names) or (shape, names).

    A shape is read with wrong sizes, too, so that the error can name them.
    """
    if not isinstance(leaf, tuple) or not _is_plain(leaf) or len(leaf) not in (2, 3):
        return False
    shape: Any = leaf[0]
    # Named sizes are expressions of sympy.
    if not _is_plain(shape):
        return False
    numbers = (isinstance(n, int | float | np.number) or hasattr(n, "free_symbols") for n in shape)
    if not all(numbers):
        return False
    # An empty tuple may also be a node without arrays. It is the shape of a scalar beside a dtype.
    return bool(shape) or (len(leaf) == 3 and isinstance(leaf[1], str | type | np.dtype))


def _checked_shape(key: str, shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape that the user wrote.

    Raises:
      StrategyError: a size is no whole number of at least 0.
    """
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise StrategyError(
                f"array {key!r} has the shape {list(shape)!r:.80}, with the size {size!r}: sizes "
                "are whole numbers of at least 0."
            )
    return tuple(map(int, shape))


def _is_names(leaf: Any) -> bool:
    """Return whether a leaf is a tuple or list of dimension names, not a named tuple of arrays."""
    if isinstance(leaf, PartitionSpec):
        return True
    # An empty tuple is a node of a pytree, and a scalar has no names to read.
    names = _is_plain(leaf) and all(n is None or isinstance(n, str) for n in leaf)
    return bool(names and leaf)


def _is_leaf(leaf: Any) -> bool:
    """Return whether a node of a pytree is one array with its names."""
    boxed = hasattr(leaf, "unbox") or hasattr(leaf, "get_metadata") or _is_haliax(leaf)
    return _is_written(leaf) or boxed or _is_names(leaf)


def _is_haliax(leaf: Any) -> bool:
    """Return whether a node of a pytree is a named array of haliax."""
    axes = getattr(leaf, "axes", None)
    named = isinstance(axes, tuple) and all(hasattr(axis, "name") for axis in axes)
    return named and hasattr(leaf, "array")
