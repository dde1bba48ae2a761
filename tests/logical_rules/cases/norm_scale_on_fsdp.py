"""A norm is sharded as the weights are, not as the value it scales (AI-Hypercomputer/maxtext#623).

Activations are split along `tensor`, the scale along `fsdp`: it is gathered along one axis and cut
along another in every norm. The report's mesh, two slices, 16 and 4; about 10 % of a step there.
"""

import jax

ISSUE = "AI-Hypercomputer/maxtext#623"
MESH = {"data": 2, "fsdp": 16, "tensor": 4}
_REST = [
    ("activation_batch", ("data", "fsdp")),
    ("activation_embed", "tensor"),
    ("activation_mlp", "tensor"),
    ("embed", "fsdp"),
    ("mlp", "tensor"),
]
RULES = {
    "bad": [("norm", "fsdp"), *_REST],
    "good": [("norm", "tensor"), *_REST],
}
LAYERS, WIDTH = 4, 12288
PARAMS = {
    **{f"scale{i}": ((WIDTH,), ("norm",)) for i in range(LAYERS)},
    **{f"up{i}": ((WIDTH, 4096), ("embed", "mlp")) for i in range(LAYERS)},
    **{f"down{i}": ((4096, WIDTH), ("mlp", "embed")) for i in range(LAYERS)},
}
DATA = ((64, 32, WIDTH), ("activation_batch", "activation_length", "activation_embed"))


def step(params, x, constrain):
    def loss(p):
        names = ("activation_batch", "activation_length", "activation_embed")
        y = x
        for i in range(LAYERS):
            normed = y * jax.lax.rsqrt((y**2).mean(-1, keepdims=True) + 1e-6)
            normed = constrain(normed * (1 + p[f"scale{i}"]), names)
            hidden = jax.nn.relu(normed @ p[f"up{i}"])
            hidden = constrain(hidden, (*names[:2], "activation_mlp"))
            y = constrain(y + hidden @ p[f"down{i}"], names)
        return (y**2).mean()

    value, slope = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, slope)
