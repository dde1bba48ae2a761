"""One rule lost a mesh axis (public report AI-Hypercomputer/maxtext#4005, mended in #4007).

The mesh splits experts alone. The rule for the batch of the tokens that enter the experts
does not name that axis, so every device gathers all tokens, and routes all of them.
"""

import jax
import jax.numpy as jnp

ISSUE = "AI-Hypercomputer/maxtext#4005, #4007"
MESH = {"data": 1, "fsdp": 1, "expert": 8}
_REST = [
    ("activation_batch", ("data", "fsdp", "expert")),
    ("activation_batch_in_experts", ("data", "fsdp")),
    ("activation_exp", "expert"),
    ("exp", "expert"),
    ("embed", "fsdp"),
]
RULES = {
    "bad": [("activation_batch_moe", ("data", "fsdp")), *_REST],
    "good": [("activation_batch_moe", ("data", "fsdp", "expert")), *_REST],
}
EXPERTS, CAPACITY = 16, 32
PARAMS = {
    "router": ((512, EXPERTS), ("embed", None)),
    "up": ((EXPERTS, 512, 1024), ("exp", "embed", "mlp")),
    "down": ((EXPERTS, 1024, 512), ("exp", "mlp", "embed")),
}
DATA = ((16, 256, 512), ("activation_batch", "activation_length", "activation_embed"))


def layer(params, x, constrain):
    x = constrain(x, ("activation_batch_moe", "activation_length", "activation_embed"))
    gates = jax.nn.softmax(x @ params["router"])
    chosen = jax.nn.one_hot(gates.argmax(-1), EXPERTS)
    place = jax.nn.one_hot((jnp.cumsum(chosen, 1) * chosen).sum(-1) - 1, CAPACITY)
    mask = jnp.einsum("bse,bsc->bsec", chosen, place)
    inside = ("activation_exp", "activation_batch_in_experts", None, "activation_embed")
    outside = (None, "activation_batch_moe", None, "activation_embed")
    sent = constrain(constrain(jnp.einsum("bsm,bsec->ebcm", x, mask), outside), inside)
    hidden = jax.nn.relu(jnp.einsum("ebcm,emf->ebcf", sent, params["up"]))
    back = constrain(jnp.einsum("ebcf,efm->ebcm", hidden, params["down"]), inside)
    back = constrain(back, outside)
    y = jnp.einsum("ebcm,bsec->bsm", back, mask * gates[..., None])
    return constrain(y, ("activation_batch_moe", "activation_length", "activation_embed"))


def step(params, x, constrain):
    loss, slope = jax.value_and_grad(lambda p: (layer(p, x, constrain) ** 2).mean())(params)
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, slope)
