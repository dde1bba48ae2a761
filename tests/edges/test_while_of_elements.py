"""While loops whose elements end by themselves, as `vmap` makes them: one flag crosses devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd import instructions as p
from shardalg.spmd.instruction import Collective
from tests.partition.planned import MESH, checked, instructions, numbers, planned


def counted(n):
    """Count to each number; the loops of most elements end long before the last."""
    return jax.vmap(lambda n: lax.while_loop(lambda i: i < n, lambda i: i + 1, 0))(n)


def newton(x):
    """Return square roots by Newton's iteration, each until it converges: an adaptive solver."""

    def root(x):
        def goes_on(state):
            count, y = state
            return (count < 20) & (jnp.abs(y * y - x) > 1e-3 * x)

        return lax.while_loop(goes_on, lambda s: (s[0] + 1, (s[1] + x / s[1]) / 2), (0, x))

    return jax.vmap(root)(x)


def rows(x, w):
    """Iterate a row until its own sum is large; the condition sums along a sharded dimension."""

    def step(y):
        return y + jnp.abs(jnp.tanh(y @ w)) + 1

    return jax.vmap(lambda y: lax.while_loop(lambda y: y.sum() < 50, step, y))(x)


def grid(n):
    """Return a loop with a predicate of two dimensions and a carry of more."""

    def step(c):
        return (c[0] + 1, c[1] * 2)

    def loop(n):
        return lax.while_loop(lambda c: c[0] < n, step, (0, jnp.ones(3)))

    return jax.vmap(jax.vmap(loop))(n)


def in_scan(n):
    """Run in a scan, whose carry it advances."""
    loop = jax.vmap(lambda i, n: lax.while_loop(lambda i: i % 3 < n, lambda i: i + 1, i))
    return lax.scan(lambda i, k: (loop(i + k, n), i.sum()), n, jnp.arange(3))


def in_while(n):
    """Inside another one, both under `vmap`."""

    def outer(n):
        def inner(k):
            return lax.while_loop(lambda j: j < n, lambda j: j + k, 0)

        def step(state):
            return (state[0] + 1, state[1] + inner(state[0]))

        return lax.while_loop(lambda state: state[0] < n, step, (1, 0))

    return jax.vmap(outer)(n)


def tangents(x):
    """Return the forward derivative of Newton's iteration."""
    return jax.jvp(lambda x: newton(x)[1], (x,), (jnp.ones_like(x),))


def sampled(seeds):
    """Draw random keys in the carry until their bits are small enough."""

    def draw(seed):
        def step(state):
            key = jax.random.fold_in(state[0], 1)
            return key, jax.random.key_data(key)[0]

        start = (jax.random.key(seed), jnp.uint32(2**32 - 1))
        return lax.while_loop(lambda state: state[1] > 2**30, step, start)[1]

    return jax.vmap(draw)(seeds)


N = np.array([3, 0, 7, 1, 2, -4, 5, 3], np.int32)
X = np.abs(numbers(8)) + 1
CASES = {
    "counted": (counted, (N,), (P("X"),)),
    "counted, uneven": (counted, (N[:7],), (P(("X", "Y")),)),
    "counted, fewer than devices": (counted, (N[:3],), (P(("Y", "X")),)),
    "counted, none": (counted, (N[:0],), (P("X"),)),
    "newton": (newton, (X,), (P("Y"),)),
    "rows": (rows, (numbers(8, 8), numbers(8, 8, seed=1) / 8), (P("X", "Y"), P("Y"))),
    "grid": (grid, (N[:6].reshape(2, 3),), (P("X", "Y"),)),
    "in scan": (in_scan, (N % 3,), (P(("X", "Y")),)),
    "in while": (in_while, (N % 5,), (P("Y"),)),
    "tangents": (tangents, (X,), (P("X"),)),
    "sampled": (sampled, (np.arange(6, dtype=np.int32),), (P("X"),)),
}


CONTAINED = {"counted", "newton"}
"""Those of which another case has every step."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in CONTAINED)) for n in CASES]
)
def test_elements_end_by_themselves(name):
    """Simulated, proved and lowered; proved whole on every device, too."""
    fn, arguments, specs = CASES[name]
    plan = checked(fn, arguments, specs)
    assert plan.verify().ok
    assert plan.replan(sa.Strategy(plan.mesh)).verify().ok
    wants = jax.tree.leaves(fn(*arguments))
    for got, want in zip(jax.tree.leaves(plan.lower()(*arguments)), wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def collectives(program):
    return [s for s in instructions(program.block) if isinstance(s.attributes, Collective)]


@pytest.mark.parametrize("name", ["counted", "counted, uneven", "newton", "grid", "tangents"])
def test_one_flag_crosses_devices_and_carries_stay_split(name):
    fn, arguments, specs = CASES[name]
    plan = planned(fn, arguments, specs, out_shardings=specs[0])
    sent = [(s.attributes, plan.program.locals[s.results[0]]) for s in collectives(plan.program)]
    assert [(type(a), v.sharding.shape, v.dtype) for a, v in sent] == [(p.AllReduce, (), "bool")]
    (loop,) = (s for s in instructions(plan.program.block) if isinstance(s.attributes, p.While))
    assert all(
        any(plan.program.locals[r].sharding.key[0])
        for r in loop.results
        if plan.program.locals[r].sharding.shape
    )


def test_a_trip_asks_once():
    """Each trip evaluates a communicating condition once, because its value is carried."""
    fn, arguments, specs = CASES["rows"]
    plan = planned(fn, arguments, specs)
    (loop,) = (s for s in instructions(plan.program.block) if isinstance(s.attributes, p.While))
    condition = [type(s.attributes).__name__ for s in loop.attributes.condition.instructions]
    assert condition == ["Apply", "AllReduce"]


def by_hand(body):
    """Blocks of rows, by a region that is manual along both axes."""
    mesh = MESH.to_jax()
    return jax.shard_map(jax.vmap(body), mesh=mesh, in_specs=P("Y"), out_specs=P("Y"))


@pytest.mark.parametrize("name", ["alone", "a sum in the loop"])
def test_rows_in_a_region_by_hand_end_by_themselves(name):
    """The types of JAX say along which axes a value differs, and collectives need these axes."""

    def loop(row):
        more = lax.pmean(row, "Y") if name != "alone" else row
        return lax.while_loop(lambda s: s.sum() < 50, lambda s: jnp.abs(s) + 1 + abs(more), row)

    def summed(row):
        return lax.while_loop(
            lambda s: lax.psum(s.sum(), "Y") < 50, lambda s: jnp.abs(s) + lax.psum(s, "Y"), row + 9
        )

    x = numbers(8, 3)
    for body in (loop, summed) if name != "alone" else (loop,):
        plan = planned(by_hand(body), (x,), (P("X"),))
        assert plan.verify().ok
        np.testing.assert_allclose(plan.lower()(x), jax.jit(by_hand(body))(x), rtol=1e-5)
