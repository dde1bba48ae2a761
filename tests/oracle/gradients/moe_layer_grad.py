"""MoE feed-forward layer with top-1 gating on a 1D mesh: experts on x in the layer, batch on x outside; backward pass."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import with_sharding_constraint as wsc
from jax.sharding import PartitionSpec as P

MESH = {"x": 8}
SMALL = dict(B=16, S=8, M=16, H=32, E=8, C=4)
BIG = dict(B=32, S=1024, M=4096, H=16384, E=8, C=256)


def make(B, S, M, H, E, C):
    dt = jnp.bfloat16
    args = {
        "x": ((B, S, M), dt, P("x", None, None)),
        "wg": ((M, E), dt, P()),
        "win": ((E, M, H), dt, P("x", None, None)),
        "wout": ((E, H, M), dt, P("x", None, None)),
    }

    def moe(x, wg, win, wout):
        gates = jax.nn.softmax(jnp.einsum("bsm,me->bse", x, wg).astype(jnp.float32), -1)
        onehot = jax.nn.one_hot(jnp.argmax(gates, -1), E)
        pos = jnp.cumsum(onehot, 1) * onehot - 1
        mask = (jax.nn.one_hot(pos.astype(jnp.int32), C) * onehot[..., None]).astype(dt)
        comb = mask * gates[..., None].astype(dt)
        d = wsc(jnp.einsum("bsm,bsec->ebcm", x, mask), P(None, "x", None, None))
        d = wsc(d, P("x", None, None, None))
        h = wsc(jax.nn.relu(jnp.einsum("ebcm,emh->ebch", d, win)), P("x", None, None, None))
        y = wsc(jnp.einsum("ebch,ehm->ebcm", h, wout), P("x", None, None, None))
        y = wsc(y, P(None, "x", None, None))
        return wsc(jnp.einsum("ebcm,bsec->bsm", y, comb), P("x", None, None))

    def f(x, wg, win, wout, dy):
        return jax.vjp(moe, x, wg, win, wout)[1](dy)

    args["dy"] = ((B, S, M), dt, P("x", None, None))
    return f, args, (P("x", None, None), P(), P("x", None, None), P("x", None, None))
