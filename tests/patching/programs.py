"""Functions of a user in which XLA and the plan disagree, and one in which they agree."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def array(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


# An embedding and a head, both cut along two axes. One constraint alone makes XLA's program worse.
CUT = {"table": P("model", "data"), "head": P("data", "model")}
CUT_ARGS = ({"table": array(4096, 256), "head": array(256, 4096)}, array(16, 64, dtype="int32"))


def language_step(params, ids):
    def mean_loss(params):
        rows = jnp.tanh(params["table"][ids])
        scores = rows @ params["head"]
        right = jnp.take_along_axis(scores, ids[..., None], -1)[..., 0]
        return (jax.nn.logsumexp(scores, -1) - right).mean()

    loss, slopes = jax.value_and_grad(mean_loss)(params)
    return loss, jax.tree.map(lambda old, slope: old - 0.1 * slope, params, slopes)


# Tokens and experts along one axis: XLA gathers what the experts send back.
EXPERTS = {"router": P(), "up": P("expert"), "down": P("expert")}
EXPERT_ARGS = (
    {"router": array(64, 16), "up": array(16, 64, 128), "down": array(16, 128, 64)},
    array(16, 32, 64),
)


def routed(params, tokens):
    gates = jax.nn.softmax(tokens @ params["router"])
    chosen = jax.nn.one_hot(gates.argmax(-1), 16)
    place = jax.nn.one_hot((jnp.cumsum(chosen, 1) * chosen).sum(-1).astype(int) - 1, 8)
    slots = jnp.einsum("bse,bsc->bsec", chosen, place)
    sent = jnp.einsum("bsm,bsec->ebcm", tokens, slots)
    hidden = jax.nn.relu(jnp.einsum("ebcm,emf->ebcf", sent, params["up"]))
    back = jnp.einsum("ebcf,efm->ebcm", hidden, params["down"])
    weights = slots * gates[..., None]
    return tokens + jnp.einsum("ebcm,bsec->bsm", back, weights)


def expert_step(params, tokens):
    loss, slopes = jax.value_and_grad(lambda params: (routed(params, tokens) ** 2).mean())(params)
    return loss, jax.tree.map(lambda old, slope: old - 0.1 * slope, params, slopes)


# A sum in two layouts: between them, XLA replicates it ("involuntary full rematerialization").
SUM_ARGS = (array(256, 256, 256),) * 3
PILLARS, SLAB = P("y", None, "x"), P(None, ("x", "y"))


def two_layouts(a, b, c):
    total = a + b
    return jax.lax.with_sharding_constraint(total, SLAB) + c


# Rows that are written one after the other: XLA gathers the array that they are written to.
def updated(x, rows):
    return jax.lax.dynamic_update_slice(x, rows, (0, 0))


def uneven(x):
    tripled = jax.lax.with_sharding_constraint(3.0 * x, P("data"))
    return jnp.sin(tripled) + 1.0


def halves(x):
    return jax.lax.map(jnp.tanh, x.reshape(2, -1, x.shape[-1]))


def grouped(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=4
    )


def agreeing(x, w):
    return jnp.tanh(x @ w)
