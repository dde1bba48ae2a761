"""Small JAX calls by family, with random shapes (sizes 0 and 1 too), and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardalg.graph.tracing.written import positions_p

STARTS = (np.uint32(2), np.uint32(0), np.uint32(9))


def sizes(rng, count, low=1, high=5):
    return [int(n) for n in rng.integers(low, high + 1, count)]


def floats(rng, *shape):
    return rng.normal(size=shape)


def pointwise(rng):
    b, s = sizes(rng, 2, low=0)
    x, y, column = floats(rng, b, s), floats(rng, b, s), floats(rng, b, 1)
    yield lambda x, y: jnp.tanh(x) * y - x / (1 + y * y), (x, y)
    yield lambda x, y: lax.select(x > y, x, -y), (x, y)
    yield lambda x: lax.clamp(-0.5, x, 0.5) ** 3, (x,)
    yield lambda x, c: lax.sub_p.bind(x, c), (x, column)
    yield lambda x: x.astype(np.float32).astype(np.int32), (x,)
    yield lambda x: lax.optimization_barrier((x, x[:1] * 2)), (x,)
    yield jax.grad(lambda x: (jnp.maximum(x, 0) + jnp.sqrt(1 + x * x)).sum()), (x,)
    yield lambda x: lax.bitcast_convert_type(x, np.int64), (x,)


def layout(rng):
    b, s, m = sizes(rng, 3)
    x = floats(rng, b, s)
    yield lambda x: lax.broadcast_in_dim(x, (m, b, s), (1, 2)), (x,)
    yield lambda x: lax.broadcast_in_dim(x, (b, m, s), (0, 1, 2)), (x[:, None],)
    yield lambda x: jnp.transpose(x, (2, 0, 1)), (floats(rng, b, s, m),)
    yield lambda x: lax.squeeze(x, (1,)), (x[:, None],)
    yield lambda x: lax.expand_dims(x, (1,)), (x,)
    yield lambda x: lax.tile(x, (1, 3)), (x,)
    yield lambda: lax.broadcasted_iota(np.int32, (b, s), 1), ()
    yield lambda: positions_p.bind(*STARTS, shape=(b, s, m), strides=(3 << 33, 5 << 30, 7)), ()


RESHAPES = (
    ((4, 6), (24,)),
    ((24,), (4, 6)),
    ((6, 4), (4, 6)),
    ((2, 3, 4), (6, 4)),
    ((3, 4, 5), (5, 12)),
    ((1, 5), (5, 1)),
    ((6, 10), (4, 15)),
    ((2, 1, 3), (6,)),
    ((0, 3), (3, 0)),
    ((), (1, 1)),
    ((6, 4, 5), (2, 3, 20)),
)


def reshapes(rng):
    for source, target in RESHAPES:
        yield lambda x, target=target: x.reshape(target), (floats(rng, *source),)

    def permuted(x):
        return lax.reshape(x, (12, 2), dimensions=(1, 0, 2))

    yield permuted, (floats(rng, 3, 4, 2),)


def reductions(rng):
    b, s = sizes(rng, 2)
    x, axis = floats(rng, b, s), int(rng.integers(2))
    for function in (jnp.sum, jnp.max, jnp.min, jnp.prod):
        yield lambda x, f=function: f(x, axis), (x,)
    yield lambda x: jnp.any(x > 0, axis), (x,)
    yield lambda x: jnp.all(x > 0, axis), (x,)
    yield lambda x: lax.reduce_xor(x.astype(np.int32), (axis,)), (x,)
    yield lambda x: lax.argmax(jnp.round(x), axis, np.int32), (x,)
    yield lambda x: lax.argmin(jnp.round(x), axis, np.int32), (x,)
    for function in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp):
        reverse = bool(rng.integers(2))
        yield lambda x, f=function, r=reverse: f(x, axis=axis, reverse=r), (x,)


def contractions(rng):
    b, s, m, n = sizes(rng, 4)
    yield lambda x, y: jnp.einsum("bs,sm->bm", x, y), (floats(rng, b, s), floats(rng, s, m))
    attention = (floats(rng, b, s, n, 3), floats(rng, b, m, n, 3))
    yield lambda q, k: jnp.einsum("bsnd,btnd->bnst", q, k), attention
    yield lambda q, k: jnp.einsum("bsnd,nde->bse", q, k), (attention[0], floats(rng, n, 3, m))
    empty = (floats(rng, b, 0), floats(rng, 0, m))
    yield lambda x, y: x @ y, empty


def joining(rng):
    b, n, k = sizes(rng, 3, low=2)
    x, y = floats(rng, b, n), floats(rng, b, k)
    yield lambda x, y: jnp.concatenate([x, y, x], 1), (x, y)
    yield lambda x: lax.split(x, (1, n - 1), 1), (x,)
    yield lambda x: lax.stack_p.bind(x, 2 * x, axis=1), (x,)
    yield lambda x: lax.unstack_p.bind(x, axis=1), (x,)


def shifted(rng):
    n, stride, gap = int(rng.integers(5, 10)), *sizes(rng, 2, high=3)
    low, high = (int(v) for v in rng.integers(-1, 3, 2))
    x = floats(rng, 2, n)
    yield lambda x: lax.slice(x, (0, 1), (2, n - 1), (1, stride)), (x,)
    yield lambda x: lax.slice(x, (0, 0), (1, n - 2)), (x,)
    yield lambda x: lax.rev(x, (1,)), (x,)
    yield lambda x: lax.pad(x, np.float64(0.5), ((0, 0, 0), (low, high, gap - 1))), (x,)


def windows(rng):
    n, stride, taps = int(rng.integers(6, 11)), *sizes(rng, 2, high=3)
    pads, dilation = [(1, 2)], int(rng.integers(1, 3))

    def convolve(x, k, **kw):
        return lax.conv_general_dilated(x, k, (stride,), pads, rhs_dilation=(dilation,), **kw)

    image, kernel = floats(rng, 2, 4, n), floats(rng, 6, 4, taps)

    def loss(x, k, **kw):
        return (convolve(x, k, **kw) ** 2).sum()

    yield jax.grad(loss, (0, 1)), (image, kernel)

    def grouped(x, k):
        return loss(x, k, feature_group_count=2)

    yield jax.grad(grouped, (0, 1)), (image, floats(rng, 6, 2, taps))

    def depthwise(x, k):
        return loss(x, k, feature_group_count=4)

    yield jax.grad(depthwise, (0, 1)), (image, floats(rng, 4, 1, taps))

    def batches(x, k):
        return convolve(x, k, batch_group_count=2)

    yield batches, (floats(rng, 4, 3, n), floats(rng, 4, 3, taps))
    dims = ("NHC", "HIO", "NHC")
    yield (
        lambda x, k: convolve(x, k, dimension_numbers=dims),
        (floats(rng, 2, n, 3), floats(rng, taps, 3, 5)),
    )
    for start, function in ((0.0, lax.add), (-np.inf, lax.max), (np.inf, lax.min)):

        def pool(x, i=start, f=function):
            return lax.reduce_window(
                x, i, f, (1, taps), (1, stride), [(0, 0), (0, 1)], (1, 2), (1, dilation)
            )

        yield pool, (floats(rng, 2, n),)


def selections(rng):
    """Gradients of poolings, which choose the best element of a window."""
    h, w, taps, stride = *sizes(rng, 2, low=4, high=7), *sizes(rng, 2, high=3)
    x = floats(rng, 2, h, w, 2)
    pads = ((0, 0), (0, taps - 1), (1, taps - 1), (0, 0))
    shape, strides = (1, taps, 2, 1), (1, stride, 2, 1)
    for start, function in ((-np.inf, lax.max), (np.inf, lax.min)):

        def pool(x, i=start, f=function):
            return lax.reduce_window(x, i, f, shape, strides, pads)

        yield jax.grad(lambda x: (pool(x) ** 2).sum()), (x,)
        yield lambda x, f=pool: jax.jvp(f, (x,), (x + 1,)), (x,)
    ge, add = (jax.make_jaxpr(f)(0.0, 0.0) for f in (lambda a, b: a >= b, lambda a, b: a + b))

    def scatter(x, y, i):
        return lax.select_and_scatter_p.bind(
            *(x, y, i),
            select_jaxpr=ge.jaxpr,
            select_consts=(),
            scatter_jaxpr=add.jaxpr,
            scatter_consts=(),
            window_dimensions=(taps, 1),
            window_strides=(stride, 1),
            padding=((0, 0), (0, 0)),
        )

    source = floats(rng, (h - taps) // stride + 1, w)
    yield scatter, (x[0, :, :, 0], source, np.float64(0.5))


def monoids(rng):
    """Reductions by functions of the user."""
    b, s = sizes(rng, 2, low=3)
    pair, starts = (floats(rng, b, s), floats(rng, b, s)), (0.0, 1.0)

    def complex_product(a, b):
        return a[0] * b[1] + a[1] * b[0], a[1] * b[1]

    yield lambda x, y: lax.reduce((x, y), starts, complex_product, (1,)), pair
    yield lambda x: lax.reduce(x, np.float64(0), lambda a, b: a * b + a + b, (0,)), pair[:1]
    window = ((1, 2), (1, 2), ((0, 0), (0, 1)))
    yield lambda x, y: lax.reduce_window((x, y), starts, complex_product, *window), pair
    yield lambda x: lax.reduce_window(x, np.float64(1), lax.mul, *window), pair[:1]


def grouped_products(rng):
    """Products whose matrix depends on the row's group."""
    m, k, n, g = sizes(rng, 4, low=2)
    cuts = np.sort(rng.integers(0, m + 1, g - 1))
    groups = np.diff([0, *cuts, m]).astype(np.int32)
    left, right = floats(rng, m, k), floats(rng, g, k, n)
    yield lax.ragged_dot, (left, right, groups)

    def loss(x, w, s):
        return (lax.ragged_dot(x, w, s) ** 2).sum()

    yield jax.grad(loss, (0, 1)), (left, right, groups)
    batch = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((0,), (0,))), (0,), ())
    three = floats(rng, m, k, 2), floats(rng, m, k, n)
    yield lambda x, y, s: lax.ragged_dot_general(x, y, s, batch), (*three, groups)
    quarter = (floats(rng, 2, 4), floats(rng, 4, n), np.ones((2, 2)), np.ones((1, n)))

    def scaled(x, y, s, t):
        dims = (((1,), (0,)), ((), ()))
        return lax.scaled_dot(
            *(v.astype("bfloat16") for v in (x, y)),
            lhs_scale=s.astype("bfloat16"),
            rhs_scale=t.astype("bfloat16"),
            dimension_numbers=dims,
            preferred_element_type=np.float32,
        )

    yield scaled, quarter


def gathers(rng):
    v, e, b, s = int(rng.integers(3, 8)), *sizes(rng, 3)
    table, ids = floats(rng, v, e), rng.integers(-2, v + 2, (b, s))
    yield lambda t, i: t.at[i].get(mode="clip"), (table, ids)
    yield lambda t, i: t.at[i].get(mode="fill", fill_value=0), (table, ids)
    yield lambda t, i: jnp.take(t, i, axis=0), (table, ids)
    yield lambda t, i: t.at[i].get(mode="fill"), ((10 * table).astype(np.int32), ids)
    yield lambda t, i: jnp.take_along_axis(t, i, 1), (floats(rng, b, v), ids % v)
    yield lambda t, i: jax.vmap(lambda t, i: t[i])(t, i), (floats(rng, b, v, e), ids % v)
    yield lambda t, i: t[:, i], (floats(rng, b, v), ids[0] % v)
    yield lambda x, i: lax.dynamic_slice(x, (0, i), (2, v - 2)), (floats(rng, 2, v), np.int64(1))

    def windows(x, i):
        return jax.vmap(lambda j: lax.dynamic_slice(x, (0, j), (1, 2)))(i)

    yield windows, (floats(rng, 2, v), ids[0])


def scatters(rng):
    v, e, b, s = int(rng.integers(3, 8)), *sizes(rng, 3)
    table, ids = floats(rng, v, e), rng.integers(-2, v + 2, (b, s))
    rows = floats(rng, b, s, e)
    yield lambda t, i, u: t.at[i].add(u), (table, ids, rows)
    yield lambda t, i, u: t.at[i].add(u, mode="clip"), (table, ids, rows)
    yield lambda t, i, u: t.at[i].max(u), (table, ids, rows)
    yield lambda t, i, u: t.at[i].min(u), (table, ids, rows)
    yield lambda t, i, u: t.at[i].multiply(u), (table, ids, rows)
    yield lambda t, i, u: t.at[i].subtract(u), (table, ids, rows)
    yield lambda t, i: t.at[:, i].set(3.0), (floats(rng, b, v), rng.permutation(v)[:2])
    yield jax.grad(lambda t, i: (jnp.take(t, i, axis=0) ** 2).sum()), (table, ids)

    def batched(t, i):
        return jax.vmap(lambda t, i: t.at[i].add(1.0))(t, i)

    yield batched, (floats(rng, b, v, e), ids % v)

    def update(x, u):
        return lax.dynamic_update_slice(x, u, (0, 1))

    yield update, (floats(rng, 2, v), floats(rng, 2, v - 2))


def blocks(rng):
    b, s = sizes(rng, 2, low=2)
    x = floats(rng, b, s)
    yield lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), (jnp.round(x), x)
    yield lambda x: lax.sort(x, dimension=0), (x,)
    yield lambda x: lax.top_k(x, 2), (x,)
    yield jnp.fft.rfft, (x,)
    square = floats(rng, b, 3, 3)
    yield lambda a: lax.linalg.cholesky(a @ a.mT + 3 * jnp.eye(3)), (square,)
    lower = np.tril(square) + 3 * np.eye(3)

    def solve(a, y):
        return lax.linalg.triangular_solve(a, y, left_side=True, lower=True)

    yield solve, (lower, floats(rng, b, 3, s))
    yield (
        lambda k: jax.random.uniform(jax.random.wrap_key_data(k), (b, s)),
        (np.array([3, 4], np.uint32),),
    )


GROUPS = (
    pointwise,
    layout,
    reshapes,
    reductions,
    contractions,
    joining,
    shifted,
    windows,
    selections,
    monoids,
    grouped_products,
    gathers,
    scatters,
    blocks,
)
