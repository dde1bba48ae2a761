"""Unchanged programs go through one call, run on four devices, and equal one device."""

from contextlib import nullcontext

import jax
import numpy as np
import pytest
from flax import nnx

import shardalg as sa
from tests.calls import programs


def numbers(tree):
    """Return the arrays of results, of modules too; keys as their data."""
    leaves = [x for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]
    keys = jax.dtypes.prng_key
    return [
        np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, keys) else x)
        for x in leaves
    ]


def assert_equal(got, want):
    pairs = zip(numbers(got), numbers(want), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def modules(args):
    """Return the modules that a step updates in place."""
    return [arg for arg in args if isinstance(arg, nnx.Pytree)]


def around(call):
    return nullcontext() if call.around is None else jax.set_mesh(call.around)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__name__)
def test_one_call_plans_it_and_four_devices_equal_one(program):
    call, alone = program(), program()
    with around(call):
        plan = sa.plan(call.fn, *call.args, kwargs=call.kwargs, **call.plan)
    assert plan.mesh.size == 4
    made = plan.lower()(*call.args, **call.kwargs)
    with around(alone):
        want = alone.fn(*alone.args, **alone.kwargs)
    assert_equal(made, want)
    assert_equal(*(nnx.state(modules(one.args)) for one in (call, alone)))


def test_a_trace_is_planned_with_its_own_arguments():
    call = programs.linen_train_state()
    plan = sa.plan(call.fn, *call.args)
    traced = sa.plan(call.fn.trace(*call.args))
    assert traced.graph.argument_paths == plan.graph.argument_paths
    assert (
        traced.collectives()
        .drop(columns="source")
        .equals(plan.collectives().drop(columns="source"))
    )
    assert traced._traced.donated == plan._traced.donated != ()


def test_twenty_steps_leave_the_state_that_nnx_leaves():
    model, optimizer = programs.nnx_state()
    lowered = sa.plan(
        programs.nnx_train_step, model, optimizer, programs.X, programs.Y,
        mesh=sa.Mesh({"data": 2, "model": 2}), in_shardings=(None, None, "P('data')", "P('data')"),
    ).lower()  # fmt: skip
    own = programs.nnx_state()
    step = nnx.jit(programs.nnx_train_step)
    for _ in range(20):
        loss = lowered(model, optimizer, programs.X, programs.Y)
        assert_equal(loss, step(*own, programs.X, programs.Y))
    assert_equal(nnx.state((model, optimizer)), nnx.state(own))
    assert int(optimizer.step[...]) == 20
