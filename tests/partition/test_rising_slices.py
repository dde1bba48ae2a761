"""A sum that goes through operators on elements before it is cut is scattered, and they are cut."""

from dataclasses import replace

import jax.numpy as jnp
import pytest
from jax.lax import with_sharding_constraint as wsc
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.instruction import is_a
from shardalg.spmd.instructions import Apply
from shardalg.verify.verify import verify
from tests.oracle import siblings
from tests.partition.planned import check_equal, moves, numbers, planned

X, W, Y = numbers(8, 16), numbers(16, 8, seed=1), numbers(8, 8, seed=2)


def two_operators(x, w, y, place=wsc):
    """Both work on the whole sum, as the annotation of the first says."""
    return jnp.exp(place(jnp.tanh(place(x @ w, P()) * y), P(None, "Y")))


def one_operator(x, w, y, place=wsc):
    return jnp.tanh(place(x @ w, P()) + y)


def plan_of(fn):
    specs = P(None, "Y"), P("Y", None), P()
    plan = planned(fn, (X, W, Y), specs, out_shardings=P(None, "Y"))
    check_equal(plan, lambda *given: fn(*given, lambda v, spec: v), (X, W, Y))
    return plan


@pytest.mark.parametrize("fn", [one_operator, two_operators])
def test_what_is_cut_behind_operators_is_scattered(fn):
    plan = plan_of(fn)
    assert moves(plan) == [("reduce_scatter", "Y")]
    applied = {
        one.attributes.primitive: plan.program.locals[one.results[0]].shape
        for one in plan.program.block.instructions
        if is_a(one, Apply)
    }
    assert applied["tanh"] == (8, 2)
    assert plan.verify().ok


def test_a_number_is_not_cut():
    """It is summed and worked on by itself, in a loop, before it meets what is cut."""
    program = siblings.Sibling("history", 91003)
    mesh = sa.Mesh(program.mesh)
    plan = sa.plan(program.function, *program.types, mesh=mesh, in_shardings=program.specs)
    assert plan.verify().ok


def test_a_factor_is_solved_from_what_is_scattered():
    """XLA (jax 0.10.2) sends 1,408 bytes by Shardy, 2,944 by GSPMD."""
    program = siblings.Sibling("factor", 5017)
    specs = P(None, "y", "x"), P("x", "y", None)
    mesh = sa.Mesh(program.mesh)
    plan = sa.plan(
        program.function, *program.types, mesh=mesh, in_shardings=specs, out_shardings=P("x")
    )
    assert plan.collectives()["wire_bytes"].sum() <= 1408
    assert plan.verify().ok


def test_an_operator_on_another_block_is_refuted():
    plan = plan_of(one_operator)
    wrong = [
        replace(one, attributes=replace(one.attributes, loops=()))
        if is_a(one, Apply) and one.attributes.primitive == "add"
        else one
        for one in plan.program.block.instructions
    ]
    block = replace(plan.program.block, instructions=tuple(wrong))
    assert verify(plan.sharded, replace(plan.program, block=block)).refuted
