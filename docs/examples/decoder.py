"""A decoder of one billion parameters, as `shardalg plan` reads a step of yours."""

from functools import reduce

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import shardalg as sa

WIDTH, HEADS, HIDDEN, LAYERS, VOCAB = 2048, 16, 8192, 16, 32_768
BATCH, SEQ = 512, 2048


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        q, k, v = (nn.Dense(WIDTH, use_bias=False, dtype="bfloat16", name=n)(x) for n in "qkv")
        heads = [part.reshape(*x.shape[:2], HEADS, -1) for part in (q, k, v)]
        mixed = jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape)
        return nn.Dense(WIDTH, use_bias=False, dtype="bfloat16", name="o")(mixed)


class FeedForward(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.Dense(HIDDEN, use_bias=False, dtype="bfloat16", name="up")(x)
        return nn.Dense(WIDTH, use_bias=False, dtype="bfloat16", name="down")(nn.gelu(hidden))


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + Attention(name="attention")(nn.RMSNorm(dtype="bfloat16")(x))
        return x + FeedForward(name="feed_forward")(nn.RMSNorm(dtype="bfloat16")(x))


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        layers = [nn.remat(Layer)(name=f"layers_{place}") for place in range(LAYERS)]
        x = nn.Embed(VOCAB, WIDTH, dtype="bfloat16", name="embed")(tokens)
        x = reduce(lambda x, layer: layer(x), layers, x)
        return nn.Dense(VOCAB, use_bias=False, dtype="bfloat16", name="head")(x)


model, optimizer = Decoder(), optax.adam(1e-4)


def step(params, state, tokens):
    def loss(params):
        logits = model.apply(params, tokens).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, value


def args():
    tokens = jax.ShapeDtypeStruct((BATCH, SEQ), "int32")
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    return params, jax.eval_shape(optimizer.init, params), tokens


roles = ("parameters", "optimizer_state", "data")
donate_argnums = (0, 1)
recipe = sa.recipes.fsdp("data") | sa.recipes.tensor("model")
strategy = recipe.strategy(step, *args(), mesh=sa.Mesh({"data": 32, "model": 2}), roles=roles)
