"""Programs in which what is not finished moves, or is joined in another way than it is."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd import instructions as p
from shardalg.spmd.check import check
from shardalg.spmd.instruction import Instruction
from shardalg.verify.verify import verify
from tests.partition.planned import MESH, instructions, numbers
from tests.verify.mutating import Case, changed
from tests.verify.mutating import refuted as refuted_by_both

X, Y = MESH.digits("X"), MESH.digits("Y")
TABLE, IDS = numbers(48, 4), np.array([3, 10, 0, 7, 9, 1, 5, 2], np.int32)
LOOKUP = Case(
    lambda table, ids: jnp.asarray(table).at[ids].get(mode="clip"),
    (TABLE, IDS),
    (P("Y"), P("Y")),
    P(),
)


def exchanged(program, first, second):
    """Return the program with an instruction of one kind and its reader swapped."""
    steps = list(program.block.instructions)
    pairs = [
        (a, b)
        for a in steps
        for b in steps
        if isinstance(a.attributes, first)
        and isinstance(b.attributes, second)
        and b.operands[:1] == a.results
    ]
    a, b = pairs[0]
    (x, *_), (y,), (z,) = a.operands, a.results, b.results
    order = [step for step in steps if step is not a]
    at = order.index(b)
    order[at : at + 1] = [
        replace(b, operands=(x, *b.operands[1:]), results=(y,)),
        replace(a, operands=(y, *a.operands[1:]), results=(z,)),
    ]
    block = replace(program.block, instructions=tuple(order))
    moved = replace(program.locals[x], index=y, origin=None)
    locals_ = (*program.locals[:y], moved, *program.locals[y + 1 :])
    return replace(program, block=block, locals=locals_)


def refuted(case, program):
    assert case.verified(case.plan.program).ok
    assert not case.computes(program)
    return case.verified(program).refuted


def test_indices_are_shifted_behind_the_gather_of_all():
    """Shifted by the own block and then gathered, each device has the shifts of all."""
    assert refuted(LOOKUP, exchanged(LOOKUP.plan.program, p.AllGather, p.Offset))


def test_what_is_looked_up_is_masked_before_it_is_summed():
    assert refuted(LOOKUP, exchanged(LOOKUP.plan.program, p.MaskIndexed, p.AllReduce))


def test_the_mask_reads_the_indices_by_which_was_gathered():
    """Indices clamped differently lose the elements that are then out of range."""
    ids = IDS * np.int32(12)
    case = replace_arguments(LOOKUP, (TABLE, ids))
    program = case.plan.program
    offset = next(s for s in instructions(program.block) if isinstance(s.attributes, p.Offset))
    mask = next(s for s in instructions(program.block) if isinstance(s.attributes, p.MaskIndexed))
    unclamped = replace(offset.attributes, clamp=None)
    other = replace(program.locals[offset.results[0]], index=len(program.locals), origin=None)
    steps = []
    for step in program.block.instructions:
        steps.append(
            replace(step, operands=(step.operands[0], other.index)) if step is mask else step
        )
        if step is offset:
            steps.append(replace(offset, attributes=unclamped, results=(other.index,)))
    block = replace(program.block, instructions=tuple(steps))
    assert refuted(case, replace(program, block=block, locals=(*program.locals, other)))


def replace_arguments(case, arguments):
    return Case(case.fn, arguments, case.specs, case.results)


def test_a_maximum_that_leaves_a_branch_is_no_sum():
    """Partial maxima that leave a branch, summed outside."""
    case = Case(
        lambda x, which: lax.cond(which > 0, lambda x: x.max(0), lambda x: -x.max(0), x),
        (numbers(8, 4), np.int32(1)),
        (P("Y"), P()),
        P(),
    )
    program = case.plan.program
    reduces = [s for s in instructions(program.block) if isinstance(s.attributes, p.AllReduce)]
    assert {s.attributes.combine for s in reduces} == {"max"}
    assert refuted(case, summed_outside(program))


def summed_outside(program):
    """Return each device's own value from the branches, and sum it after them."""
    (control,) = [s for s in program.block.instructions if isinstance(s.attributes, p.Branches)]
    locals_, blocks = list(program.locals), []
    for body in control.attributes.bodies:
        (last,) = [s for s in body.instructions if isinstance(s.attributes, p.AllReduce)]
        renamed = {last.results[0]: last.operands[0]}
        steps = tuple(
            replace(s, operands=tuple(renamed.get(o, o) for o in s.operands))
            for s in body.instructions
            if s is not last
        )
        results = tuple(renamed.get(r, r) for r in body.results)
        made = results[0]
        for step in steps:
            for local in step.results:
                partial_ = replace(locals_[local].sharding, unreduced=Y)
                if locals_[local].shape == locals_[last.results[0]].shape:
                    locals_[local] = replace(locals_[local], sharding=partial_)
        assert locals_[made].sharding.unreduced == Y
        blocks.append(replace(body, instructions=steps, results=results))
    (result,) = control.results
    whole = locals_[result]
    locals_[result] = replace(whole, sharding=replace(whole.sharding, unreduced=Y))
    summed = replace(whole, index=len(locals_))
    locals_.append(summed)
    new = replace(control, attributes=control.attributes.with_bodies(blocks))
    reduce_ = Instruction(p.AllReduce(Y), (result,), (summed.index,), control.node)
    steps = []
    for step in program.block.instructions:
        if step is control:
            steps += [new, reduce_]
        else:
            operands = tuple(summed.index if o == result else o for o in step.operands)
            steps.append(replace(step, operands=operands))
    results = tuple(summed.index if r == result else r for r in program.block.results)
    block = replace(program.block, instructions=tuple(steps), results=results)
    return replace(program, block=block, locals=tuple(locals_))


def test_in_a_manual_region_only_the_user_sends():
    """Blocks of a region change places: to each device its own value is whole."""
    specs = {"mesh": MESH.to_jax(), "in_specs": P("X"), "out_specs": P("X")}
    case = Case(jax.shard_map(lambda x: x * 2, **specs), (numbers(8, 4),), (P("X"),), P("X"))
    program = case.plan.program
    (region,) = [s for s in program.block.instructions if isinstance(s.attributes, p.Manual)]
    body = region.attributes.body
    turned = replace(program.locals[body.results[0]], index=len(program.locals))
    swap = p.CollectivePermute(X, tuple((k, (k + 4) % 8) for k in range(8)))
    last = body.instructions[-1]
    step = Instruction(swap, body.results, (turned.index,), last.node)
    inner = replace(body, instructions=(*body.instructions, step), results=(turned.index,))
    wrong = changed(
        program, region, replace(region, attributes=replace(region.attributes, body=inner))
    )
    assert refuted(case, replace(wrong, locals=(*program.locals, turned)))
    other = replace(region, attributes=replace(region.attributes, digits=Y))
    assert case.verified(changed(program, region, other)).refuted


def test_what_a_region_over_some_axes_reads_is_no_partial_sum():
    """Along the other axes all devices hold copies of a block: not to be added up."""
    mesh = sa.Mesh({"X": 4, "Y": 2})
    double = jax.shard_map(
        lambda x: x * 2, mesh=sa.Mesh({"X": 4}).to_jax(), in_specs=P("X"), out_specs=P("X")
    )
    given = numbers(8) + np.float32(9)
    plan = sa.plan(double, given, mesh=mesh, in_shardings=P("X"))
    program = plan.program
    (region,) = [s for s in program.block.instructions if isinstance(s.attributes, p.Manual)]
    body = region.attributes.body
    (read,) = body.arguments
    summed = replace(program.locals[read], index=len(program.locals))
    partial = replace(summed.sharding, unreduced=mesh.digits("Y"))
    steps = [
        replace(s, operands=tuple(summed.index if o == read else o for o in s.operands))
        for s in body.instructions
    ]
    first = Instruction(p.AllReduce(mesh.digits("Y")), (read,), (summed.index,), steps[0].node)
    inner = replace(body, instructions=(first, *steps))
    wrong = changed(
        program, region, replace(region, attributes=replace(region.attributes, body=inner))
    )
    locals_ = [*program.locals, summed]
    locals_[read] = replace(locals_[read], sharding=partial)
    refuted_by_both(plan, replace(wrong, locals=tuple(locals_)), given)


CONSTANT = np.arange(8, dtype=np.float32)


def test_a_constant_lies_in_the_order_of_the_devices():
    """Blocks are cut by places in that order, whatever order the sharding names."""
    mesh = sa.Mesh({"X": 4})
    given = numbers(8)
    plan = sa.plan(lambda x: x + CONSTANT, given, mesh=mesh, in_shardings=P("X"))
    program, turned = plan.program, sa.Mesh({"X": 4}, [1, 2, 3, 0])
    ((whole, value),) = program.constants
    (cut,) = [s for s in program.block.instructions if isinstance(s.attributes, p.DynamicSlice)]
    block = program.locals[cut.results[0]]
    locals_ = list(program.locals)
    layout = replace(block.sharding, mesh=turned)
    locals_[whole] = replace(block, index=whole, sharding=layout, origin=value)
    pairs = tuple((int(place), k) for k, place in enumerate(turned.places(mesh)))
    moved = replace(cut, attributes=p.CollectivePermute(mesh.digits("X"), tuple(sorted(pairs))))
    wrong = replace(changed(program, cut, moved), locals=tuple(locals_))
    refuted_by_both(plan, wrong, given)


def test_what_is_computed_is_no_constant():
    given = numbers(8)
    plan = sa.plan(lambda x: x * 2, given, mesh=sa.Mesh({"X": 4}), in_shardings=P("X"))
    (made,) = plan.program.block.results
    nothing = replace(plan.program.block, instructions=())
    constants = ((made, plan.graph.results[0]),)
    wrong = replace(plan.program, block=nothing, constants=constants)
    check(wrong)
    assert not verify(plan.sharded, wrong).ok


def test_a_collective_of_nobody_joins_as_collectives_do():
    """The best places of whole rows are joined with nobody's, in a way that no collective has."""
    case = Case(lambda x: jnp.argmax(x, 1) * 2, (numbers(8, 4),), (P("Y"),), P("Y"))
    best, twice = case.plan.program.block.instructions[-2:]
    assert twice.operands[0] == best.results[0]
    (place,) = best.results
    joined = replace(case.plan.program.locals[place], index=len(case.plan.program.locals))
    step = Instruction(p.AllReduce((), "argmax"), (place,), (joined.index,), twice.node)
    last = replace(twice, operands=(joined.index, *twice.operands[1:]))
    block = case.plan.program.block
    steps = (*block.instructions[:-1], step, last)
    wrong = replace(
        case.plan.program,
        locals=(*case.plan.program.locals, joined),
        block=replace(block, instructions=steps),
    )
    assert refuted(case, wrong)
