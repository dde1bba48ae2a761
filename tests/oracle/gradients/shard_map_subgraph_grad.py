"""A manually partitioned subgraph (shard_map over p) inside an automatically partitioned program over x,y; its gradient."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import with_sharding_constraint as wsc
from jax.sharding import PartitionSpec as P

MESH = {"p": 2, "y": 4}
SMALL = dict(L=2, B=16, D=32, F=64)
BIG = dict(L=2, B=4096, D=8192, F=32768)


def make(L, B, D, F):
    dt = jnp.float32
    args = {"x": ((L, B, D), dt, P("p", None, None)), "w": ((L, D, F), dt, P("p", None, "y"))}

    def forward(x, w):
        def body(x, w):
            h = jax.nn.relu(jnp.einsum("lbd,ldf->lbf", x, w))
            return lax.ppermute(h, "p", [(0, 1)])

        return jax.shard_map(body, in_specs=(P("p"), P("p")), out_specs=P("p"), axis_names={"p"})(
            x * 2, w
        )

    def f(x, w, dy):
        return jax.vjp(forward, x, w)[1](dy)

    args["dy"] = ((L, B, F), dt, P("p", None, "y"))
    return f, args, (P("p", None, None), P("p", None, "y"))
