"""EBD,EDF->EBF, experts on x and F on y, all three annotated; its gradient."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import with_sharding_constraint as wsc
from jax.sharding import PartitionSpec as P

MESH = {"x": 2, "y": 4}
SMALL = dict(B=16, D=32, E=8, F=64)
BIG = dict(B=8192, D=8192, E=8, F=32768)


def make(B, D, E, F):
    dt = jnp.bfloat16
    args = {
        "a": (
            (
                E,
                B,
                D,
            ),
            dt,
            P("x", None, None),
        ),
        "b": (
            (
                E,
                D,
                F,
            ),
            dt,
            P("x", None, "y"),
        ),
    }

    def f(a, b, dy):
        return jax.vjp(lambda a, b: jnp.einsum("ebd,edf->ebf", a, b), a, b)[1](dy)

    args["dy"] = ((E, B, F), dt, P("x", None, "y"))
    return f, args, (P("x", None, None), P("x", None, "y"))
