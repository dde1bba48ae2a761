"""Fresh programs with caches and variants of attention, as a seed draws them."""

import jax
import jax.numpy as jnp
from jax import lax


def normal(x):
    """Rows of mean square one."""
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6).astype(x.dtype)


def turned(x, positions):
    """Rotary embedding of (batch, time, heads, head) at positions."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * (10000.0 ** (-jnp.arange(half) / half))
    cos, sin = (
        jnp.cos(angle)[None, :, None].astype(x.dtype),
        jnp.sin(angle)[None, :, None].astype(x.dtype),
    )
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _mask(kind, s, t):
    row, column = (
        lax.broadcasted_iota(jnp.int32, (s, t), 0),
        lax.broadcasted_iota(jnp.int32, (s, t), 1),
    )
    return {
        "none": jnp.ones((s, t), bool),
        "causal": row >= column,
        "window": (row >= column) & (row - column < 4),
        "prefix": (row >= column) | (column < 4),
    }[kind]


def variant(draw):
    """One attention layer: grouped heads, masks, a cap, biases, normalised or rotated queries."""
    b, s, k, d, m = (
        draw.pick(2, 4, 8),
        draw.pick(8, 16),
        draw.pick(2, 4),
        draw.pick(4, 8),
        draw.pick(16, 32),
    )
    g = draw.pick(1, 2, 4)
    draw.given("x", b, s, m)
    draw.given("wq", m, k, g, d)
    draw.given("wk", m, k, d)
    draw.given("wv", m, k, d)
    draw.given("wo", k, g, d, m)
    mask, rotary, unit = (
        draw.pick("none", "causal", "window", "prefix"),
        draw.pick(True, False),
        draw.pick(True, False),
    )
    cap, slopes = draw.pick(True, False), draw.pick(True, False)
    heads, out = draw.site(b, s, k, g, d), draw.site(b, s, m)

    def run(x, wq, wk, wv, wo):
        q = heads(jnp.einsum("bsm,mkgd->bskgd", x, wq))
        key, value = jnp.einsum("bsm,mkd->bskd", x, wk), jnp.einsum("bsm,mkd->bskd", x, wv)
        if unit:
            q, key = normal(q), normal(key)
        if rotary:
            q = turned(q.reshape(b, s, k * g, d), jnp.arange(s)).reshape(b, s, k, g, d)
            key = turned(key, jnp.arange(s))
        scores = jnp.einsum("bskgd,btkd->bkgst", q, key).astype(jnp.float32) * d**-0.5
        if cap:
            scores = 50 * jnp.tanh(scores / 50)
        if slopes:
            scores = scores - jnp.arange(k * g).reshape(k, g, 1, 1) * jnp.arange(s)
        p = jax.nn.softmax(jnp.where(_mask(mask, s, s), scores, -1e9), -1).astype(x.dtype)
        return out(jnp.einsum("bskgd,kgdm->bsm", jnp.einsum("bkgst,btkd->bskgd", p, value), wo))

    return draw.differentiated(run)


def latent(draw):
    """Attention through a low-rank latent of keys and values."""
    b, s, n, d, m, r = (
        draw.pick(2, 4, 8),
        draw.pick(8, 16),
        draw.pick(4, 8),
        draw.pick(4, 8),
        32,
        draw.pick(8, 16),
    )
    draw.given("x", b, s, m)
    draw.given("wq", m, n, d)
    draw.given("down", m, r)
    draw.given("up", 2, r, n, d)
    draw.given("wo", n, d, m)
    site = draw.site(b, s, r)

    def run(x, wq, down, up, wo):
        c = site(normal(x @ down))
        q, key, value = jnp.einsum("bsm,mnd->bsnd", x, wq), *jnp.einsum("bsr,crnd->cbsnd", c, up)
        p = jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", q, key), -1)
        return jnp.einsum("bsnd,ndm->bsm", jnp.einsum("bnst,btnd->bsnd", p, value), wo)

    return draw.differentiated(run)


def crossed(draw):
    """Attention from one sequence to another, with a feed-forward behind it."""
    b, s, t, n, d, m = draw.pick(4, 8), 8, 16, draw.pick(2, 4), draw.pick(4, 8), draw.pick(16, 32)
    draw.given("x", b, s, m)
    draw.given("y", b, t, m)
    draw.given("wq", m, n * d)
    draw.given("wkv", m, 2 * n * d)
    draw.given("wo", n * d, m)
    site = draw.site(b, s, n * d)

    def run(x, y, wq, wkv, wo):
        q = (x @ wq).reshape(b, s, n, d)
        key, value = (p.reshape(b, t, n, d) for p in jnp.split(y @ wkv, 2, -1))
        p = jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", q, key), -1)
        z = jnp.einsum("bnst,btnd->bsnd", p, value).reshape(b, s, n * d)
        return x + site(z) @ wo

    return draw.differentiated(run)


def linear(draw):
    """Attention without softmax: a matrix of state per head, over time."""
    b, t, n, d, m = (
        draw.pick(4, 8),
        draw.pick(8, 16),
        draw.pick(2, 4),
        draw.pick(4, 8),
        draw.pick(16, 32),
    )
    draw.given("x", b, t, m)
    draw.given("w", m, 3, n, d)
    draw.given("decay", n)
    site = draw.site(b, n, d, d)

    def run(x, w, decay):
        q, key, value = jnp.einsum("btm,mcnd->ctbnd", x, w)

        def cell(state, row):
            q, k, v = row
            state = site(
                state * jax.nn.sigmoid(decay)[:, None, None] + k[..., :, None] * v[..., None, :]
            )
            return state, jnp.einsum("bnd,bnde->bne", q, state)

        _, y = lax.scan(cell, jnp.zeros((b, n, d, d), x.dtype), (q, key, value))
        return y.transpose(1, 0, 2, 3).reshape(b, t, n * d)

    return draw.differentiated(run)


def flash(draw):
    """Attention block by block, with a running maximum and sum."""
    b, s, n, d, blocks = draw.pick(2, 4, 8), 16, draw.pick(2, 4), draw.pick(4, 8), draw.pick(2, 4)
    for name in ("q", "k", "v"):
        draw.given(name, b, s, n, d)
    site, size = draw.site(b, n, s, d), s // blocks

    def run(q, k, v):
        def split(x):
            return x.reshape(b, blocks, size, n, d).transpose(1, 0, 2, 3, 4)

        def block(carry, kv):
            top, total, out = carry
            k, v = kv
            scores = jnp.einsum("bsnd,btnd->bnst", q, k)
            new = jnp.maximum(top, scores.max(-1))
            p, scale = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
            out = site(out * scale[..., None] + jnp.einsum("bnst,btnd->bnsd", p, v))
            return (new, total * scale + p.sum(-1), out), None

        start = (
            jnp.full((b, n, s), -1e9, q.dtype),
            jnp.zeros((b, n, s), q.dtype),
            jnp.zeros((b, n, s, d), q.dtype),
        )
        (_, total, out), _ = lax.scan(block, start, (split(k), split(v)))
        return (out / total[..., None]).transpose(0, 2, 1, 3)

    return draw.differentiated(run)


def transformer(draw):
    """Layers of attention and feed-forward in a scan."""
    l, b, s, n, d, h = (
        draw.pick(2, 3),
        draw.pick(4, 8),
        draw.pick(8, 16),
        draw.pick(2, 4),
        draw.pick(4, 8),
        draw.pick(32, 64),
    )
    m = draw.pick(16, 32)
    draw.given("x", b, s, m)
    draw.given("wqkv", l, m, 3, n, d)
    draw.given("wo", l, n, d, m)
    draw.given("w1", l, m, h)
    draw.given("w2", l, h, m)
    heads, hidden, out = draw.site(b, s, n, d), draw.site(b, s, h), draw.site(b, s, m)
    mask, remat = draw.pick("none", "causal"), draw.pick(True, False)

    def layer(x, w):
        wqkv, wo, w1, w2 = w
        q, k, v = jnp.einsum("bsm,mcnd->cbsnd", normal(x), wqkv)
        scores = jnp.einsum("bsnd,btnd->bnst", heads(q), k)
        p = jax.nn.softmax(jnp.where(_mask(mask, s, s), scores, -1e9), -1)
        x = x + out(jnp.einsum("bsnd,ndm->bsm", jnp.einsum("bnst,btnd->bsnd", p, v), wo))
        return x + hidden(jax.nn.gelu(normal(x) @ w1)) @ w2, None

    def run(x, *weights):
        return lax.scan(jax.checkpoint(layer) if remat else layer, x, weights)[0]

    return draw.differentiated(run)


def _attended(q, keys, values, position):
    """Attend from one token per sequence to a cache (batch, time, heads, head)."""
    scores = jnp.einsum("bnd,btnd->bnt", q, keys)
    seen = jnp.arange(keys.shape[1]) <= position
    return jnp.einsum("bnt,btnd->bnd", jax.nn.softmax(jnp.where(seen, scores, -1e9), -1), values)


def decode(draw):
    """One token through layers whose caches are written at its position."""
    l, b, t, n, d = (
        draw.pick(2, 3),
        draw.pick(4, 8),
        draw.pick(8, 16),
        draw.pick(2, 4),
        draw.pick(4, 8),
    )
    m, ring = draw.pick(16, 32), draw.pick(True, False)
    draw.given("x", b, m)
    draw.given("position", dtype=jnp.int32)
    draw.given("keys", l, b, t, n, d)
    draw.given("values", l, b, t, n, d)
    draw.given("wqkv", l, m, 3, n, d)
    draw.given("wo", l, n, d, m)
    kept, out, carried = draw.site(b, t, n, d), draw.site(b, m), draw.pick(True, False)

    def attend(x, keys, values, wqkv, wo, position):
        q, k, v = jnp.einsum("bm,mcnd->cbnd", normal(x), wqkv)
        place = position % t if ring else position
        keys = kept(lax.dynamic_update_slice(keys, k[:, None], (0, place, 0, 0)))
        values = lax.dynamic_update_slice(values, v[:, None], (0, place, 0, 0))
        y = _attended(q, keys, values, position)
        return x + out(jnp.einsum("bnd,ndm->bm", y, wo)), keys, values

    def stacked(x, position, keys, values, wqkv, wo):
        def layer(x, w):
            x, k, v = attend(x, *w, position)
            return x, (k, v)

        return lax.scan(layer, x, (keys, values, wqkv, wo))

    def in_carry(x, position, keys, values, wqkv, wo):
        def layer(i, carry):
            x, keys, values = carry
            at = lambda y: lax.dynamic_index_in_dim(y, i, 0, keepdims=False)  # noqa: E731
            x, k, v = attend(x, at(keys), at(values), at(wqkv), at(wo), position)
            put = lax.dynamic_update_index_in_dim
            return x, put(keys, k, i, 0), put(values, v, i, 0)

        return lax.fori_loop(0, l, layer, (x, keys, values))

    return in_carry if carried else stacked


def generate(draw):
    """Tokens one after another, each the likeliest after the last; the cache is carried."""
    steps, b, t, n, d, v = (
        draw.pick(2, 4),
        draw.pick(4, 8),
        draw.pick(8, 16),
        draw.pick(2, 4),
        draw.pick(4, 8),
        draw.pick(32, 64),
    )
    m = n * d
    draw.given("table", v, m)
    draw.given("wqkv", m, 3, n, d)
    draw.given("wo", m, m)
    draw.given("prompt", b, dtype=jnp.int32)
    kept, site, until = draw.site(b, t, n, d), draw.site(b, v), draw.pick(True, False)

    def run(table, wqkv, wo, prompt):
        def step(carry):
            i, token, keys, values, out = carry
            q, k, value = jnp.einsum("bm,mcnd->cbnd", table[token], wqkv)
            keys = kept(lax.dynamic_update_slice(keys, k[:, None], (0, i, 0, 0)))
            values = lax.dynamic_update_slice(values, value[:, None], (0, i, 0, 0))
            y = _attended(q, keys, values, i).reshape(b, m) @ wo
            token = jnp.argmax(site(y @ table.T), -1).astype(jnp.int32)
            return i + 1, token, keys, values, lax.dynamic_update_index_in_dim(out, token, i, 0)

        empty = jnp.zeros((b, t, n, d), table.dtype)
        start = 0, prompt, empty, empty, jnp.zeros((steps, b), jnp.int32)
        if until:
            done = lambda c: (c[0] < steps) & (c[1] > 0).any()  # noqa: E731
            return lax.while_loop(done, step, start)[4]
        return lax.fori_loop(0, steps, lambda _, c: step(c), start)[4]

    return run


def prefill(draw):
    """Run a prompt through layers; its keys and values fill a longer cache."""
    l, b, s, t, n, d, m = (
        draw.pick(2, 3),
        draw.pick(4, 8),
        8,
        16,
        draw.pick(2, 4),
        draw.pick(4, 8),
        draw.pick(16, 32),
    )
    draw.given("x", b, s, m)
    draw.given("wqkv", l, m, 3, n, d)
    draw.given("wo", l, n, d, m)
    heads, kept, padded = draw.site(b, s, n, d), draw.site(b, t, n, d), draw.pick(True, False)

    def run(x, wqkv, wo):
        def fill(y):
            if padded:
                return kept(jnp.pad(y, ((0, 0), (0, t - s), (0, 0), (0, 0))))
            return kept(lax.dynamic_update_slice(jnp.zeros((b, t, n, d), y.dtype), y, (0, 0, 0, 0)))

        def layer(x, w):
            q, k, v = heads(jnp.einsum("bsm,mcnd->cbsnd", normal(x), w[0])[0]), None, None
            k, v = jnp.einsum("bsm,mcnd->cbsnd", normal(x), w[0])[1:]
            p = jax.nn.softmax(
                jnp.where(_mask("causal", s, s), jnp.einsum("bsnd,btnd->bnst", q, k), -1e9), -1
            )
            x = x + jnp.einsum("bsnd,ndm->bsm", jnp.einsum("bnst,btnd->bsnd", p, v), w[1])
            return x, (fill(k), fill(v))

        return lax.scan(layer, x, (wqkv, wo))

    return run


TEMPLATES = {
    template.__name__: template
    for template in (
        variant, latent, crossed, linear, flash, transformer, decode, generate, prefill,
    )
}  # fmt: skip
