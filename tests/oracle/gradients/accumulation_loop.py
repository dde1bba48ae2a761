"""Gradients of a feed-forward layer added up over microbatches: rows of a microbatch on x, H on y."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import with_sharding_constraint as wsc
from jax.sharding import PartitionSpec as P

MESH = {"x": 2, "y": 4}
SMALL = dict(T=4, B=8, M=16, H=32)
BIG = dict(T=16, B=1024, M=4096, H=16384)


def make(T, B, M, H):
    dt = jnp.bfloat16
    args = {
        "w1": ((M, H), dt, P(None, "y")),
        "w2": ((H, M), dt, P("y", None)),
        "mb": ((T, B, M), dt, P(None, "x", None)),
    }

    def loss(w, x):
        h = jax.nn.relu(jnp.einsum("bm,mh->bh", x, w[0]))
        y = x + wsc(jnp.einsum("bh,hm->bm", h, w[1]), P("x", None))
        return jnp.sum(y.astype(jnp.float32) ** 2)

    def f(w1, w2, mb):
        def step(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)((w1, w2), x)), None

        return lax.scan(step, (jnp.zeros_like(w1), jnp.zeros_like(w2)), mb)[0]

    return f, args, (P(None, "y"), P("y", None))
