"""Arguments and sites that name another mesh over the same devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import StrategyError

FIRST = sa.Mesh({"x": 2, "y": 4})
SECOND = sa.Mesh({"a": 4, "b": 2})
SHAPES = ((8, 16), (16, 32), (32, 8))


def halves(x, w, v):
    """The first half on mesh (x, y), the second on (a, b)."""
    hidden = sa.annotate(jnp.tanh(x @ w), "hidden")
    turned = sa.annotate(hidden, "turned")
    return turned @ v


def given(entry, shape):
    return sa.Sharding.from_spec(entry, SECOND, shape)


def as_jax(entry, _):
    return NamedSharding(SECOND.to_jax(jax.devices()[:8]), entry)


@pytest.mark.parametrize("stated", [given, as_jax])
@pytest.mark.parametrize("policy", ["gspmd", "shardy"])
def test_two_halves_on_two_meshes_are_planned_proved_and_run(policy, stated):
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    strategy = sa.Strategy(
        FIRST,
        (P("x", None), P(None, "y"), stated(P("b", None), SHAPES[2])),
        sites={"hidden": P("x", "y"), "turned": stated(P("a", "b"), (8, 32))},
    )
    plan = sa.plan(halves, *types, strategy=strategy, options=sa.Options(policy=policy))
    shardings = {row.value: row.sharding for row in plan.shardings().itertuples()}
    assert shardings["hidden"] == "[x, y]"
    assert shardings["turned"] == "[(x, y:(1)2), y:(2)2]"
    assert shardings["v"] == "[y:(2)2, None]"
    # what follows the second half is completed on its mesh
    assert plan.sharded.results[0].canonical_dims[0] == SECOND.digits("a")
    assert "all_to_all" in plan.collectives()["kind"].tolist()
    assert plan.verify().ok
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    want = np.tanh(arrays[0] @ arrays[1]) @ arrays[2]
    np.testing.assert_allclose(np.asarray(plan.lower()(*arrays)), want, rtol=2e-4, atol=2e-5)


def placed(mesh, entry, plan_mesh):
    x = jax.ShapeDtypeStruct((12, 12), jnp.float32)
    spec = sa.Sharding.from_spec(entry, mesh, (12, 12))
    plan = sa.plan(lambda x: x + 1, x, mesh=plan_mesh, in_shardings=(spec,))
    return plan.sharded.shardings[plan.graph.arguments[0]].text()


def test_another_order_of_the_devices_is_told_in_digits():
    turned = sa.Mesh({"a": 2, "b": 2}, device_ids=(0, 2, 1, 3))
    assert placed(turned, P("a", "b"), sa.Mesh({"x": 2, "y": 2})) == "[y, x]"


@pytest.mark.parametrize(("mesh", "message"), [
    (sa.Mesh({"a": 3, "b": 2}), "not made of axes and sub-axes"),
    (sa.Mesh({"a": 2, "b": 3}, device_ids=(0, 1, 3, 2, 4, 5)), "no axes of"),
    (sa.Mesh({"a": 2}), "on a mesh over these devices"),
])  # fmt: skip
def test_what_no_axes_describe_is_refused(mesh, message):
    with pytest.raises(StrategyError, match=message):
        placed(mesh, P("a"), sa.Mesh({"x": 2, "y": 3}))
