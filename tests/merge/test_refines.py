"""Refinement against its definition, element by element: even, uneven, empty blocks, orders."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.merge.compatible import refines

from . import brute


@pytest.mark.parametrize("axes", [{"x": 2, "y": 2}, {"x": 3, "y": 2}], ids=repr)
@pytest.mark.parametrize("size", range(14))
def test_one_dimension(axes, size):
    shardings = brute.digit_shardings(Mesh(axes), (size,))
    for fine, coarse in itertools.product(shardings, repeat=2):
        verdict = refines(fine, coarse)
        assert bool(verdict) == brute.contained(fine, coarse), (fine, coarse)
        if not verdict:
            brute.check_witness(verdict)


@given(st.integers(0, 7), st.integers(0, 7), st.data())
def test_two_dimensions_and_orders(rows, columns, data):
    order = data.draw(st.none() | st.permutations(range(4)))
    shape = (rows, columns)
    fine = data.draw(st.sampled_from(brute.digit_shardings(Mesh({"x": 2, "y": 2}), shape)))
    coarse = data.draw(st.sampled_from(brute.digit_shardings(Mesh({"a": 2, "b": 2}, order), shape)))
    assert bool(refines(fine, coarse)) == brute.contained(fine, coarse)


def test_uneven_blocks_do_not_nest():
    mesh = Mesh({"x": 2, "y": 2})
    both, x = (Sharding.from_axes([e], mesh, (10,)) for e in (("x", "y"), "x"))
    verdict = refines(both, x)
    assert not verdict
    assert "leaves the device's block of the second on dimension 0" in verdict.reason
    assert "shard_offset(1, 0) = 3, up to 6" in verdict.reason
    assert "nested" in refines(both.with_dims(x.dims), x).reason


def test_partial_sums_refine_nothing():
    mesh = Mesh({"x": 2, "y": 2})
    partial = Sharding.from_axes([None], mesh, (8,), unreduced=["x"])
    verdict = refines(partial, Sharding.from_axes([None], mesh, (8,)))
    assert verdict.failure.kind == "class"
