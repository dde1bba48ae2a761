"""Functions of a user that JAX does not type on explicit axes without more shardings."""

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.patching.programs import CUT, CUT_ARGS, array


def contracting(x, w):
    hidden = x @ w
    return jnp.tanh(hidden)


def mixed(x, y, w):
    both = x + y
    return jnp.einsum(
        "bd,df->bf",
        both,
        w,
    )


def looked_up(params, ids):
    rows = jnp.tanh(params["table"][ids])
    return rows @ params["head"]


def folded(x):
    return x.reshape(16, 8) * 2.0


XY = {"x": 2, "y": 4}
CASES = [
    (contracting, (array(8, 16), array(16, 8)), XY, (P("x", "y"), P("y")), P("x")),
    (
        mixed,
        (array(8, 16), array(8, 16), array(16, 8)),
        XY,
        (P("x", "y"), P("y"), P("y")),
        P("x"),
    ),
    (looked_up, CUT_ARGS, {"data": 2, "model": 4}, (CUT, P("data")), P("data")),
    (folded, (array(8, 16),), XY, (P("x", "y"),), P("x")),
]
