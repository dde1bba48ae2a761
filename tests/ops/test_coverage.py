"""Every primitive of the train steps has a row."""

import jax
import jax.numpy as jnp
import pytest

from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.ops.rows import BUILDERS, rules
from shardalg.graph.tracing.trace import trace
from shardalg.models import training
from shardalg.models.transformer import Config, param_types

CALLS = {"scan", "while", "cond"}


def ours(scan, remat):
    config = Config(scan=scan, remat=remat)
    tokens = jax.ShapeDtypeStruct((config.B, config.S), "int32")
    state = training.opt_state_types(config)
    return trace(
        lambda *a: training.train_step(config, *a), param_types(config), state, tokens, tokens
    )


def foreign():
    """equinox attention and MLP with optax AdamW, dropout keys included."""
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    keys = jax.random.split(jax.random.key(0), 3)
    attention = eqx.nn.MultiheadAttention(2, 8, dropout_p=0.1, key=keys[0])
    parts = (
        attention,
        eqx.nn.MLP(8, 8, 16, 2, key=keys[1]),
        eqx.nn.LayerNorm(8),
        eqx.nn.Embedding(11, 8, key=keys[2]),
    )
    params, static = eqx.partition(parts, eqx.is_array)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = optimizer.init(params)

    def loss(params, tokens, key):
        attend, mlp, norm, embed = eqx.combine(params, static)

        def sequence(tokens, key):
            x = jax.vmap(embed)(tokens)
            x = x + attend(x, x, x, key=jax.random.wrap_key_data(key))
            return jax.vmap(lambda v: mlp(norm(v)))(x)

        x = jax.vmap(sequence)(tokens, key)
        return optax.softmax_cross_entropy_with_integer_labels(x, tokens % 8).mean()

    def step(params, state, tokens, key):
        value, grads = jax.value_and_grad(loss)(params, tokens, key)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return trace(step, params, state, jnp.zeros((2, 5), jnp.int32), jnp.zeros((2, 2), jnp.uint32))


GRAPHS = {
    "unrolled": lambda: ours(False, False),
    "scanned, remat": lambda: ours(True, True),
    "equinox, optax": foreign,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_primitive_has_a_row(name, show):
    graph = normalise(GRAPHS[name]())
    names = {node.primitive for node in graph.nodes}
    missing = {n.primitive for n in graph.nodes if rules(n.signature) is None} - CALLS
    show(f"{len(graph.nodes)} nodes of {len(names)} primitives, {len(BUILDERS)} have rows")
    assert not missing
