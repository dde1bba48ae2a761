"""A Transformer of two layers and its train step, as users of linen, nnx and equinox write it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

VOCABULARY, WIDTH, HEADS, LAYERS = 16, 8, 2, 2
TOKENS = jax.ShapeDtypeStruct((4, 4), "int32")
OPTIMIZER = optax.adam(1e-3)


def spec(leaf):
    """Matrices over both axes."""
    return {2: P("X", "Y"), 3: P("X", None, "Y")}.get(np.ndim(leaf), P())


def loss_of(logits, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(HEADS, name="attention")(nn.LayerNorm()(x))
        hidden = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH, name="down")(hidden)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCABULARY, WIDTH)(tokens)
        for i in range(LAYERS):
            x = nn.remat(LinenBlock)(name=f"layers_{i}")(x)
        return nn.Dense(VOCABULARY)(x)


def linen_step():
    model = Linen()

    def made():
        params = model.init(jax.random.key(0), jnp.zeros(TOKENS.shape, TOKENS.dtype))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=OPTIMIZER)

    @jax.jit
    def step(state, tokens):
        def loss(params):
            return loss_of(state.apply_fn({"params": params}, tokens), tokens)

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    state = jax.eval_shape(made)
    return step, (state, TOKENS), (jax.tree.map(spec, state), P("X"))


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, rngs=rngs, decode=False)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.layers = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def nnx_step():
    model = Nnx(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    def step(model, optimizer, tokens):
        value, grads = nnx.value_and_grad(lambda model: loss_of(model(tokens), tokens))(model)
        optimizer.update(model, grads)
        return value

    specs = jax.tree.map(spec, nnx.state(model))
    return step, (model, optimizer, TOKENS), (specs, None, P("X"))


class EquinoxBlock(eqx.Module):
    norms: list
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2)]
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=keys[1])
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=keys[2])

    def __call__(self, x):
        h = jax.vmap(self.norms[0])(x)
        x = x + self.attention(h, h, h)
        hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norms[1])(x)))
        return x + jax.vmap(self.down)(hidden)


class Equinox(eqx.Module):
    embed: eqx.nn.Embedding
    layers: list
    head: eqx.nn.Linear

    def __init__(self, key):
        first, last, *keys = jax.random.split(key, 2 + LAYERS)
        self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=first)
        self.layers = [EquinoxBlock(key) for key in keys]
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, key=last)

    def __call__(self, tokens):
        x = jax.vmap(self.embed)(tokens)
        for layer in self.layers:
            x = layer(x)
        return jax.vmap(self.head)(x)


def equinox_step():
    model = eqx.filter_eval_shape(Equinox, jax.random.key(0))
    arrays = eqx.filter(model, lambda leaf: hasattr(leaf, "shape"))
    state = jax.eval_shape(OPTIMIZER.init, arrays)

    @eqx.filter_jit
    def step(model, state, tokens):
        def loss(model):
            return loss_of(jax.vmap(model)(tokens), tokens)

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = OPTIMIZER.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, value

    specs = jax.tree.map(lambda leaf: spec(leaf) if hasattr(leaf, "shape") else None, model)
    return step, (model, state, TOKENS), (specs, None, P("X"))


STEPS = {"linen": linen_step, "nnx": nnx_step, "equinox": equinox_step}
