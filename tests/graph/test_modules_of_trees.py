"""Modules of functions of plain parameter trees: the paths of the weights that a node reads."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.graph.modules import modules
from shardalg.graph.tracing.trace import trace
from shardalg.graph.weights import argument_modules

D = 16


def spec(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def block(p, x):
    x = x * p["norm"]["scale"]
    q, k, v = (x @ p["attention"][name] for name in ("q", "k", "v"))
    x = x + jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v @ p["attention"]["out"]
    return x + jax.nn.gelu(x @ p["mlp"]["up"]) @ p["mlp"]["down"]


def block_specs():
    attention = {name: spec(D, D) for name in ("q", "k", "v", "out")}
    mlp = {"up": spec(D, 4 * D), "down": spec(4 * D, D)}
    return {"norm": {"scale": spec(D)}, "attention": attention, "mlp": mlp}


def transformer(params, batch):
    x = params["embedding"][batch["tokens"]]
    for layer in params["layers"]:
        x = block(layer, x)
    logits = x @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()


PARAMS = {
    "embedding": spec(64, D),
    "layers": [block_specs() for _ in range(3)],
    "head": spec(D, 64),
}
BATCH = {name: spec(4, 8, dtype="int32") for name in ("tokens", "labels")}
PARTS = {f"layers/{i}/{part}" for i in range(3) for part in ("norm", "attention", "mlp")}


def named(fn, *args):
    """Return the graph, and its nodes with their modules."""
    graph = trace(fn, *args)
    return graph, list(zip(graph.nodes, modules(graph), strict=True))


def products(nodes, phase):
    """Modules of the matrix products of a phase, in order."""
    return [m for n, m in nodes if n.primitive == "dot_general" and n.phase == phase]


def of_results(graph, nodes):
    """Path of a result to the module of the node that makes it."""
    made = {value: module for node, module in nodes for value in node.results}
    return {path: made[v] for path, v in zip(graph.result_paths, graph.results, strict=True)}


def test_a_line_belongs_where_its_weights_do():
    _, nodes = named(transformer, PARAMS, BATCH)
    assert {module for _, module in nodes} == {"embedding", "head"} | PARTS
    layer = [f"layers/{{}}/{part}" for part in 6 * ["attention"] + 2 * ["mlp"]]
    want = [name.format(i) for i in range(3) for name in layer]
    assert products(nodes, "forward") == [*want, "head"]


def test_a_gradient_belongs_to_the_module_of_its_weight():
    graph, nodes = named(jax.grad(transformer), PARAMS, BATCH)
    weights = {graph.values[v].name: m for v, m in argument_modules(graph).weights.items()}
    assert of_results(graph, nodes) == {
        path.replace("params", "result", 1): module for path, module in weights.items()
    }
    # Two products of the backward pass per product of the forward pass: all in the same module.
    forward, backward = products(nodes, "forward"), products(nodes, "backward")
    assert backward == [module for module in reversed(forward) for _ in range(2)]


def test_an_update_belongs_to_its_weight_and_a_norm_of_all_gradients_to_none():
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(params, state, batch):
        grads = jax.grad(transformer)(params, batch)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    graph, nodes = named(step, PARAMS, jax.eval_shape(tx.init, PARAMS), BATCH)
    weights = {graph.values[v].name: m for v, m in argument_modules(graph).weights.items()}
    assert {name.split("[", 1)[0] for name in weights} == {"params"}
    found = of_results(graph, nodes)
    for path, module in weights.items():
        below = path.removeprefix("params")
        assert {m for result, m in found.items() if result.endswith(below)} == {module}, path
    scalar = {value.index for value in graph.values if not value.type.shape}
    roots = [m for n, m in nodes if n.primitive == "sqrt" and n.results[0] in scalar]
    assert roots == [""], "the square root of the sum over all gradients"


def adam_by_hand(params, m, v, x):
    def loss(p):
        return (jnp.tanh(x @ p["one"]["w"] + p["one"]["b"]) @ p["two"]["w"]).sum()

    g = jax.grad(loss)(params)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g * g, v, g)
    return jax.tree.map(lambda p, m, v: p - m / jnp.sqrt(v), params, m, v), m, v


def pairs(params, x):
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return x.sum()


def two_trees(encoder, decoder, x):
    return (jnp.tanh(x @ encoder["layer"]["w"]) @ decoder["layer"]["w"]).sum()


def accumulated(params, xs):
    @jax.checkpoint
    def loss(p, x):
        return (jnp.tanh(x @ p["one"]["w"]) @ p["two"]["w"]).sum()

    def body(grads, x):
        return jax.tree.map(jnp.add, grads, jax.grad(loss)(params, x)), None

    grads, _ = lax.scan(body, jax.tree.map(jnp.zeros_like, params), xs)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def indexed_stack(p, x):
    x = lax.fori_loop(0, 4, lambda i, x: jnp.tanh(x @ p["blocks"]["w"][i]), x)
    return (x @ p["out"]).sum()


def cast_and_tied(p, tokens):
    p = jax.tree.map(lambda a: a.astype("bfloat16"), p)
    x = jnp.tanh(p["table"][tokens] @ p["middle"]["w"])
    return (x @ p["table"].T).astype("float32").sum()


def convolutions(p, x):
    for name in ("one", "two"):
        x = jax.nn.relu(lax.conv(x, p[name]["kernel"], (1, 1), "SAME"))
    return (x.mean((2, 3)) @ p["out"]["w"] + p["out"]["b"]).sum()


W, X = spec(D, D), spec(D, D)
TREE = {"one": {"w": W, "b": spec(D)}, "two": {"w": W}}
CASES = {
    "moments in trees of their own": (
        adam_by_hand, (TREE, TREE, TREE, X), ["one", "two"],
    ),
    "pairs of a matrix and a vector": (
        jax.grad(pairs), ([(W, spec(D))] * 3, X), [f"params/{i}" for i in range(3)],
    ),
    "a list of arrays": (
        jax.grad(lambda ws, x: jnp.tanh(x @ ws[0] @ ws[1]).sum()), ([W, W], X), ["ws/0", "ws/1"],
    ),
    "two trees of the same words": (
        jax.grad(two_trees, argnums=(0, 1)), ({"layer": {"w": W}}, {"layer": {"w": W}}, X),
        ["encoder/layer", "decoder/layer"],
    ),
    "arguments that are weights": (
        jax.grad(lambda embed, head, x: jnp.tanh(x @ embed @ head).sum(), argnums=(0, 1)),
        (spec(D, 8), spec(8, D), X), ["embed", "head"],
    ),
    "gradients summed in a loop": (
        accumulated, ({"one": {"w": W}, "two": {"w": W}}, spec(4, 8, D)), ["one", "two"],
    ),
    "a stack that a loop indexes": (
        jax.grad(indexed_stack), ({"blocks": {"w": spec(4, D, D)}, "out": W}, X), ["blocks", "out"],
    ),
    "casts, and a table that is used twice": (
        jax.grad(cast_and_tied),
        ({"table": spec(64, D), "middle": {"w": W}}, spec(4, 8, dtype="int32")),
        ["table", "middle"],
    ),
    "convolutions": (
        jax.grad(convolutions),
        (
            {"one": {"kernel": spec(8, 3, 3, 3)}, "two": {"kernel": spec(8, 8, 3, 3)},
             "out": {"w": spec(8, 4), "b": spec(4)}},
            spec(4, 3, 8, 8),
        ),
        ["one", "two", "out"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_trees_of_other_forms(name):
    fn, args, want = CASES[name]
    graph, nodes = named(fn, *args)
    contractions = [
        (n, m) for n, m in nodes if n.primitive in ("dot_general", "conv_general_dilated", "gather")
    ]
    assert {m for _, m in contractions} == set(want)
    arguments = argument_modules(graph)
    for value, module in arguments.weights.items():
        first = modules(graph)[graph.users[value][0]]
        assert first in (module, ""), graph.values[value].name
    for value, module in arguments.results.items():
        assert modules(graph)[graph.producer[value]] in (module, ""), "a loop makes several"
    assert set(arguments.results.values()) == set(want), "every module has gradients"


def test_tables_fold_equal_layers_and_add_up():
    stacked = jax.tree.map(lambda a: P("data", *(None,) * (len(a.shape) - 1)), PARAMS)
    plan = sa.plan(
        jax.grad(transformer), PARAMS, BATCH, mesh=sa.Mesh({"data": 4}),
        in_shardings=(stacked, P("data")), out_shardings=stacked,
    )  # fmt: skip
    folded, whole = plan.collectives(by="module"), plan.collectives()
    names = set(folded.module)
    assert any("layers[" in name for name in names), names
    assert {"embedding", "head"} <= names
    assert len(folded) < len(whole) / 2
    sent = "wire_bytes_per_step" if "wire_bytes_per_step" in folded else "wire_bytes"
    assert folded[sent].sum() == plan.cost("tpu_v3").wire_bytes
    assert plan.draw(module="layers/1/mlp").axes
