"""Recipes on functions of every kind: what is placed, why, what is refused, and bad input."""

import doctest
import pickle
import re
from itertools import pairwise
from pathlib import Path

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.planning import traced_call
from shardalg.planner.propagate.strategy import Strategy

MESH = sa.Mesh({"data": 4, "model": 2})
BOTH = sa.recipes.fsdp("data") | sa.recipes.tensor("model")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


TOKENS = jax.ShapeDtypeStruct((16, 32), "int32")
PARAMS = {"embed": f32(128, 64), "up": f32(64, 256), "down": f32(256, 64), "scale": f32(64)}


def loss(params, tokens):
    x = params["embed"][tokens] * params["scale"]
    x = x + jax.nn.relu(x @ params["up"]) @ params["down"]
    return jax.nn.logsumexp(x @ params["embed"].T, -1).mean()


def momentum_step(params, state, tokens):
    slope = jax.grad(loss)(params, tokens)
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, slope)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state


def axes_of(spec):
    return tuple(axes if axes is not None else None for axes in spec)


def row(explained, name):
    return next(r for r in explained.table().to_dict("records") if r["array"] == name)


# Axes that no part names


def test_an_axis_without_a_part_is_noted_and_used_as_by_xla():
    """Both tensors of the second product are on `data`: XLA, too, moves one to an idle axis."""

    def layers(params, x):
        return jax.nn.relu(x @ params["up"]) @ params["down"]

    args = ({"up": f32(64, 256), "down": f32(256, 64)}, f32(256, 64))
    given = {"mesh": sa.Mesh({"data": 2, "model": 2}), "roles": ("parameters", "data")}
    told = sa.recipes.fsdp("data").explain(layers, *args, **given)
    assert "Note: the recipe does not name mesh axis model, so that the 2 devices along it" in repr(
        told
    )
    assert "does not name" not in repr(BOTH.explain(layers, *args, **given))
    pinned = sa.recipes.fsdp("data").pin("params/up", P("data", "model"))
    assert "does not name" not in repr(pinned.explain(layers, *args, **given))
    plan = sa.plan(layers, *args, strategy=told.strategy, roles=given["roles"])
    compared = plan.compare_xla()
    ours = set(plan.collectives()["mesh_axes"])
    theirs = {",".join(one.axes) for one in compared.told.collectives}
    assert {"model", "data,model"} <= ours & theirs
    alone = sa.plan(
        layers, *args, roles=given["roles"],
        strategy=sa.recipes.fsdp("data").strategy(
            layers, *args, mesh=sa.Mesh({"data": 2}), roles=given["roles"]
        ),
    )  # fmt: skip
    assert set(alone.collectives()["mesh_axes"]) == {"data"}


# Roles


def test_roles_of_a_step_are_deduced_and_said():
    told = BOTH.explain(momentum_step, PARAMS, PARAMS, TOKENS, mesh=MESH)
    table = told.table().set_index("array")["role"]
    assert table["params['up']"] == "parameters (deduced)"
    assert table["state['up']"] == "optimizer_state (deduced)"
    assert table["tokens"] == "data (deduced)"
    assert "the roles of 9 arguments are deduced" in repr(told)
    params, state, tokens = told.strategy.in_shardings
    assert params == state
    assert params["up"] == P("data", "model")
    assert tokens == P("data", None)


def test_given_roles_are_kept():
    roles = ("parameters", "optimizer_state", "data")
    told = BOTH.explain(momentum_step, PARAMS, PARAMS, TOKENS, mesh=MESH, roles=roles)
    assert row(told, "tokens")["role"] == "data"
    assert "deduced" not in repr(told)


@pytest.mark.parametrize("labels", [jax.ShapeDtypeStruct((32,), "int32"), f32(32, 10)])
def test_images_are_data(labels):
    def step(params, images, labels):
        def of(params):
            y = jax.nn.relu(images @ params["up"]) @ params["down"]
            return (y**2).mean() + labels.sum()

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(of)(params))

    params = {"up": f32(64, 256), "down": f32(256, 10)}
    found = BOTH.strategy(step, params, f32(32, 64), labels, mesh=MESH)
    assert found.in_shardings[1] == P("data", None)
    assert found.in_shardings[0] == {"up": P("data", "model"), "down": P("model", None)}


def test_a_forward_pass_has_roles_by_its_tokens_or_its_trees():
    found = BOTH.strategy(loss, PARAMS, TOKENS, mesh=MESH)
    assert found.in_shardings == (
        {
            "embed": P("model", "data"), "up": P("data", "model"), "down": P("model", "data"),
            "scale": P(None),
        },
        P("data", None),
    )  # fmt: skip

    def forward(weights, x):
        return jax.nn.relu(x @ weights["up"]) @ weights["down"]

    weights = {"up": f32(64, 256), "down": f32(256, 64)}
    found = BOTH.strategy(forward, weights, f32(16, 64), mesh=MESH)
    assert found.in_shardings == (
        {"up": P("data", "model"), "down": P("model", "data")}, P("data", None),
    )  # fmt: skip


def test_frozen_weights_are_no_data():
    """An adapter is trained; the weights below it are read, and stay as they are."""

    def step(adapter, base, x):
        def of(adapter):
            weight = base["up"] + adapter["a"] @ adapter["b"]
            return ((jnp.tanh(x @ weight) @ base["down"]) ** 2).mean()

        return jax.tree.map(lambda p, g: p - g, adapter, jax.grad(of)(adapter))

    adapter = {"a": f32(64, 4), "b": f32(4, 256)}
    base = {"up": f32(64, 256), "down": f32(256, 64)}
    told = BOTH.explain(step, adapter, base, f32(32, 64), mesh=MESH)
    roles = {r["array"]: r["role"] for r in told.table().to_dict("records")}
    assert roles["base['up']"] == roles["base['down']"] == "parameters (deduced)"
    assert roles["x"] == "data (deduced)"
    assert told.strategy.in_shardings[1] == {"up": P("data", "model"), "down": P("model", "data")}


def test_two_arrays_have_no_certain_roles():
    with pytest.raises(sa.RoleError, match=r"the roles of x, w are not given.*Pass roles="):
        BOTH.strategy(lambda x, w: x @ w, f32(8, 4), f32(4, 8), mesh=MESH)
    found = BOTH.strategy(
        lambda x, w: x @ w, f32(8, 4), f32(4, 8), mesh=MESH, roles=("data", "parameters")
    )
    assert found.in_shardings == (P("data", None), P("data", "model"))


def test_keys_and_counters_have_no_role():
    def step(params, key, count, tokens):
        noise = jax.random.normal(key, ())
        return jax.grad(loss)(params, tokens), count + 1, noise

    key, count = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), "int32")
    told = BOTH.explain(step, PARAMS, key, count, TOKENS, mesh=MESH)
    assert [row(told, name)["role"] for name in ("key", "count")] == ["", ""]
    assert told.strategy.in_shardings[1:3] == (None, None)


# What tensor parallelism finds


def layers(*widths):
    def step(weights, x):
        def of(weights):
            y = x
            for w in weights:
                y = jnp.tanh(y @ w)
            return (y**2).mean()

        return jax.grad(of)(weights)

    return step, [f32(a, b) for a, b in pairwise(widths)], f32(32, widths[0])


@pytest.mark.parametrize(
    ("widths", "columns"),
    [
        ((64, 256, 64), "CR"),
        ((64, 64, 64), "CR"),
        ((64, 64, 64, 64), "CRC"),
        ((64, 256, 64, 256, 64), "CRCR"),
        ((64, 256, 256, 256, 64), "CRCR"),
        ((64, 6), "C"),
    ],
)
def test_products_alternate_between_columns_and_rows(widths, columns):
    step, weights, x = layers(*widths)
    found = sa.recipes.tensor("model").strategy(
        step, weights, x, mesh=sa.Mesh({"model": 2}), roles=("parameters", "data")
    )
    expected = {"C": P(None, "model"), "R": P("model", None)}
    assert found.in_shardings[0] == [expected[kind] for kind in columns]


def attention(w, x, heads, groups):
    """Attention whose weights have heads and features in one dimension."""
    split = (*x.shape[:2], -1, x.shape[-1] // heads)
    q, k, v = (jnp.reshape(x @ w[name], split) for name in "qkv")
    k, v = (jnp.repeat(part, heads // groups, 2) for part in (k, v))
    scores = jnp.einsum("bsnd,btnd->bnst", q, k)
    mixed = jnp.einsum("bnst,btnd->bsnd", jax.nn.softmax(scores), v)
    return x + jnp.reshape(mixed, x.shape) @ w["o"]


@pytest.mark.parametrize(("parts", "keys"), [(2, "model"), (4, "model"), (8, None)])
def test_heads_are_split_and_not_their_features(parts, keys):
    """Four groups of two heads: eight devices split the heads of queries, and no key's features."""

    def step(w, x):
        def of(w):
            y = attention(w, x, 8, 4)
            return ((y + jnp.tanh(y @ w["up"]) @ w["down"]) ** 2).mean()

        return jax.grad(of)(w)

    w = {"q": f32(64, 64), "k": f32(64, 32), "v": f32(64, 32), "o": f32(64, 64)}
    w |= {"up": f32(64, 256), "down": f32(256, 64)}
    told = sa.recipes.tensor("model").explain(
        step, w, f32(4, 16, 64), mesh=sa.Mesh({"model": parts}), roles=("parameters", "data")
    )
    assert told.strategy.in_shardings[0] == {
        "q": P(None, "model"), "k": P(None, keys), "v": P(None, keys), "o": P("model", None),
        "up": P(None, "model"), "down": P("model", None),
    }  # fmt: skip
    if keys is None:
        reason = row(told, "w['k']")["not_placed"]
        assert reason.startswith("model: dimension 1 has 32 elements: its major part has")


def test_a_vocabulary_that_does_not_divide_leaves_the_table_to_its_features():
    params = {**PARAMS, "embed": f32(127, 64), "head": f32(64, 126)}

    def step(params, tokens):
        def of(params):
            x = params["embed"][tokens] * params["scale"]
            x = x + jax.nn.relu(x @ params["up"]) @ params["down"]
            return jax.nn.logsumexp(x @ params["head"], -1).mean()

        return jax.grad(of)(params)

    told = sa.recipes.tensor("model").explain(step, params, TOKENS, mesh=sa.Mesh({"model": 4}))
    specs = told.strategy.in_shardings[0]
    assert specs["embed"] == P(None, "model")
    assert specs["head"] == P(None, None)
    assert "126 elements, which 4 does not divide" in row(told, "params['head']")["not_placed"]
    assert specs["up"] == P(None, "model")


def test_stacked_layers_are_not_sharded_along_the_stack():
    params = {"up": f32(8, 64, 256), "down": f32(8, 256, 64)}

    def step(params, x):
        def of(params):
            def layer(x, w):
                return x + jax.nn.relu(x @ w["up"]) @ w["down"], None

            return (jax.lax.scan(layer, x, params)[0] ** 2).mean()

        return jax.grad(of)(params)

    roles = ("parameters", "data")
    found = BOTH.strategy(step, params, f32(16, 64), mesh=MESH, roles=roles)
    assert found.in_shardings[0] == {
        "up": P(None, "data", "model"), "down": P(None, "model", "data"),
    }  # fmt: skip


def test_microbatches_are_not_the_batch():
    def step(params, tokens):
        def add(total, part):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), tokens)[0]

    tokens = jax.ShapeDtypeStruct((4, 16, 32), "int32")
    roles = ("parameters", "data")
    found = sa.recipes.data("data").strategy(step, PARAMS, tokens, mesh=MESH, roles=roles)
    assert found.in_shardings[1] == P(None, "data", None)


# The other parts


def test_zero_shards_state_gradients_or_everything():
    given = (PARAMS, PARAMS, TOKENS)
    whole = {name: P(*[None] * len(kind.shape)) for name, kind in PARAMS.items()}
    sharded = {"embed": P("data", None), "up": P(None, "data"), "down": P("data", None)}
    for level in (1, 2):
        found = sa.recipes.zero(level, "data").strategy(momentum_step, *given, mesh=MESH)
        params, state, tokens = found.in_shardings
        assert params == whole
        assert {name: state[name] for name in sharded} == sharded
        # The next parameters are whole again.
        assert found.out_shardings == (params, state)
        assert tokens == P("data", None)
    assert sa.recipes.zero(3, "data") == sa.recipes.fsdp("data")


@pytest.mark.parametrize(("level", "spec"), [(1, P(None, None)), (2, P(None, "data"))])
def test_zero_2_shards_returned_gradients(level, spec):
    roles = ("parameters", "data")

    def step(params, state, tokens):
        return jax.grad(loss)(params, tokens), jax.tree.map(lambda m: 0.9 * m, state)

    found = sa.recipes.zero(level, "data").strategy(
        step, PARAMS, PARAMS, TOKENS, mesh=MESH, roles=("parameters", "optimizer_state", "data")
    )
    assert found.out_shardings[0]["up"] == spec
    assert roles


def test_sequence_shards_positions_of_data_and_sites():
    def step(params, tokens):
        def of(params):
            x = sa.annotate(params["embed"][tokens], "residual")
            hidden = sa.annotate(jax.nn.relu(x @ params["up"]), "hidden")
            x = sa.annotate(x + hidden @ params["down"], "residual")
            return jax.nn.logsumexp(x @ params["embed"].T, -1).mean()

        return jax.grad(of)(params)

    recipe = BOTH | sa.recipes.sequence("model")
    told = recipe.explain(step, PARAMS, TOKENS, mesh=MESH)
    assert told.strategy.sites == {
        "residual": P("data", "model", None),
        "hidden": P("data", None, "model"),
    }
    assert told.strategy.in_shardings[1] == P("data", "model")
    plan = sa.plan(step, PARAMS, TOKENS, strategy=told.strategy)
    assert "reduce_scatter" in set(plan.collectives()["kind"])


def test_one_trace_serves_many_recipes_and_meshes():
    args = ((PARAMS, TOKENS), {})
    first = sa.Mesh({"data": 2, "model": 2})
    traced, _, _ = traced_call(jax.grad(loss), args, None, None, Strategy(first), None)
    for mesh in (first, MESH):
        for recipe in (BOTH, sa.recipes.data("data"), sa.recipes.two_d("data", "model")):
            alone = recipe.strategy(jax.grad(loss), PARAMS, TOKENS, mesh=mesh)
            found = recipe.strategy_of(traced, mesh)
            assert found.in_shardings == alone.in_shardings
            assert found.out_shardings == alone.out_shardings


@pytest.mark.slow
def test_recipes_are_strategies_of_a_comparison():
    rows = {"fsdp": sa.recipes.fsdp("data"), "both": BOTH, "wrong": sa.recipes.expert("data")}
    found = sa.compare(jax.grad(loss), PARAMS, TOKENS, strategies=rows, hardware="h100:8")
    refused = {row.name: row.refused for row in found.rows}
    assert "finds no experts" in refused["wrong"]
    assert not refused["fsdp"]
    assert refused["both"] == ""


# Frameworks


class Linen(nn.Module):
    """A layer of attention and a feed-forward layer."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(128, 64)(tokens)
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(h, h)
        x = x + nn.Dense(64)(nn.gelu(nn.Dense(256)(nn.LayerNorm()(x))))
        return nn.Dense(128)(x)


def test_linen():
    model, tx = Linen(), optax.adamw(1e-3)
    params = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]
    state = jax.eval_shape(tx.init, params)

    def step(params, state, tokens):
        def of(params):
            logits = model.apply({"params": params}, tokens)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

        slope = jax.grad(of)(params)
        change, state = tx.update(slope, state, params)
        return optax.apply_updates(params, change), state

    found = BOTH.strategy(step, params, state, TOKENS, mesh=MESH)
    specs = found.in_shardings[0]
    heads = specs["MultiHeadDotProductAttention_0"]
    assert heads["query"] == {"kernel": P("data", "model", None), "bias": P("model", None)}
    assert heads["out"] == {"kernel": P("model", None, "data"), "bias": P(None)}
    assert specs["Dense_0"] == {"kernel": P("model", "data"), "bias": P(None)}
    assert specs["Dense_1"] == {"kernel": P("data", "model"), "bias": P("model")}
    assert specs["LayerNorm_0"] == {"scale": P(None), "bias": P(None)}
    assert found.in_shardings[1][0].mu == specs
    assert found.out_shardings == (specs, found.in_shardings[1])


def test_equinox():
    model = eqx.nn.MLP(64, 16, 256, 3, key=jax.random.key(0))

    @eqx.filter_jit
    def step(model, x, y):
        def of(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        slope = eqx.filter_grad(of)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, slope))

    given = model, jnp.zeros((32, 64)), jnp.zeros((32, 16))
    told = BOTH.explain(step, *given, mesh=MESH)
    specs = told.table().set_index("array")["spec"]
    # Weights of equinox are (out, in): a column-parallel layer shards the first dimension.
    assert [specs[f"model.layers[{n}].weight"] for n in range(4)] == [
        "[model, data]", "[data, model]", "[model, data]", "[data, model]",
    ]  # fmt: skip
    assert sa.plan(step, *given, strategy=told.strategy).mesh == MESH


def test_haiku():
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([256, 64])(x)))
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((32, 64)))

    def step(params, x, y):
        slope = jax.grad(lambda p: ((net.apply(p, x) - y) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, slope)

    found = BOTH.strategy(step, params, f32(32, 64), f32(32, 64), mesh=MESH)
    assert found.in_shardings[0] == {
        "mlp/~/linear_0": {"w": P("data", "model"), "b": P("model")},
        "mlp/~/linear_1": {"w": P("model", "data"), "b": P(None)},
    }


# Other functions


def test_slices_of_a_joined_product_keep_its_columns():
    """Queries, keys and values of one product, as GPT-2 has them; columns of the gate likewise."""

    def step(w, x):
        def of(w):
            split = (*x.shape[:2], 8, 8)
            q, k, v = (jnp.reshape(part, split) for part in jnp.split(x @ w["qkv"], 3, -1))
            scores = jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", q, k))
            mixed = jnp.einsum("bnst,btnd->bsnd", scores, v)
            y = x + jnp.reshape(mixed, x.shape) @ w["o"]
            gate, up = jnp.split(y @ w["gate_up"], 2, -1)
            return ((y + (jax.nn.silu(gate) * up) @ w["down"]) ** 2).mean()

        return jax.grad(of)(w)

    w = {"qkv": f32(64, 192), "o": f32(64, 64), "gate_up": f32(64, 512), "down": f32(256, 64)}
    roles = ("parameters", "data")
    found = BOTH.strategy(step, w, f32(16, 32, 64), mesh=MESH, roles=roles)
    assert found.in_shardings[0] == {
        "qkv": P("data", "model"), "o": P("model", "data"),
        "gate_up": P("data", "model"), "down": P("model", "data"),
    }  # fmt: skip


def test_a_cache_of_keys_and_values_is_sharded_by_its_heads():
    def decode(params, cache, token, position):
        x = params["embed"][token]
        q, k, v = (jnp.einsum("bm,mnd->bnd", x, params[name]) for name in "qkv")
        start = (0, position, 0, 0)
        keys = jax.lax.dynamic_update_slice(cache["k"], k[:, None], start)
        values = jax.lax.dynamic_update_slice(cache["v"], v[:, None], start)
        scores = jax.nn.softmax(jnp.einsum("bnd,btnd->bnt", q, keys))
        y = x + jnp.einsum("bnt,btnd,ndm->bm", scores, values, params["o"])
        return y @ params["embed"].T, {"k": keys, "v": values}

    params = {**{name: f32(64, 8, 8) for name in "qkv"}, "o": f32(8, 8, 64), "embed": f32(512, 64)}
    cache = {"k": f32(16, 128, 8, 8), "v": f32(16, 128, 8, 8)}
    token, position = jax.ShapeDtypeStruct((16,), "int32"), jax.ShapeDtypeStruct((), "int32")
    recipe = sa.recipes.data("data") | sa.recipes.tensor("model")
    found = recipe.strategy(decode, params, cache, token, position, mesh=MESH)
    heads = P("data", None, "model", None)
    assert found.in_shardings[1] == {"k": heads, "v": heads}
    assert found.out_shardings[1] == {"k": heads, "v": heads}
    assert found.in_shardings[0]["q"] == P(None, "model", None)


def test_a_time_major_network_has_its_batch_in_the_second_dimension():
    def net(x):
        core = hk.LSTM(64)
        y, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        return hk.Linear(16)(y)

    model = hk.without_apply_rng(hk.transform(net))
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((20, 32, 8)))

    def step(params, x, y):
        return jax.grad(lambda p: ((model.apply(p, x) - y) ** 2).mean())(params)

    found = BOTH.strategy(step, params, f32(20, 32, 8), f32(20, 32, 16), mesh=MESH)
    # The targets have the features of the last product, whose columns are on `model`.
    assert found.in_shardings[1:] == (P(None, "data", None), P(None, "data", "model"))


def test_a_convolution_shards_its_channels():
    def step(w, images):
        def of(w):
            y = jax.lax.conv_general_dilated(
                images, w["first"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            y = jax.lax.conv_general_dilated(
                jax.nn.relu(y), w["second"], (2, 2), "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )  # fmt: skip
            return (y**2).mean()

        return jax.grad(of)(w)

    w = {"first": f32(3, 3, 8, 64), "second": f32(3, 3, 64, 8)}
    found = sa.recipes.tensor("model").strategy(
        step, w, f32(8, 16, 16, 8), mesh=sa.Mesh({"model": 4}), roles=("parameters", "data")
    )
    assert found.in_shardings[0] == {
        "first": P(None, None, None, "model"), "second": P(None, None, "model", None),
    }  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
def test_named_sizes_are_placed_at_their_hints(symbolic):
    B, S = sa.dims("B S", hint=(32, 16))
    mesh = sa.Mesh({"data": 4, "model": 2}, symbolic=symbolic)
    tokens = jax.ShapeDtypeStruct((B, S), "int32")
    found = BOTH.strategy(jax.grad(loss), PARAMS, tokens, mesh=mesh)
    plan = sa.plan(jax.grad(loss), PARAMS, tokens, strategy=found)
    assert B in sum(plan.collectives()["wire_bytes_per_step"]).free_symbols
    assert found.in_shardings[0]["up"] == P("data", "model")


# Values, pins and bans


def test_recipes_are_values():
    again = sa.recipes.fsdp("data") | sa.recipes.tensor("model")
    assert BOTH == again
    assert hash(BOTH) == hash(again)
    assert repr(BOTH) == "sa.recipes.fsdp('data') | sa.recipes.tensor('model')"
    assert eval(repr(BOTH), {"sa": sa}) == BOTH
    assert pickle.loads(pickle.dumps(BOTH)) == BOTH
    assert BOTH.axes == ("data", "model")
    pinned = BOTH.pin("params/embed", P("data", None)).ban("*/up", "model")
    assert eval(repr(pinned), {"sa": sa}) == pinned
    assert repr(sa.recipes.zero(2, "a", "b")) == "sa.recipes.zero(2, 'a', 'b')"
    assert "tensor" in dir(sa.recipes)


def test_pins_and_bans_of_arrays():
    recipe = BOTH.pin("params/embed*", P(None, "data")).ban("params/up", "model")
    told = recipe.explain(momentum_step, PARAMS, PARAMS, TOKENS, mesh=MESH)
    params, state, _ = told.strategy.in_shardings
    assert params["embed"] == state["embed"] == P(None, "data")
    # Without `model`, the largest dimension is free for `data`.
    assert params["up"] == P(None, "data")
    assert params["down"] == P("model", "data")
    assert row(told, "params['up']")["not_placed"] == "model: banned"
    assert row(told, "params['embed']")["reason"] == "pinned by 'params/embed*'"
    batch = sa.recipes.tensor("model").pin("tokens", P("data")).strategy(
        momentum_step, PARAMS, PARAMS, TOKENS, mesh=MESH
    )  # fmt: skip
    assert batch.in_shardings[2] == P("data", None)


def test_sites_with_a_spec_of_their_own_keep_it():
    def step(params, tokens):
        x = sa.mesh_split(params["embed"][tokens], MESH, [-1, -1, -1])
        return (sa.annotate(x @ params["up"], "hidden") ** 2).mean()

    found = BOTH.strategy(step, PARAMS, TOKENS, mesh=MESH)
    assert found.sites == {"hidden": P("data", None, "model")}


# Bad input


def refusal(text, call):
    with pytest.raises(sa.StrategyError) as error:
        call()
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("data(): give the names of mesh axes", lambda: sa.recipes.data()),
        ("fsdp(1): give the names", lambda: sa.recipes.fsdp(1)),
        ("an axis is given twice", lambda: sa.recipes.tensor("a", "a")),
        ("the level is 1, 2 or 3", lambda: sa.recipes.zero(4, "a")),
        ("the level is 1, 2 or 3", lambda: sa.recipes.zero("data", 1)),
        ("zero(2.0, ...): the level is", lambda: sa.recipes.zero(2.0, "data")),
        ("a pin or ban names 3: give the path", lambda: sa.recipes.data("a").ban(3, "a")),
        ("a pin or ban names None: give", lambda: sa.recipes.data("a").pin(None, P("a"))),
        ("use the axis 'a' twice", lambda: sa.recipes.fsdp("a") | sa.recipes.tensor("a")),
        ("so that data is not needed", lambda: sa.recipes.fsdp("a") | sa.recipes.data("a")),
        ("has each part once", lambda: sa.recipes.data("a") | sa.recipes.data("b")),
        ("both shard the products", lambda: sa.recipes.two_d("a", "b") | sa.recipes.tensor("c")),
        ("is combined with a recipe", lambda: sa.recipes.data("a") | "tensor"),
        ("uses a twice", lambda: sa.recipes.data("a").pin("x", P("a", "a"))),
        ("give a PartitionSpec", lambda: sa.recipes.data("a").pin("x", "a")),
        ("an entry is an axis", lambda: sa.recipes.data("a").pin("x", (3,))),
        ("conflict", lambda: sa.recipes.data("a").pin("x", P("a")).pin("x", P())),
        ("the recipe uses 'data'. Did you mean 'data'?",
         lambda: sa.recipes.data("data").ban("x", "dat")),
    ],
)  # fmt: skip
def test_a_recipe_that_is_none_is_refused(text, call):
    refusal(text, call)


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("which Mesh(data=4, model=2) does not have: its axes are 'data', 'model'. "
         "Did you mean 'model'?", lambda: sa.recipes.tensor("modle")),
        ("'param/up' names no argument", lambda: BOTH.pin("param/up", P())),
        ("Near: params/up", lambda: BOTH.pin("param/up", P())),
        ("give params['up'] different layouts",
         lambda: BOTH.pin("params/*", P()).pin("*/up", P("data"))),
        ("is pinned to 'data', which ban", lambda: BOTH.pin("*/up", P("data")).ban("*", "data")),
        ("a pin of params['up'] names x", lambda: BOTH.pin("params/up", P("x"))),
        ("does not have. Did you mean 'data'?", lambda: BOTH.pin("params/up", P("dat"))),
        ("has 3 entries, and params['up'] f32[64,256] has 2 dimensions",
         lambda: BOTH.pin("params/up", P(None, None, "data"))),
        ("finds no experts", lambda: sa.recipes.expert("data")),
        ("shards nothing along data: no argument is optimizer state",
         lambda: sa.recipes.tensor("model") | sa.recipes.zero(1, "data")),
        ("shards nothing along data: tokens: data: banned",
         lambda: sa.recipes.data("data").ban("tokens", "data")),
    ],
)  # fmt: skip
def test_a_recipe_that_does_not_fit_is_refused(text, recipe):
    refusal(text, lambda: recipe().strategy(jax.grad(loss), PARAMS, TOKENS, mesh=MESH))


def test_a_batch_and_products_that_do_not_divide_are_refused():
    tokens = jax.ShapeDtypeStruct((6, 32), "int32")
    text = "the batch, dimension 0 of tokens s32[6,32], has 6 elements, which data with 4 devices"
    refusal(text, lambda: BOTH.strategy(jax.grad(loss), PARAMS, tokens, mesh=MESH))
    odd = {"embed": f32(127, 63), "up": f32(63, 255), "down": f32(255, 63), "scale": f32(63)}
    recipe = sa.recipes.tensor("model")
    text = "shards nothing along model: params['down']: model: dimension"
    refusal(text, lambda: recipe.strategy(jax.grad(loss), odd, TOKENS, mesh=MESH))


def test_an_unknown_recipe_has_near_names():
    with pytest.raises(AttributeError, match=r"there is no recipe 'fsdb'.*Did you mean 'fsdp'"):
        _ = sa.recipes.fsdb


def test_the_guide_about_recipes_runs():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "recipes", None, 0)
    told = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert result.attempted > 12
    assert not result.failed, "".join(told)
