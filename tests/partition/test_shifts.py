"""Shifts of a dimension by one, as a pipeline moves its stages on: one permute each way."""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instructions import MaskAt
from shardalg.verify.verify import verify
from tests.partition.planned import numbers

MESH = sa.Mesh({"L": 4, "Y": 2})
STATE = P("L", "Y")


def zeros(s):
    return jnp.zeros((1, s.shape[1]), s.dtype)


SHIFTS = {
    "pad and cut": lambda s: jnp.pad(s, ((1, 0), (0, 0)))[:-1],
    "beside zeros": lambda s: jnp.concatenate([zeros(s), s[:-1]]),
    "backwards": lambda s: jnp.concatenate([s[1:], zeros(s)]),
    "set": lambda s: jnp.zeros_like(s).at[1:].set(s[:-1]),
    "roll": lambda s: jnp.roll(s, 1, 0),
    "roll backwards": lambda s: jnp.roll(s, -1, 0),
    "roll and set": lambda s: jnp.roll(s, 1, 0).at[0].set(0),
    "roll and choose": lambda s: jnp.where(jnp.arange(4)[:, None] == 0, 0, jnp.roll(s, 1, 0)),
}


def sent(plan):
    """Per kind, axes and phase, how often a step sends it."""
    rows = plan.collectives_table
    return {(r["kind"], r["mesh_axes"], r["phase"]): r["executions"] for r in rows}, len(rows)


def equal_and_proved(plan, fn, *values):
    want = jax.tree.leaves(jax.jit(fn)(*values))
    for results in (simulate(plan.program, plan.graph, *values), plan.lower()(*values)):
        for found, wanted in zip(jax.tree.leaves(results), want, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert plan.verify().ok, plan.verify().refuted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SHIFTS)
def test_a_shift_in_a_loop_is_one_permute_and_its_gradient_is_one(name):
    def shifted(s, c):
        return lax.scan(lambda s, _: (SHIFTS[name](s * c), None), s, None, length=3)[0]

    fn = jax.grad(lambda s, c: (shifted(s, c) ** 2).sum())
    values = numbers(4, 8), numbers(4, 8, seed=1)
    plan = sa.plan(fn, *values, mesh=MESH, in_shardings=STATE, out_shardings=STATE)
    permute = ("collective_permute", "L")
    assert sent(plan) == ({(*permute, "forward"): 3, (*permute, "backward"): 3}, 2)
    equal_and_proved(plan, fn, *values)


def test_the_gradient_of_what_the_last_stage_hands_out_sends_nothing_of_its_own():
    """Every device has it, and the last one puts it in its place."""

    def loss(w, x):
        def step(state, fresh):
            state = jnp.concatenate([fresh[None], state[:-1]])
            state = jnp.tanh(jnp.einsum("lbm,lmn->lbn", state, w))
            return state, state[-1]

        start = jnp.zeros((4, *x.shape[1:]), x.dtype)
        return (lax.scan(step, start, x)[1] ** 2).sum()

    values, fn = (numbers(4, 8, 8), numbers(6, 2, 8, seed=1)), jax.grad(loss)
    plan = sa.plan(fn, *values, mesh=MESH, in_shardings=(P("L"), P()))
    along = Counter(
        (r["kind"], r["phase"]) for r in plan.collectives_table if r["mesh_axes"] == "L"
    )
    assert along == {
        ("collective_permute", "forward"): 1,
        ("all_reduce", "forward"): 1,
        ("collective_permute", "backward"): 1,
    }
    equal_and_proved(plan, fn, *values)


def test_a_value_that_was_summed_is_put_in_its_place_where_it_is_had():
    fn = jax.grad(lambda x, c: (jnp.broadcast_to(x[-1], x.shape) * c).sum())
    values = numbers(4, 8), numbers(4, 8, seed=1)
    plan = sa.plan(fn, *values, mesh=MESH, in_shardings=STATE, out_shardings=STATE)
    assert sent(plan) == ({("all_reduce", "L", "backward"): 1}, 1)
    equal_and_proved(plan, fn, *values)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_value_that_is_put_in_another_place_is_refuted(by):
    fn = jax.grad(lambda x, c: (jnp.broadcast_to(x[-2], x.shape) * c).sum())
    values = numbers(4, 8), numbers(4, 8, seed=1)
    plan = sa.plan(fn, *values, mesh=MESH, in_shardings=STATE, out_shardings=STATE)
    equal_and_proved(plan, fn, *values)
    steps = list(plan.program.block.instructions)
    (k,) = [k for k, step in enumerate(steps) if isinstance(step.attributes, MaskAt)]
    start = steps[k].attributes.start
    moved = replace(steps[k].attributes, start=replace(start, more=start.more + by))
    steps[k] = replace(steps[k], attributes=moved)
    program = replace(plan.program, block=replace(plan.program.block, instructions=tuple(steps)))
    assert verify(plan.sharded, program).refuted
    assert (simulate(program, plan.graph, *values)[0] != fn(*values)).any()
