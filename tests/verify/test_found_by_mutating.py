"""Mutations that were once verified and wrong: refuted, and visible in simulation."""

import copy
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.digits import canonical
from shardalg.spmd import instructions as p
from shardalg.spmd.check import check
from shardalg.verify.derived_types import result_type_claim
from tests.mutate.fields import changed, places
from tests.mutate.shapes import rederived
from tests.partition.planned import MESH, numbers
from tests.verify import test_moving_mutations as moving
from tests.verify.mutating import Case, judged_both_ways

X, Y = MESH.digits("X"), MESH.digits("Y")


def turned(x):
    """Two columns leave one or no column on each of eight devices."""
    return x * 2


def pooled(x, y):
    """Return the gradient of a pooling, whose padding JAX's abstract evaluation ignores."""
    made = jax.vjp(lambda x: lax.reduce_window(x, -np.inf, lax.max, (4,), (2,), "SAME"), x)
    return made[1](y)[0]


CASES = {
    "pooled": Case(pooled, (numbers(14), numbers(7)), (P("Y"), P("Y")), P("Y")),
    "reshaped": moving.CASES["reshaped"],
    "turned": Case(turned, (numbers(16, 2) + 9,), (P("X", "Y"),), P(None, ("Y", "X"))),
}


def longer(regroup):
    """Give the first group one dimension too many."""
    (count, sizes), *rest = regroup.groups
    return replace(regroup, groups=((count + 1, sizes), *rest))


def with_a_third_end(apply):
    """Return padding of a dimension with one number too many."""
    said = dict(apply.params)
    (ends,) = said["padding"]
    return replace(apply, params=tuple({**said, "padding": ((*ends, 0),)}.items()))


# The program, and what is changed in which instruction of a kind.
MUTATIONS = {
    "other devices send than receive": (
        "turned",
        p.AllToAll,
        lambda a: replace(a, arriving=Y + X),
        -1,
    ),
    "three ends of a dimension": ("pooled", p.Apply, with_a_third_end, -1),
    "a group of more dimensions than there are": ("reshaped", p.Regroup, longer, -1),
}


test_verify_refutes_it, test_simulate_sees_it = judged_both_ways(CASES, MUTATIONS)


def test_pieces_arrive_along_the_digits_along_which_they_leave():
    """The lowering found no place for pieces that leave along two digits and arrive along one."""
    case = Case(turned, (numbers(8, 8),), (P(("X", "Y")),), P(None, ("X", "Y")))
    case.check()
    assert case.verified(case.mutated(p.AllToAll, lambda a: replace(a, arriving=a.digits))).ok
    together = case.mutated(p.AllToAll, lambda a: replace(a, arriving=canonical(a.digits)))
    (claim,) = case.verified(together).refuted
    assert "sends along" in claim.words


@pytest.mark.parametrize(("shape", "right"), [((0, 4), True), ((3, 4), False)])
def test_a_reshape_makes_as_many_elements_as_it_reads(shape, right):
    """JAX's abstract evaluation makes none of any; its compiler refuses that."""
    x = jax.ShapeDtypeStruct((0, 4), "float32")
    plan = sa.plan(lambda x: x.reshape(3, 0), x, mesh=MESH)
    (reshape,) = plan.program.block.instructions
    read, made = plan.program.locals
    assert (
        result_type_claim(plan.graph, reshape, [replace(read, shape=shape)], [made]).holds == right
    )


@pytest.mark.parametrize("side", ["argument_shardings", "result_shardings"])
def test_nothing_at_the_border_has_a_priority_that_nobody_gave(side):
    """The program could not be lowered with a dimension that is neither split nor open."""
    case = CASES["reshaped"]
    given = getattr(case.plan.program, side)
    layouts = tuple(object_with(x, priorities=(1,) * len(x.shape)) for x in given)
    refuted = case.verified(replace(case.plan.program, **{side: layouts})).refuted
    assert {claim.words for claim in refuted} == {"its priorities are those of its annotation"}


def object_with(layout, **changed):
    """Return a copy that its class does not check."""
    made = copy.copy(layout)
    for name, value in changed.items():
        object.__setattr__(made, name, value)
    return made


@pytest.mark.parametrize("side", ["argument_shardings", "result_shardings"])
def test_nothing_at_the_border_belongs_to_a_manual_region(side):
    case = CASES["reshaped"]
    layouts = tuple(replace(x, manual=X) for x in getattr(case.plan.program, side))
    (claim,) = case.verified(replace(case.plan.program, **{side: layouts})).refuted
    assert "manual region" in claim.words


def spread(x, kernel):
    """Places between elements are written out on each device, and windows cut out of them."""
    return lax.conv_general_dilated(x, kernel, (2,), ((2, 1),), (3,))


@pytest.mark.parametrize("kind", [p.SliceAt, p.Dilate])
def test_of_elements_with_places_between_them_only_parts_are_taken(kind):
    """A window one place short, or not as far spread, padded to its size: zeros for an element."""
    case = Case(spread, (numbers(1, 2, 14), numbers(3, 2, 4)), (P(None, None, "Y"), P()), None)
    case.check()
    before, graph = case.plan.program, case.plan.graph
    found = [(at.steps, step) for at, step in places(before) if isinstance(step, kind)]
    steps, last = found[-1]
    field = "size" if kind is p.SliceAt else "factor"
    shorter = changed(before, steps, replace(last, **{field: getattr(last, field) - 1}))
    program = rederived(before, shorter, graph, resized=True)
    check(program)
    assert not case.computes(program)
    assert case.verified(program).refuted


def cut_and_summed(x, start):
    """Return a slice, and a reduction by a user's function."""

    def add(a, b):
        return a + b

    return x[1:5], x.reshape(4, 2), lax.reduce(x, start, lambda a, b: add(a, b) * 1, (0,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [p.Apply, p.Fold])
@pytest.mark.parametrize("other", [float, bool])
def test_a_parameter_is_of_the_type_that_the_node_has(kind, other):
    """1.0 and True equal 1, so claims that were stated once held: JAX refuses such a slice."""
    case = Case(cut_and_summed, (numbers(8), np.float32(0)), (P("Y"), P()), P())
    case.check()
    program, tried = case.plan.program, 0
    for at, number in places(program):
        inside = isinstance(number, int) and number == other(number) and "params" in at.steps
        if inside and at.owners[-1] == (kind, "params") and type(number) is int:
            tampered = changed(program, at.steps, other(number))
            check(tampered)
            claims = [claim.claim for claim in case.verified(tampered).refuted]
            assert claims == ["types"], at
            tried += 1
    assert tried
