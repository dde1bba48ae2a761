"""The best place of a sharded dimension: every block sends its best, and the best of them wins."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.instructions import Mask
from tests.partition.planned import checked, kinds, moves, numbers

FUNCTIONS = (lax.argmax, lax.argmin)
NAN, INF = np.nan, np.inf


def check(function, x, spec):
    def fn(x):
        return function(x, 1, np.int32)

    plan = checked(fn, (x,), (spec,))
    assert plan.verify().ok, plan.verify().refuted
    np.testing.assert_array_equal(plan.lower()(x), fn(x))
    return plan


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_a_block_sends_a_value_and_its_place(function, dtype):
    """Small numbers tie often: the lowest place wins."""
    x = (numbers(4, 25) + 4).astype(dtype)
    plan = check(function, x, P("X", "Y"))
    assert moves(plan) == [("all_gather", "Y")]
    (row,) = plan.collectives_table
    assert row["operand_bytes"] == 2 * (x.itemsize + 4)
    assert {"Mask", "ValueAt", "ArgReduce"} == kinds(plan)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_no_number_beats(function):
    """A NaN wins over all numbers, the first NaN first; infinities tie with the padding's value."""
    rows = [
        [0, 1, NAN, 5, NAN, 9, -INF, 2, 3],
        [-INF] * 9,
        [INF] * 9,
        [-INF, INF, 0, 0, 0, 0, 0, INF, -INF],
        [1, 1, 1, 1, 1, 1, 1, 1, NAN],
    ]
    check(function, np.array(rows, np.float32), P(None, "Y"))
    check(function, np.array(rows, np.float32)[:, :2], P(None, ("Y", "X")))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize(("best", "extreme"), [(lax.argmax, jnp.max), (lax.argmin, jnp.min)])
def test_a_place_and_its_value_share_the_mask(best, extreme, dtype):
    """Both names of a mask fill with one number, whichever is first (Viterbi's last row)."""

    def fn(x):
        y = x * 2
        return best(y, 0, np.int32), extreme(y)

    x = numbers(7).astype(dtype)
    for function in (fn, lambda x: fn(x)[::-1]):
        plan = checked(function, (x,), (P("Y"),))
        assert plan.verify().ok, plan.verify().refuted
        assert [type(i.attributes) for i in plan.program.block.instructions].count(Mask) == 1


def test_another_dimension_is_padded_between_a_place_and_its_value():
    """Zeros fill where the padding of both dimensions meets, so one mask is not left out."""

    def fn(x):
        y = jnp.exp(x)
        return lax.argmin(y, 0, np.int32), jnp.min(y, 0)

    out = (P(None), P(("Y", "X")))
    mesh = sa.Mesh({"X": 2, "Y": 3})
    plan = checked(fn, (numbers(5, 7),), (P("X"),), mesh=mesh, out_shardings=out)
    assert plan.verify().ok, plan.verify().refuted


def test_axes_in_any_order():
    for spec in (P(None, ("X", "Y")), P(None, ("Y", "X"))):
        check(lax.argmax, numbers(2, 21), spec)


def test_accuracy_of_sharded_logits():
    def accuracy(logits, labels):
        return (jnp.argmax(logits, -1) == labels).mean()

    labels = np.array([3, 0, 8, 1, 1, 7], np.int32)
    plan = checked(accuracy, (numbers(6, 9), labels), (P("X", "Y"), P("X")))
    assert plan.verify().ok
    moved = sum(row["wire_bytes"] for row in plan.collectives_table)
    assert moved < 6 * 9 * 4


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("count", [2, 8])
def test_nearly_the_best_are_found_along_any_dimension(axis, count):
    """All of a dimension is searched at once, also where as many are wanted as there are."""
    x = np.moveaxis(np.random.default_rng(0).permutation(8 * 12).reshape(8, 4, 3), 0, axis)

    def fn(x):
        return lax.approx_max_k(x, count, reduction_dimension=axis)

    x = x.astype(np.float32)
    for spec in (P("X"), P(None, "X"), P(None, None, "X")):
        plan = checked(fn, (x,), (spec,))
        assert plan.verify().ok
        for found, want in zip(plan.lower()(x), fn(x), strict=True):
            np.testing.assert_array_equal(found, want)
