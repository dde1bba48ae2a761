"""Primitives of other packages are planned as what they are written with; effects are named."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback, sparse
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError, TraceError
from shardalg.graph.evaluate import evaluate
from shardalg.graph.serial import from_json, graph_hash, to_json
from shardalg.graph.tracing.trace import trace

MESH = sa.Mesh({"X": 4})
RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(8, 4)).astype(np.float32)
DENSE = RANDOM.normal(size=(8, 8)).astype(np.float32)
SPARSE = sparse.BCOO.fromdense(jnp.asarray(np.where(DENSE > 0, DENSE, 0)))


def primitive(name, body, *, impl=None, lowering=None):
    """Define a primitive like a package: `body` gives its type and its lowering."""
    made = Primitive(name)
    made.def_impl(impl or body)
    made.def_abstract_eval(
        lambda *xs, **params: jax.core.ShapedArray(
            (out := jax.eval_shape(lambda *ys: body(*ys, **params), *xs)).shape, out.dtype
        )
    )
    mlir.register_lowering(made, lowering or mlir.lower_fun(body, multiple_results=False))
    return made


def no_tracers(x, **params):
    return np.asarray(x) * 2


def rule(ctx, x, **params):
    """Write a lowering in HLO, which JAX cannot trace."""
    return mlir.lower_fun(lambda x: x * 2, multiple_results=False)(ctx, x)


twice_p = primitive("foreign_twice", lambda x, *, by: jnp.sin(x) * by)
scaled_p = primitive("foreign_scaled", lambda x, by: x * by)
sine_p = primitive("cos", jnp.sin)
lowered_p = primitive("foreign_lowered", jnp.tanh, impl=no_tracers)
hidden_p = primitive("foreign_hidden", lambda x: x * 2, impl=no_tracers, lowering=rule)
raw_p = primitive("foreign_raw", lambda x: x * 2, impl=no_tracers, lowering=lambda *a, **k: 1 / 0)
namesake_p = primitive("exp", lambda x: x * 2, impl=no_tracers, lowering=lambda *a, **k: 1 / 0)


def again(x):
    return again_p.bind(x) + 0


again_p = primitive("foreign_again", lambda x: x * 2, impl=again, lowering=rule)


def solved(x):
    return eqxi.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x), kind="lax"
    )[1]


def of_sparse(function):
    return lambda data, indices, x: function(sparse.BCOO((data, indices), shape=(8, 8)), x)


BCOO = SPARSE.data, SPARSE.indices, X
OPENED = {
    "parameters": (lambda x: twice_p.bind(x, by=3.0), (X,)),
    "a number of weak type": (lambda x: scaled_p.bind(x.astype("bfloat16"), 2.0), (X,)),
    "a name of JAX's": (lambda x: sine_p.bind(x), (X,)),
    "the second of two": (lambda x: twice_p.bind(twice_p.bind(x, by=2.0), by=3.0), (X,)),
    "nonbatchable": (lambda x: eqxi.nonbatchable(x) + 1, (X,)),
    "unvmap": (lambda x: jnp.where(eqxi.unvmap_any(x > 1), x, eqxi.unvmap_max(x)), (X,)),
    "noinline": (lambda x: eqxi.noinline(lambda y: jnp.sin(y) * 2)(x), (X,)),
    "equinox while": (solved, (X,)),
    "sparse product": (of_sparse(lambda m, x: m @ x), BCOO),
    "sparse gradient": (
        jax.grad(lambda d, i, x: (sparse.BCOO((d, i), shape=(8, 8)) @ x).sum()), BCOO,
    ),
    "sparse to dense": (of_sparse(lambda m, x: m.todense() @ x), BCOO),
    "dense to sparse": (
        lambda a, x: sparse.BCOO.fromdense(a, nse=64) @ x, (DENSE, X),
    ),
}  # fmt: skip


def planned(function, args):
    specs = tuple(P("X") for _ in args)
    return sa.plan(function, *args, mesh=MESH, in_shardings=specs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", OPENED)
def test_a_primitive_of_another_package_is_planned_as_what_it_is_written_with(case):
    function, args = OPENED[case]
    plan = planned(function, args)
    fallbacks = [row for row in plan.warnings_table.rows if "gathered" in row[4]]
    assert not fallbacks, plan.warnings_table
    assert plan.verify().ok
    got, expected = plan.lower()(*args), jax.jit(function)(*args)
    assert got.dtype == expected.dtype
    got, expected = (np.asarray(x, np.float32) for x in (got, expected))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_what_impl_cannot_say_the_function_of_its_lowering_does():
    assert [n.primitive for n in trace(lambda x: lowered_p.bind(x), X).nodes] == ["tanh"]
    # jax.experimental.sparse runs this one by JAX's apply_primitive, which says nothing.
    function, args = OPENED["sparse product"]
    assert "bcoo_dot_general" not in {n.primitive for n in trace(function, *args).nodes}


def test_what_jax_cannot_trace_is_gathered_by_name():
    plan = planned(lambda x: hidden_p.bind(x), (X,))
    ((name, source, *_, text, _, _),) = plan.warnings_table.rows
    assert (name, source[:15]) == ("foreign_hidden", "test_opened.py:")
    assert "traces no body" in text
    np.testing.assert_allclose(np.asarray(plan.lower()(X)), X * 2, rtol=1e-5)


def test_a_body_that_runs_its_own_primitive_is_opened_once():
    assert [n.primitive for n in trace(again_p.bind, X).nodes] == ["foreign_again", "add"]


def test_inside_a_shard_map_a_primitive_stays_what_it_is():
    mesh = jax.sharding.AbstractMesh((4,), ("X",), axis_types=(jax.sharding.AxisType.Auto,))
    inside = jax.shard_map(
        lambda x: twice_p.bind(x, by=2.0), mesh=mesh, in_specs=P("X"), out_specs=P("X"),
        check_vma=False,
    )  # fmt: skip
    plan = sa.plan(inside, X, mesh=MESH)
    assert "foreign_twice" in plan.text()
    np.testing.assert_allclose(np.asarray(plan.lower()(X)), np.sin(X) * 2, rtol=1e-5)


def test_a_lowering_that_fails_is_named_with_its_line():
    plan = planned(lambda x: raw_p.bind(x), (X,))
    with pytest.raises(LoweringError, match=r"foreign_raw at test_opened.py:\d+.*ZeroDivision"):
        plan.lower()(X)


def test_another_primitive_of_the_name_of_one_of_jax_is_refused():
    with pytest.raises(TraceError, match=r"exp at test_opened.py:\d+ is not JAX's primitive"):
        trace(lambda x: namesake_p.bind(x), X)


def prints(x):
    jax.debug.print("{}", x.sum())
    return x * 2


def prints_in_a_loop(x):
    def body(carry, row):
        jax.debug.callback(lambda v: None, row)
        return carry + row, row * 2

    return jax.lax.scan(body, x[0], x)[1]


def prints_rows(x):
    return jax.vmap(prints)(x)  # JAX calls back once per row


def saves(x):
    io_callback(lambda v: None, None, x)
    return x * 2


@pytest.mark.parametrize(
    ("function", "name", "count"),
    [
        (prints, "debug_print", 1),
        (prints_in_a_loop, "debug_callback", 8),
        (prints_rows, "debug_print", 8),
        (saves, "io_callback", 1),
    ],
)
def test_effects_without_results_are_left_out_and_listed(function, name, count):
    plan = sa.plan(function, X, mesh=MESH, in_shardings=(P(None, "X"),))
    (row,) = (r for r in plan.warnings_table.rows if r[0] == name)
    assert row[1].startswith("test_opened.py:")
    assert row[2:4] == (count, 0)
    assert "left out" in row[4]
    assert plan.verify().ok
    np.testing.assert_array_equal(np.asarray(plan.lower()(X)), X * 2)


def test_nothing_is_computed_for_an_effect_that_is_left_out():
    assert len(planned(prints, (X,)).collectives()) == 0


def puts(x):
    return jax.device_put(x, jax.memory.Space.Host) * 2


def puts_a_sharding(x):
    mesh = AbstractMesh((4,), ("X",), axis_types=(AxisType.Auto,))
    there = NamedSharding(mesh, P("X"), memory_kind="pinned_host")
    return jax.device_put(x, there) * 2


def offloads(x):
    """Keep the product on the host for the backward pass."""
    policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    return jax.grad(jax.checkpoint(lambda x: jnp.sin(x @ x.T).sum(), policy=policy))(x)


@pytest.mark.parametrize("function", [puts, puts_a_sharding, offloads])
def test_copies_to_the_host_are_left_out_and_listed(function):
    (row,) = (r for r in planned(function, (X,)).warnings_table.rows if r[0] == "device_put")
    assert row[1].startswith("test_opened.py:")
    assert row[2:4] == (1, 0)
    assert "the value stays on the device" in row[4]


def test_copies_between_devices_are_not_listed():
    plan = planned(lambda x: jax.device_put(x, jax.memory.Space.Device) * 2, (X,))
    assert not plan.graph.left_out


def test_what_is_left_out_is_saved_and_does_not_count():
    graph = trace(prints, X)
    assert from_json(to_json(graph)).left_out == graph.left_out
    assert len(graph.left_out) == 1
    quiet = trace(lambda x: x * 2, X)
    plan = planned(prints, (X,))
    assert graph_hash(plan.graph) == graph_hash(sa.plan(lambda x: x * 2, X, mesh=MESH).graph)
    assert not quiet.left_out


def reads(x):
    return io_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_an_effect_with_results_is_named_with_its_line():
    with pytest.raises(TraceError, match=r"io_callback at test_opened.py:\d+ has results and an"):
        trace(reads, X)


def called_back(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1


def checked(x):
    return eqx.error_if(x, (x > 100).any(), "too large") * 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [called_back, checked])
def test_callbacks_run_whole_and_are_compared_with_what_xla_makes_of_them(function):
    plan = planned(function, (X,))
    assert {row[0] for row in plan.warnings_table.rows} == {"pure_callback"}
    assert plan.verify().ok
    expected = evaluate(trace(function, X), X)[0]
    np.testing.assert_allclose(np.asarray(plan.lower()(X)), np.asarray(expected), rtol=1e-6)
    beside = plan.compare_xla()
    assert beside.wire_bytes <= beside.xla_wire_bytes
    assert len(beside.table)


def test_callbacks_on_more_devices_than_there_are_name_their_lines():
    mesh = sa.Mesh({"X": 2 * len(jax.devices())})
    plan = sa.plan(called_back, X, mesh=mesh, in_shardings=(P("X"),))
    with pytest.raises(LoweringError, match=r"pure_callback at test_opened.py:\d+.*host_devices"):
        plan.compare_xla()
