"""Roles of values follow from the arguments' roles and the rows."""

import jax
import jax.numpy as jnp
import pytest

from shardalg.errors import RoleError
from shardalg.graph.tracing.trace import flatten_prefix, trace
from shardalg.models import training
from shardalg.models.transformer import Config, param_types
from shardalg.ops.canonicalize.normalise import normalise
from shardalg.ops.roles import roles

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
    assert roles(graph, GIVEN)[graph.results[0]] == "gradient"
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
    assert set(results) == {"gradient", "weight"}


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
