"""Calls that are their body leave no node of their own, and compute what they computed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardalg.graph.evaluate import evaluate
from shardalg.graph.tracing.control_flow import INDEXED
from shardalg.graph.tracing.jaxpr import HANDLERS
from shardalg.graph.tracing.trace import trace

X = np.random.default_rng(5).normal(size=(3, 3)).astype(np.float32)


def solve(a):
    return jnp.linalg.solve(a + 4 * jnp.eye(3), a[0])


def composite(x):
    return jax.lax.composite(lambda x: jnp.sin(x) * 2, "own.sine")(x)


def linear(x):
    return jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, y: r * y, x[0], x)


@jax.custom_batching.custom_vmap
def batched(x):
    return x * 3


@batched.def_vmap
def _(size, mapped, x):
    return x * 3, mapped[0]


def optimised(x):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),), optimize_remat=True)
    return jax.grad(lambda x: f(x).sum())(x)


def normalised(x):
    """Normalise over the batch by the name that `vmap` gives it, as modules of equinox do."""
    mean = partial(jax.lax.pmean, axis_name="batch")
    return jax.vmap(lambda v: (v - mean(v)) / mean(v * v), axis_name="batch")(x)


def widest(x):
    return jax.vmap(lambda v: jax.lax.pmax(v, "b") - jax.lax.pmin(v, "b"), axis_name="b")(x)


CALLS = [
    (normalised, "psum"),
    (widest, "pmax"),
    (widest, "pmin"),
    (jax.grad(lambda x: normalised(x)[0].sum()), "psum"),
    (solve, "custom_linear_solve"),
    (jax.grad(lambda a: solve(a).sum()), "custom_linear_solve"),
    (composite, "composite"),
    (linear, "linear_call"),
    (batched, "custom_vmap_call"),
    (optimised, "remat_opt"),
    (jax.grad(lambda x: jax.checkpoint(solve)(x).sum()), "remat2"),
]


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("fn", "name"), CALLS, ids=lambda v: getattr(v, "__name__", v))
def test_a_call_is_its_body(fn, name):
    assert name in set(primitives(jax.make_jaxpr(fn)(X).jaxpr))
    graph = trace(fn, X)
    nodes = {"annotate", *INDEXED}  # what is left of these is a node, as it was written or widened
    assert not {node.primitive for node in graph.nodes} & (set(HANDLERS) - nodes)
    np.testing.assert_allclose(evaluate(graph, X)[0], fn(X), rtol=1e-5)


def test_a_branch_for_kernels_alone_leaves_no_branches():
    """`jnp.diagonal` has another way for Pallas, of which JAX lowers nothing."""

    def fn(x):
        return jnp.diagonal(x) * 2

    assert {"cond", "platform_index"} <= set(primitives(jax.make_jaxpr(fn)(X).jaxpr))
    graph = trace(fn, X)
    assert not any(node.bodies for node in graph.nodes)
    np.testing.assert_array_equal(evaluate(graph, X)[0], fn(X))


def test_branches_of_platforms_that_programs_are_lowered_for_stay():
    def fn(x):
        return jax.lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos, default=jnp.tan)

    (call,) = (node for node in trace(fn, X).nodes if node.bodies)
    assert len(call.bodies) == 3
