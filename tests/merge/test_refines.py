"""Refinement against its definition, element by element: even, uneven, empty blocks, orders."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.merge.compatible import refines
from shardalg.testing import small_containments, xla_contains

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


def compared(pairs):
    """Return how often our rule and XLA's agree with the definition, element by element."""
    counts = Counter()
    for fine, coarse in pairs:
        truth, xla = brute.contained(fine, coarse), xla_contains(fine, coarse)
        assert bool(refines(fine, coarse)) == truth, (fine, coarse)
        counts["pairs"] += 1
        counts["XLA is unsound"] += xla and not truth
        counts["XLA is incomplete"] += truth and not xla
    return counts


def test_a_sample_of_all_small_containments(record_property):
    sampled = itertools.islice(small_containments(6, range(1, 13)), 0, None, 97)
    counts = compared(itertools.chain(small_containments(4, range(1, 13)), sampled))
    record_property("shown", str(dict(counts)))
    assert min(counts["XLA is unsound"], counts["XLA is incomplete"]) > 0


@pytest.mark.slow
def test_all_small_containments(record_property):
    """4 and 6 devices, the first one's in every order, sizes 1 to 12."""
    counts = compared(pair for n in (4, 6) for pair in small_containments(n, range(1, 13)))
    record_property("shown", str(dict(counts)))
    assert counts == {"pairs": 78_912, "XLA is unsound": 36, "XLA is incomplete": 292}


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
