"""Indices of 8 and 16 bits into dimensions that they cannot count to: nothing wraps around."""

import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate

ROWS = 300
GATHERED = lax.GatherDimensionNumbers((1,), (0,), (0,))
SCATTERED = lax.ScatterDimensionNumbers((1,), (0,), (0,))
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)


def wanted(mode, indices):
    """Return the rows at indices of many bits, by numpy."""
    rows = np.clip(indices.astype(int), 0, ROWS - 1)
    found = X[rows]
    if mode == "fill":
        found[indices.astype(int) < 0] = np.nan
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("axes", [{"X": 2}, {"X": 8}])
def test_a_gather(dtype, mode, axes):
    ends = np.iinfo(dtype)
    first, last = max(ends.min, -300), min(ends.max, 299)
    indices = np.array([0, 1, first, 2, last, 90, 44, 106]).astype(dtype)
    plan = sa.plan(
        lambda x, i: lax.gather(x, i, GATHERED, (1, 3), mode=mode),
        *(X, indices[:, None]),
        mesh=sa.Mesh(axes),
        in_shardings=(P("X"), P()),
    )
    assert plan.collectives()["kind"].tolist() == ["all_reduce"]
    want = wanted(mode, indices)
    np.testing.assert_array_equal(plan.lower()(X, indices[:, None]), want)
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, X, indices[:, None])[0], want)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_scatter(dtype):
    indices = np.array([0, 1, 2, 44, 90, 106, 106, 3]).astype(dtype)
    updates = np.ones((8, 3), np.float32)
    want = X.copy()
    np.add.at(want, indices.astype(int), updates)
    plan = sa.plan(
        lambda x, i, u: lax.scatter_add(x, i, u, SCATTERED, mode="drop"),
        *(X, indices[:, None], updates),
        mesh=sa.Mesh({"X": 2}),
        in_shardings=(P("X"), P(), P()),
    )
    np.testing.assert_array_equal(plan.lower()(X, indices[:, None], updates), want)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("axes", [{"X": 2}, {"X": 4}])
def test_places_of_the_best(dtype, axes):
    """Blocks are longer than the type counts to, and the best of all are at places that it has."""
    x = np.sin(np.arange(1800, dtype=np.float32)).reshape(3, 600)
    x[:, [100, 3, 127]] += 2 * np.eye(3, dtype=np.float32)
    plan = sa.plan(
        lambda x: lax.argmax(x, 1, np.dtype(dtype)),
        x,
        mesh=sa.Mesh(axes),
        in_shardings=P(None, "X"),
    )
    want = np.argmax(x, 1).astype(dtype)
    np.testing.assert_array_equal(plan.lower()(x), want)
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, x)[0], want)


def best_at(places, size=600):
    """Return zeros except at these places; the first of equal bests wins."""
    return np.array([dict(places).get(k, 0.0) for k in range(size)], np.float32)


WRAPPED = {
    # what is at a place that wraps around is not what the block's best is
    "looked up elsewhere": best_at({280: 9, 24: -9, 599: 1}),
    # and of equals the one whose wrapped number is lowest is first, to one device
    "of equals, of 8 bits": best_at({500: 1, 520: 1}),
    "of equals, of 7 bits and a sign": best_at({400: 1, 430: 1}),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", WRAPPED)
def test_places_of_the_best_that_wrap_around(dtype, name):
    x = WRAPPED[name]

    def fn(x):
        return lax.argmax(x, 0, np.dtype(dtype)), lax.argmin(-x, 0, np.dtype(dtype))

    plan = sa.plan(fn, x, mesh=sa.Mesh({"X": 2}), in_shardings=P("X"))
    assert plan.verify().ok
    for got, want in zip(simulate(plan.program, plan.graph, x), fn(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_bytes_of_a_text_in_a_table():
    """Embeddings by bytes, as users write them, with a table longer than 256 rows."""
    text = np.frombuffer(b"sharding", np.uint8)
    plan = sa.plan(lambda x, i: x[i], X, text, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"), P()))
    np.testing.assert_array_equal(plan.lower()(X, text), X[text])
    assert plan.verify().ok


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("spec", [P("X"), P(None, "X")])
def test_a_box(dtype, spec):
    """Starts are in the sharded dimension and in the other one."""
    x = np.arange(ROWS * 8, dtype=np.float32).reshape(ROWS, 8)
    new, start = np.zeros((2, 3), np.float32), np.array([np.iinfo(dtype).max, 4], dtype)
    first = int(start[0])

    def boxes(x, new, start):
        read = lax.dynamic_slice_p.bind(x, start[0], start[1], slice_sizes=(2, 3))
        return read, lax.dynamic_update_slice_p.bind(x, new, start[0], start[1])

    plan = sa.plan(
        boxes, x, new, start, mesh=sa.Mesh({"X": 2}), in_shardings=(spec, P(), P()),
        out_shardings=(P(), spec),
    )  # fmt: skip
    assert plan.verify().ok
    want = x.copy()
    first = min(first, ROWS - 2)
    want[first : first + 2, 4:7] = 0
    for found in (plan.lower()(x, new, start), simulate(plan.program, plan.graph, x, new, start)):
        np.testing.assert_array_equal(found[0], x[first : first + 2, 4:7])
        np.testing.assert_array_equal(found[1], want)
