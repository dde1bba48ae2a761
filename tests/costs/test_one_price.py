"""One function has one price, in whatever library it is written, unrolled or scanned."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import shardalg as sa

WIDTH, HIDDEN, HEADS, LAYERS = 1024, 4096, 8, 3
X = jax.ShapeDtypeStruct((16, 1024, WIDTH), "bfloat16")
MESH = sa.Mesh({"data": 8})


def attended(x, queries, keys, values, output):
    """Attention with weights of (WIDTH, WIDTH), as each library computes it below."""
    q, k, v = (
        (x @ w).reshape(*x.shape[:-1], HEADS, WIDTH // HEADS) for w in (queries, keys, values)
    )
    heads = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return heads.reshape(x.shape) @ output


def normed(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(
        x.dtype
    ) * scale


def plain_layer(w, x):
    x = x + attended(normed(x, w["norms"][0]), *w["attention"])
    return x + jax.nn.gelu(normed(x, w["norms"][1]) @ w["up"]) @ w["down"]


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, "bfloat16")


PLAIN = {
    "norms": [shape(WIDTH)] * 2,
    "attention": [shape(WIDTH, WIDTH)] * 4,
    "up": shape(WIDTH, HIDDEN),
    "down": shape(HIDDEN, WIDTH),
}


def stacked(leaf):
    return jax.ShapeDtypeStruct((LAYERS, *leaf.shape), leaf.dtype)


def plain():
    def forward(layers, x):
        for w in layers:
            x = plain_layer(w, x)
        return x

    return forward, [PLAIN] * LAYERS


def plain_scanned():
    def forward(layers, x):
        return jax.lax.scan(lambda x, w: (plain_layer(w, x), None), x, layers)[0]

    return forward, jax.tree.map(stacked, PLAIN)


class LinenLayer(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        def dense(size, name):
            return nn.Dense(
                size, use_bias=False, dtype="bfloat16", param_dtype="bfloat16", name=name
            )

        def norm(name):
            return nn.RMSNorm(dtype="bfloat16", param_dtype="bfloat16", name=name)

        h = norm("first")(x)
        heads = (*x.shape[:-1], HEADS, WIDTH // HEADS)
        q, k, v = (dense(WIDTH, name)(h).reshape(heads) for name in ("q", "k", "v"))
        h = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + dense(WIDTH, "o")(h)
        hidden = nn.gelu(dense(HIDDEN, "up")(norm("second")(x)))
        return x + dense(WIDTH, "down")(hidden), None


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        for place in range(LAYERS):
            x, _ = LinenLayer(name=f"layer_{place}")(x)
        return x


class LinenScanned(nn.Module):
    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            LinenLayer, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS
        )
        return layers()(x, None)[0]


def linen(model):
    weights = jax.eval_shape(model().init, jax.random.key(0), jnp.zeros(X.shape, X.dtype))
    return model().apply, weights


class EquinoxLayer(eqx.Module):
    norms: list
    attention: list
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        def linear(into, out):
            return eqx.nn.Linear(into, out, use_bias=False, dtype="bfloat16", key=key)

        self.norms = [eqx.nn.RMSNorm(WIDTH, use_bias=False, dtype="bfloat16") for _ in range(2)]
        self.attention = [linear(WIDTH, WIDTH) for _ in range(4)]
        self.up, self.down = linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def __call__(self, x):
        h = jax.vmap(self.norms[0])(x)
        q, k, v = (jax.vmap(w)(h).reshape(-1, HEADS, WIDTH // HEADS) for w in self.attention[:3])
        h = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + jax.vmap(self.attention[3])(h)
        hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norms[1])(x)))
        return x + jax.vmap(self.down)(hidden)


def equinox():
    layers = eqx.filter_eval_shape(
        lambda key: [EquinoxLayer(k) for k in jax.random.split(key, LAYERS)], jax.random.key(0)
    )
    arrays, rest = eqx.partition(layers, lambda leaf: hasattr(leaf, "shape"))

    def forward(arrays, x):
        for layer in eqx.combine(arrays, rest):
            x = jax.vmap(layer)(x)
        return x

    return forward, arrays


def equinox_scanned():
    layer = eqx.filter_eval_shape(EquinoxLayer, jax.random.key(0))
    arrays, rest = eqx.partition(layer, lambda leaf: hasattr(leaf, "shape"))

    def forward(arrays, x):
        def body(x, arrays):
            return jax.vmap(eqx.combine(arrays, rest))(x), None

        return jax.lax.scan(body, x, arrays)[0]

    return forward, jax.tree.map(stacked, arrays)


LIBRARIES = {
    "plain": plain,
    "plain, scanned": plain_scanned,
    "linen": lambda: linen(Linen),
    "linen, scanned": lambda: linen(LinenScanned),
    "equinox": equinox,
    "equinox, scanned": equinox_scanned,
}


def fsdp(leaf):
    """Split the widest dimension of each matrix along the data axis; equal dimensions: the last."""
    if len(leaf.shape) < 2 or max(leaf.shape) < WIDTH or leaf.shape == (LAYERS, WIDTH):
        return P()
    place = max(range(len(leaf.shape)), key=lambda d: (leaf.shape[d], d))
    return P(*("data" if d == place else None for d in range(len(leaf.shape))))


def price(forward, weights, hardware):
    def step(weights, x):
        def loss(weights):
            return jnp.mean(forward(weights, x).astype(jnp.float32) ** 2)

        grads = jax.grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - jnp.bfloat16(1e-3) * g, weights, grads)

    specs = jax.tree.map(fsdp, weights)
    plan = sa.plan(
        step,
        weights,
        X,
        mesh=MESH,
        in_shardings=(specs, P("data")),
        out_shardings=specs,
        roles=("parameters", "data"),
    )
    return plan.cost(hardware)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hardware", ["h100:8", "v5p:8"])
def test_the_price_is_the_same_in_every_library(hardware):
    costs = {name: price(*made(), hardware) for name, made in LIBRARIES.items()}
    steps = {name: float(cost.step_time_s) for name, cost in costs.items()}
    first = steps["plain"]
    assert first > 0
    off = {name: step / first - 1 for name, step in steps.items()}
    assert all(abs(share) <= 0.03 for share in off.values()), off
    # The mathematical step has the same flops: equality is not by chance.
    flops = {cost.limits.model_flops for cost in costs.values()}
    assert max(flops) <= 1.001 * min(flops)
