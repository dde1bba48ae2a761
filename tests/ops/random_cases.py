"""Operators with every parameter drawn: convolutions, selections at run time, joins of blocks."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MODES = ("clip", "fill", "promise_in_bounds")


def drawn(rng, low, high, count):
    return tuple(int(n) for n in rng.integers(low, high + 1, count))


def shuffled(rng, count):
    return tuple(int(n) for n in rng.permutation(count))


def at(spec, sizes):
    """Return a shape whose dimension `spec[k]` has size `sizes[k]`."""
    return tuple(size for _, size in sorted(zip(spec, sizes, strict=True)))


def convolution(rng):
    """Strides, both dilations, padding (negative too), groups of either kind, dimension order."""
    spatial = int(rng.integers(1, 3))
    n, i, f, groups = drawn(rng, 1, 2, 4)
    by_batch = groups if rng.integers(3) == 0 else 1
    by_feature = 1 if by_batch > 1 else groups
    specs = [shuffled(rng, spatial + 2) for _ in range(3)]
    options = {
        "window_strides": drawn(rng, 1, 3, spatial),
        "lhs_dilation": drawn(rng, 1, 3, spatial),
        "rhs_dilation": drawn(rng, 1, 2, spatial),
        "padding": tuple(drawn(rng, -1, 3, 2) for _ in range(spatial)),
        "feature_group_count": by_feature,
        "batch_group_count": by_batch,
        "dimension_numbers": lax.ConvDimensionNumbers(*specs),
    }
    image = (n * by_batch, i * by_feature, *drawn(rng, 4, 7, spatial))
    kernel = (f * groups, i, *drawn(rng, 1, 3, spatial))

    def convolve(x, k):
        return lax.conv_general_dilated(x, k, **options)

    x, k = (rng.normal(size=at(spec, s)) for spec, s in zip(specs, (image, kernel), strict=False))
    if 0 in jax.eval_shape(convolve, x, k).shape:
        return
    yield jax.grad(lambda x, k: (convolve(x, k) ** 2).sum(), (0, 1)), (x, k)


def selection(rng):
    """(shape, indices, sizes of the slices, dimension numbers) in all roles of a dimension."""
    rank = int(rng.integers(1, 4))
    shape = drawn(rng, 1, 4, rank)
    role = rng.integers(0, 3, rank)
    batching, dropped = (tuple(np.flatnonzero(role == k).tolist()) for k in (0, 1))
    window = tuple(d for d in range(rank) if role[d] == 2)
    chosen = [d for d in range(rank) if role[d] and rng.integers(3)]
    chosen = tuple(chosen[k] for k in shuffled(rng, len(chosen)))
    slices = tuple(int(rng.integers(1, shape[d] + 1)) if d in window else 1 for d in range(rank))
    spans = [*(shape[d] for d in batching), *drawn(rng, 1, 3, int(rng.integers(0, 3)))]
    order = shuffled(rng, len(spans))
    paired = tuple(order.index(k) for k in range(len(batching)))
    total = len(spans) + len(window)
    offset = tuple(sorted(shuffled(rng, total)[: len(window)]))
    numbers = (offset, dropped, chosen, batching, paired)
    high = max([shape[d] - slices[d] for d in chosen], default=0)
    indices = rng.integers(-2, high + 3, (*(spans[k] for k in order), len(chosen)))
    return shape, indices, slices, numbers


def bounded(indices, shape, slices, chosen):
    """Return indices whose slices are inside."""
    return np.clip(indices, 0, [shape[d] - slices[d] for d in chosen]) if chosen else indices


def gather(rng):
    """Return a gather and, as its gradient, a scatter-add."""
    shape, indices, slices, numbers = selection(rng)
    mode = MODES[rng.integers(len(MODES))]
    if mode == "promise_in_bounds":
        indices = bounded(indices, shape, slices, numbers[2])

    def take(x, i):
        return lax.gather(x, i, lax.GatherDimensionNumbers(*numbers), slices, mode=mode)

    yield take, (rng.normal(size=shape), indices)
    if numbers[2]:
        yield jax.grad(lambda x, i: (take(x, i) ** 2).sum()), (rng.normal(size=shape), indices)


SCATTERS = (lax.scatter_add, lax.scatter_sub, lax.scatter_mul, lax.scatter_min, lax.scatter_max)


def scatter(rng):
    """Return a scatter of every kind; if the last update wins, all updates are equal."""
    shape, indices, slices, numbers = selection(rng)
    mode = MODES[rng.integers(2)]
    if not numbers[2]:  # XLA's own scatter is wrong where indices have no component (jax 0.10.2).
        return

    def taken(x, i):
        return lax.gather(x, i, lax.GatherDimensionNumbers(*numbers), slices, mode=mode)

    updates = jax.eval_shape(taken, np.zeros(shape), indices).shape
    function = SCATTERS[rng.integers(len(SCATTERS))]
    for f, u in ((function, rng.normal(size=updates)), (lax.scatter, np.array(3.0))):

        def put(x, i, u, f=f):
            u = jnp.broadcast_to(u, updates)
            return f(x, i, u, lax.ScatterDimensionNumbers(*numbers), mode=mode)

        yield put, (rng.normal(size=shape), indices, u)


def convolutions(rng):
    for _ in range(2):
        yield from convolution(rng)


def selections_by_index(rng):
    for _ in range(5):
        yield from gather(rng)
        yield from scatter(rng)


def boxes(rng):
    """Boxes at starts in range and out of it, read and written; one per element of a batch."""
    rank = int(rng.integers(1, 4))
    shape = rng.integers(1, 14, rank)
    size = tuple(int(rng.integers(1, n + 1)) for n in shape)
    starts = rng.integers(-3, 17, rank)
    x, new = rng.normal(size=shape), rng.normal(size=size)
    yield lambda x, i: lax.dynamic_slice(x, tuple(i), size), (x, starts)
    yield lambda x, u, i: lax.dynamic_update_slice(x, u, tuple(i)), (x, new, starts)
    many = rng.integers(-3, 17, (3, rank))

    def write(x, u, i):
        return jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, tuple(i)))(x, u, i)

    yield write, (rng.normal(size=(3, *shape)), rng.normal(size=(3, *size)), many)
    yield jax.grad(lambda x, i: (lax.dynamic_slice(x, tuple(i), size) ** 2).sum()), (x, starts)


def joins(rng):
    """Best elements with ties, sorts by several keys, monoids of users, repetitions."""
    b, n = int(rng.integers(1, 9)), int(rng.integers(1, 20))
    x, axis = np.round(rng.normal(size=(b, n))), int(rng.integers(2))
    count = int(rng.integers(1, x.shape[axis] + 1))
    yield lambda x: lax.top_k(x, count, axis=axis), (x,)
    keys = int(rng.integers(1, 3))
    yield (
        lambda x, y: lax.sort((x, -x, y), dimension=axis, num_keys=keys),
        (x, rng.normal(size=(b, n))),
    )
    yield lambda x: lax.reduce(x, np.float64(0), lambda a, b: a + b + a * b, (axis,)), (x / 9,)
    reps = rng.integers(1, 5, 2).tolist()
    yield lambda x: jnp.tile(x, tuple(reps)), (x,)
    yield lambda x: jnp.repeat(x, reps[0], axis=axis), (x,)
    yield lambda x, i: x[jnp.arange(b), i], (x, rng.integers(0, n, b))


def extremes(rng):
    """Integers at the ends of their type, and booleans: an identity is a number like others."""
    b, n = int(rng.integers(1, 9)), int(rng.integers(1, 20))
    dtype, axis = rng.choice(("int8", "uint8", "int32", "uint32")), int(rng.integers(2))
    ends = np.iinfo(dtype)
    some = rng.choice((ends.min, ends.min, 0, 1, ends.max), size=rng.integers(1, 4))
    x, y = rng.choice(some, (b, n)).astype(dtype), rng.normal(size=(b, n))
    for function in (jnp.max, jnp.min, jnp.sum, jnp.prod, jnp.argmax, jnp.argmin):
        yield lambda x, f=function: f(x, axis), (x,)
    for function in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin):
        yield lambda x, f=function: f(x, axis=axis), (x,)
    for function in (jnp.any, jnp.all, jnp.max, jnp.min):
        yield lambda x, f=function: f(x, axis), (x > 0,)
    yield lambda x, y: lax.sort((x, y), dimension=axis, num_keys=1), (x, y)
    yield lambda x: lax.top_k(x, (x.shape[1] + 1) // 2), (x,)
    for start, function in ((ends.min, lax.max), (ends.max, lax.min)):

        def pool(x, i=start, f=function):
            return lax.reduce_window(x, x.dtype.type(i), f, (1, 2), (1, 2), ((0, 0), (1, 1)))

        yield pool, (x,)


def normalised(rng):
    """Return quotients by a sum over the numerator, its logarithm, and gradients of extrema."""
    b, n = int(rng.integers(1, 9)), int(rng.integers(1, 20))
    x, axis = rng.normal(size=(b, n)), int(rng.integers(2))
    for function in (jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp):
        yield lambda x, f=function: f(x, axis), (x,)
    for function in (jnp.max, jnp.min, jax.nn.logsumexp):
        yield jax.grad(lambda x, f=function: (f(x, axis) ** 2).sum()), (x,)
    yield lambda x: jnp.where(x > 0, x, -jnp.inf).max(axis), (x,)
    yield from moves(rng)


def moves(rng):
    """Return a chain of slices, pads, concatenations and boxes, with its gradient."""
    x, chain = rng.normal(size=drawn(rng, 1, 9, 2)), []
    shape = x.shape
    while len(chain) < 4:
        step = move(rng, shape)
        made = jax.eval_shape(step, jax.ShapeDtypeStruct(shape, x.dtype)).shape
        if 0 not in made and max(made) < 30:
            chain.append(step)
            shape = made

    def moved(x):
        for step in chain:
            x = step(x)
        return x

    yield moved, (x,)
    yield jax.grad(lambda x: (moved(x) ** 2).sum()), (x,)


def move(rng, shape):
    """One step of such a chain; of a value beside its own end the end may be empty."""
    axis = int(rng.integers(2))
    n, starts = shape[axis], rng.integers(-2, 9, 2).tolist()
    a, b = sorted(rng.integers(0, n + 1, 2).tolist())
    gap, stride = drawn(rng, 1, 2, 2)
    low, high = (max(int(k), -(n // 2)) for k in rng.integers(-2, 4, 2))
    padding = [(low, high, gap - 1) if d == axis else (0, 0, 0) for d in range(2)]
    smaller = tuple(int(rng.integers(1, size + 1)) for size in shape)

    def cut(x, start, stop, stride=1):
        return lax.slice_in_dim(x, start, stop, stride, axis=axis)

    def put(x):
        whole = tuple(size + 2 for size in shape)
        return lax.dynamic_update_slice(jnp.zeros(whole, x.dtype), x, starts)

    steps = (
        lambda x: cut(x, a, b, stride),
        lambda x: lax.pad(x, x.dtype.type(0), padding),
        lambda x: lax.concatenate([cut(x, a, n), cut(x, 0, a)], axis),
        lambda x: lax.dynamic_slice(x, starts, smaller),
        put,
        lambda x: -x * 2,
    )
    return steps[rng.integers(len(steps))]


def waiting(rng):
    """Return sums, products and single elements after which sums may or must not be deferred."""
    b, n = drawn(rng, 1, 8, 2)
    x, w, c = rng.normal(size=(b, n)), rng.normal(size=(n, 3)), rng.normal(size=(n,))
    row = int(rng.integers(b))
    sums = (
        lambda x: lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None),
        lambda x: x.T @ x[:, 0],
        lambda x: x[row],
    )
    first, second = (sums[rng.integers(len(sums))] for _ in range(2))
    yield lambda x, c: first(x) * c, (x, c)
    yield lambda x, c: -first(x) / c, (x, c)
    yield lambda x, c: (first(x) - second(x)) * c[0], (x, c)
    yield lambda x, w: jnp.flip(first(x)) @ w, (x, w)
    yield lambda x, c: first(x).astype(np.float32) + second(x).astype(np.float32), (x, c)
    yield lambda x, c: jnp.where(c > 0, first(x), second(x)).sum() / n, (x, c)


GROUPS = (convolutions, selections_by_index, boxes, joins, extremes, normalised, waiting)
