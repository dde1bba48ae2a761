"""Derivatives by integers: arrays of JAX's type `float0`, which hold nothing.

They are no values of a graph. In the tree of a function's results each stands as a node without
leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardalg.errors import TraceError

FLOAT0 = jax.dtypes.float0


@dataclass(frozen=True)
class Nothing:
    """An array of type `float0`, in a tree without leaves for it."""

    shape: tuple[int, ...]


jax.tree_util.register_pytree_node(
    Nothing, lambda nothing: ((), nothing.shape), lambda shape, _: Nothing(shape)
)


def without_float0(results: Any) -> Any:
    """The tree with a node in place of each `float0` array.

    >>> without_float0({"x": 1.0, "index": np.zeros(3, FLOAT0)})
    {'index': Nothing(shape=(3,)), 'x': 1.0}
    """
    return jax.tree.map(lambda x: Nothing(x.shape) if _is_float0(x) else x, results)


def with_float0(results: Any) -> Any:
    """The tree with a `float0` array in place of each node that stands for one.

    >>> with_float0({"index": Nothing((3,)), "x": 1.0})["index"].dtype == FLOAT0
    True
    """
    return jax.tree.map(
        lambda x: np.zeros(x.shape, FLOAT0) if isinstance(x, Nothing) else x,
        results,
        is_leaf=lambda x: isinstance(x, Nothing),
    )


def refuse_float0(path: str, leaf: Any) -> None:
    """An argument holds something.

    Raises:
      TraceError: it does not.
    """
    if _is_float0(leaf):
        raise TraceError(
            f"{path} is of type float0, which holds nothing: it is the tangent of an integer. Make "
            "it inside the function, as numpy.zeros(shape, jax.dtypes.float0)."
        )


def _is_float0(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == FLOAT0
