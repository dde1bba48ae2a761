"""Random keys (`jax.random.key`) as the words that they are made of, which every move can move.

JAX does not pad them, numpy does not hold them, and collectives along any dimension but the first
do not lower: words are numbers of 32 bits in the shape of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Array = Any


def is_key(array: Array) -> bool:
    """Whether an array holds random keys.

    >>> is_key(jax.random.key(0)), is_key(jax.random.PRNGKey(0)), is_key(2.0)
    (True, False, False)
    """
    dtype = getattr(array, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def words(keys: Array) -> list[Array]:
    """Each word of all keys."""
    data = jax.random.key_data(keys)
    return [data[..., place] for place in range(data.shape[-1])]


def of_words(parts: Sequence[Array], like: Array) -> Array:
    """The keys of these words, of the same kind as others.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> bool((of_words(words(keys), keys) == keys).all())
    True
    """
    data = jnp.stack([jnp.asarray(part) for part in parts], -1)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))


def by_word(move: Callable[..., Sequence[Array]], *operands: Array) -> list[Array]:
    """What a move makes of its operands, of those that are keys word by word.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> (padded,) = by_word(lambda x: [jnp.pad(x, [(1, 0)])], keys)
    >>> padded.shape, bool((padded[1:] == keys).all())
    ((4,), True)
    """
    like = next(filter(is_key, operands), None)
    if like is None:
        return list(move(*operands))
    each = [words(x) if is_key(x) else [x] * len(words(like)) for x in operands]
    made = [move(*given) for given in zip(*each, strict=True)]
    return [of_words(parts, like) for parts in zip(*made, strict=True)]
