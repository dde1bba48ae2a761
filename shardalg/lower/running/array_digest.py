"""A number that tells an array's bits apart from others, however it is laid out and padded."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

_SEEDS = (0x9E3779B1, 0x85EBCA6B)
_FACTORS = (0x7FEB352D, 0x846CA68B)  # odd: a product modulo 2**32 with one loses no bit


def digest(array: jax.Array, shape: tuple[int, ...]) -> str:
    """64 bits of an array's true part, as text; every process of its devices takes part.

    Twice the sum of `mix(word ^ mix(place))` modulo 2**32, `mix` losing no bit, so that one flipped
    bit always changes it, and others do but for one time in 2**64. Computed where the blocks lie.

    Args:
      shape: the true shape; what the array has beyond it is padding.

    >>> whole = jnp.arange(12.0).reshape(3, 4)
    >>> digest(whole, (3, 4)) == digest(jnp.pad(whole, 1)[1:, 1:], (3, 4))
    True
    >>> digest(whole, (3, 4)) == digest(whole.at[1, 1].set(-5.0), (3, 4))
    False
    """
    return "".join(f"{int(half):08x}" for half in _halves(array, shape=shape))


@partial(jax.jit, static_argnames="shape")
def _halves(array: jax.Array, *, shape: tuple[int, ...]) -> list[jax.Array]:
    words = _words(array)
    place = jnp.zeros(words.shape, jnp.uint32)
    real = jnp.ones(words.shape, bool)
    for dim in range(words.ndim):
        at = lax.broadcasted_iota(jnp.uint32, words.shape, dim)
        real &= at < shape[dim] if dim < len(shape) else True
        place = _mixed(place ^ at)
    terms = (jnp.where(real, _mixed(words ^ _mixed(place + jnp.uint32(s))), 0) for s in _SEEDS)
    return [jnp.sum(term, dtype=jnp.uint32) for term in terms]


def _mixed(word: jax.Array) -> jax.Array:
    """Every bit depends on every other one; no two words become one (Prospector's lowbias32)."""
    word = word + jnp.uint32(_SEEDS[0])
    for factor, shift in zip(_FACTORS, (16, 15), strict=True):
        word = (word ^ (word >> shift)) * jnp.uint32(factor)
    return word ^ (word >> 16)


def _words(array: jax.Array) -> jax.Array:
    """The bits as whole numbers of at most 32 bits; wider items have a dimension more."""
    if array.dtype.kind == "c":
        return _words(jnp.stack([array.real, array.imag], -1))
    bits = jax.dtypes.itemsize_bits(array.dtype)
    if array.dtype == jnp.bool_ or bits < 8:
        return array.astype(jnp.uint8).astype(jnp.uint32)
    whole = jnp.dtype(f"uint{min(bits, 32)}")
    return lax.bitcast_convert_type(array, whole).astype(jnp.uint32)
