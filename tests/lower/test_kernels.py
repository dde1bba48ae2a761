"""Pallas kernels: no warning inside a shard_map, and interpreted ones run on CPU devices."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardalg as sa

MESH = jax.make_mesh((2, 4), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
BOTH = P("d", "m")
X = np.random.default_rng(0).normal(size=(16, 32)).astype("float32")
W = np.random.default_rng(1).normal(size=(32, 8)).astype("float32")


def called(kernel, *args, shape=None, **kwargs):
    shape = args[0].shape if shape is None else shape
    result = jax.ShapeDtypeStruct(shape, args[0].dtype)
    return pl.pallas_call(kernel, out_shape=result, interpret=True, **kwargs)(*args)


def affine(x, o):
    o[...] = 2 * x[...] + 1


def in_blocks(x):
    block = pl.BlockSpec((2, x.shape[1]), lambda i: (i, 0))
    return called(affine, x, grid=(x.shape[0] // 2,), in_specs=[block], out_specs=block)


def with_loop(x):
    def kernel(x, o):
        start = jnp.zeros_like(x[...])
        o[...] = lax.fori_loop(0, 3, lambda _, c: 0.5 * c + x[...], start)

    return called(kernel, x)


def product(a, b):
    def kernel(a, b, o):
        @pl.when(pl.program_id(0) >= 0)
        def _():
            o[...] = jnp.dot(a[...], b[...])

    return called(kernel, a, b, shape=(a.shape[0], b.shape[1]), grid=(1,))


@jax.custom_vjp
def doubled(x):
    return called(affine, x)


doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (called(affine, g),))


def region(fn, ins=BOTH, outs=BOTH, **kwargs):
    return jax.shard_map(fn, mesh=MESH, in_specs=ins, out_specs=outs, check_vma=False, **kwargs)


INSIDE = {
    "one block": (region(doubled), (X,)),
    "a grid": (region(in_blocks), (X,)),
    "a loop": (region(with_loop), (X,)),
    "along one axis": (region(in_blocks, P("d"), P("d")), (X,)),
    "manual along one axis": (region(with_loop, P("d"), P("d"), axis_names={"d"}), (X,)),
    "summed": (
        region(lambda a, b: lax.psum(product(a, b), "m"), (BOTH, P("m")), P("d")), (X, W)
    ),
    "gradient": (jax.grad(lambda x: region(doubled)(x).sum()), (X,)),
    "in a scan": (
        lambda x: lax.scan(lambda c, _: (0.1 * region(doubled)(c), None), x, None, 3)[0], (X,)
    ),
    "a vmap": (region(lambda x: jax.vmap(doubled)(x)), (X,)),
}  # fmt: skip
OUTSIDE = {"alone": (with_loop, (X,)), "product": (product, (X, W)), "a grid": (in_blocks, (X,))}
SET = [False, True]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_set", SET, ids=["no mesh set", "mesh set"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_kernel_in_a_shard_map_runs_and_has_no_warning(name, is_set):
    fn, args = INSIDE[name]
    with jax.set_mesh(MESH) if is_set else nullcontext():
        want = jax.jit(fn)(*args)
        plan = sa.plan(fn, *args, mesh=MESH)
        assert plan.verify().ok
        assert "pallas_call" not in plan.warnings()["op"].tolist()
        np.testing.assert_allclose(plan.lower()(*args), want, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_set", SET, ids=["no mesh set", "mesh set"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_kernel_outside_runs_whole_and_the_warning_says_what_is_sent(name, is_set):
    fn, args = OUTSIDE[name]
    with jax.set_mesh(MESH) if is_set else nullcontext():
        want = jax.jit(fn)(*args)
        for spec, words in ((P(), "every device runs all of it"), (P("d"), "gathered whole")):
            plan = sa.plan(fn, *args, mesh=MESH, in_shardings=(spec, *[P()] * len(args[1:])))
            (row,) = plan.warnings().query("op == 'pallas_call'").to_dict("records")
            assert words in row["warning"]
            assert (row["wire_bytes_per_step"] > 0) == ("gathered" in words)
            np.testing.assert_allclose(plan.lower()(*args), want, rtol=1e-4, atol=1e-4)
