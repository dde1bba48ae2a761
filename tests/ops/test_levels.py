"""Sorts and Fourier transforms along a named dimension: a plan holds between two powers of two."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa

PROGRAMS = {
    "sort": (lambda x: jnp.sort(x, 1), P("X")),
    "sort along a sharded dimension": (lambda x: jnp.sort(x, 1), P(None, "X")),
    "argsort": (lambda x: jnp.argsort(x, 1), P("X")),
    "gradient of a sort": (jax.grad(lambda x: jnp.sum(jnp.sort(x, 1) ** 2)), P("X")),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), P("X")),
    "fft along a sharded dimension": (lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), P(None, "X")),
    "rfft": (lambda x: jnp.abs(jnp.fft.rfft(x, axis=1)), P("X")),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_holds_between_powers_of_two(name):
    function, layout = PROGRAMS[name]
    B, N = sa.dims("B N", hint=(8, 16))
    x = jax.ShapeDtypeStruct((B, N), "float32")
    plan = sa.plan(function, x, mesh=sa.Mesh({"X": 2}), in_shardings=(layout,))
    formula = plan.cost("tpu_v3").flops
    values = {symbol: {"B": 8, "N": 12}[symbol.name] for symbol in formula.free_symbols}
    there = plan.at(N=12)
    assert plan.holds(N=12)
    assert not len(there.changes)
    assert int(formula.subs(values)) == there.cost("tpu_v3").at_hints.flops
    assert not plan.holds(N=32)  # one more level of comparisons or butterflies
    assert "formula" in set(plan.at(N=32).changes["kind"])
