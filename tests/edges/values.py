"""Arrays at the edges: no elements, one, fewer than devices; ties, infinities, largest numbers."""

import jax.numpy as jnp
import numpy as np

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8)
KINDS = ("float32", "float32", "float32", "float16", "bfloat16", "int32", "int8", "uint8", "uint32",
         "bool", "complex64")  # fmt: skip
FINITE, NOT_FINITE, EXTREME = "finite", "not finite", "extreme"


def some_shape(rng, rank=None):
    rank = int(rng.integers(1, 4)) if rank is None else rank
    return tuple(int(rng.choice(SIZES[:: 1 + rank // 3])) for _ in range(rank))


def some_array(rng, shape, dtype, numbers=FINITE):
    """Small whole numbers, every sum of them exact, or numbers at the ends of the type."""
    dtype = jnp.dtype(dtype)
    values = rng.integers(-3, 4, shape)
    if dtype.kind in "ub" and dtype != jnp.bfloat16:
        values = abs(values) % (2 if dtype.kind == "b" else 7)
    made = np.asarray(values).astype(dtype)
    few = edges(dtype, numbers)
    if few is None:
        return made
    some = rng.choice(few, size=rng.integers(1, len(few) + 1))
    return np.where(rng.integers(0, 2, shape), rng.choice(some, size=shape), made).astype(dtype)


def some_like(rng, x):
    return some_array(rng, x.shape, x.dtype)


def edges(dtype, numbers):
    """Return the values among the small numbers; None if there are none."""
    if numbers == FINITE or dtype.kind == "b":
        return None
    if not jnp.issubdtype(dtype, jnp.inexact):
        info = jnp.iinfo(dtype)
        return np.array([info.min, info.max, info.max - 1, 0], dtype)
    info = jnp.finfo(dtype)
    ends = [np.nan, np.inf, -np.inf, -0.0] if numbers == NOT_FINITE else [
        info.max, -info.max, info.tiny, info.eps, -0.0]  # fmt: skip
    return np.array(ends).astype(dtype)
