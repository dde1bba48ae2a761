"""Sums are deferred only past operators that keep them right (`Rule.passes`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.sharding import Sharding
from shardalg.costs.hardware import load
from shardalg.graph.ir import Signature, ValueType
from shardalg.planner.partition.choose.choices import candidates
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instructions import AllReduce, Apply
from shardalg.verify.verify import verify
from tests.partition.planned import instructions

MESH = sa.Mesh({"X": 4})
CUT = P("X")
INF, HALF, BYTE = np.inf, np.float16, np.int8
EVEN = (30_000, 30_000, -30_000, -30_000, 30_000, 30_000, -30_000, -27_984)
LARGE = (30_000, 30_000, 30_000, -30_000) * 2
ONES = np.ones(8, HALF)


def added(x):
    return lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None)


def widened(x, w):
    return jnp.dot(x.reshape(4, 2).sum(0, dtype=x.dtype), w, preferred_element_type=jnp.int32)


# name -> function, arguments; the first one is cut
CASES = {
    "an element times infinity": (lambda x: x[0] * INF, np.arange(1.0, 9, dtype=np.float32)),
    "a sum over zero": (lambda x: x.sum(0) / 0, np.arange(8, dtype=np.float32)),
    "a sum of zeros over zero": (lambda x: x.sum(0) / 0, np.zeros(8, np.float32)),
    "infinite times zero": (lambda x, c: x.sum(0) * c, np.full(8, INF, np.float32), np.float32(0)),
    "parts overflow when scaled": (lambda x: added(x) * HALF(4), np.array(EVEN, HALF)),
    "parts overflow over a fraction": (lambda x: (x @ ONES) / HALF(0.25), np.array(EVEN, HALF)),
    "only the sum overflows": (lambda x: added(x) * HALF(0.25), np.array(LARGE, HALF)),
    "the same of a product": (lambda x: (x @ ONES) * HALF(0.25), np.array(LARGE, HALF)),
    "a product of what overflows": (
        lambda x, w: (x.T @ ONES) @ w, np.array([LARGE] * 2, HALF).T, np.ones((2, 3), HALF) / 8,
    ),
    "it overflows in its type": (lambda x: added(x).astype(jnp.float32), np.array(LARGE, HALF)),
    "whole numbers that go round": (lambda x, c: added(x) * c, np.full(8, 100, BYTE), BYTE(3)),
    "and then become wider": (widened, np.full(8, 100, BYTE), np.array([3, 5], BYTE)),
    "complex": (lambda x, c: added(x) * c, np.arange(8, dtype=np.complex64), np.complex64(INF)),
}  # fmt: skip


def planned(fn, *arguments, **options):
    specs = (CUT, *(P() for _ in arguments[1:]))
    made = {"mesh": MESH, "in_shardings": specs, "out_shardings": P()}
    return sa.plan(fn, *arguments, **made, options=sa.Options.of(options))


def kinds(plan):
    """Return the instructions in order: primitives, and "sum" for an all-reduce."""
    steps = [step.attributes for step in instructions(plan.program.block)]
    return ["sum" if type(a) is AllReduce else a.primitive for a in steps
            if isinstance(a, AllReduce | Apply)]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_a_sum_is_that_of_one_device_whatever_its_numbers_are(name):
    fn, *arguments = CASES[name]
    plan = planned(fn, *arguments)
    assert plan.verify().ok
    want = np.asarray(jax.jit(fn)(*arguments))
    assert "sum" in kinds(plan)
    for got in (simulate(plan.program, plan.graph, *arguments)[0], plan.lower()(*arguments)):
        np.testing.assert_array_equal(got, want)


# name -> function of x with x on X and y whole, whether its sum waits until the end
WAITS = {
    "adds": (lambda x, y: added(x) + added(y * x), True),
    "subtracts": (lambda x, y: -(added(x) - added(y * x)), True),
    "moves": (lambda x, y: jnp.flip(added(x)[:, None].T), True),
    "adds more": (lambda x, y: jnp.cumsum(added(x)).sum(), True),
    "selects": (lambda x, y: jnp.where(y[0] > 0, added(x), added(y * x)), True),
    "multiplies": (lambda x, y: added(x) * y[0], False),
    "divides": (lambda x, y: added(x) / 2, False),
    "contracts": (lambda x, y: y[:2] @ added(x), False),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int32])
@pytest.mark.parametrize("name", WAITS)
def test_a_sum_waits_where_every_number_allows_it(name, dtype):
    fn, waits = WAITS[name]
    x = np.arange(32).reshape(8, 4).astype(dtype)
    y = x - 9
    if name == "selects" and dtype == np.complex64:
        fn = lambda x, y: jnp.where(y.real[0] > 0, added(x), added(y * x))  # noqa: E731
    ring = dtype == np.int32 and name != "divides"
    plan = planned(fn, x, y)
    assert kinds(plan).count("sum") == 1
    assert (kinds(plan)[-1] == "sum") == (waits or ring), plan.program
    (got,) = simulate(plan.program, plan.graph, x, y)
    np.testing.assert_allclose(got, fn(x, y), rtol=1e-6)
    assert plan.verify().ok


@pytest.mark.parametrize("name", ["multiplies", "divides"])
def test_behind_products_it_waits_where_numbers_are_said_to_be_finite(name):
    fn, _ = WAITS[name]
    x = y = np.arange(32, dtype=np.float32).reshape(8, 4) / 8
    plan = planned(fn, x, y, finite_sums=True)
    assert kinds(plan)[-1] == "sum"
    (got,) = simulate(plan.program, plan.graph, x, y)
    np.testing.assert_allclose(got, fn(x, y), rtol=1e-6)
    (trusted,) = [claim for claim in plan.verify().claims if claim.claim == "finite"]
    assert (trusted.status, plan.verify().ok) == ("trusted", True)
    assert "finite" in trusted.words
    (refuted,) = verify(plan.sharded, plan.program).refuted
    assert refuted.claim == "finite"


@pytest.mark.parametrize("finite", [False, True])
def test_by_cost_a_sum_waits_as_little(finite):
    x = ValueType((8, 4), "float32")
    value_shardings = (Sharding(MESH, x.shape, ((), ())),) * 3
    found = candidates(
        Signature("mul", (), (x, x), (x,)), value_shardings, 0, load("tpu_v3"), finite=finite
    )
    waits = [layout.unreduced for one in found for _, layout in one.required_shardings]
    assert any(waits) == finite
