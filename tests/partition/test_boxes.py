"""Boxes at run-time starts in sharded dimensions: a block uses its own part, unsent."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.partition.planned import checked, kinds, moves, numbers

STARTS = (0, 3, 6, 11, 16, 40, -1)
"""In one block, across a border, across three, at the end, and out of range on both sides."""


def write(x, new, start):
    return lax.dynamic_update_slice(x, new, (start, start * 0))


def read(size):
    return lambda x, start: lax.dynamic_slice(x, (start, start * 0), (size, x.shape[1]))


def check(plan, fn, arguments):
    """Proved, and lowered once for every start: the same program."""
    report = plan.verify()
    assert report.ok, report.refuted
    lowered = plan.lower()
    for start in STARTS:
        given = (*arguments[:-1], np.asarray(start).astype(arguments[-1].dtype))
        np.testing.assert_array_equal(lowered(*given), fn(*given))


@pytest.mark.parametrize("size", [1, 7], ids=["1", "over three blocks"])
def test_a_cache_is_written_where_it_lies(size):
    """One sharded sequence dimension, 17 places in blocks of 5: no byte is sent."""
    arguments = numbers(17, 4) + 9, numbers(size, 4, seed=1), np.int32(6)
    plan = checked(write, arguments, (P("Y"), P(), P()), out_shardings=P("Y"))
    assert moves(plan) == []
    assert kinds(plan) == {"Insert"}
    check(plan, write, arguments)


@pytest.mark.parametrize("size", [1, 7])
def test_a_box_is_summed_from_what_the_blocks_have(size):
    """Fewer bytes than a gather of the whole dimension."""
    arguments = numbers(17, 4) + 9, np.int32(6)
    plan = checked(read(size), arguments, (P("Y"), P()))
    assert moves(plan) == [("all_reduce", "Y")]
    check(plan, read(size), arguments)


def test_a_box_of_almost_everything_is_cut_from_what_is_gathered():
    plan = checked(read(16), (numbers(17, 4), np.int32(1)), (P("Y"), P()))
    assert moves(plan) == [("all_gather", "Y")]


def test_a_start_out_of_range_is_clamped_for_all_devices_alike():
    """openxla/xla issue 49122: XLA clamps it in the first block, and reads [5, 6, 7, 5, 6, 7]."""
    x = np.arange(8, dtype=np.float32)
    plan = checked(lambda x, i: lax.dynamic_slice(x, (i,), (6,)), (x, np.int32(5)), (P("Y"), P()))
    np.testing.assert_array_equal(plan.lower()(x, np.int32(5)), [2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("index", [np.uint8, np.int8], ids=lambda t: t.__name__)
def test_starts_of_small_types(index):
    """The distance from a block to a start may exceed the type's numbers.

    Where the largest start is none, XLA truncates it on one device already (jaxlib 0.10.2).
    """
    arguments = numbers(120, 2), numbers(20, 2, seed=1), index(90)
    specs = (P(("X", "Y")), P(), P())
    check(checked(write, arguments, specs, out_shardings=specs[0]), write, arguments)


def test_two_dimensions_that_are_cut():
    def shift(x, new, start):
        x = lax.dynamic_update_slice(x, new, (start, start))
        return lax.dynamic_slice(x, (start - 2, start + 1), (6, 3))

    arguments = numbers(17, 9), numbers(7, 4, seed=1), np.int32(3)
    plan = checked(shift, arguments, (P("Y", "X"), P(), P()), out_shardings=P("X"))
    assert {"Insert", "Extract"} <= kinds(plan)
    check(plan, shift, arguments)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.bool_, jnp.bfloat16])
def test_items_of_every_kind(dtype):
    arguments = numbers(9, 4).astype(dtype), numbers(2, 4, seed=1).astype(dtype), np.int32(4)
    specs = (P("Y"), P(), P())
    check(checked(write, arguments, specs, out_shardings=P("Y")), write, arguments)
    given = arguments[0], arguments[2]
    check(checked(read(2), given, (P("Y"), P())), read(2), given)
