"""Values that are computed again at their readers, or made in the result's sharding, unsent."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.oracle import siblings
from tests.partition.planned import check_equal, checked, moves, numbers, planned

MESH = sa.Mesh({"X": 2, "Y": 2})


def masks(a, b):
    """Return the same triangular mask on both, from positions alone."""
    at = jnp.arange(8)
    mask = (at[:, None] <= at % 7).astype(a.dtype)
    return a * mask, b * mask


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["paper", "shardy", "cost"])
def test_a_mask_of_positions_is_made_again_in_every_layout(policy):
    arguments = numbers(8, 8), numbers(8, 8, seed=1)
    specs, options = (P("X", "Y"), P("Y", "X")), sa.Options(policy=policy)
    plan = checked(masks, arguments, specs, mesh=MESH, options=options)
    assert moves(plan) == []
    assert plan.verify().ok


def test_what_arguments_enter_is_not_made_again():
    """The same, with a mask of data: it is sent."""
    at = numbers(8)
    arguments = at, numbers(8, 8), numbers(8, 8, seed=1)

    def data(at, a, b):
        mask = (at[:, None] <= at[None]).astype(a.dtype)
        return a * jnp.tanh(mask), b * jnp.tanh(mask)

    plan = checked(data, arguments, (P("X"), P("X", "Y"), P("Y", "X")), mesh=MESH)
    assert moves(plan) != []


def test_a_result_that_nobody_reads_lies_where_it_is_handed_out():
    """Completion gives [X, Y]: the sum would be moved there and on to [None, X]."""
    arguments, specs = (numbers(8, 8), numbers(8, 8, seed=1)), (P("X", "Y"), P(None, "X"))
    plan = checked(jnp.add, arguments, specs, mesh=MESH, out_shardings=P(None, "X"))
    assert moves(plan) == [("collective_permute", "X,Y"), ("all_gather", "Y")]
    assert plan.verify().ok


def test_a_weight_that_the_backward_pass_reads_too_is_gathered_once():
    """Forward, gathering the weight or the product sends the same; backward the weight is read.

    XLA's GSPMD and Shardy (jax 0.10.2) gather it once.
    """

    def loss(x, w, place=lambda y: y):
        return jnp.sum(place(x @ w) ** 2)

    def placed(x, w):
        return loss(x, w, lambda y: lax.with_sharding_constraint(y, P()))

    arguments, ends = (numbers(16, 16), numbers(16, 16, seed=1)), (P(), P(None, "X"))
    plan = planned(jax.grad(placed), arguments, ends, mesh=MESH, out_shardings=P())
    check_equal(plan, jax.grad(loss), arguments)
    assert moves(plan) == [("all_gather", "X")]
    assert plan.verify().ok


def test_what_is_worked_out_of_what_every_device_has_is_not_gathered():
    """Completion splits w * last along X, as the positions are: its product reads all of it."""

    def fn(x, a, w):
        at = jnp.arange(8)
        row = at % 7
        first, last = at[:, None] <= row, row[:, None] < at
        return jnp.tanh(x @ (a * first)) @ (w * last)

    arguments = numbers(8, 8), numbers(8, 8, seed=1), numbers(8, 8, seed=2)
    plan = checked(fn, arguments, (P("X"), P(None, "X"), P()), mesh=sa.Mesh({"X": 4}))
    assert moves(plan) == [("all_gather", "X")]
    assert plan.verify().ok


def test_what_nobody_reads_as_it_was_completed_is_not_brought_there():
    """Rows that are picked are completed along the indices; they are made, and read, along columns.

    Where they are put is at hand whole, whatever its layout as a column. XLA (jax 0.10.2) sends
    288 bytes by GSPMD, 48 by Shardy.
    """
    program = siblings.Sibling("indices", 5010)
    plan = sa.plan(
        program.function,
        *program.types,
        mesh=sa.Mesh(program.mesh),
        in_shardings=(P(), P(None, "x"), P("x"), P()),
        out_shardings=P(None, "x"),
    )
    assert moves(plan) == [("all_gather", "x")]
    assert plan.collectives()["wire_bytes"].sum() == 48
    assert plan.verify().ok


def test_what_is_annotated_is_brought_where_it_is_annotated():
    def fn(x):
        return jnp.tanh(sa.mesh_split(x, MESH, (1, -1)))

    plan = checked(fn, (numbers(8, 8),), (P("X"),), mesh=MESH)
    assert len(moves(plan)) == 1
