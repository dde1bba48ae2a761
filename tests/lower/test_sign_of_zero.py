"""The sign of a zero that one device holds and hands on, here and in XLA's own partition.

A sum between devices starts from +0 on CPU, and adds the +0 of those that do not hold the element.
So what one of them alone holds is joined as bits, unless XLA sums it, too.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instructions import AllReduce, ReduceScatter
from shardalg.verify.verify import verify
from tests.mutate.fields import changed, places
from tests.partition.planned import instructions

MESH = sa.Mesh({"X": 4})
ZEROS = np.full((8, 4), -0.0, np.float32)
IDS = np.array([3, 5], np.int32)

# Name to function and layout of its result.
LOST = {
    "lookup": (lambda x, ids: 1 / x[ids], P()),
    "lookup that clips": (lambda x, ids: 1 / x.at[ids].get(mode="clip"), P()),
    "lookup that fills": (lambda x, ids: 1 / x.at[ids].get(mode="fill", fill_value=1), P()),
}
KEPT = {
    "a row everywhere": (lambda x, ids: 1 / x[5], P()),
    "rows everywhere": (lambda x, ids: 1 / x[2:5], P()),
    "a box written": (lambda x, ids: 1 / lax.dynamic_update_slice(x, x[:2], (ids[0], 0)), P("X")),
    "rows put": (lambda x, ids: 1 / x.at[ids].set(-0.0), P("X")),
    "rows added": (lambda x, ids: 1 / x.at[ids].add(-0.0), P("X")),
}
AS_BITS = {
    "a box": (lambda x, ids: 1 / lax.dynamic_slice(x, (ids[0], 0), (2, 4)), P()),
    "parts of a box": (lambda x, ids: 1 / lax.dynamic_slice(x, (ids[0], 0), (4, 4)).T, P("X")),
    "parts of a row": (lambda x, ids: 1 / x[5], P("X")),
    "an element": (lambda x, ids: 1 / x[5, ids[0] - 3], P()),
}
"""Where XLA gathers the operand, and one device hands on what it has."""


def ours(fn, out):
    plan = sa.plan(
        fn, jnp.asarray(ZEROS), IDS, mesh=MESH, in_shardings=(P("X"), P()), out_shardings=out
    )
    return np.asarray(plan.lower()(ZEROS, IDS))


def of_xla(fn, out):
    given, made = (
        jax.tree.map(lambda spec: NamedSharding(MESH.to_jax(), spec), side)
        for side in ((P("X"), P()), out)
    )
    return np.asarray(jax.jit(fn, in_shardings=given, out_shardings=made)(ZEROS, IDS))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LOST)
def test_where_xlas_partition_makes_it_positive(name):
    """XLA sums the holder's selection, as we do; on one device all elements are `-inf`."""
    fn, out = LOST[name]
    assert (np.asarray(fn(jnp.asarray(ZEROS), IDS)) == -np.inf).all()
    for got in (of_xla(fn, out), ours(fn, out)):
        assert (got == np.inf).all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", KEPT)
def test_where_no_sum_is_made(name):
    """Nor where XLA makes one, of a row and of the box that it writes."""
    assert (ours(*KEPT[name]) == -np.inf).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", AS_BITS)
def test_where_xla_gathers_the_operand(name):
    fn, out = AS_BITS[name]
    assert (of_xla(fn, out) == -np.inf).all()
    assert (ours(fn, out) == -np.inf).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "complex64"])
def test_a_box_and_a_row_of_any_type_are_joined_bit_by_bit(dtype):
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 256, (8, 4 * jnp.dtype(dtype).itemsize)).astype(np.uint8)
    with jax.enable_x64(dtype == "float64"):
        x = bits.view(jnp.dtype(dtype))
        x = np.where(x == x, x, -np.zeros_like(x))  # a NaN may lose its payload

        def fn(x, start):
            return lax.dynamic_slice(x, (start, np.int32(0)), (2, 4)), x[5]

        given = x, np.int32(3)
        layouts = {"in_shardings": (P("X"), P()), "out_shardings": (P(), P("X"))}
        plan = sa.plan(fn, *given, mesh=MESH, **layouts)
        assert [m.combine for m in sums(plan.program)] == ["pick"] * 2
        assert plan.verify().ok
        for got in (simulate(plan.program, plan.graph, *given), plan.lower()(*given)):
            for one, want in zip(got, (x[3:5], x[5]), strict=True):
                assert np.asarray(one).tobytes() == want.tobytes()


def sums(program):
    kinds = AllReduce, ReduceScatter
    made = (step.attributes for step in instructions(program.block))
    return [attributes for attributes in made if isinstance(attributes, kinds)]


SUMS = {
    "negated": lambda x, y: -x[5],
    "added": lambda x, y: x[5] + x[1],
    "added to a sum": lambda x, y: x[5] + y.sum(0),
    "of rows": lambda x, y: x.sum(0),
    "in whole numbers": lambda x, y: x.astype(np.int32)[5],
}


@pytest.mark.parametrize("name", SUMS)
def test_what_several_devices_may_have_is_summed_and_cannot_be_picked(name):
    """`verify` refutes each such sum as a pick: bits of several numbers are no number."""
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    plan = sa.plan(SUMS[name], x, x, mesh=MESH, in_shardings=(P("X"), P("X")), out_shardings=P())
    assert [m.combine for m in sums(plan.program)] == ["sum"] * len(sums(plan.program))
    if name != "in whole numbers":
        for place in places(plan.program):
            if isinstance(place[1], AllReduce | ReduceScatter):
                picked = replace(place[1], combine="pick")
                assert not verify(plan.sharded, changed(plan.program, place[0].steps, picked)).ok


def test_verify_says_that_the_sign_is_taken_on_trust():
    plan = sa.plan(lambda x: x[5], jnp.asarray(ZEROS), mesh=MESH, in_shardings=P("X"))
    (claim,) = [c for c in plan.verify().claims if c.claim == "arithmetic"]
    assert claim.status == "trusted"
    assert "a sum that is zero is +0" in claim.words
