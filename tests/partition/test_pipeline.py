"""The program after each pass: the pipeline's own order, well-formed, and the same function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.planner.pipeline import EMIT, PASSES
from shardalg.spmd.check import check
from shardalg.spmd.host.simulate import simulate
from tests.partition.planned import numbers

MESH = sa.Mesh({"X": 2, "Y": 2})


def twice(x, v, w):
    """Two products that read one masked value."""
    return jnp.dot(x, v) * jnp.tanh(jnp.dot(x, w))


def looped(x, v, w):
    """Return the same in a loop, with a maximum that is only sliced."""

    def body(carry, row):
        return carry + jnp.dot(row, v), jnp.dot(row, w)

    carry, rows = jax.lax.scan(body, jnp.zeros(v.shape[1:]), x)
    return carry, rows.max(0)


def picked(x, v, w):
    """Return an element from its owner."""
    return x[3] * 2, jnp.dot(v.T, w)


RINGS = sa.Options(switches=sa.Switches(collective_matmul=True))
PLAIN = sa.Options(switches=sa.Switches(join_formatting=False))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [sa.Options(), RINGS, PLAIN], ids=["default", "rings", "plain"])
@pytest.mark.parametrize("fn", [twice, looped, picked])
def test_every_stage_is_well_formed_and_computes_the_function(fn, options):
    arguments = numbers(6, 7), numbers(7, 5), numbers(7, 5)
    specs = (P("Y", "X"), P("X"), P("X"))
    plan = sa.plan(
        fn, *arguments, mesh=MESH, in_shardings=specs, out_shardings=P("X"), options=options
    )
    stages = plan.stages()
    assert stages.names == (EMIT, *(one.name for one in PASSES))
    assert list(stages)[-1].program == plan.program
    wanted = jax.tree.leaves(fn(*arguments))
    for stage in stages:
        check(stage.program)
        found = simulate(stage.program, plan.graph, *map(np.asarray, arguments))
        for value, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5, err_msg=stage.name)


def test_what_changes_nothing_and_what_is_off_is_said():
    plan = sa.plan(lambda x: x + 1, numbers(4, 4), mesh=MESH, in_shardings=(P("X"),))
    stages = plan.stages()
    assert [stage.name for stage in stages if stage.is_changed] == [EMIT]
    assert len(stages) == len(PASSES) + 1
    lines = repr(stages).splitlines()
    assert "// after drop_unread: no change" in lines
    assert "// after collective_matmul: off, Switches(collective_matmul=True) runs it" in lines
    with pytest.raises(sa.ProgramError, match=r"no pass .unroll.; the passes are emit"):
        stages["unroll"]


def test_copies_that_stay_are_in_the_stages_of_a_plan():
    """The stages of a plan are made again with all that planning decided."""
    sizes = jax.ShapeDtypeStruct((64, 64), "float32")

    def step(w, x):
        return jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w).sum())(w)

    switches = sa.Switches(keep_below_peak=True)
    for keep in (None, True, 20000):
        plan = sa.plan(
            step, sizes, sizes, mesh=MESH, in_shardings=(P("X", "Y"), P("Y")),
            roles=("parameters", "data"), options=sa.Options(switches=switches, keep_gathers=keep),
        )  # fmt: skip
        assert plan.stages()["collective_matmul"].program == plan.program
