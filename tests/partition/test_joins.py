"""Partial results that are several values: the best k of a sharded dimension, monoids of users."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.partition.planned import checked, kinds, moves, numbers

NAN, INF = np.float32(np.nan), np.float32(np.inf)
BEHIND = np.copysign(NAN, np.float32(-1))


def check(fn, arguments, specs, **more):
    """Check by simulation, proof and lowering."""
    plan = checked(fn, arguments, specs, **more)
    report = plan.verify()
    assert report.ok, report.refuted
    ours = jax.tree.leaves(plan.lower()(*arguments))
    for result, want in zip(ours, jax.tree.leaves(fn(*arguments)), strict=True):
        np.testing.assert_array_equal(result, want)
    return plan


def best(k):
    return lambda x: lax.top_k(x, k)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
def test_a_block_sends_its_best_values_and_their_places(dtype):
    """Small numbers tie often: the lower place comes first. The last block is not full."""
    x = (numbers(4, 37) + 4).astype(dtype)
    plan = check(best(2), (x,), (P("X", "Y"),), out_shardings=(P("X"), P("X")))
    assert moves(plan) == [("all_gather", "Y")]
    (row,) = plan.collectives_table
    assert row["operand_bytes"] == 2 * 2 * (x.itemsize + 4)
    assert kinds(plan) == {"Mask", "Top"}


def test_numbers_are_ranked_in_total_order():
    """A NaN before all numbers, one with a sign behind them, and behind that is only padding."""
    row = [1, NAN, -INF, BEHIND, INF, -0.0, 0.0, NAN, 5, BEHIND, -INF]
    x = np.array([row, [BEHIND] * 11, [-INF] * 11, row[::-1]], np.float32)
    for k in (1, 3):
        check(lambda x, k=k: lax.top_k(x, k)[1], (x,), (P(None, "Y"),))


@pytest.mark.parametrize("spec", [P(("X", "Y")), P(("Y", "X"))], ids=str)
def test_axes_in_any_order(spec):
    check(lambda x: lax.top_k(x, 2, axis=0), (numbers(41, 3),), (spec,))


def test_more_than_a_block_holds_is_looked_for_elsewhere():
    """Nothing is gained by sending all of a block: the split moves to the other dimension."""
    plan = check(best(9), (numbers(8, 16),), (P(None, "Y"),), out_shardings=(P("Y"), P("Y")))
    assert moves(plan) == [("all_to_all", "Y")]


def complex_product(a, b):
    return a[0] * b[1] + a[1] * b[0], a[1] * b[1]


STARTS = (np.float32(0), np.float32(1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spec", [P("X", "Y"), P("Y", "X"), P(None, ("X", "Y"))], ids=str)
def test_partial_results_are_joined_by_the_users_function(spec):
    def fn(x, y):
        return lax.reduce((x, y), STARTS, complex_product, (1,))

    plan = check(fn, (numbers(5, 13), numbers(5, 13, seed=1)), (spec, spec))
    assert {"MaskAt", "Fold"} <= kinds(plan)
    assert all(row["kind"] == "all_gather" for row in plan.collectives_table)


def test_a_function_that_does_not_commute():
    """`(a, b) -> b` where b is no zero: the members stay in order."""

    def last(a, b):
        return jax.numpy.where(b == 0, a, b)

    check(lambda x: lax.reduce(x, np.float32(0), last, (0,)), (numbers(13, 3),), (P(("Y", "X")),))


def test_windows_of_the_users_function():
    def fn(x, y):
        return lax.reduce_window((x, y), STARTS, complex_product, (3,), (2,), "SAME")

    plan = check(
        fn, (numbers(13), numbers(13, seed=1)), (P("Y"), P("Y")), out_shardings=(P("Y"), P("Y"))
    )
    assert {kind for kind, _ in moves(plan)} == {"collective_permute"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fn", "dtype"),
    [
        (lambda x: jax.numpy.sort(x, 1), np.float32),
        (lambda x: jax.numpy.argsort(x, 1), np.float32),
        (lambda x: lax.sort((x, x + 1, -x), dimension=1, num_keys=2), np.int32),
        (lambda x: jax.numpy.abs(jax.numpy.fft.fft(x, axis=1)).round(2), np.float32),
    ],
    ids=["sort", "argsort", "two keys", "fft"],
)
@pytest.mark.parametrize("shape", [(7, 13)], ids=str)
def test_the_split_of_a_whole_dimension_moves_to_another_one_and_back(fn, dtype, shape):
    x = numbers(*shape, dtype=dtype)
    out = jax.tree.map(lambda _: P(None, "Y"), jax.eval_shape(fn, x))
    plan = checked(fn, (x,), (P(None, "Y"),), out_shardings=out)
    assert plan.verify().ok
    assert {kind for kind, _ in moves(plan)} == {"all_to_all"}


def test_a_median_gathers_no_row_to_sort_it():
    plan = checked(lambda x: jax.numpy.median(x, 1), (numbers(8, 16),), (P(None, "Y"),))
    assert ("all_to_all", "Y") in moves(plan)
    assert plan.verify().ok


def test_a_dimension_without_another_one_is_gathered():
    plan = checked(jax.numpy.sort, (numbers(16),), (P("Y"),))
    assert moves(plan) == [("all_gather", "Y")]


def test_a_condition_that_broadcasts_does_not_gather():
    """JAX reshards the other operands of `where` on a mesh of automatic axes: to nothing."""

    def fn(x, mask):
        return jax.numpy.where(mask[:, None], x, 0)

    mask = numbers(6) > 0
    plan = checked(fn, (numbers(6, 8), mask), (P(None, "Y"), P()), mesh=sa.Mesh({"Y": 4}))
    assert moves(plan) == []
