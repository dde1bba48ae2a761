"""Masks are placed once, at the producer; filled padding is not masked again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.planner.partition.passes import padding_values as fills
from shardalg.spmd import instructions as p
from tests.partition.planned import check_equal, checked, instructions, numbers, planned

MESH = sa.Mesh({"X": 2, "Y": 2})
BOTH = (0, 1)
OFF = sa.Options(switches=sa.Switches(join_formatting=False))


def split(x, *spec):
    """Return x sharded by axes X = 0 and Y = 1, -1 for none."""
    return sa.mesh_split(jnp.asarray(x), MESH, spec)


def from_the_border(x, w):
    """Rows of w are padded with zeros where they come in whole."""
    return split(x, -1, BOTH) @ split(w, BOTH, -1)


def through_pointwise(x, w):
    x = split(x, -1, BOTH)
    return jax.nn.relu(x * 2 + jnp.tanh(x)).T.sum(0) + (x * 0.5 * (1 + lax.erf(x))).sum(1)


def not_through(x, w):
    """But that a cosine of 0 is the 1 of a product."""
    x = split(x, -1, BOTH)
    return jnp.exp(x).sum(1) + (x + 1).sum(1) + jnp.cos(x).prod(1)


def kept_in_two_forms(x, w):
    """One operator reads the whole product, and another one sums it."""
    y = split(split(x, -1, -1) @ w, -1, BOTH)
    return (y @ split(w, BOTH, -1)).sum(), y * 3


def of_one_value(x, w):
    y = split(split(x, -1, -1) @ w, -1, BOTH)
    return (-y).sum(1) + (y * 2).sum(1)


def extrema(x, w):
    """Return extrema; the minimum of the lowest number and 5 is the lowest number."""
    y = split(x, -1, BOTH) + 1
    return y.max(1) + jnp.minimum(y, 5).max(1) + y.sum(1)


def softmax(x, w):
    return jax.nn.softmax(split(x, -1, BOTH), -1) @ split(w, BOTH, -1)


def of_booleans(x, w):
    hot = split(x, -1, BOTH) > 0
    return jnp.any(hot, 1) & jnp.all(~hot, 1), hot.astype("int32").sum(1)


# name: (function, masks that stay, masks without the switch)
CASES = {
    "from the border": (from_the_border, 0, 2),
    "through pointwise operators": (through_pointwise, 0, 2),
    "not through": (not_through, 2, 3),
    "kept in two forms": (kept_in_two_forms, 1, 2),
    "of one value": (of_one_value, 1, 2),
    "extrema": (extrema, 2, 3),
    "softmax": (softmax, 3, 4),
    "booleans": (of_booleans, 1, 3),
}


def masks(plan):
    return sum(type(step.attributes) is p.Mask for step in instructions(plan.program.block))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_masks_that_stay_are_enough(name):
    fn, stay, without = CASES[name]
    arguments = numbers(6, 7), numbers(7, 7, seed=1)
    found = {}
    for options in (sa.Options(), OFF):
        plan = checked(fn, arguments, (P(), P()), mesh=MESH, options=options)
        assert plan.verify().ok, plan.verify().refuted
        found[options] = masks(plan), plan.cost("tpu_v3").step_time_s
    (here, seconds), (before, seconds_before) = found.values()
    assert (here, before) == (stay, without)
    assert seconds <= seconds_before


def test_a_mask_that_is_moved_where_it_must_not_be_is_refuted(monkeypatch):
    """The mutation assumes that every operator maps 0 to 0."""
    monkeypatch.setattr(fills, "number_along", lambda *_: 0.0)
    arguments = numbers(6, 7), numbers(7, 7, seed=1)
    fn, stay, _ = CASES["not through"]
    plan = planned(fn, arguments, (P(), P()), mesh=MESH)
    assert masks(plan) < stay
    assert not plan.verify().ok
    with pytest.raises(AssertionError):
        check_equal(plan, fn, arguments)


UNARY = (
    jnp.tanh, jnp.exp, jnp.abs, jax.nn.relu, jax.nn.gelu, jnp.negative, jnp.square,
    lambda x: x + 1, lambda x: x * 0, lambda x: jnp.where(x > 0, x, 0), lambda x: x.T.T,
)  # fmt: skip
JOINS = (jnp.sum, jnp.max, jnp.min, jnp.prod, lambda x, axis: jnp.cumsum(x, axis)[:, 0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(5))
def test_random_pointwise_operators_between_combines(seed):
    rng = np.random.default_rng(seed)

    def fn(x, w):
        value, out = split(x, 1, 0), []
        for pick, join, other in rng_steps:
            value = UNARY[pick](value)
            if other:
                value = split(value @ split(w, 0, -1), 1, 0)
            out.append(JOINS[join](value, axis=1))
        return out

    rng_steps = [tuple(rng.integers((len(UNARY), len(JOINS), 2))) for _ in range(4)]
    arguments = numbers(5, 7) / 8, numbers(7, 7, seed=1) / 8
    plan = checked(fn, arguments, (P(), P()), mesh=MESH)
    assert plan.verify().ok, plan.verify().refuted
    assert masks(plan) <= masks(planned(fn, arguments, (P(), P()), mesh=MESH, options=OFF))
