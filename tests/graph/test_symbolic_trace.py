"""Sizes that Python makes are known to be the same at all sizes, or planned at each point."""

import random

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.graph.tracing.symbolic_trace import dependent_sizes

SEED = 20261128
WEIGHTS = jax.ShapeDtypeStruct((128, 128), "float32")


def attention(x, w):
    """Heads of 16 features: 8 and 16 are in no argument."""
    q = (x @ w).reshape(*x.shape[:2], 8, -1)
    scores = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, q))
    return jnp.einsum("bhst,bthd->bshd", scores, q).reshape(x.shape)


def gradient(x, w):
    return jax.grad(lambda w: (attention(x, w) ** 2).mean())(w)


def repeated(x, w):
    return jax.lax.fori_loop(0, 3, lambda _, y: y + jnp.ones((8, 16)), (x @ w).reshape(-1, 8, 16))


def blocks_of_a_divisor(x, w):
    size = 16 if x.shape[0] % 128 == 0 else 8
    return (x @ w).reshape(*x.shape[:2], size, -1) + jnp.zeros((size, 1))


def blocks_of_a_minimum(x, w):
    return (x @ w)[: min(16, x.shape[0])].reshape(16, -1, 8, 16)


def trips_of_a_minimum(x, w):
    y = (x @ w).reshape(*x.shape[:2], 8, 16)
    return jax.lax.scan(lambda y, _: (2 * y, y.sum()), y, None, length=min(x.shape[0], 8))[1]


def chunks(x, w):
    """B // 4 is a size of its own, which a formula has, and no proof that 4 is a number."""
    return (x @ w).reshape(4, x.shape[0] // 4, -1, 8, 16).sum(0)


def numbers_read(x, w):
    return (x @ w).reshape(*x.shape[:2], 8, 16) * jnp.ones(int(x.shape[0] > 9) + 15)


CASES = {
    attention: True, gradient: True, repeated: True, blocks_of_a_divisor: False,
    blocks_of_a_minimum: False, trips_of_a_minimum: False, chunks: False, numbers_read: False,
}  # fmt: skip


def planned(function, batch, length=24):
    x = jax.ShapeDtypeStruct((batch, length, 128), "float32")
    return sa.plan(function, x, WEIGHTS, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"), P()))


def named(function, hint=20):
    return planned(function, *sa.dims("B", hint=hint))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_sizes_that_python_makes(function):
    plan = named(function)
    assert len(plan.symbols.constants)
    assert plan._traced.symbols.has_fixed_constants is CASES[function]


def test_a_constant_that_equals_a_named_size_may_be_that_size():
    assert named(attention, 24)._traced.symbols.has_fixed_constants
    assert not named(attention, 16)._traced.symbols.has_fixed_constants


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_points_equal_plans_made_there(function):
    """Formulas are used at several batches if the sizes are fixed, and at the hint alone if not."""
    draw = random.Random(SEED)
    batches = [20, 128, *draw.sample(range(24, 120, 8), 4), draw.randrange(21, 199, 2)]
    found = named(function).sweep("h100:4", B=batches)
    for row in found.rows:
        try:
            cost = planned(function, row.sizes["B"]).cost("h100:4")
        except sa.ShardalgError:
            assert row.refused, row
            continue
        at = (SEED, row)
        assert row.step_s == pytest.approx(float(cost.step_time_s), rel=1e-9), at
        assert row.peak_bytes == float(cost.peak_memory_bytes), at
    by_formula = {row.sizes["B"] for row in found.rows if row.source == "formula"}
    assert len(by_formula - {20}) >= 3 if CASES[function] else by_formula <= {20}


def test_dependent_sizes_of_a_program():
    def jaxpr_at(sizes):
        x = jax.ShapeDtypeStruct((sizes["B"], 6, 2 * sizes["C"]), "float32")
        return jax.make_jaxpr(lambda x: jax.lax.map(jnp.sin, x).reshape(-1, 2, 3, x.shape[2]))(x)

    assert dependent_sizes(jaxpr_at, {"B": 8, "C": 5}) == {8, 10}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.ones(int(x.shape[0])),  # a number is read
        lambda x: jnp.ones((x.shape[0] // 2, 6)),  # equal at 8 and 9
        lambda x: jnp.sin(x) if x.shape[0] == 8 else jnp.cos(jnp.sin(x)),  # other operators
        lambda x: jnp.ones((3 if x.shape[0] == 8 else 4, 2)),  # other sizes
        lambda x: x.reshape(4, -1),  # whether 4 divides is not known
    ],
)
def test_programs_whose_dependent_sizes_are_not_known(function):
    def jaxpr_at(sizes):
        return jax.make_jaxpr(function)(jax.ShapeDtypeStruct((sizes["B"], 6), "float32"))

    jaxpr_at({"B": 8})
    assert dependent_sizes(jaxpr_at, {"B": 8}) is None


def test_a_loaded_plan_holds_at_its_hints_alone(tmp_path):
    plan = named(attention)
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert not loaded._traced.symbols.has_fixed_constants
