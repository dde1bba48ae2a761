"""A `shard_map` over a mesh of Explicit axes is planned, proved and run as `jax.jit` runs it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa

MESH = jax.make_mesh((2, 4), ("dp", "sp"), axis_types=(AxisType.Explicit,) * 2)
MIXED = jax.make_mesh((2, 4), ("dp", "sp"), axis_types=(AxisType.Explicit, AxisType.Auto))


def on(spec, shape=(8, 16), mesh=MESH):
    numbers = np.random.default_rng(3).normal(size=shape).astype("float32")
    return jax.device_put(jnp.asarray(numbers), NamedSharding(mesh, spec))


def region(fn, ins, outs, mesh=MESH, **kwargs):
    return jax.shard_map(fn, mesh=mesh, in_specs=ins, out_specs=outs, **kwargs)


ROWS = region(lambda x: lax.psum(x, "sp"), (P("dp", "sp"),), P("dp"))
PRODUCT = region(lambda a, b: lax.psum(a @ b, "sp"), (P("dp", "sp"), P("sp", None)), P("dp", None))
GATHERED = region(
    lambda x: lax.all_gather(x, "sp", axis=1, tiled=True), P("dp", "sp"), P("dp"), check_vma=False
)
SWAPPED = region(
    lambda x: lax.ppermute(x, "dp", [(0, 1), (1, 0)]), P("dp"), P("dp"), axis_names={"dp"}
)
READ = jax.shard_map(lambda x: 2 * x, mesh=MESH, out_specs=P("dp", "sp"))  # in_specs of the types
BOTH = P("dp", "sp")


def scanned(x):
    return lax.scan(lambda c, _: (c * 1.5 + 0 * ROWS(c).sum(), None), x, None, length=3)[0]


PROGRAMS = {
    "alone": (ROWS, [on(BOTH)]),
    "between operators": (lambda x: jnp.tanh(ROWS(2 * x)) + 1, [on(BOTH)]),
    "gradient": (jax.grad(lambda x: (ROWS(jnp.sin(x)) ** 2).sum()), [on(BOTH)]),
    "gradient of remat": (jax.grad(jax.checkpoint(lambda x: (ROWS(x) ** 2).sum())), [on(BOTH)]),
    "two operands": (PRODUCT, [on(BOTH), on(P("sp", None), (16, 6))]),
    "an argument without a layout": (
        lambda x, w: ROWS(x).sum(0) @ w[:4], [on(BOTH), np.ones((16, 8), "float32")]
    ),
    "gathered": (lambda x: GATHERED(jax.sharding.reshard(x, NamedSharding(MESH, BOTH))), [on(P())]),
    "one axis": (SWAPPED, [on(P("dp"))]),
    "one axis, sharded on both": (lambda x: SWAPPED(x) + 1, [on(BOTH)]),
    "in a scan": (scanned, [on(BOTH)]),
    "in a vmap": (lambda x: jax.vmap(ROWS)(x[None]), [on(BOTH)]),
    "specs of the types": (READ, [on(BOTH)]),
    "mixed axes": (
        region(lambda x: lax.psum(x, "sp"), (BOTH,), P("dp"), MIXED), [on(P("dp"), mesh=MIXED)]
    ),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_jit_runs_is_planned_and_equal(name):
    fn, args = PROGRAMS[name]
    want = jax.jit(fn)(*args)
    plan = sa.plan(fn, *args)
    assert plan.verify().ok
    got = plan.lower()(*args)
    assert jnp.allclose(got, want, rtol=1e-5, atol=1e-5)  # also: the types of the axes are equal
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-5)


def test_the_mesh_that_is_set_is_the_region_s():
    fn = jax.shard_map(lambda x: x * (1 + lax.axis_index("dp")), out_specs=BOTH)
    x = on(BOTH)
    with jax.set_mesh(MESH):
        want, plan = jax.jit(fn)(x), sa.plan(fn, x)
    assert plan.verify().ok
    np.testing.assert_array_equal(np.asarray(plan.lower()(x)), np.asarray(want))


def test_layouts_may_come_from_in_shardings():
    shape = jax.ShapeDtypeStruct((8, 16), "float32")
    plan = sa.plan(ROWS, shape, mesh=sa.Mesh({"dp": 2, "sp": 4}), in_shardings=(BOTH,))
    assert plan.collectives()["kind"].tolist() == ["all_reduce"]


def test_another_layout_than_the_region_s_is_refused_with_both():
    with pytest.raises(sa.TraceError, match=r"test_explicit_regions.*P\('dp', 'sp'\).*jax.reshard"):
        sa.plan(lambda x: ROWS(x), on(P("dp")))
