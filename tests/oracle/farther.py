"""Templates of programs that are of no recorded topic: solvers, histories, shifts, losses.

Drawn as those of `siblings.py`, whose names and seeds the suite has recorded.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular


def shift(draw):
    """Return a buffer that moves by one stage, in all its forms, once or per step."""
    stages, b, m = draw.pick(4, 8, 16), draw.pick(4, 8), draw.pick(8, 16)
    draw.given("state", stages, b, m)
    draw.given("w", stages, m, m)
    site, steps = draw.site(stages, b, m), draw.pick(1, 1, 3)
    one = draw.pick(
        lambda s: jnp.pad(s, ((1, 0), (0, 0), (0, 0)))[:-1],
        lambda s: jnp.concatenate([s[1:], jnp.zeros_like(s[:1])]),
        lambda s: jnp.concatenate([jnp.zeros_like(s[:1]), s[:-1]]),
        lambda s: jnp.zeros_like(s).at[1:].set(s[:-1]),
        lambda s: jnp.roll(s, 1, 0).at[0].set(0),
        lambda s: lax.dynamic_update_slice(jnp.zeros_like(s), s[:-1], (1, 0, 0)),
    )

    def run(state, w):
        for _ in range(steps):
            state = site(jnp.tanh(jnp.einsum("sbm,smk->sbk", one(state), w)))
        return state

    return draw.differentiated(run)


def factor(draw):
    """Solves with a positive matrix, or the projection on a basis."""
    n, b, k = draw.pick(8, 16), draw.pick(2, 4, 8), draw.pick(4, 8)
    draw.given("a", b, n, n, dtype=jnp.float32)
    draw.given("y", b, n, k, dtype=jnp.float32)
    kind, site = draw.rng.randrange(3), draw.site(b, n, n)

    def run(a, y):
        spd = site(jnp.einsum("bij,bkj->bik", a, a) + jnp.eye(n))
        if kind == 0:
            low = jnp.linalg.cholesky(spd)
            return jax.vmap(lambda f, r: cho_solve((f, True), r))(low, y)
        if kind == 1:
            return jax.vmap(lambda f, r: solve_triangular(f, r, lower=True))(spd, y)
        q, _ = jnp.linalg.qr(spd)
        return jnp.einsum("bij,bik->bjk", q, y)

    return draw.differentiated(run, often=0.3)


def masked(draw):
    """Return an autoregressive layer: products with weights under a triangular mask."""
    b, d, h = draw.pick(8, 16, 32), draw.pick(8, 16), draw.pick(16, 32)
    draw.given("x", b, d)
    draw.given("w1", d, h)
    draw.given("w2", h, 2 * d)
    site = draw.site(b, h)

    def run(x, w1, w2):
        degree_in, degree = jnp.arange(d), jnp.arange(h) % (d - 1)
        first = (degree_in[:, None] <= degree[None, :]).astype(x.dtype)
        last = (degree[:, None] < jnp.tile(degree_in, 2)[None, :]).astype(x.dtype)
        hidden = site(jax.nn.relu(x @ (w1 * first)))
        mean, scale = jnp.split(hidden @ (w2 * last), 2, 1)
        return (x - mean) * jnp.exp(-jnp.tanh(scale)), scale.sum(1)

    return draw.differentiated(run)


def history(draw):
    """Return a quasi-Newton direction from a history that a step extends (L-BFGS)."""
    n, k, rows = draw.pick(16, 32), draw.pick(3, 4, 8), draw.pick(8, 16)
    draw.given("w", n, rows)
    draw.given("s", k, n, rows)
    draw.given("y", k, n, rows)
    draw.given("x", 16, n)
    push = draw.pick(
        lambda h, v: jnp.concatenate([h[1:], v[None]]),
        lambda h, v: jnp.roll(h, -1, 0).at[-1].set(v),
    )

    def run(w, s, y, x):
        g = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w).astype(jnp.float32) ** 2))(w)
        rho = 1 / (1 + jnp.einsum("knm,knm->k", s, y))

        def back(q, pair):
            s, y, r = pair
            alpha = r * jnp.sum(s * q)
            return q - alpha * y, alpha

        q, alphas = lax.scan(back, g, (s, y, rho), reverse=True)

        def forth(q, pair):
            s, y, r, alpha = pair
            return q + s * (alpha - r * jnp.sum(y * q)), None

        q, _ = lax.scan(forth, q, (s, y, rho, alphas))
        return w - q, push(s, -q), push(y, g)

    return run


def vocabulary(draw):
    """Return the cross-entropy of logits over a vocabulary, by a pick or by one-hots."""
    b, s, m, v = draw.pick(4, 8), draw.pick(8, 16), draw.pick(16, 32), draw.pick(32, 64)
    draw.given("x", b, s, m)
    draw.given("head", m, v)
    draw.given("labels", b, s, dtype=jnp.int32)
    kind, site = draw.rng.randrange(3), draw.site(b, s, v)

    def run(x, head, labels):
        logits = site(x @ head).astype(jnp.float32)
        if kind == 0:
            logp = jax.nn.log_softmax(logits)
            return -jnp.take_along_axis(logp, labels[..., None], -1).mean()
        if kind == 1:
            return -(jax.nn.one_hot(labels, v) * jax.nn.log_softmax(logits)).sum(-1).mean()
        top = jax.nn.logsumexp(logits, -1)
        return (top - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]).mean()

    return draw.differentiated(run, often=0.7)


def depthwise(draw):
    """Return a causal convolution of every channel by itself, or the mean of windows."""
    b, s, c, taps = draw.pick(2, 4, 8), draw.pick(16, 32), draw.pick(8, 16), draw.pick(3, 4)
    draw.given("x", b, s, c)
    draw.given("k", taps, 1, c)
    mean, stride, site = draw.pick(True, False), draw.pick(1, 2, 4), draw.site(b, s, c)

    def run(x, k):
        if mean:
            window = (1, taps, 1), (1, stride, 1), "SAME"
            return lax.reduce_window(site(x * k.sum(0)), np.array(0.0, x.dtype), lax.add, *window)
        numbers = ("NWC", "WIO", "NWC")
        return site(
            lax.conv_general_dilated(
                x, k, (1,), [(taps - 1, 0)], dimension_numbers=numbers, feature_group_count=c
            )
        )

    return draw.differentiated(run, often=0.6)


def indices(draw):
    """Return reads and writes at indices: a diagonal, rows of segments, an update of rows."""
    n, m, e = draw.pick(8, 16), draw.pick(8, 16), draw.pick(16, 32)
    draw.given("x", n, n)
    draw.given("v", n, m)
    draw.given("src", e, dtype=jnp.int32)
    draw.given("dst", e, dtype=jnp.int32)
    kind, site = draw.rng.randrange(4), draw.site(n, m)

    def run(x, v, src, dst):
        i = jnp.arange(n)
        if kind == 0:
            return x.at[i, i].add(v.sum(1)) @ v
        if kind == 1:
            return site(jax.ops.segment_sum(v[src] * 2, dst, n)) + x @ v
        if kind == 2:
            return jnp.diagonal(x)[:, None] * v
        return v.at[dst[:n]].set(site(x @ v))

    return draw.differentiated(run, often=0.4)


def particles(draw):
    """Return a step of pairwise forces (molecular dynamics)."""
    n, d = draw.pick(16, 32), draw.pick(2, 4)
    draw.given("x", n, d)
    draw.given("v", n, d)
    site = draw.site(n, n, d)

    def energy(x):
        apart = site(x[:, None] - x[None])
        near = jnp.sum(apart.astype(jnp.float32) ** 2, -1) + jnp.eye(n)
        return jnp.sum(jnp.triu(jnp.exp(-near) / near, 1))

    def run(x, v):
        v = v - 0.1 * jax.grad(energy)(x)
        return x + 0.1 * v, v

    return run


def recurrent(draw):
    """Return a cell over time, or an associative scan."""
    t, b, m = draw.pick(4, 8), draw.pick(8, 16), draw.pick(16, 32)
    draw.given("xs", t, b, m)
    draw.given("w", m, m)
    draw.given("u", m, m)
    linear, site = draw.pick(True, False), draw.site(b, m)

    def run(xs, w, u):
        if linear:
            decay = jax.nn.sigmoid(xs @ w)
            join = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])  # noqa: E731
            return lax.associative_scan(join, (decay, xs @ u))[1]

        def cell(h, x):
            h = site(jnp.tanh(x @ w + h @ u))
            return h, h

        return lax.scan(cell, jnp.zeros((b, m), xs.dtype), xs)[1]

    return draw.differentiated(run, often=0.4)


TEMPLATES = {
    template.__name__: template
    for template in (
        shift, factor, masked, history, vocabulary, depthwise, indices, particles, recurrent,
    )
}  # fmt: skip
