"""A step of training with an embedding, scanned layers and momentum, under a contract."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

WEIGHTS = {
    "table": P("model", None),
    "up": P(None, "data", "model"),
    "down": P(None, "model", "data"),
}


def step(weights, momentum, ids):
    def loss(weights):
        hidden = weights["table"][ids]

        def layer(hidden, pair):
            up, down = pair
            with jax.named_scope("mlp"):
                return hidden + jax.nn.relu(hidden @ up) @ down, None

        hidden, _ = jax.lax.scan(layer, hidden, (weights["up"], weights["down"]))
        scores = jax.nn.log_softmax(hidden @ weights["table"].T)
        return -jnp.take_along_axis(scores, ids[..., None], -1).mean()

    value, slopes = jax.value_and_grad(loss)(weights)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, slopes)
    return value, jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum


def args():
    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    weights = {"table": f32(1024, 64), "up": f32(4, 64, 256), "down": f32(4, 256, 64)}
    return weights, weights, jax.ShapeDtypeStruct((32, 16), "int32")


in_shardings = (WEIGHTS, WEIGHTS, P("data"))
out_shardings = (P(), WEIGHTS, WEIGHTS)
roles = ("parameters", "optimizer_state", "data")
