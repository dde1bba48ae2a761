"""Roles of values follow from the arguments' roles and the rows."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import RoleError
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.ops.roles import roles
from shardalg.graph.tracing.trace import flatten_prefix, trace
from shardalg.models import training
from shardalg.models.transformer import Config, param_types

S = jax.ShapeDtypeStruct
W, X = S((6, 5), "float32"), S((3, 6), "float32")
GIVEN = ("parameters", "data")


def step(w, x):
    """Loss of a layer with a mask, and the updated weight."""

    def loss(w):
        hidden = x @ w.astype(jnp.bfloat16).astype(w.dtype)
        mask = jnp.arange(x.shape[0])[:, None] >= jnp.arange(w.shape[1])
        return jnp.where(mask, hidden, 0.0).sum()

    value, grad = jax.value_and_grad(loss)(w)
    return w - grad, value


def by_name(graph, found):
    return {value.name.split("@")[0]: role for value, role in zip(graph.values, found, strict=True)}


def test_the_roles_of_a_step():
    graph = normalise(trace(step, W, X))
    found = by_name(graph, roles(graph, GIVEN))
    assert (found["w"], found["x"]) == GIVEN
    assert found["convert_element_type:1"] == "weight"
    assert found["dot_general:1"] == "activation"
    products = [n for n in graph.nodes if n.primitive == "dot_general"]
    assert [roles(graph, GIVEN)[n.results[0]] for n in products] == ["activation", "gradient"]
    assert [roles(graph, GIVEN)[v] for v in graph.results] == ["gradient", "loss"]
    (mask,) = [n.results[0] for n in graph.nodes if n.primitive == "ge"]
    assert roles(graph, GIVEN)[mask] == "constant"


def test_without_roles_nothing_is_guessed():
    graph = trace(step, W, X)
    assert set(roles(graph, None)) == set(roles(graph, (None, None))) == {"unknown"}


def test_what_depends_on_an_argument_without_a_role_is_unknown():
    graph = normalise(trace(lambda w, x, y: (x @ w, jnp.tanh(y), jnp.tanh(w)), W, X, X))
    found = roles(graph, (*GIVEN, None))
    assert [found[v] for v in graph.results] == ["activation", "unknown", "weight"]


def test_roles_pass_through_loops():
    def fn(ws, x):
        def body(carry, w):
            return (jnp.tanh(carry @ w), carry.sum(0) * w[0])

        return jax.lax.scan(body, x, ws)

    graph = normalise(trace(fn, S((4, 6, 6), "float32"), X))
    found = roles(graph, GIVEN)
    assert [found[v] for v in graph.results] == ["activation", "gradient"]
    weight, carry = (
        next(v for v in graph.values if v.kind == "region_argument" and v.type.shape == s)
        for s in ((6, 6), (3, 6))
    )
    assert (found[weight.index], found[carry.index]) == ("weight", "activation")


@pytest.mark.parametrize("scan", [False, True])
def test_the_roles_of_a_train_step(scan):
    config = Config(B=6, V=96, scan=scan)
    params = param_types(config)
    state = training.opt_state_types(config)
    tokens = S((config.B, config.S), "int32")
    args = (params, state, tokens, tokens)
    graph = normalise(trace(lambda *a: training.train_step(config, *a), *args))
    given = flatten_prefix(("parameters", "optimizer_state", "data", "data"), args, "roles")
    found = roles(graph, given)
    batch = {(config.B, config.S, config.M), (config.B, config.S, config.N, config.D)}
    for value, role in zip(graph.values, found, strict=True):
        if value.kind == "node" and value.type.shape in batch:
            assert role in ("activation", "constant"), value.name
        if value.kind == "node" and value.type.shape == (config.M, config.H):
            assert role in ("weight", "gradient", "constant"), value.name
    results = [found[v] for v in graph.results]
    assert set(results) == {"gradient", "loss", "weight"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("parameters", "inputs"), "unknown roles x: 'inputs'. A role is one of 'parameters'"),
        (("parameters",), r"1 roles for 2 arguments \(w, x\)"),
    ],
)
def test_wrong_roles_are_refused(given, message):
    with pytest.raises(RoleError, match=message):
        roles(trace(step, W, X), given)


def squares(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def clipped(w, scale, x):
    loss, (dw, ds) = jax.value_and_grad(lambda p: squares(p[0], x * p[1]))((w, scale))
    norm = jnp.sqrt((dw**2).sum() + ds**2)
    return w - dw / norm, scale - ds, loss


def microbatches(w, scale, x):
    def body(carry, rows):
        loss, grad = jax.value_and_grad(squares)(w, rows * scale)
        return (carry[0] + grad, carry[1] + loss), loss

    (grad, loss), losses = jax.lax.scan(body, (jnp.zeros_like(w), 0.0), x.reshape(2, 16, 16))
    return w - grad, loss / 2, losses.mean()


def steps(w, scale, x):
    def body(carry, rows):
        loss, (dw, ds) = jax.value_and_grad(lambda p: squares(p[0], rows * p[1]))(carry)
        return (carry[0] - dw, carry[1] - ds), loss

    (w, scale), losses = jax.lax.scan(body, (w, scale), x.reshape(2, 16, 16))
    return w, scale, losses.sum()


def masked(w, scale, x):
    def loss(w):
        scores, mask = jax.nn.log_softmax(x @ w * scale), x[:, 0] > 0
        return -(scores[:, 0] * mask).sum() / mask.sum(), (scores.argmax(-1) == 0).mean()

    (value, accuracy), grad = jax.value_and_grad(loss, has_aux=True)(w)
    return w - grad, value, accuracy


def quantized(w, scale, x):
    def loss(w):
        return squares(w, jnp.round(x / jnp.abs(x).max()) * scale)

    value, grad = jax.value_and_grad(loss)(w)
    return w - grad, value


LOSSES = {
    "clipped": (clipped, {"loss": 1, "gradient": 2}),
    "microbatches": (microbatches, {"loss": 1, "gradient": 1}),
    "steps": (steps, {"loss": 1, "gradient": 2}),
    "masked": (masked, {"loss": 3, "gradient": 1}),
    "quantized": (quantized, {"activation": 1, "loss": 1, "gradient": 1}),
    "evaluated": (lambda w, scale, x: squares(w * scale, x), {"loss": 1}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_reductions_of_a_loss_have_a_role_of_their_own(name):
    step, wanted = LOSSES[name]
    w, scale, x = S((16, 16), "float32"), S((), "float32"), S((32, 16), "float32")
    plan = sa.plan(
        step, w, scale, x, mesh=sa.Mesh({"x": 8}), in_shardings=(P(), P(), P("x")),
        out_shardings=P(), roles=("parameters", "parameters", "data"),
    )  # fmt: skip
    moved = plan.collectives()
    reduced = moved[moved["kind"] == "all_reduce"]
    assert reduced["role"].value_counts().to_dict() == wanted
