"""Windows of gathers and scatters that straddle the blocks of a sharded dimension."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError
from shardalg.spmd.host.simulate import simulate
from tests.partition.planned import checked, kinds, moves, numbers, planned

STARTS = np.array([[3, 0], [15, 9], [-1, 40]], np.int32)
"""In a block, across borders, at the end, and out of range on both sides."""
ONE = lax.GatherDimensionNumbers((2, 3), (), (0,))
PUT = lax.ScatterDimensionNumbers((2, 3), (), (0,))


def check(fn, arguments, specs, **more):
    plan = checked(fn, arguments, specs, **more)
    report = plan.verify()
    assert report.ok, report.refuted
    for result, want in zip(
        jax.tree.leaves(plan.lower()(*arguments)), jax.tree.leaves(fn(*arguments)), strict=True
    ):
        np.testing.assert_allclose(result, want, rtol=1e-6)
    return plan


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [17])
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_gathered_windows_are_summed_from_what_the_blocks_have(rows, mode):
    starts = STARTS if mode != "promise_in_bounds" else np.clip(STARTS, 0, 13)

    def take(x, i):
        return lax.gather(x, i[..., None], ONE, (2, 4), mode=mode)

    plan = check(take, (numbers(rows, 4), starts[:, 1:]), (P("Y"), P()))
    assert moves(plan) == [("all_reduce", "Y")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [lax.scatter_add, lax.scatter_mul, lax.scatter_max])
@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_scattered_windows_are_written_where_they_lie(function, mode):
    def put(x, i, u):
        return function(x, i[..., None], u, PUT, mode=mode)

    arguments = numbers(17, 4) + 5, STARTS, numbers(3, 2, 3, 4, seed=1)
    assert moves(check(put, arguments, (P("Y"), P(), P()), out_shardings=P("Y"))) == []
    partial = (P("Y"), P("X"), P("X"))
    plan = check(put, arguments, partial, out_shardings=P("Y"))
    assert {row["mesh_axes"] for row in plan.collectives_table} <= {"X"}


def cache(x, new, starts):
    """Every sequence of a batch writes at its own place, and reads from there."""
    write = jax.vmap(lambda x, new, start: lax.dynamic_update_slice(x, new, (start, 0)))
    read = jax.vmap(lambda x, start: lax.dynamic_slice(x, (start, 0), new.shape[1:]))
    x = write(x, new, starts)
    return x, read(x, starts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [1, 3])
def test_caches_with_a_place_for_every_sequence(size):
    arguments = numbers(4, 17, 3), numbers(4, size, 3, seed=1), np.array([3, 15, -1, 40], np.int32)
    specs = (P("X", "Y"), P("X"), P("X"))
    plan = check(cache, arguments, specs, out_shardings=(P("X", "Y"), P("X")))
    assert moves(plan) == [("all_reduce", "Y")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", ["Y", ("Y", "X")], ids=str)
def test_slices_are_set_and_added_to_without_moving(axes):
    def fn(x, u):
        x = jnp.asarray(x)
        return x.at[2:5].set(u), x.at[7:10].add(u), x.at[4].set(u[0])

    spec = P(axes)
    plan = check(
        fn, (numbers(17, 4), numbers(3, 4, seed=1)), (spec, P()), out_shardings=(spec,) * 3
    )
    assert moves(plan) == []
    assert "Dilate" in kinds(plan)


def test_windows_in_two_dimensions_that_are_cut():
    both = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))

    def put(x, i, u):
        return lax.scatter_add(x, i, u, both, mode="clip")

    arguments = numbers(17, 9), np.array([[3, 2], [20, 7], [7, -4]], np.int32), numbers(3, 4, 2)
    plan = check(put, arguments, (P("Y", "X"), P(), P()), out_shardings=P("Y", "X"))
    assert moves(plan) == []


def test_gradients_of_windows():
    def loss(x, i):
        return (lax.gather(x, i[..., None], ONE, (3, 4), mode="fill", fill_value=0) ** 2).sum()

    check(jax.grad(loss), (numbers(17, 4), STARTS), (P("Y"), P("X")), out_shardings=P("Y"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("starts", [[[1, 2], [-1, 0], [6, 5], [16, 1], [15, 4]]])
@pytest.mark.parametrize("specs", [(P("Y"), P()), (P(None, "X"), P("X")), (P("Y", "X"), P())])
def test_a_start_that_misses_along_a_whole_dimension_is_filled(starts, specs):
    """Windows of two dimensions, of which one is cut: the start of the other one drops a read."""
    numbering = lax.GatherDimensionNumbers((1, 2), (), (0, 1))

    def take(x, i, fill):
        return lax.gather(x, i, numbering, (2, 3), mode="fill", fill_value=fill)

    arguments = numbers(17, 6), np.array(starts, np.int32)
    check(lambda x, i: take(x, i, None), arguments, specs)
    check(lambda x, i: take(x, i, 5), arguments, specs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fill", [1 + 2j, np.complex64(-1j), complex("nan"), 3])
def test_a_read_that_misses_gives_a_complex_number(fill, tmp_path):
    x = numbers(17, 4).astype(np.complex64) * (1 - 1j)
    starts = np.array([1, 20, -18, 16], np.int32)

    def take(x, i):
        return jnp.asarray(x).at[i].get(mode="fill", fill_value=fill)

    plan = planned(take, (x, starts), (P("Y"), P("X")))
    assert plan.verify().ok
    want = take(x, starts)
    (found,) = simulate(plan.program, plan.graph, x, starts)
    for made in (found, plan.lower()(x, starts)):
        np.testing.assert_array_equal(made, want)
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert loaded.text() == plan.text()
    np.testing.assert_array_equal(loaded.lower(fn=take)(x, starts), want)
    other = lambda x, i: jnp.asarray(x).at[i].get(mode="fill", fill_value=7 - 7j)  # noqa: E731
    with pytest.raises(LoweringError, match="another function"):
        loaded.lower(fn=other)
