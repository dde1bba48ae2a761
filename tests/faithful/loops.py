"""Fresh programs with loops, as a seed draws them: layers, solvers, cells, branches, microbatches.

Templates are functions of a `Draw` (`tests/oracle/siblings.py`); caches and attention stand in
`caches.py`.
"""

import jax
import jax.numpy as jnp
from jax import lax


def layers(draw):
    """Return a scan over stacked layers, with or without stacked outputs, unrolled or not."""
    n, b, m, h = draw.pick(2, 3, 4), draw.pick(8, 16), draw.pick(16, 32), draw.pick(32, 64)
    draw.given("x", b, m)
    draw.given("w", n, m, h)
    draw.given("v", n, h, m)
    draw.given("g", n, m)
    inner, outer, remat = draw.site(b, h), draw.site(b, m), draw.pick(True, False)
    stacked, reverse = draw.pick(True, False), draw.pick(True, False)

    def layer(x, w):
        w, v, g = w
        scale = lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5).astype(x.dtype)
        y = outer(x + inner(jnp.tanh((x * scale * g) @ w)) @ v)
        return y, (y.sum(-1) if stacked else None)

    def run(x, w, v, g):
        body = jax.checkpoint(layer) if remat else layer
        return lax.scan(body, x, (w, v, g), reverse=reverse)

    return draw.differentiated(run)


def cells(draw):
    """Return a recurrent cell over time: plain, gated (GRU) or with two states (LSTM)."""
    t, b, m = draw.pick(4, 8), draw.pick(8, 16), draw.pick(16, 32)
    kind, last = draw.pick("plain", "gru", "lstm"), draw.pick(True, False)
    draw.given("xs", t, b, m)
    gates = {"plain": 1, "gru": 3, "lstm": 4}[kind]
    draw.given("w", gates, m, m)
    draw.given("u", gates, m, m)
    site = draw.site(b, m)

    def cell(w, u, state, x):
        h = state[0]
        a = jnp.einsum("bm,gmk->gbk", x, w)
        if kind == "plain":
            h = site(jnp.tanh(a[0] + h @ u[0]))
            return (h,), h
        c = jnp.einsum("bm,gmk->gbk", h, u)
        if kind == "gru":
            r, z = jax.nn.sigmoid(a[0] + c[0]), jax.nn.sigmoid(a[1] + c[1])
            h = site((1 - z) * jnp.tanh(a[2] + r * c[2]) + z * h)
            return (h,), h
        i, f, g, o = (a + c)[0], (a + c)[1], (a + c)[2], (a + c)[3]
        s = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = site(jax.nn.sigmoid(o) * jnp.tanh(s))
        return (h, s), h

    def run(xs, w, u):
        start = (jnp.zeros((b, m), xs.dtype),) * (2 if kind == "lstm" else 1)
        state, hs = lax.scan(lambda s, x: cell(w, u, s, x), start, xs)
        return state[0] if last else hs

    return draw.differentiated(run)


def solver(draw):
    """Iterate until a value is small: power iteration, conjugate gradients, Newton-Schulz."""
    n, k = draw.pick(16, 32), draw.pick(4, 8, 16)
    draw.given("a", n, n)
    draw.given("y", n, k)
    kind, site = draw.pick("power", "gradients", "newton"), draw.site(n, k)

    def power(a, y):
        def body(carry):
            i, v, _ = carry
            w = site(a @ v)
            return (
                i + 1,
                w * lax.rsqrt((w * w).sum(0, keepdims=True)).astype(w.dtype),
                jnp.abs(w - v).max(),
            )

        start = 0, y, jnp.array(jnp.inf, y.dtype)
        return lax.while_loop(lambda c: (c[0] < 5) & (c[2] > 1e-3), body, start)[1]

    def gradients(a, y):
        def body(carry):
            x, r, p, s = carry
            q = site(a @ p)
            alpha = s / (p * q).sum(0)
            r2 = r - alpha * q
            s2 = (r2 * r2).sum(0)
            return x + alpha * p, r2, r2 + s2 / s * p, s2

        start = jnp.zeros_like(y), y, y, (y * y).sum(0)
        return lax.while_loop(lambda c: c[3].max() > 1e-3, body, start)[0]

    def newton(a, y):
        def body(_, x):
            return 1.5 * x - 0.5 * (x @ x.T) @ x

        return site(lax.fori_loop(0, 3, body, a) @ y)

    return {"power": power, "gradients": gradients, "newton": newton}[kind]


def branches(draw):
    """Branches of a cond or a switch, alone or in every trip of a scan."""
    b, m, n = draw.pick(8, 16), draw.pick(16, 32), draw.pick(2, 3)
    draw.given("t", dtype=jnp.int32)
    draw.given("x", b, m)
    draw.given("w", m, m)
    draw.given("v", m, m)
    site, looped, many = draw.site(b, m), draw.pick(True, False), draw.pick(True, False)
    ways = [
        lambda x, w, v: site(jnp.tanh(x @ w)),
        lambda x, w, v: x @ v + x,
        lambda x, w, v: x * v.sum(0),
    ][: 3 if many else 2]

    def run(t, x, w, v):
        if not looped:
            return lax.switch(t, ways, x, w, v)
        return lax.scan(
            lambda x, i: (lax.switch(i % len(ways), ways, x, w, v), None), x, jnp.arange(n)
        )[0]

    return draw.differentiated(run)


def microbatches(draw):
    """Gradients that a scan over microbatches adds up, then a step."""
    n, b, m, h = draw.pick(2, 4), draw.pick(8, 16), draw.pick(16, 32), draw.pick(16, 32)
    draw.given("w", m, h)
    draw.given("v", h, m)
    draw.given("x", n, b, m)
    site, momentum = draw.site(b, h), draw.pick(True, False)

    def loss(w, v, x):
        y = site(jax.nn.relu(x @ w)) @ v
        return ((y - x).astype(jnp.float32) ** 2).mean()

    def run(w, v, x):
        def body(total, x):
            g = jax.grad(loss, (0, 1))(w, v, x)
            return jax.tree.map(jnp.add, total, g), None

        g, _ = lax.scan(body, (jnp.zeros_like(w), jnp.zeros_like(v)), x)
        if momentum:
            g = jax.tree.map(lambda g: g * lax.rsqrt((g * g).mean() + 1e-6), g)
        return w - 0.1 * g[0], v - 0.1 * g[1]

    return run


def training(draw):
    """Several steps of an optimiser in one loop, parameters and moments carried."""
    n, b, m, h = draw.pick(2, 4), draw.pick(8, 16), draw.pick(16, 32), draw.pick(16, 32)
    draw.given("w", m, h)
    draw.given("v", h, 1)
    draw.given("x", n, b, m)
    draw.given("y", n, b)
    site, adam = draw.site(b, h), draw.pick(True, False)

    def loss(p, x, y):
        return (((site(jnp.tanh(x @ p[0])) @ p[1])[:, 0] - y) ** 2).astype(jnp.float32).mean()

    def run(w, v, x, y):
        def step(state, batch):
            p, s = state
            value, g = jax.value_and_grad(loss)(p, *batch)
            if adam:
                s = jax.tree.map(lambda s, g: 0.9 * s + 0.1 * g * g, s, g)
                g = jax.tree.map(lambda s, g: g * lax.rsqrt(s + 1e-6), s, g)
            return (jax.tree.map(lambda p, g: p - 0.1 * g, p, g), s), value

        p = (w, v)
        return lax.scan(step, (p, jax.tree.map(jnp.zeros_like, p)), (x, y))

    return run


def nested(draw):
    """Return a loop over layers around a loop over time."""
    n, t, b, m = draw.pick(2, 3), draw.pick(4, 8), draw.pick(8, 16), draw.pick(16, 32)
    draw.given("xs", t, b, m)
    draw.given("w", n, m, m)
    draw.given("u", n, m, m)
    site, residual = draw.site(b, m), draw.pick(True, False)

    def run(xs, w, u):
        def layer(xs, weights):
            w, u = weights

            def cell(h, x):
                h = site(jnp.tanh(x @ w + h @ u))
                return h, h

            _, hs = lax.scan(cell, jnp.zeros((b, m), xs.dtype), xs)
            return (xs + hs if residual else hs), None

        return lax.scan(layer, xs, (w, u))[0]

    return draw.differentiated(run, often=0.4)


def mapped(draw):
    """Apply a function to each item (`lax.map`), or to chunks that are concatenated."""
    n, b, m, h = draw.pick(4, 8), draw.pick(8, 16), draw.pick(16, 32), draw.pick(16, 32)
    draw.given("x", n, b, m)
    draw.given("w", m, h)
    draw.given("table", 64, h)
    site, chunks = draw.site(b, h), draw.pick(True, False)

    def run(x, w, table):
        def one(x):
            y = site(x @ w)
            logits = y @ table.T
            return jax.nn.logsumexp(logits.astype(jnp.float32), -1) - logits.max(-1)

        rows = x.reshape(n // 2, 2 * b, m)[:, :b] if chunks else x
        return lax.map(one, rows)

    return draw.differentiated(run)


def state_space(draw):
    """Return a diagonal state-space layer over time, with a state per channel and order."""
    b, t, m, s = draw.pick(4, 8), draw.pick(8, 16), draw.pick(16, 32), draw.pick(4, 8)
    draw.given("x", b, t, m)
    draw.given("a", m, s)
    draw.given("wb", m, s)
    draw.given("wc", m, s)
    site, out = draw.site(b, m, s), draw.site(b, t, m)

    def run(x, a, wb, wc):
        key, query = jnp.einsum("btm,ms->tbs", x, wb), jnp.einsum("btm,ms->tbs", x, wc)
        decay = jnp.exp(-jax.nn.softplus(a))

        def cell(h, row):
            x, k, q = row
            h = site(h * decay + x[:, :, None] * k[:, None, :])
            return h, jnp.einsum("bms,bs->bm", h, q)

        start = jnp.zeros((b, m, s), x.dtype)
        _, y = lax.scan(cell, start, (x.transpose(1, 0, 2), key, query))
        return out(y.transpose(1, 0, 2)) + x

    return draw.differentiated(run)


def shifted(draw):
    """Stages of a pipeline in one buffer that every trip shifts."""
    n, t, b, m = draw.pick(2, 4), draw.pick(3, 4), draw.pick(4, 8), draw.pick(16, 32)
    draw.given("w", n, m, m)
    draw.given("x", t, b, m)
    site, rolled = draw.site(n, b, m), draw.pick(True, False)

    def run(w, x):
        def step(carry, i):
            state, out = carry
            fresh = lax.dynamic_index_in_dim(x, jnp.minimum(i, t - 1), 0)
            moved = (
                jnp.roll(state, 1, 0) if rolled else jnp.pad(state, ((1, 0), (0, 0), (0, 0)))[:-1]
            )
            first = lax.broadcasted_iota(jnp.int32, (n, b, m), 0) == 0
            state = site(jnp.tanh(jnp.einsum("nbm,nmk->nbk", jnp.where(first, fresh, moved), w)))
            out = lax.dynamic_update_index_in_dim(out, state[-1], jnp.maximum(i - n + 1, 0), 0)
            return (state, out), None

        start = jnp.zeros((n, b, m), x.dtype), jnp.zeros_like(x)
        return lax.scan(step, start, jnp.arange(t + n - 1))[0][1]

    return draw.differentiated(run, often=0.4)


TEMPLATES = {
    template.__name__: template
    for template in (
        layers, cells, solver, branches, microbatches, training, nested, mapped, state_space,
        shifted,
    )
}  # fmt: skip
