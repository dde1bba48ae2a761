"""The plan's layouts, handed to the user's own `jax.jit`."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa


def step(params, x, scale):
    moved = jax.tree.map(lambda w: w - 0.1 * scale, params)
    return moved, {"y": x @ moved["w"], "norm": (x * x).sum()}


def planned(rows=16):
    params = {"w": np.ones((8, 12), "float32"), "b": np.ones(12, "float32")}
    x = np.arange(rows * 8, dtype="float32").reshape(rows, 8)
    args = params, x, np.float32(2)
    plan = sa.plan(
        step, *args, mesh=sa.Mesh({"X": 2, "Y": 4}), donate_argnums=0,
        in_shardings=({"w": P("X", "Y"), "b": P("Y")}, P("X"), None),
    )  # fmt: skip
    return plan, args


def test_jit_takes_them_and_computes_the_same():
    plan, args = planned()
    given = plan.jit_kwargs()
    assert given["donate_argnums"] == (0,)
    assert given["in_shardings"][0]["w"].spec == P("X", "Y")
    placed = jax.tree.map(jax.device_put, args, given["in_shardings"])
    found = jax.jit(step, **given)(*placed)
    for array, sharding in zip(
        jax.tree.leaves(found), jax.tree.leaves(given["out_shardings"]), strict=True
    ):
        assert array.sharding.is_equivalent_to(sharding, array.ndim)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_an_uneven_dimension_has_its_even_prefix():
    plan, _ = planned(rows=15)
    entering, _ = plan.named_shardings()
    assert entering[1].spec in (P(), P(None, None))


def test_a_loaded_plan_says_that_it_has_no_pytrees(tmp_path):
    plan, _ = planned()
    plan.save(tmp_path / "plan.json")
    with pytest.raises(sa.LoweringError, match="has no pytrees"):
        sa.load_plan(tmp_path / "plan.json").jit_kwargs()
