"""JAX's default random bits, written out: a hash of every element's position, which partitions.

`jax.random` draws bits by a primitive that hides the hash, so that each device would have to make
all of them. Here they are `threefry2x32` of the positions, bit for bit the same, and the positions
are a primitive of our own, because one with a position of its block cannot be said in JAX's.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

WORD, HALF = 1 << 32, 1 << 16


def bits_of(equation: Any) -> Any | None:
    """`random_bits` of keys of JAX's default kind, as a closed jaxpr; None of another kind."""
    (keys,) = (var.aval for var in equation.invars)
    kind: Any = getattr(keys.dtype, "_impl", None)
    if getattr(kind, "name", None) != "threefry2x32":
        return None
    width, shape = equation.params["bit_width"], equation.params["shape"]

    def bits(words: Any) -> Any:
        return kind.random_bits(words, width, shape)

    for _ in keys.shape:
        bits = jax.vmap(bits)
    spec = jax.ShapeDtypeStruct(keys.shape, keys.dtype)
    return jax.make_jaxpr(lambda keys: bits(jax.random.key_data(keys)))(spec)


def positions_of(equation: Any) -> Any:
    """`iota_2x32_shape`: the position of every element in row-major order."""
    shape = equation.params["shape"]
    strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    starts = [np.uint32(0)] * len(shape)
    return jax.make_jaxpr(lambda: positions_p.bind(*starts, shape=shape, strides=strides))()


def positions(*starts: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, Any]:
    """High and low 32 bits of `sum over d of (starts[d] + index_d) * strides[d]`.

    >>> high, low = positions(np.uint32(4), np.uint32(0), shape=(1, 3), strides=(2**31, 1))
    >>> high.tolist(), low.tolist()
    ([[2, 2, 2]], [[0, 1, 2]])
    """
    high, low = jnp.zeros(shape, "uint32"), jnp.zeros(shape, "uint32")
    for dim, (start, stride) in enumerate(zip(starts, strides, strict=True)):
        index = lax.broadcasted_iota("uint32", shape, dim) + start
        added = index * np.uint32(stride % WORD)
        low = low + added
        carry = (low < added).astype("uint32")
        high = high + _high_word(index, stride % WORD) + index * np.uint32(stride // WORD) + carry
    return high, low


def _high_word(x: Any, factor: int) -> Any:
    """Upper 32 of the 64 bits of `x * factor`, from products of 16 bits."""
    mask, shift = np.uint32(HALF - 1), np.uint32(16)
    major, minor = (np.uint32(n) for n in divmod(factor, HALF))
    cross = (x >> shift) * minor, (x & mask) * major
    middle = ((x & mask) * minor >> shift) + (cross[0] & mask) + (cross[1] & mask)
    upper = (x >> shift) * major
    return upper + (cross[0] >> shift) + (cross[1] >> shift) + (middle >> shift)


positions_p = Primitive("positions")
positions_p.multiple_results = True
positions_p.def_impl(positions)
positions_p.def_abstract_eval(lambda first, *_, shape, strides: (first.update(shape=shape),) * 2)
mlir.register_lowering(positions_p, mlir.lower_fun(positions, multiple_results=True))
