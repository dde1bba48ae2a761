"""A traced graph computes what its function computes, after a round trip through JSON too."""

import gc
import json
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardalg.graph.annotate import annotate
from shardalg.graph.evaluate import evaluate
from shardalg.graph.serial import from_json, to_json
from shardalg.graph.tracing.control_flow import CALLS
from shardalg.graph.tracing.trace import trace

FLOAT_TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2}


def normal(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def mlp(params, x):
    for w, b in params["layers"]:
        x = jax.nn.gelu(x @ w + b)
    return {"out": x, "aux": (x.sum(), None)}


MLP = {"layers": [(normal(4, 8), normal(8)), (normal(8, 4, seed=1), normal(4, seed=2))]}


def attention(q, k, v):
    scores = jnp.einsum("bsnd,btnd->bnst", q, k) / q.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("bnst,btnd->bsnd", weights, v)


def embedding(table, tokens):
    logits = table[tokens] @ table.T
    return jax.nn.logsumexp(logits, axis=-1).mean() - logits[0, 0, 0]


def loop(scale, carry, xs):
    def step(carry, x):
        left, right = carry
        left = jnp.tanh(left * scale + x["a"])
        return (left, right + left.sum()), {"y": left * 2, "z": x["b"]}

    return lax.scan(step, carry, xs, reverse=True)


LOOP = (
    normal(3),
    (normal(3), jnp.float32(1)),
    {"a": normal(5, 3, seed=3), "b": jnp.arange(5)},
)


def loop_loss(scale, carry, xs):
    (left, right), ys = loop(scale, carry, xs)
    return left.sum() * right + (ys["y"] ** 2).sum()


def layer(w, x):
    return jnp.tanh(jax.nn.relu(x @ w) @ w.T)


def unrolled_remat(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(w, x)
    return (x**2).sum()


def scanned_remat(ws, x, prevent_cse=True):
    def step(x, w):
        return jax.checkpoint(layer, prevent_cse=prevent_cse)(w, x), None

    return (lax.scan(step, x, ws)[0] ** 2).sum()


def named_policy(w, x):
    def block(w, x):
        return jnp.sin(checkpoint_name(x @ w, "kept"))

    keep = jax.checkpoint_policies.save_only_these_names("kept")
    return jax.checkpoint(block, policy=keep)(w, x).sum()


@jax.custom_vjp
def clipped(x):
    return x * 2


clipped.defvjp(lambda x: (x * 2, x), lambda x, g: (jnp.clip(g, -1, 1) * x,))


class State(NamedTuple):
    step: jax.Array
    mu: dict


def adam_like(state, grads):
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mu, grads)
    return State(state.step + 1, mu), jax.tree.map(lambda m: -m / jnp.sqrt(m**2 + 1e-8), mu)


def random_bits(key, x):
    first, second = jax.random.split(key)
    noise = jax.random.normal(first, x.shape) + jax.random.uniform(second, x.shape)
    return x + noise, jax.random.bernoulli(key, 0.5, x.shape)


def typed_key(seed, x):
    return x + jax.random.normal(jax.random.key(seed), x.shape)


def branches(flag, x):
    y = lax.cond(flag > 0, lambda x: x * 2, lambda x: x - 1, x)
    return lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 1.5), (0, y))


def mixed(x, i):
    """Operators whose parameters are objects of JAX: dimension numbers, enums, dtypes."""
    image = lax.conv_general_dilated(
        x[None], normal(2, 3, 3, 3), (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    picked = jnp.take(image, i, axis=2, mode="clip").at[0, 0].max(0.5, mode="drop")
    ordered = jnp.round(jnp.sort(jnp.cumsum(picked, axis=1), axis=-1), 2)
    product = jnp.einsum("abcd,abcd->ab", ordered, ordered, precision="highest")
    return product.astype(jnp.int32), lax.top_k(ordered, 2), jnp.fft.rfft(picked[0, 0, 0]).real


def closure(x):
    return x @ CLOSED + np.float32(3) + SCALAR


CLOSED, SCALAR = normal(4, 4), jnp.float32(0.5)

PROGRAMS = {
    "mlp": (mlp, MLP, normal(2, 4)),
    "mlp_grad": (jax.grad(lambda p, x: mlp(p, x)["aux"][0]), MLP, normal(2, 4)),
    "attention": (attention, *[normal(2, 5, 3, 4, seed=s) for s in range(3)]),
    "attention_grad": (
        jax.grad(lambda *qkv: attention(*qkv).sum(), argnums=(0, 1, 2)),
        *[normal(2, 5, 3, 4, seed=s) for s in range(3)],
    ),
    "bf16": (attention, *[normal(1, 4, 2, 4, seed=s, dtype="bfloat16") for s in range(3)]),
    "embedding_grad": (
        jax.value_and_grad(embedding),
        normal(7, 4),
        jnp.array([[1, 6], [1, 0]], jnp.int32),
    ),
    "scan": (loop, *LOOP),
    "scan_grad": (jax.grad(loop_loss, argnums=(0, 1)), *LOOP[:2], {**LOOP[2]}),
    "scan_of_scan": (
        jax.grad(lambda w, x: lax.fori_loop(0, 3, lambda i, y: scanned_remat(w, y) + y, x).sum()),
        normal(2, 3, 3),
        normal(2, 3),
    ),
    "empty_scan": (lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x[:0]), normal(2, 3)),
    "remat": (jax.grad(unrolled_remat), normal(3, 4, 4), normal(2, 4)),
    "remat_scan": (jax.grad(scanned_remat), normal(3, 4, 4), normal(2, 4)),
    "remat_scan_cse": (
        jax.grad(partial(scanned_remat, prevent_cse=False)),
        normal(3, 4, 4),
        normal(2, 4),
    ),
    "remat_policy": (jax.grad(named_policy), normal(4, 4), normal(2, 4)),
    "custom_jvp": (lambda x: (jax.nn.relu(x), jax.nn.softmax(x), jax.nn.silu(x)), normal(3, 4)),
    "custom_vjp": (lambda x: clipped(x) + 1, normal(3)),
    "custom_vjp_grad": (jax.grad(lambda x: clipped(x).sum() * 5), normal(3)),
    "named_tuple": (adam_like, State(jnp.int32(3), {"w": normal(3)}), {"w": normal(3, seed=1)}),
    "donated": (jax.jit(lambda x, y: (x + y, y), donate_argnums=0), normal(3), normal(3)),
    "nested_jit": (jax.jit(lambda x: jax.jit(jnp.sin)(x) + jax.jit(lambda y: y)(x)), normal(3)),
    "uint32_key": (random_bits, jnp.array([1, 2], jnp.uint32), normal(3)),
    "typed_key": (typed_key, jnp.int32(7), normal(3)),
    "control_flow": (branches, jnp.int32(1), normal(3)),
    "parameters_of_all_kinds": (mixed, normal(3, 6, 6), jnp.array([0, 9, 3])),
    "closure": (closure, normal(2, 4)),
    "same_result_twice": (lambda x: (x, x + 1, x), normal(2)),
    "no_arguments": (lambda: jnp.arange(3)),
    "vmap": (
        jax.vmap(jax.grad(lambda x, w: jnp.tanh(x @ w).sum()), (0, None)),
        normal(3, 2),
        normal(2, 2),
    ),
    "empty": (lambda x: x.sum() + (x * 2).size, jnp.zeros((0, 3))),
    "python_number": (lambda x, s: x * s, normal(3), 2.0),
}
PROGRAMS = {k: v if isinstance(v, tuple) else (v,) for k, v in PROGRAMS.items()}
# Code that a saved graph cannot hold: a body that stayed opaque, a generator of random bits.
UNSAVED = {"typed_key", "uint32_key", "parameters_of_all_kinds"}


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        assert (f.shape, f.dtype) == (e.shape, e.dtype)
        tolerance = FLOAT_TOLERANCE.get(e.dtype.name, 0)
        f, e = (np.asarray(a, "float64" if tolerance else None) for a in (f, e))
        np.testing.assert_allclose(f, e, rtol=tolerance, atol=tolerance)


@cache
def traced(name):
    """Return the graph, the flat arguments, and JAX's results for them."""
    fn, *args = PROGRAMS[name]
    graph = trace(fn, *args)
    # Copies, because one of the functions donates what it gets.
    return graph, jax.tree.leaves(args), jax.tree.leaves(jax.jit(fn)(*copied(args)))


def copied(tree):
    return jax.tree.map(jnp.array, tree)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_graph_computes_its_function(name):
    graph, leaves, expected = traced(name)
    assert [graph.values[i].type.shape for i in graph.results] == [e.shape for e in expected]
    assert_equal(jax.jit(partial(evaluate, graph))(*leaves), expected)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - UNSAVED))
def test_saved_graph_computes_its_function(name):
    graph, leaves, expected = traced(name)
    loaded = from_json(json.loads(json.dumps(to_json(graph))))
    assert loaded.bindings == ()
    assert_equal(jax.jit(partial(evaluate, loaded))(*leaves), expected)


@pytest.mark.sampled(23)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_border_of_a_scan_is_tied(name):
    graph, _, _ = traced(name)
    for node in graph.nodes:
        assert bool(node.bodies) == (node.primitive in CALLS)
        for body in (graph.regions[i] for i in node.bodies if node.primitive == "scan"):
            region_arguments = [t for t in graph.region_arguments if t.call == node.index]
            inner = {"const", "init", "xs"}
            assert [t.target for t in region_arguments if t.kind in inner] == [*body.arguments]
            assert [t.source for t in region_arguments if t.kind in inner] == [*node.operands]
            outer = [(t.source, t.target) for t in region_arguments if t.kind in ("result", "ys")]
            assert outer == list(zip(body.results, node.results, strict=True))
            carried = node.signature.param("num_carry")
            assert sum(t.kind == "carry" for t in region_arguments) == carried


def test_structs_trace_without_arrays():
    shape = jax.ShapeDtypeStruct((1 << 20, 1 << 20), "bfloat16")
    graph = trace(lambda x: x @ x, shape)
    assert repr(graph.values[graph.results[0]].type) == "bf16[1048576,1048576]"


def test_placement_of_arguments_is_not_part_of_the_graph():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    placed = jax.device_put(normal(4), jax.sharding.NamedSharding(mesh, jax.P("x")))
    assert trace(lambda x: x + 1, placed) == trace(lambda x: x + 1, normal(4))


def test_types_are_those_that_jax_computes_with():
    wide = [np.zeros(2, np.float64), jax.ShapeDtypeStruct((2,), np.float64), np.arange(2)]
    graph = trace(lambda *xs: xs, *wide)
    assert [graph.values[i].type.dtype for i in graph.arguments] == ["float32", "float32", "int32"]


def test_trip_counts_multiply():
    graph, _, _ = traced("scan_of_scan")
    trips = {graph.trip_count(node) for node in graph.nodes}
    assert {1, 3, 6} <= trips <= {1, 2, 3, 6}


@pytest.mark.parametrize(("prevent_cse", "barriers"), [(True, 1), (False, 0)])
def test_remat_is_a_region_behind_a_barrier_where_asked(prevent_cse, barriers):
    graph = trace(
        jax.grad(partial(scanned_remat, prevent_cse=prevent_cse)), normal(3, 4, 4), normal(2, 4)
    )
    (region,) = [r for r in graph.regions if r.kind == "remat"]
    found = [n for n in graph.nodes if n.primitive == "optimization_barrier"]
    assert len(found) == barriers
    assert region.trip_count == 3
    assert set(region.nodes) <= set(graph.regions[region.parent].nodes)
    behind = {v for node in found for v in node.results}
    inside = [graph.nodes[i] for i in region.nodes]
    made = {v for node in inside for v in node.results}
    outer = {v for n in inside for v in n.operands} - made - {i for i, _ in graph.constants}
    assert (outer <= behind) == bool(barriers)


def test_equal_nodes_share_their_signature():
    def deep(w, x):
        for _ in range(6):
            x = jnp.sin(x @ w)
        return x

    graph = trace(deep, normal(3, 3), normal(2, 3))
    assert len({id(n.signature) for n in graph.nodes}) == 2
    graph = trace(lambda x: (x + 1) * (x - 1), 2.0)
    assert [graph.values[i].name for i in graph.literals] == ["1.0:f32"]


def test_numbers_that_compare_equal_stay_apart():
    graph = trace(lambda x: (x * 0.0, x * -0.0, x + jnp.nan, x - jnp.nan), normal(2))
    assert sorted(graph.values[i].name for i in graph.literals) == [
        "-0.0:f32",
        "0.0:f32",
        "nan:f32",
    ]


def test_phases():
    def step(w, m, x, y):
        mask = jnp.where(y > 0, 1.0, 0.0)
        grad = jax.grad(lambda w: ((jnp.sin(x @ w) - y) ** 2 * mask).sum())(w)
        m = 0.9 * m + grad
        return w - 0.1 * m, m

    graph = trace(step, normal(3), normal(3), normal(2, 3), normal(2))
    by_phase = {}
    for node in graph.nodes:
        by_phase.setdefault(node.phase, []).append(node.primitive)
    assert {"gt", "select_n", "dot_general", "sin", "cos"} <= set(by_phase["forward"])
    assert by_phase["backward"].count("dot_general") == 1
    assert by_phase["update"] == ["mul", "add", "mul", "sub"]


def test_phases_reach_into_bodies():
    graph = trace(jax.grad(scanned_remat), normal(3, 4, 4), normal(2, 4))
    for node in graph.nodes:
        if graph.regions[node.region].kind == "remat":
            assert node.phase == "backward"
    assert [n.phase for n in graph.nodes if n.primitive == "scan"] == ["forward", "backward"]


def test_without_a_gradient_everything_is_forward():
    graph = trace(attention, *[normal(1, 4, 2, 4)] * 3)
    assert {node.phase for node in graph.nodes} == {"forward"}


def test_a_function_that_changes_under_its_name_is_traced_again():
    """JAX caches jitted functions; the graph is made of the function's present code."""
    inner = {"f": jax.jit(jnp.sin)}

    def outer(x):
        return inner["f"](x)

    first = trace(outer, normal(2))
    inner["f"] = jax.jit(jnp.cos)
    assert [[n.primitive for n in g.nodes] for g in (first, trace(outer, normal(2)))] == [
        ["sin"], ["cos"],
    ]  # fmt: skip


def test_garbage_is_collected_again_after_a_trace():
    seen = []

    def fails(x):
        seen.append(gc.isenabled())
        return x / (1 // 0)

    trace(lambda x: seen.append(gc.isenabled()) or x + 1, normal(2))
    with pytest.raises(ZeroDivisionError, match="by zero"):
        trace(fails, normal(2))
    assert (seen, gc.isenabled()) == ([False, False], True)


def test_evaluate_hands_sites_to_a_hook():
    graph = trace(lambda x: annotate(x, "here") + 1, normal(2))
    assert_equal(evaluate(graph, normal(2)), [normal(2) + 1])
    (found,) = evaluate(graph, normal(2), annotate=lambda node, x: x * 0)
    assert found.tolist() == [1, 1]


def test_a_swapped_operand_is_noticed():
    """The comparison above is no formality: a graph that is wrong in one place differs."""
    graph = trace(lambda a, b: a - b, normal(3), normal(3, seed=1))
    node = replace(graph.nodes[0], operands=graph.nodes[0].operands[::-1])
    (found,) = evaluate(replace(graph, nodes=(node,)), normal(3), normal(3, seed=1))
    with pytest.raises(AssertionError):
        assert_equal([found], [normal(3) - normal(3, seed=1)])


def drawn_by(key, x):
    first, second = jax.random.split(jax.random.wrap_key_data(key))
    kept = jax.random.bernoulli(first, 0.5, x.shape)
    return kept, jax.random.normal(second, x.shape), jax.random.bits(second, (7,), "uint8")


def test_random_bits_are_written_out_bit_for_bit():
    key, x = jnp.array([1, 2], jnp.uint32), jnp.zeros((3, 5, 4))
    graph = trace(drawn_by, key, x)
    names = {node.primitive for node in graph.nodes}
    assert {"positions", "threefry2x32"} <= names
    assert not names & {"random_bits", "iota_2x32_shape"}
    expected = jax.jit(drawn_by)(key, x)
    for ours, theirs in zip(evaluate(graph, key, x), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    kept, _, bits = evaluate(graph, key, x)
    np.testing.assert_array_equal(kept, expected[0])
    np.testing.assert_array_equal(bits, expected[2])


def test_bits_of_many_keys_are_those_of_each():
    keys = np.arange(6, dtype=np.uint32).reshape(3, 2)

    def many(keys):
        return jax.vmap(lambda k: jax.random.uniform(jax.random.wrap_key_data(k), (4, 2)))(keys)

    graph = trace(many, keys)
    assert "random_bits" not in {node.primitive for node in graph.nodes}
    np.testing.assert_array_equal(evaluate(graph, keys)[0], jax.jit(many)(keys))


def test_bits_of_another_kind_of_key_stay_hidden():
    def bits(words):
        return jax.random.bits(jax.random.wrap_key_data(words, impl="rbg"), (3,))

    graph = trace(bits, np.arange(4, dtype=np.uint32))
    assert "random_bits" in {node.primitive for node in graph.nodes}
