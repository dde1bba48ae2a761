"""A comparison sees a wrong result, ours and XLA's alike, and reads XLA's collectives."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.lower.three_ways import compare, one_device


def product(x, w):
    return x @ w, x.sum()


@pytest.fixture(scope="module")
def arguments():
    rng = np.random.default_rng(0)
    return rng.normal(size=(8, 16)).astype("f4"), rng.normal(size=(16, 32)).astype("f4")


@pytest.fixture(scope="module")
def lowered(arguments):
    mesh = sa.Mesh({"X": 2, "Y": 4})
    specs = (P("X", "Y"), P("Y", None))
    return sa.plan(product, *arguments, mesh=mesh, in_shardings=specs, donate_argnums=0).lower()


def test_a_right_result_has_no_error(lowered, arguments):
    found = compare(lowered, arguments, one_device(product)(*arguments), repeats=2)
    assert found.relative_error < 1e-6
    assert found.xla_relative_error < 1e-6
    assert len(found.measurement.ours.seconds) == 2
    assert {c.kind for c in found.xla_collectives} == {"all_reduce"}
    assert not any(x.is_deleted() for x in map(jax.numpy.asarray, arguments))


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_result_is_seen_whichever_it_is(lowered, arguments, wrong):
    expected = list(one_device(product)(*arguments))
    expected[wrong] = 1.25 * expected[wrong]
    found = compare(lowered, arguments, expected, repeats=1)
    assert found.relative_error == pytest.approx(0.2, abs=1e-5)
    assert found.xla_relative_error == pytest.approx(0.2, abs=1e-5)
