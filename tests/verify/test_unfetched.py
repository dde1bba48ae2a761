"""Unfetched places of an exchange, and holes between elements, are no elements to a reader.

Programs that verified once, and computed something else.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.affine import Index
from shardalg.lower import lower
from shardalg.spmd.check import check
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import (
    AllGather,
    Apply,
    CollectivePermute,
    Concatenate,
    Dilate,
    DynamicSlice,
    FirstMember,
    HaloExchange,
    Insert,
    MaskAt,
    OwnerSelect,
    Reading,
    ReduceScatter,
    Resize,
    Slice,
    SliceAt,
    ValueAt,
)
from shardalg.spmd.local import Local, Start
from shardalg.verify.verify import verify
from tests.verify.edited import before
from tests.verify.mutating import refuted

FOUR, TWO = sa.Mesh({"X": 4}), sa.Mesh({"X": 2})
X = FOUR.digits(("X",))
HALF = TWO.digits(("X",))
ROW = np.arange(8, dtype=np.float32)
SQUARE = np.eye(4, dtype=np.float32) * 5 + np.arange(16, dtype=np.float32).reshape(4, 4) / 9


def start(scale, more=0, digits=X):
    return Start(Index.of("o") * scale + more, (("o", digits),))


def unfetched(pairs, length=0, places=(0, 2)):
    """Exchange blocks of which no or few elements are wanted."""
    return HaloExchange(0, X, (Reading(0, start(1), (pairs,), start(2), length, places),))


def first(plan, kind):
    steps = plan.program.block.instructions
    return next(k for k, step in enumerate(steps) if isinstance(step.attributes, kind))


SHIFT = tuple((k, (k + 1) % 4) for k in range(4))
STAY = tuple((k, k) for k in range(4))
MOVED = {
    "permute": [unfetched(SHIFT), CollectivePermute(X, STAY)],
    "permute of one element": [unfetched(SHIFT, 0, (1, 2)), CollectivePermute(X, STAY)],
    "gather": [unfetched(SHIFT), AllGather(0, X), DynamicSlice(0, X, 2)],
    "exchange": [unfetched(SHIFT), unfetched(STAY, 2)],
    "exchange of empty places": [unfetched(SHIFT, 2, (0, 0)), unfetched(STAY, 2)],
}


@pytest.mark.parametrize("name", MOVED)
def test_a_move_of_what_was_not_fetched(name):
    plan = sa.plan(lambda x: x * 2, ROW, mesh=FOUR, in_shardings=P("X"), out_shardings=P("X"))
    refuted(plan, before(plan, 0, 0, MOVED[name]), ROW)


WHOLE = {
    "products": (lambda x, w: x @ w, (SQUARE, SQUARE), (P(None, "X"), P())),
    "a sort": (jnp.sort, (ROW[::-1].copy(),), (P("X"),)),
    "a decomposition": (
        lambda x: lax.linalg.eigh(x, symmetrize_input=False)[1], (SQUARE,), (P("X"),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_an_operator_of_what_was_not_fetched(name):
    """The own block replaces a gather, with another block of which no element counts."""
    fn, given, layouts = WHOLE[name]
    plan = sa.plan(fn, *given, mesh=TWO, in_shardings=layouts, out_shardings=P())
    program = plan.program
    place = first(plan, AllGather)
    gather = program.block.instructions[place]
    (held,), (whole,), dim = gather.operands, gather.results, gather.attributes.dim
    locals_ = list(program.locals)
    length, count = locals_[whole].shape[dim], len(locals_)
    own, full = locals_[held], locals_[whole]
    locals_ += [
        Local(count, own.shape, own.dtype, own.sharding, None),
        Local(count + 1, full.shape, own.dtype, own.sharding, None),
    ]
    locals_[whole] = replace(full, origin=None)
    zero, stay = start(0, digits=HALF), ((0, 0), (1, 1))
    near, far = (
        HaloExchange(dim, HALF, (Reading(0, source, (stay,), zero, 0, (0, n)),))
        for source, n in ((start(1, 1, HALF), length // 2), (zero, length))
    )
    steps = list(program.block.instructions)
    steps[place : place + 1] = [
        Instruction(near, (held,), (count,), gather.node),
        Instruction(Concatenate(dim), (held, count), (count + 1,), gather.node),
        replace(gather, attributes=far, operands=(count + 1,)),
    ]
    block = replace(program.block, instructions=tuple(steps))
    refuted(plan, replace(program, locals=tuple(locals_), block=block), *given)


def test_a_best_value_of_what_was_not_fetched():
    given = np.array([3, 9, 1, 2], np.float32)
    plan = sa.plan(jnp.argmax, given, mesh=TWO, in_shardings=P("X"), out_shardings=P())
    swap = Reading(0, start(1, 0, HALF), (((0, 1), (1, 0)),), start(2, 0, HALF), 0, (0, 2))
    program = before(plan, first(plan, ValueAt), 1, [HaloExchange(0, HALF, (swap,))])
    refuted(plan, program, given)


def test_sums_of_members_that_want_different_elements():
    mesh = sa.Mesh({"X": 2, "Y": 2})
    x, y = mesh.digits(("X",)), mesh.digits(("Y",))
    a, b = np.ones((2, 4), np.float32), np.arange(12, dtype=np.float32).reshape(4, 3)
    layouts, result = (P(None, "Y"), P("Y", "X")), P(None, ("X", "Y"))
    plan = sa.plan(jnp.matmul, a, b, mesh=mesh, in_shardings=layouts, out_shardings=result)
    wanted = Start(Index.of("x") * 2 + Index.of("y"), (("x", x), ("y", y)))
    other = Reading(0, start(1, 0, x), (((1, 3),),), wanted, 1, (0, 2))
    program = before(plan, first(plan, ReduceScatter), 0, [HaloExchange(1, x, (other,))])
    refuted(plan, program, a, b)


BETWEEN = [Slice(0, 0, 2), Dilate(0, 2, 0, 0, "sum")]
THREE = np.arange(1, 4, dtype=np.float32)
MATRIX = SQUARE[:3, :3].copy()
DILATED = {
    "mul": (lambda x: x * 2, THREE),
    "sum": (lambda x: x.sum() + 0, THREE),
    "sort": (lambda x: jnp.sort(-x), THREE),
    "dot": (lambda m: m @ m.T, MATRIX),
    "cumsum": (jnp.cumsum, THREE),
    "reshape": (lambda m: m.reshape(9), MATRIX),
    "without a row": (lambda m: lax.linalg.eigh(m, symmetrize_input=False)[1], MATRIX),
}


@pytest.mark.parametrize("name", DILATED)
def test_places_between_elements(name):
    fn, given = DILATED[name]
    plan = sa.plan(fn, given, mesh=TWO, in_shardings=P(), out_shardings=P())
    steps = enumerate(plan.program.block.instructions)
    place = next(
        k for k, s in steps
        if isinstance(s.attributes, Apply)
        and s.operands and plan.program.locals[s.operands[0]].shape[:1] == (3,)
    )  # fmt: skip
    refuted(plan, before(plan, place, 0, BETWEEN), given)


def test_a_permute_that_nobody_takes_part_in():
    plan = sa.plan(lambda x: x * 2, ROW, mesh=FOUR, in_shardings=P("X"), out_shardings=P("X"))
    program = before(plan, 0, 0, [unfetched((), 2)])
    assert verify(plan.sharded, program).ok
    np.testing.assert_array_equal(lower(program, plan.graph)(ROW), ROW * 2)


def test_a_constant_that_is_no_whole_number_ends():
    """The float was searched for among all numbers of the integer type."""

    def fn(i, x):
        return i + jnp.full(i.shape, 7) * jnp.full(i.shape, 5), x * 0.2

    given = np.arange(9, dtype=np.int32), np.ones(9, np.float32)
    plan = sa.plan(fn, *given, mesh=FOUR, in_shardings=P("X"))
    numbers, constants = plan.graph.numbers, list(plan.program.constants)
    (one, other) = (
        next(k for k, (_, value) in enumerate(constants) if type(numbers[value]) is kind)
        for kind in (float, int)
    )
    (a, u), (b, v) = constants[one], constants[other]
    constants[one], constants[other] = (a, v), (b, u)
    assert not verify(plan.sharded, replace(plan.program, constants=tuple(constants))).ok


def test_a_box_with_a_second_copy_beside_it():
    """The copy is gathered twice, so that the update continues beyond the box."""
    given = np.arange(36, dtype=np.float32).reshape(6, 6), -np.ones((2, 4), "f4"), np.int32([1, 2])
    layouts = (P(None, "X"), P(), P())
    plan = sa.plan(lax.dynamic_update_slice, *given, mesh=TWO, in_shardings=layouts)
    refuted(plan, before(plan, first(plan, Insert), 1, [AllGather(0, HALF)]), *given)


def reduced(x, y, start, other):
    def product(a, b):
        return a[0] * b[0], a[1] * b[1]

    return lax.reduce((x, y), (start, other), product, (1,))


@pytest.mark.parametrize("operand", [2, 3])
def test_what_a_function_of_the_user_starts_from_is_whole(operand):
    given = (SQUARE + 1, SQUARE + 1, np.float32(1), np.float32(1))
    layouts = (P("X"), P("X"), P(), P())
    plan = sa.plan(reduced, *given, mesh=FOUR, in_shardings=layouts)
    refuted(plan, before(plan, first(plan, Apply), operand, [FirstMember(X)]), *given)


def windows(x, starts):
    numbers = lax.GatherDimensionNumbers((1,), (), (0,))
    return lax.gather(x, starts, numbers, (3,), mode="clip")


def test_beside_a_block_there_is_nothing_that_another_has():
    """A device takes its block with both margins of the whole tensor, and windows count twice."""
    given = np.arange(4000, dtype=np.float32), np.array([[2], [999], [1998]], np.int32)
    plan = sa.plan(windows, *given, mesh=FOUR, in_shardings=(P("X"), P()), out_shardings=P())
    program = plan.program
    place = first(plan, Dilate)
    dilate = program.block.instructions[place]
    (held,), (made,) = dilate.operands, dilate.results
    count, whole = len(program.locals), replace(program.locals[held].sharding, dims=((),))
    longer = (Local(count, (4000,), "float32", whole), Local(count + 1, (4006,), "float32", whole))
    steps = list(program.block.instructions)
    steps[place : place + 1] = [
        replace(dilate, attributes=AllGather(0, X), results=(count,)),
        replace(dilate, operands=(count,), results=(count + 1,)),
        Instruction(SliceAt(0, start(1000), 1006), (count + 1,), (made,), dilate.node),
    ]
    block = replace(program.block, instructions=tuple(steps))
    refuted(plan, replace(program, locals=(*program.locals, *longer), block=block), *given)


def test_what_is_whole_is_not_split_in_parts_of_one():
    """One iteration is a block of one on every device: all but the first would run padding."""

    def solved(a, b):
        return lax.linalg.triangular_solve(a, b, left_side=True)

    given = SQUARE[:1, :1], ROW[None]
    plan = sa.plan(solved, *given, mesh=FOUR, in_shardings=(P(None, "X"), P()), out_shardings=P())
    program = plan.program
    *_, solve = program.block.instructions
    solve = replace(
        solve,
        attributes=replace(solve.attributes, loops=(("J", X),)),
        operands=program.block.arguments,
    )
    tampered = replace(program, block=replace(program.block, instructions=(solve,)))
    check(tampered)
    assert {claim.claim for claim in verify(plan.sharded, tampered).refuted} == {"iterations"}


def test_what_is_reduced_together_is_of_one_shape():
    given = (SQUARE, SQUARE, np.float32(1), np.float32(1))
    plan = sa.plan(reduced, *given, mesh=TWO, in_shardings=(P("X"), P("X"), P(), P()))
    tampered = before(plan, first(plan, Apply), 1, [Resize(1, 5)])
    check(tampered)
    assert not verify(plan.sharded, tampered).ok


def test_places_that_nothing_fills_hold_no_number():
    """A dilation by 1 fills places around a block, and none in it."""
    plan = sa.plan(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), ((1, 0),)), ROW, mesh=FOUR,
        in_shardings=P("X"), out_shardings=P("X"),
    )  # fmt: skip

    def changed(step):
        attributes = step.attributes
        if isinstance(attributes, MaskAt):
            attributes = Dilate(0, 1, 0, 0, "sum")
        if isinstance(attributes, HaloExchange):
            (reading,) = attributes.readings
            before = replace(reading, source=start(1, -1), wanted=start(2, -1))
            attributes = replace(attributes, readings=(before,))
        return replace(step, attributes=attributes)

    block = plan.program.block
    steps = tuple(map(changed, block.instructions))
    refuted(plan, replace(plan.program, block=replace(block, instructions=steps)), ROW + 1)


def test_around_no_element_there_is_none():
    """The second of two places next to nothing was declared as the following element."""
    moves = [Slice(0, 0, 0), Dilate(0, 2, 1, 1), Slice(0, 1, 1), OwnerSelect(0, 0, 1, ())]
    given = ROW[3:4]
    plan = sa.plan(lambda x: x * 2, given, mesh=FOUR, in_shardings=P(), out_shardings=P())
    refuted(plan, before(plan, 0, 0, moves), given)


def test_nothing_is_cut_off_by_a_dilation():
    plan = sa.plan(lambda x: x * 2, ROW, mesh=FOUR, in_shardings=P(), out_shardings=P())
    program = before(plan, 0, 0, [Dilate(0, 1, 1, 1), Dilate(0, 1, -1, -1)])
    check(program)
    assert not verify(plan.sharded, program).ok


def test_who_is_not_served_has_its_own_block_only_where_that_is_named():
    """A device without a sender or its own block has zeros in the lowered program."""
    plan = sa.plan(lambda x: x * 2, ROW, mesh=FOUR, in_shardings=P(), out_shardings=P())
    reading = Reading(0, start(1, 1), (((1, 1),),), start(0), 8, (0, 8))
    program = before(plan, 0, 0, [HaloExchange(0, X, (reading,))])
    check(program)
    assert (np.asarray(lower(program, plan.graph)(ROW)) != ROW * 2).any()
    assert not verify(plan.sharded, program).ok
