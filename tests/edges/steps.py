"""Steps of programs at the edges: each maker draws what is done to an array, sloppily.

A maker takes a generator and an array's shape and type, and gives a function of the array and of
further arguments, with these. What JAX refuses is drawn again by whoever calls (`programs.py`).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.edges.values import SIZES, some_array, some_like


def pick(rng, *choices):
    return choices[int(rng.integers(len(choices)))]


def axis_of(rng, x):
    return int(rng.integers(x.ndim))


UNARY = (
    jnp.negative, jnp.abs, jnp.sign, jnp.exp, jnp.log, jnp.sqrt, jnp.sin, jnp.tanh, jnp.floor,
    jnp.round, jnp.invert, lax.population_count, lax.clz, jnp.isnan, jnp.isfinite, jnp.conj,
    jnp.real, jnp.square, jnp.reciprocal, lambda x: x * 2, lambda x: x / 0, lambda x: x // 3,
    lambda x: x % 3, lambda x: x >> 1, lambda x: x << 40, lambda x: x - x, jax.nn.relu,
    jax.nn.sigmoid, lambda x: jnp.clip(x, -1, 1), jnp.cbrt, lax.erf_inv, lambda x: x**3,
)  # fmt: skip
BINARY = (
    jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, jnp.remainder,
    jnp.floor_divide, jnp.power, lax.atan2, lax.nextafter, jnp.less, jnp.equal, lax.rem,
    jnp.bitwise_xor, lax.shift_right_logical, lax.shift_left, jnp.logaddexp,
)  # fmt: skip


def unary(rng, x):
    return pick(rng, *UNARY), ()


def binary(rng, x):
    shape = [n if rng.integers(3) else 1 for n in x.shape][int(rng.integers(x.ndim + 1)) :]
    other = some_array(rng, tuple(shape), x.dtype)
    return pick(rng, *BINARY), (other,)


def convert(rng, x):
    kinds = ("float16", "bfloat16", "float32", "int8", "uint8", "int32", "uint32", "bool")
    to = pick(rng, *kinds, "complex64")
    return lambda x: x.astype(to), ()


def choose(rng, x):
    return lambda x, y: jnp.where(x > y, x, y[::-1] if y.ndim else y), (some_like(rng, x),)


def cut(rng, x):
    """Return a slice: empty, of one element, strided, from the end, reversed."""

    def of(size):
        ends = (None, *range(-size - 1, size + 2))
        return slice(pick(rng, *ends), pick(rng, *ends), pick(rng, 1, 1, 2, 3, -1, -2, size + 1))

    cuts = tuple(of(n) if rng.integers(2) else slice(None) for n in x.shape)
    return lambda x: x[cuts], ()


def pad(rng, x):
    """Pad at the start, at the end and between elements, also negatively."""
    low, high = (-2, -1, 0, 1, 3), (-1, 0, 0, 2)
    config = [(pick(rng, *low), pick(rng, *high), pick(rng, 0, 0, 1, 2)) for _ in x.shape]
    value = some_array(rng, (), x.dtype)
    return lambda x, value: lax.pad(x, value, config), (value,)


REDUCE = (
    jnp.sum, jnp.prod, jnp.max, jnp.min, jnp.any, jnp.all, jnp.mean, jnp.var, jnp.argmax,
    jnp.argmin, jax.nn.logsumexp, jnp.linalg.norm, jnp.ptp, jnp.median, jnp.nansum,
)  # fmt: skip


def reduce(rng, x):
    how, axis = pick(rng, *REDUCE), axis_of(rng, x)
    keep = bool(rng.integers(2))
    if how in (jnp.argmax, jnp.argmin):
        return lambda x: how(x, axis=axis), ()
    return lambda x: how(x, axis=axis, keepdims=keep), ()


def reduce_empty(rng, x):
    """JAX's own reductions, which have a value of no elements."""
    how = pick(rng, lax.reduce_max, lax.reduce_min, lax.reduce_sum, lax.reduce_prod)
    axes = tuple(d for d in range(x.ndim) if rng.integers(2))
    return lambda x: how(x, axes), ()


CUMULATIVE = (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)


def cumulate(rng, x):
    how, axis, back = pick(rng, *CUMULATIVE), axis_of(rng, x), bool(rng.integers(2))
    return lambda x: how(x, axis=axis, reverse=back), ()


def order(rng, x):
    axis = axis_of(rng, x)
    k = int(rng.integers(x.shape[-1] + 1))
    return pick(
        rng,
        lambda x: jnp.sort(x, axis),
        lambda x: jnp.argsort(x, axis),
        lambda x: jnp.argsort(x, axis, descending=True),
        lambda x: lax.top_k(x, k)[int(k % 2)],
        lambda x: lax.sort((x, jnp.flip(x, axis)), dimension=axis, num_keys=1)[1],
    ), ()


def some_indices(rng, size, count):
    """Return indices in and out of range on both sides, many of them twice."""
    kind = pick(rng, np.int32, np.int32, np.int8, np.uint32)
    low = 0 if kind is np.uint32 else -size - 2
    return rng.integers(low, size + 3, count).astype(kind)


MODES = ("clip", "fill", "promise_in_bounds", None)


def gather(rng, x):
    axis, mode = axis_of(rng, x), pick(rng, *MODES)
    size, count = x.shape[axis], pick(rng, *SIZES)
    index = some_indices(rng, size, count)
    if mode == "promise_in_bounds":
        index = index.astype(np.int32) % max(size, 1)
    ways = (
        lambda x, i: x.at[(slice(None),) * axis + (i,)].get(mode=mode),
        lambda x, i: x.at[(slice(None),) * axis + (i,)].get(mode=mode),
        lambda x, i: x[(slice(None),) * axis + (i[:, None] + i,)],
        lambda x, i: x[(slice(None),) * axis + (i.sum(),)],
    )
    return pick(rng, *ways), (index,)


def along(rng, x):
    """Return an index of its own at every place."""
    axis = axis_of(rng, x)
    index = rng.integers(-x.shape[axis] - 1, x.shape[axis] + 2, x.shape).astype(np.int32)
    mode = pick(rng, "clip", "fill", None)
    return lambda x, i: jnp.take_along_axis(x, i, axis, mode=mode), (index,)


def scatter(rng, x):
    """Scatter updates at indices that repeat and miss."""
    axis = axis_of(rng, x)
    how = pick(rng, "add", "add", "multiply", "min", "max", "set")
    mode = pick(rng, "clip", "drop", None)
    count = pick(rng, *SIZES)
    index = some_indices(rng, x.shape[axis], count)
    if how == "set":  # which of two wins is nobody's promise
        index = np.unique(np.clip(index.astype(np.int32), 0, x.shape[axis] + 1))
    shape = (*x.shape[:axis], len(index), *x.shape[axis + 1 :])
    place = (slice(None),) * axis
    updates = some_array(rng, shape, x.dtype)
    return lambda x, i, u: getattr(x.at[(*place, i)], how)(u, mode=mode), (index, updates)


def moving(rng, x):
    """Read a box at starts that are out of range."""
    sizes = tuple(int(rng.integers(n + 1)) for n in x.shape)
    starts = tuple(np.int32(rng.integers(-n - 2, n + 3)) for n in x.shape)
    if rng.integers(2):
        return lambda x, *s: lax.dynamic_slice(x, s, sizes), starts
    update = some_array(rng, sizes, x.dtype)
    return lambda x, u, *s: lax.dynamic_update_slice(x, u, s), (update, *starts)


def reshape(rng, x):
    size = int(np.prod(x.shape))
    first = pick(rng, *(n for n in (*SIZES, size, -1) if n))
    target = pick(rng, (-1,), (size,), (first, -1), (-1, first), (1, size), (size, 1, 1))
    return lambda x: x.reshape(target), ()


def turn(rng, x):
    axis, other = axis_of(rng, x), axis_of(rng, x)
    times = tuple(pick(rng, 1, 2, 0) for _ in x.shape)
    return pick(
        rng,
        lambda x: x.T,
        lambda x: jnp.swapaxes(x, axis, other),
        lambda x: jnp.flip(x, axis),
        lambda x: jnp.roll(x, 2, axis),
        lambda x: jnp.repeat(x, 2, axis),
        lambda x: jnp.tile(x, times),
        lambda x: jnp.broadcast_to(x, (3, *x.shape)),
        lambda x: jnp.expand_dims(x, axis),
        lambda x: jnp.diagonal(x),
        lambda x: jnp.tril(x),
    ), ()


def join(rng, x):
    axis = axis_of(rng, x)
    shape = tuple(pick(rng, *SIZES) if d == axis else n for d, n in enumerate(x.shape))
    return pick(
        rng,
        lambda x, y: jnp.concatenate([x, y, x[:0] if axis == 0 else x], axis),
        lambda x, y: jnp.concatenate([y, x], axis),
        lambda x, y: jnp.stack([x, -x], axis),
        lambda x, y: jnp.concatenate(jnp.split(x, [1, 1], axis)[::-1], axis),
    ), (some_array(rng, shape, x.dtype),)


def product(rng, x):
    k, columns = x.shape[-1], pick(rng, *SIZES)
    other = some_array(rng, (k, columns), x.dtype)
    kind = pick(rng, None, None, "float32", "int32")
    dot = partial(jnp.matmul, preferred_element_type=kind)
    return pick(rng, dot, lambda x, y: x * y[:, 0], lambda x, y: jnp.tensordot(x, x, x.ndim)), (
        other,
    )


def convolve(rng, x):
    """One dimension, of which strides, padding and dilations leave nothing at times."""
    features, out = x.shape[1], pick(rng, 1, 2, 3)
    kernel = some_array(rng, (out, features, pick(rng, 1, 2, 3)), x.dtype)
    padding = [(pick(rng, -1, 0, 1, 2), pick(rng, -1, 0, 1))]
    options = {"lhs_dilation": (pick(rng, 1, 1, 2),), "rhs_dilation": (pick(rng, 1, 1, 2),)}
    stride = (pick(rng, 1, 2, 3),)
    return lambda x, k: lax.conv_general_dilated(x, k, stride, padding, **options), (kernel,)


def window(rng, x):
    sizes = tuple(pick(rng, 1, 2, 3) for _ in x.shape)
    strides = tuple(pick(rng, 1, 2, 3) for _ in x.shape)
    padding = tuple((pick(rng, 0, 1, 2), pick(rng, 0, 1)) for _ in x.shape)
    how, start = pick(rng, (lax.add, 0), (lax.max, None), (lax.min, None))

    def pooled(x):
        kind = jnp.finfo if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo
        ends = kind(x.dtype)
        first = start if start is not None else ends.min if how is lax.max else ends.max
        return lax.reduce_window(x, jnp.asarray(first, x.dtype), how, sizes, strides, padding)

    return pooled, ()


STEPS = (
    unary, unary, binary, binary, convert, choose, cut, cut, cut, pad, reduce, reduce, reduce_empty,
    cumulate, cumulate, order, gather, gather, along, scatter, scatter, moving, moving, reshape,
    turn, join, product, product, convolve, window,
)  # fmt: skip
