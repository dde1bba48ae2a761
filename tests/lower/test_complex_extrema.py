"""Largest and smallest complex numbers between devices, which no collective of XLA orders."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate

LOWEST, HIGHEST = complex(-np.inf, -np.inf), complex(np.inf, np.inf)


def put(fn, start):
    """Return rows sent to four others; the concatenation starts from those."""

    def joined(x):
        rows = jnp.full((4, x.shape[1]), start, x.dtype).at[jnp.arange(len(x)) % 4]
        return getattr(rows, fn)(x)

    return joined


CASES = {
    "largest of all": lambda x: lax.reduce_max_p.bind(x, axes=(0,), out_sharding=None),
    "smallest of all": lambda x: lax.reduce_min_p.bind(x, axes=(0,), out_sharding=None),
    "largest so far": lambda x: lax.cummax(x, 0),
    "smallest so far": lambda x: lax.cummin(x, 0, reverse=True),
    "largest put": put("max", LOWEST),
    "smallest put": put("min", HIGHEST),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("out", [P(), P("X")])
@pytest.mark.parametrize("name", CASES)
def test_infinite_imaginary_parts(name, out):
    """`-inf - inf*1j` is less than what JAX starts from: it stays where one device has it."""
    x = np.full((9, 4), LOWEST if "largest" in name else HIGHEST, np.complex64)
    x[2:7, 1], x[:, 2] = complex(0, -np.inf), complex(-np.inf, 0)
    want = np.asarray(CASES[name](jnp.asarray(x)))
    mesh = sa.Mesh({"X": 3 if out == P() else 4})
    plan = sa.plan(CASES[name], x, mesh=mesh, in_shardings=P("X"), out_shardings=out)
    for got in (simulate(plan.program, plan.graph, x)[0], np.asarray(plan.lower()(x))):
        np.testing.assert_array_equal(got.real, want.real)
        np.testing.assert_array_equal(got.imag, want.imag)
