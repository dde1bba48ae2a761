"""Programs of the kinds that the recorded ones are of, on other ranks, meshes and operators.

Each is a function, the shapes of its arguments and their specs (None: open). With a seed, the specs
are drawn at random and most constraints are dropped, as in `harder.py`.

    python -m tests.propagate.siblings 3 0    # each of them with seeds 0 to 2, beside XLA
"""

import sys
import zlib
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.propagate import harder

XY, PQR, AB = {"x": 2, "y": 4}, {"p": 2, "q": 2, "r": 2}, {"a": 4, "b": 2}
NHWC = ("NHWC", "HWIO", "NHWC")
SIBLINGS = {}


def wsc(x, spec):
    return lax.with_sharding_constraint(x, spec)


def sibling(mesh, *arguments):
    """Register a function of arguments (shape, spec) or (shape, spec, dtype) on a mesh."""

    def put(function):
        rows = [(row[0], (*row, "float32")[2], row[1]) for row in arguments]
        SIBLINGS[function.__name__] = (mesh, rows, function)
        return function

    return put


@sibling(AB, ((8, 4, 16), P("a")), ((16, 8), P(None, "b")), ((8, 32), P("b")))
def einsum_chain_grad(x, w, v):
    def loss(x, w, v):
        return jnp.sum(wsc(jnp.einsum("abc,cd,de->aeb", x, w, v), P("a", "b")) ** 2)

    return jax.grad(loss, (0, 1, 2))(x, w, v)


@sibling(PQR, ((8, 16, 32), P("p")), ((32, 64), P(None, "q")), ((32, 64), None), ((64, 32), P("q")))
def ffn_gated(x, w, u, v):
    return wsc(jax.nn.silu(x @ w) * (x @ u), P("p", None, "q")) @ v


@sibling(XY, ((8, 16, 32), P("x")), ((32, 3, 4, 8), P(None, None, "y")), ((4, 8, 32), P("y")))
def attention_masked_grad(x, qkv, o):
    def loss(x, qkv, o):
        q, k, v = jnp.einsum("bsm,mtnh->tbsnh", x, qkv)
        scores = jnp.einsum("bsnh,btnh->bnst", q, k)
        scores = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), scores, -1e9)
        y = jnp.einsum("bnst,btnh->bsnh", wsc(jax.nn.softmax(scores), P("x", "y")), v)
        return jnp.sum(jnp.einsum("bsnh,nhm->bsm", y, o))

    return jax.grad(loss, (0, 1, 2))(x, qkv, o)


QKVO = ((32, 8, 4), P(None, "y")), ((32, 2, 4), P()), ((32, 2, 4), None), ((8, 4, 32), P("y"))


@sibling(XY, ((4, 16, 32), P("x")), *QKVO)
def attention_grouped_grad(x, wq, wk, wv, wo):
    def loss(x, wq, wk, wv, wo):
        q = jnp.einsum("bsm,mnh->bsnh", x, wq).reshape(4, 16, 2, 4, 4)
        k, v = jnp.einsum("bsm,mgh->bsgh", x, wk), jnp.einsum("bsm,mgh->bsgh", x, wv)
        p = jax.nn.softmax(jnp.einsum("bsgnh,btgh->bgnst", q, k), -1)
        y = jnp.einsum("bgnst,btgh->bsgnh", p, v).reshape(4, 16, 8, 4)
        return jnp.sum(jnp.einsum("bsnh,nhm->bsm", wsc(y, P("x", None, "y")), wo) ** 2)

    return jax.grad(loss, (1, 2, 3, 4))(x, wq, wk, wv, wo)


@sibling(XY, ((4, 16, 8), P("x")), ((8, 8), P()), ((8, 8, 16), P("y")), ((8, 16, 8), P("y")))
def moe_grad(x, gate, wi, wo):
    def loss(x, gate, wi, wo):
        p = jax.nn.softmax(x @ gate)
        d = jax.nn.one_hot(jnp.argmax(p, -1), 8)
        e = wsc(jnp.einsum("gse,gsm->egsm", d, x), P("y", "x"))
        y = jnp.einsum("egsh,ehm->egsm", jax.nn.relu(jnp.einsum("egsm,emh->egsh", e, wi)), wo)
        return jnp.sum(jnp.einsum("egsm,gse->gsm", y, d * p))

    return jax.grad(loss, (1, 2, 3))(x, gate, wi, wo)


@sibling(XY, ((8, 32), P("x")), ((3, 32, 32), P(None, None, "y")), ((3, 32), P()))
def scan_stack(x, w, b):
    return lax.scan(lambda x, p: (jnp.tanh(wsc(x, P("x")) @ p[0] + p[1]), None), x, (w, b))[0]


@sibling(AB, ((12, 8, 16), P(None, "a")), ((16, 16), P(None, "b")), ((16, 16), P("b")))
def rnn_grad(xs, w, u):
    def loss(xs, w, u):
        def cell(h, x):
            h = jnp.tanh(x @ w + h @ u)
            return h, h

        h, ys = lax.scan(cell, jnp.zeros((8, 16)), xs)
        return jnp.sum(ys**2) + jnp.sum(h)

    return jax.grad(loss, (0, 1, 2))(xs, w, u)


@sibling(PQR, ((4, 16, 16, 4), P("p", "q")), ((3, 3, 4, 8), None), ((3, 3, 8, 8), P()))
def conv_two_grad(x, w, v):
    def loss(x, w, v):
        h = jax.nn.relu(lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=NHWC))
        h = lax.conv_general_dilated(h, v, (1, 1), "VALID", dimension_numbers=NHWC)
        return jnp.sum(h.mean((1, 2)) ** 2)

    return jax.grad(loss, (0, 1, 2))(x, w, v)


@sibling(AB, ((8, 32, 16), P("a", None, "b")), ((4, 1, 16), None))
def conv_depthwise_grad(x, w):
    def loss(x, w):
        y = lax.conv_general_dilated(
            x, w, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=16
        )
        return jnp.sum(jnp.tanh(y))

    return jax.grad(loss, (0, 1))(x, w)


@sibling(AB, ((8, 16, 16, 4), P("a", None, "b")), ((3, 3, 4, 4), None))
def pool_grad(x, w):
    def loss(x, w):
        h = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)
        window = (1, 2, 2, 1)
        return jnp.sum(lax.reduce_window(h, -jnp.inf, lax.max, window, window, "VALID") ** 2)

    return jax.grad(loss, (0, 1))(x, w)


@sibling(XY, ((4, 16), P("x"), "int32"), ((64, 32), P("y")))
def embedding_grad(ids, table):
    def loss(table):
        h = wsc(table[ids], P("x", None, "y"))
        return jnp.mean(jax.nn.logsumexp(jnp.einsum("bsm,vm->bsv", jnp.tanh(h), table), -1))

    return jax.grad(loss)(table)


@sibling(PQR, ((32, 16), P()), ((8, 4), None, "int32"), ((8, 4, 16), P("q")))
def embedding_update(table, ids, g):
    return table - 0.1 * jnp.zeros_like(table).at[ids].add(g), table[ids] * g


@sibling(PQR, ((8, 16, 32), P("p", "q")), ((32,), P("r")), ((32,), None))
def layer_norm_grad(x, g, b):
    def loss(x, g, b):
        centred = x - x.mean(-1, keepdims=True)
        scale = lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return jnp.sum((centred * scale * g + b) ** 3)

    return jax.grad(loss, (0, 1, 2))(x, g, b)


@sibling(AB, ((16, 32), P("a", "b")))
def reductions(x):
    return jnp.argmax(x, 1), jnp.cumsum(x, 0), jnp.sort(x, 1), jax.nn.logsumexp(x, 0)


@sibling(XY, ((16, 32), P("x", "y")), ((16, 16), P("x")))
def pieces(x, y):
    padded = jnp.pad(x[:, 4:20], ((0, 0), (0, 8)))
    joined = jnp.concatenate([y, lax.rev(y, (0,))], 1)
    return wsc(padded, P("x"))[:, :16] * y, joined[:, ::2] + y


@sibling(PQR, ((8, 12, 6), P("p", "q")), ((24, 24), P("r")))
def reshapes(x, y):
    z = x.reshape(24, 24)
    return z + y, x.reshape(4, 2, 3, 4, 6).sum(3), (z @ y).reshape(4, 6, 24)


@sibling(AB, ((8, 8), P("a")), ((8, 16), P(None, "b")))
def while_loop(m, x):
    def body(carry):
        return carry[0] + 1, 2 * carry[1] - m @ carry[1] * carry[1]

    return lax.while_loop(lambda carry: carry[0] < 5, body, (0, jnp.tanh(x)))[1]


@sibling(XY, ((), None), ((8, 16), P("x")), ((16, 16), P("y")), ((16, 16), None))
def branches(t, x, w, v):
    return lax.cond(t > 0, lambda x: jnp.tanh(x @ w), lambda x: x @ v + x, x)


@sibling(AB, ((8, 32), P("a")), ((32, 64), P(None, "b")), ((64, 32), P("b")), ((32, 8), None))
def remat_grad(x, w, v, u):
    block = jax.checkpoint(lambda x, w, v: x + jax.nn.relu(wsc(x @ w, P("a", "b"))) @ v)

    def loss(w, v, u):
        return jnp.sum((block(block(x, w, v), w, v) @ u) ** 2)

    return jax.grad(loss, (0, 1, 2))(w, v, u)


@sibling(XY, ((16, 32), P("y", "x")), ((16, 32), P("y", "x")), ((16, 32), None), ((8, 16), P("x")))
def adam_step(w, m, v, x):
    g = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - 0.1 * m / (jnp.sqrt(v) + 1e-8), m, v


class Sibling(harder.Harder):
    """One of these programs, as written (seed 0) or with annotations of a seed."""

    @cached_property
    def module(self):
        return SimpleNamespace(MESH=SIBLINGS[self.case][0])

    @cached_property
    def made(self):
        _, rows, function = SIBLINGS[self.case]
        # A function of its own: JAX remembers what it traced of one, and its constraints.
        return lambda *xs: function(*xs), dict(enumerate(rows)), None

    @cached_property
    def drawn(self):
        if self.seed == 0:
            return tuple(spec for _, _, spec in self.made[1].values()), [True] * 64
        return self.draw()

    @contextmanager
    def constrained(self):
        """Key constraints by sharding and shape, since JAX traces loop bodies repeatedly."""
        keep, real, place = self.drawn[1], wsc, globals()

        def chosen(x, spec):
            return real(x, spec) if keep[zlib.crc32(f"{spec} {x.shape}".encode()) % 64] else x

        place["wsc"] = chosen
        try:
            yield
        finally:
            place["wsc"] = real


if __name__ == "__main__":
    count, first = map(int, sys.argv[1:3])
    seeds = range(first, first + count)
    harder.main([Sibling(name, seed) for name in SIBLINGS for seed in seeds], sys.argv[3:])
