"""Calls, copies and questions of a plan at its border, other than plain arrays."""

import copy
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError, TraceError
from shardalg.spmd.host.simulate import simulate
from tests.partition.planned import check_equal, numbers, planned

X = numbers(8, 4)
FLOAT0 = jax.dtypes.float0


def plan_of_sum():
    return planned(lambda x: (x * 2).sum(0), (X,), (P("X"),))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("out", [None, (P("Y"), {"index": P("X")}), P("Y")])
def test_the_derivative_by_an_integer_comes_back_as_jax_gives_it(out):
    def loss(x, at):
        return (x[at["index"]] ** 2).sum()

    fn = jax.grad(loss, (0, 1), allow_int=True)
    arguments = X, {"index": np.arange(4)}
    plan = planned(fn, arguments, (P("X"), P("Y")), out_shardings=out)
    assert plan.verify().ok
    check_equal(plan, lambda x, at: fn(x, at)[0], arguments)
    lowered = plan.lower()
    for executable in (lowered, lowered.padded, lowered.jit()):
        by_x, by_index = executable(*arguments)
        np.testing.assert_array_equal(by_x, fn(*arguments)[0])
        assert by_index["index"].dtype == FLOAT0
        assert by_index["index"].shape == (4,)


def test_float0_among_padded_results_is_stripped():
    def fn(x, k):
        return jax.grad(lambda x, k: (x[k] ** 2).sum(), (0, 1), allow_int=True)(x, k)

    x, k = numbers(7, 5), np.arange(4)
    given = {"in_shardings": (P("Y", "X"), P()), "out_shardings": (P("Y", "X"), P())}
    lowered = sa.plan(fn, x, k, mesh=sa.Mesh({"X": 2, "Y": 4}), **given).lower()
    by_x, by_k = lowered.strip(lowered.padded(x, k))
    np.testing.assert_allclose(by_x, fn(x, k)[0], rtol=1e-6)
    assert (by_k.dtype, by_k.shape) == (FLOAT0, (4,))


def test_float0_inside_a_function_and_as_its_argument():
    def tangent(x, k):
        return jax.jvp(lambda x, k: x * k, (x, k), (x, np.zeros(k.shape, FLOAT0)))[1]

    arguments = X, np.ones((8, 4), np.int32)
    check_equal(planned(tangent, arguments, (P("X"), P("Y"))), tangent, arguments)
    with pytest.raises(TraceError, match="t is of type float0, which has no content"):
        planned(lambda x, t: x, (X, np.zeros(3, FLOAT0)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [range(8), (5, 2, 7, 0, 1, 6, 3, 4)])
def test_a_callback_in_a_program_that_cuts_an_axis(order):
    """JAX requires all shardings of its program to name the same axes (jax 0.10.2)."""

    def fn(x):
        asked = jax.pure_callback(lambda: np.float32(3), jax.ShapeDtypeStruct((), "float32"))
        return asked * x, jnp.zeros((0, 4)) + asked

    mesh, x = sa.Mesh({"X": 2, "Y": 4}, device_ids=tuple(order)), numbers(7, 5)
    given = {"in_shardings": (P("Y", "X"),), "out_shardings": (P("X", "Y"), P(None, "Y"))}
    plan = sa.plan(fn, x, mesh=mesh, donate_argnums=0, **given)
    lowered = plan.lower()
    assert lowered.run.mesh.axis_names != lowered.user.mesh.axis_names
    twin = lowered.jit()
    for result in lowered(x), lowered(*lowered.place(x)), lowered.strip(lowered.padded(x)), twin(x):
        np.testing.assert_array_equal(result[0], fn(x)[0])
    assert lowered.padded(x)[0].sharding.spec == P("X", "Y")


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def with_kernel(x, *, interpret=True):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(double, out_shape=shape, interpret=interpret)(x + 1)


def test_a_kernel_outside_a_shard_map_is_run_whole():
    """Priced, warned of and proved as an operator without a row."""
    plan = planned(with_kernel, (X,), (P("X"),))
    assert plan.verify().ok
    assert plan.warnings()["op"].tolist() == ["pallas_call"]
    np.testing.assert_array_equal(plan.lower()(X), 2 * (X + 1))


def test_a_kernel_that_is_not_interpreted_is_refused_by_name_on_cpu():
    plan = planned(partial(with_kernel, interpret=False), (X,), (P("X"),))
    with pytest.raises(LoweringError, match=r"pallas_call at test_border.py:\d+.*interpret=True"):
        plan.lower()(X)


TRACED = {
    "jit": lambda f: jax.jit(f)(X),
    "inside jit": lambda f: jax.jit(lambda x: f(x) + 1)(X),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "vmap": lambda f: jax.vmap(f)(X[None]),
    "eval_shape": lambda f: jax.eval_shape(f, X),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0, X[None]),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_lowered_program_says_that_it_cannot_be_traced(name):
    lowered = plan_of_sum().lower()
    for executable in (lowered, lowered.padded, lowered.jit()):
        with pytest.raises(LoweringError, match="cannot be called while JAX traces"):
            TRACED[name](executable)


def test_a_plan_is_pickled_as_its_file(tmp_path):
    plan = plan_of_sum()
    plan.save(tmp_path / "plan.json")
    came = pickle.loads(pickle.dumps(plan))
    assert came.text() == sa.load_plan(tmp_path / "plan.json").text() == plan.text()
    assert came.verify().ok
    again = pickle.loads(pickle.dumps(came))
    np.testing.assert_array_equal(again.lower(fn=lambda x: (x * 2).sum(0))(X), (X * 2).sum(0))


def test_a_copy_of_a_plan_runs_also_after_it_was_lowered():
    plan = plan_of_sum()
    plan.lower()(X)
    for made in (copy.copy(plan), copy.deepcopy(plan), copy.deepcopy({"plan": [plan]})["plan"][0]):
        np.testing.assert_array_equal(made.lower()(X), (X * 2).sum(0))


def test_a_plan_of_named_sizes_is_pickled():
    (rows,) = sa.dims("B", hint=8)
    x = jax.ShapeDtypeStruct((rows, 4), jnp.float32)
    plan = planned(lambda x: x.sum(0), (x,), (P("X"),))
    assert str(pickle.loads(pickle.dumps(plan)).cost("tpu_v3")) == str(plan.cost("tpu_v3"))


@pytest.mark.parametrize("spec", [P("X"), P(("Y", "X"))])
def test_a_call_of_arrays_that_a_traced_function_closes_over(spec):
    lowered = planned(lambda x: x * 2, (X[:7],), (spec,)).lower()
    given = jnp.asarray(X[:7])
    for executable in (lowered, lowered.padded, lowered.jit()):
        found = jax.jit(lambda y, run=executable: run(given)[:7] + y)(1.0)
        np.testing.assert_array_equal(found, X[:7] * 2 + 1)


def test_an_array_that_a_call_has_consumed_is_not_given_again():
    """Passing it again ended the process."""
    plan = planned(lambda x: (x * 2, x.sum()), (X,), (P("X"),), donate_argnums=0)
    lowered = plan.lower()
    for executable in (lowered, lowered.padded, lowered.jit()):
        arrays = lowered.place(X)
        executable(*arrays)
        with pytest.raises(LoweringError, match="x was deleted, or donated to an earlier call"):
            executable(*arrays)


def test_a_copy_of_a_lowered_program_runs_and_none_is_pickled():
    plan = plan_of_sum()
    for _ in range(2):  # before it was compiled, and after
        lowered = plan.lower()
        for made in (copy.copy(lowered), copy.deepcopy([lowered])[0]):
            np.testing.assert_array_equal(made(X), (X * 2).sum(0))
    assert copy.deepcopy(plan.graph) == copy.copy(plan.graph) == plan.graph
    with pytest.raises(LoweringError, match="not pickled: pickle the Plan"):
        pickle.dumps(plan.lower())
    for held in (plan.graph, plan.cost("tpu_v3")):
        with pytest.raises(TraceError, match="Pickle the Plan"):
            pickle.dumps(held)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trips", [3, 0])
@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_a_scan_hands_out_typed_keys(kind, trips):
    def fn(key, keys):
        _, (each, split) = jax.lax.scan(
            lambda c, k: (jax.random.fold_in(c, 1), (c, jax.random.split(k)[1])), key, keys
        )
        return jax.random.key_data(each), each, split

    keys = jax.random.split(jax.random.key(3, impl=kind), 5)
    arguments = keys[4], keys[:trips]
    plan = planned(fn, arguments, (P(), P("X")))
    assert plan.verify().ok
    data = jax.random.key_data
    for made in simulate(plan.program, plan.graph, *arguments), plan.lower()(*arguments):
        for got, want in zip(made, fn(*arguments), strict=True):
            assert got.dtype == want.dtype
            is_key = jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key)
            np.testing.assert_array_equal(*(map(data, (got, want)) if is_key else (got, want)))


def test_a_loaded_plan_of_a_number_of_python_asks_for_it(tmp_path):
    def fn(x, scale):
        return x * scale

    x = X.astype(jnp.bfloat16)
    planned(fn, (x, 2.0), None).save(tmp_path / "plan.json")
    plan = sa.load_plan(tmp_path / "plan.json")
    with pytest.raises(LoweringError, match=r"a number of Python was an argument, pass args="):
        plan.lower(fn=fn)
    np.testing.assert_array_equal(plan.lower(fn=fn, args=(x, 2.0))(x, 2.0), fn(x, 2.0))


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_a_loaded_plan_of_typed_keys_is_lowered(kind, tmp_path):
    def draw(key):
        return jax.random.uniform(key, (8,))

    key = jax.random.key(3, impl=kind)
    planned(draw, (key,), None).save(tmp_path / "plan.json")
    lowered = sa.load_plan(tmp_path / "plan.json").lower(fn=draw)
    np.testing.assert_array_equal(lowered(key), draw(key))


def test_integers_of_four_bits_are_refused_where_jax_takes_none():
    """JAX's own compiled program of them takes no array of JAX's either (jaxlib 0.10.2)."""
    narrow = np.arange(32).reshape(8, 4).astype(jnp.int4)
    lowered = planned(lambda x: x.astype(jnp.int32) * 2, (narrow,), (P("X"),)).lower()
    for executable in (lowered, lowered.padded, lowered.jit()):
        try:
            np.testing.assert_array_equal(executable(narrow), narrow.astype(np.int32) * 2)
        except LoweringError as error:
            assert "Pass values of 8 bits" in str(error)  # noqa: PT017


def test_what_xla_does_not_combine_is_refused():
    """Two bits are no type of its all-reduce; the simulator has them."""
    narrow = (np.arange(26) % 2 - 1).reshape(13, 2).astype(jnp.int2)
    plan = sa.plan(lambda x: jnp.max(x, 0), narrow, mesh=sa.Mesh({"X": 4}), in_shardings=P("X"))
    (got,) = simulate(plan.program, plan.graph, narrow)
    np.testing.assert_array_equal(got.astype(int), narrow.astype(int).max(0))
    with pytest.raises(LoweringError, match=r"'s2' is not supported.*wider type"):
        plan.lower()(narrow)
