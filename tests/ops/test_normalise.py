"""A normalised graph is the same function without dead nodes, implicit broadcasts, literals."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardalg.graph.evaluate import evaluate
from shardalg.graph.ir import Graph
from shardalg.graph.ops.canonicalize.known import computed_numbers
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.ops.families.pointwise import broadcast_operands
from shardalg.graph.tracing.trace import trace
from shardalg.graph.well_formed import check
from shardalg.models import training
from shardalg.models.transformer import Config, init_params

X = np.random.default_rng(5).normal(size=(4, 8)).astype(np.float32)


def softmax_of_half(x):
    dead = jnp.sin(x) @ x.T
    scale = np.float32(1.0) / jnp.float32(8.0) + jnp.sqrt(jnp.float32(2.0))
    del dead
    return jax.nn.softmax(x * scale, axis=-1)


def scanned(x):
    def step(carry, row):
        shifted = carry - row.max(keepdims=True)
        return shifted * jnp.float32(0.5), shifted.sum()

    unused = jax.lax.scan(step, x[1], x)[0].sum()
    del unused
    return jax.lax.scan(step, x[0], x)


def rematerialised(x):
    return jax.grad(lambda x: jax.checkpoint(jax.nn.softmax)(x @ x.T).sum())(x)


def primitives(graph):
    return [node.primitive for node in graph.nodes]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fn", [softmax_of_half, scanned, rematerialised])
def test_it_computes_the_same(fn):
    graph = trace(fn, X)
    clean = normalise(graph)
    check(clean)
    for ours, theirs in zip(evaluate(clean, X), evaluate(graph, X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fn", [softmax_of_half, scanned, rematerialised])
def test_no_operand_is_broadcast_implicitly(fn):
    graph = trace(fn, X)
    assert any(broadcast_operands(node.signature) for node in graph.nodes) or fn is scanned
    clean = normalise(graph)
    assert not any(broadcast_operands(node.signature) for node in clean.nodes)


def test_dead_nodes_and_literal_numbers_are_gone():
    graph = trace(softmax_of_half, X)
    clean = normalise(graph)
    assert {"sin", "dot_general"} <= set(primitives(graph))
    assert {"sin", "dot_general", "sqrt"} & set(primitives(clean)) == set()
    read = {v for node in clean.nodes for v in node.operands}
    folded = [a for v, a in clean.constants if v in read]
    assert np.float32(1 / 8 + np.sqrt(np.float32(2))) in folded
    assert len(folded) == len({np.asarray(a).tobytes() for a in folded})


def test_a_dead_loop_goes_with_its_region_and_ties():
    graph = trace(scanned, X)
    clean = normalise(graph)
    assert (primitives(graph).count("scan"), primitives(clean).count("scan")) == (2, 1)
    assert (len(graph.regions), len(clean.regions)) == (3, 2)
    assert len(clean.region_arguments) == len(graph.region_arguments) // 2
    (scan,) = [node for node in clean.nodes if node.bodies]
    assert clean.regions[1].node == scan.index
    assert {tie.call for tie in clean.region_arguments} == {scan.index}


def test_names_sources_phases_and_regions_stay():
    graph = trace(rematerialised, X)
    clean = normalise(graph)

    def place(g, n):
        return (n.source, n.phase, g.regions[n.region].kind)

    before = {g.name: place(graph, n) for n in graph.nodes for g in [graph.values[n.results[0]]]}
    after = {v.name: place(clean, n) for n in clean.nodes for v in [clean.values[n.results[0]]]}
    assert len({value.name for value in clean.values}) == len(clean.values)
    new = set(after) - set(before)
    assert new
    assert all(name.startswith("broadcast_in_dim:") for name in new)
    assert all(after[name] == before[name] for name in set(after) & set(before))
    inserted = [after[name] for name in new]
    assert all(source.startswith("test_normalise.py:") for source, _, _ in inserted)
    remat = next(region for region in clean.regions if region.kind == "remat")
    assert set(remat.nodes) < set(clean.regions[0].nodes)


def test_a_broadcast_is_shared_within_a_phase_only():
    def fn(x):
        peak = jax.lax.stop_gradient(x).max(-1, keepdims=True)
        return ((x - peak) * (x + peak)).sum()

    clean = normalise(trace(jax.grad(fn), X))
    repeats = [
        n
        for n in clean.nodes
        if n.primitive == "broadcast_in_dim" and n.signature.operands[0].shape == (4, 1)
    ]
    assert sorted(n.phase for n in repeats) == ["backward", "forward"] or len(repeats) == 1
    assert len({(n.operands, n.phase) for n in repeats}) == len(repeats)


def test_it_is_idempotent_and_leaves_a_clean_graph_alone():
    clean = normalise(trace(softmax_of_half, X))
    again = normalise(clean)
    assert isinstance(again, Graph)
    assert again.values == clean.values
    assert [n.signature for n in again.nodes] == [n.signature for n in clean.nodes]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("remat", [False, True])
def test_layers_of_one_jitted_function_are_the_nodes_of_plain_ones(remat):
    """JAX traces and differentiates such a layer once; each call is written out."""
    plain, jitted = (_census(Config(L=3, remat=remat, jit=jit)) for jit in (False, True))
    assert jitted == plain


def _census(config):
    """Return how often each signature occurs in each phase of a train step at one line."""
    arguments = training.part("train_step").arguments(config)
    graph = normalise(trace(partial(training.train_step, config), *arguments))
    return Counter((n.signature, n.phase, n.source) for n in graph.nodes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scan", [False, True])
def test_the_train_step_stays_the_train_step(scan, show):
    config = Config(L=1, scan=scan, dtype="float32", B=2, S=4, M=8, H=8, N=2, D=4, V=16)
    params = init_params(config)
    state = training.init_opt_state(config, params)
    tokens = np.random.default_rng(2).integers(0, config.V, (config.B, config.S))
    args = (params, state, tokens, tokens[::-1])
    graph = trace(lambda *a: training.train_step(config, *a), *args)
    clean = normalise(graph)
    show(f"{len(graph.nodes)} -> {len(clean.nodes)} nodes")
    both = jax.jit(lambda *flat: (evaluate(clean, *flat), evaluate(graph, *flat)))
    ours, theirs = both(*jax.tree.leaves(args))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5)


def test_empty_parts_are_not_joined():
    """The gradient of a split has them, and nothing would split a loop that reads one."""
    parts = [jax.ShapeDtypeStruct((2, size), "float32") for size in (0, 3, 0, 2)]
    graph = normalise(trace(lambda *x: jax.lax.concatenate(x, 1), *parts))
    (node,) = graph.nodes
    assert [value.shape for value in node.signature.operands] == [(2, 3), (2, 2)]
    assert node.operands == (graph.arguments[1], graph.arguments[3])


@pytest.mark.parametrize("start", [0, 8])
def test_a_value_beside_its_own_empty_end_is_no_rotation(start):
    """XLA ends the process if nothing is read of a concatenation with an empty array."""

    def fn(x):
        cut = partial(jax.lax.slice_in_dim, x, axis=1)
        return jax.lax.concatenate([cut(start, 8), cut(0, start)], 1)[1:]

    graph = normalise(trace(fn, X))
    assert "join_ends" not in primitives(graph)
    np.testing.assert_array_equal(evaluate(graph, X)[0], X[1:])


def test_a_float_beyond_an_integer_type_is_no_number_that_is_known():
    """XLA stays at the ends of the type, and numpy goes round."""

    def starts(x):
        row = jax.lax.convert_element_type(jnp.float32(-4) - 1, "uint32")
        return [jax.lax.dynamic_slice(x, (row, jnp.uint32(0)), (2, 8))]

    graph = normalise(trace(starts, X))
    assert primitives(graph).count("convert_element_type") == 1
    for ours, theirs in zip(evaluate(graph, X), jax.jit(starts)(X), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    within = trace(lambda x: x[jax.lax.convert_element_type(jnp.float32(1) + 0.5, "int32")], X)
    assert "convert_element_type" not in primitives(normalise(within))


@pytest.mark.parametrize(
    ("operator", "numbers"),
    [
        (jax.lax.sqrt_p, (np.complex64(complex(-1.0, -0.0)),)),  # numpy takes the other root
        (jax.lax.square_p, (np.complex64(3e38 + 3e38j),)),
        (jax.lax.max_p, (np.complex64(complex(np.nan, 1)), np.complex64(2))),
        (jax.lax.max_p, (np.float32(0), np.float32(-0.0))),  # either zero is the larger one
        (jax.lax.min_p, (np.float16(0), np.float16(-0.0))),
        (jax.lax.eq_p, (np.float32(0), np.float32(1e-40))),  # XLA on CPUs flushes it to zero
        (jax.lax.div_p, (np.float32(1), np.float32(3e38))),
        (jax.lax.mul_p, (jnp.bfloat16(1), jnp.bfloat16(1e-40))),
    ],
)
def test_what_numpy_and_xla_compute_differently_is_no_number_that_is_known(operator, numbers):
    graph = trace(lambda: operator.bind(*numbers))
    assert primitives(normalise(graph)) == [operator.name]
    assert computed_numbers(trace(lambda: operator.bind(*[np.float32(2) for _ in numbers])))


def test_the_ends_of_64_bits_are_no_floats():
    """The largest 64-bit integer is one more as a float, because numpy rounds there."""
    with jax.enable_x64(True):
        graph = trace(lambda: jax.lax.convert_element_type(jnp.float64(2**62) * 2, "int64"))
    assert primitives(normalise(graph)) == ["convert_element_type"]


def test_keys_are_not_padded():
    """JAX lowers no pad of an array of keys."""
    keys, other = jax.random.split(jax.random.key(0), 4), jax.random.key(9)

    def fn(keys, other):
        beside = jnp.concatenate([keys[1:], jnp.broadcast_to(other, (1,))])
        return beside, jax.lax.dynamic_update_slice(jnp.broadcast_to(other, (6,)), keys, (1,))

    for ours, theirs in zip(
        evaluate(normalise(trace(fn, keys, other)), keys, other), fn(keys, other), strict=True
    ):
        assert (ours == theirs).all()


def test_indices_that_count_along_their_own_vector_are_not_paired():
    """Indices of one component are all 0."""
    numbers = jax.lax.GatherDimensionNumbers((), (0, 1), (0, 1))

    def fn(x):
        count = jax.lax.broadcasted_iota("int32", (4, 1), 1)
        indices = jnp.concatenate([count, jnp.arange(4)[:, None] * 2], -1)
        return [jax.lax.gather(x[:1], indices, numbers, (1, 1), mode="clip")]

    np.testing.assert_array_equal(evaluate(normalise(trace(fn, X)), X)[0], fn(X)[0])


def test_what_code_is_applied_to_is_no_padded_update():
    """`x.at[i].apply(f)` is a scatter without updates."""

    def applied(x):
        rows = jnp.full((4, 8), 2.0).at[1:3].apply(jnp.cos)
        return rows + x.at[jnp.arange(4), jnp.array([1, 0, 7, 9])].apply(jnp.exp)

    graph = normalise(trace(applied, X))
    np.testing.assert_array_equal(evaluate(graph, X)[0], applied(jnp.asarray(X)))
