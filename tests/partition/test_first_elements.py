"""Gathers that read all, in order, or element 0 of a sharded dimension send no whole operand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.partition.planned import checked, moves, numbers

INDICES = np.array([[3], [0], [7]], np.int32)


def picked(x, i, *, sizes=(1, 1), offset=(), collapsed=(0, 1), mode="clip"):
    dims = lax.GatherDimensionNumbers(offset, collapsed, (0,))
    return lax.gather(jnp.asarray(x), i, dims, sizes, mode=mode)


CASES = {
    "numbers": (picked, (8, 16)),
    "filled": (lambda x, i: picked(x, i, mode="fill"), (8, 16)),
    "uneven": (picked, (8, 7)),
    "rows": (lambda x, i: picked(x, i, sizes=(1, 1, 5), offset=(1,)), (8, 16, 5)),
    "windows": (lambda x, i: picked(x, i, sizes=(2, 1), offset=(1,), collapsed=(1,)), (8, 16)),
    "two dimensions": (lambda x, i: picked(x, i, sizes=(1, 1, 1), collapsed=(0, 1, 2)), (8, 16, 4)),
    "more results than rows": (lambda x, i: picked(x, jnp.tile(i, (9, 1))), (8, 16)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grad", [False, True], ids=["value", "gradient"])
def test_element_0_of_a_dimension_is_read_by_its_holder(name, grad):
    fn, shape = CASES[name]
    if grad:
        fn = jax.grad(lambda x, i: jnp.sum(CASES[name][0](x, i) ** 2))
    plan = checked(fn, (numbers(*shape), INDICES), (P(None, "Y"), P()))
    assert plan.verify().ok
    if not grad:
        most = 2 * 4 * min(len(INDICES) * 9 * 5, np.prod(shape))
        whole = 4 * int(np.prod(shape)) * 3 // 4
        assert plan.collectives()["wire_bytes"].sum() <= min(most, whole)


def test_two_numbers_of_a_large_array_send_their_own_bytes():
    x = jax.ShapeDtypeStruct((4096, 2048), "float32")
    i = jax.ShapeDtypeStruct((2, 1), "int32")
    plan = sa.plan(picked, x, i, mesh=sa.Mesh({"X": 4}), in_shardings=(P(None, "X"), P()))
    assert plan.collectives()["wire_bytes"].sum() == 12


COUNTED = {
    "reshaped": lambda n: jnp.arange(n).reshape(n, 1).reshape(n),
    "squeezed": lambda n: jnp.arange(n).reshape(1, n)[0],
    "transposed": lambda n: jnp.arange(n).reshape(1, n).T.reshape(n),
    "iota": lambda n: lax.iota("int32", n).reshape(1, n).reshape(n),
}


@pytest.mark.parametrize("name", COUNTED)
def test_an_iota_that_is_reshaped_pairs_as_it_does_before(name):
    def fn(x, i):
        return jnp.asarray(x)[COUNTED[name](8), i]

    labels = np.array([3, 0, 15, 9, 1, -2, -16, 7], np.int32)
    plan = checked(fn, (numbers(8, 16), labels), (P("Y"), P("Y")), out_shardings=P("Y"))
    assert moves(plan) == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", [(8,), (4, 2), (2, 4), (8, 1)])
@pytest.mark.parametrize("dim", [0, 1])
def test_all_places_in_order_are_a_reshape(shape, dim):
    def fn(x):
        at = jnp.arange(8).reshape(shape)
        return jnp.asarray(x)[at] if dim == 0 else jnp.asarray(x)[:, at]

    x = numbers(8, 3) if dim == 0 else numbers(3, 8)
    plan = checked(fn, (x,), (P(*(None,) * dim, "Y"),))
    assert "gather" not in {node.primitive for node in plan.graph.nodes}
    assert sum(plan.collectives()["wire_bytes"]) <= 96


def test_other_orders_and_narrow_integers_stay_gathers():
    for at in (
        lambda: jnp.arange(8).reshape(2, 4).T,
        lambda: jnp.arange(8)[::-1],
        lambda: jnp.arange(9)[:8] + 1,
    ):
        plan = checked(lambda x, at=at: jnp.asarray(x)[at()], (numbers(9, 3),), (P("Y"),))
        assert "gather" in {node.primitive for node in plan.graph.nodes}
