"""A rotation along the leading dimension, whose transpose is one rotation back.

`jnp.roll` puts two slices side by side; JAX's transpose of that is two shifts, each of a part that
is padded. Derivatives of either mode go through it, as it is linear.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def rotated(x: Any, by: int) -> Any:
    """`jnp.roll(x, by, 0)`.

    >>> rotated(jnp.arange(4), 1).tolist()
    [3, 0, 1, 2]
    """
    return rotate_p.bind(x, by=by, dim=0)


def rolled(x: Any, *, by: int, dim: int) -> Any:
    """What the primitive computes."""
    return jnp.roll(x, by, dim)


def _batch(values: tuple[Any], dims: tuple[int], *, by: int, dim: int) -> tuple[Any, int]:
    """The dimension moves up where the new one stands before it."""
    (x,), (new,) = values, dims
    return rotate_p.bind(x, by=by, dim=dim + (new <= dim)), new


rotate_p = Primitive("rotate")
rotate_p.def_impl(rolled)
rotate_p.def_abstract_eval(lambda x, **params: x)
ad.deflinear2(rotate_p, lambda dy, _, *, by, dim: [rotate_p.bind(dy, by=-by, dim=dim)])
batching.primitive_batchers[rotate_p] = _batch
mlir.register_lowering(rotate_p, mlir.lower_fun(rolled, multiple_results=False))
