"""Operators that run on more, or less, than their block, where that changes what is made of it."""

from dataclasses import replace

import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.spmd import instructions as p
from shardalg.spmd.instruction import Instruction
from tests.partition.planned import MESH, instructions, planned
from tests.verify.mutating import refuted

X = np.array([3, -1, 4, -5, 2], np.float32)
LONG = np.arange(1, 65, dtype=np.float32)
PLACES = np.array([0, 5, 9, 3], np.int32)
END = np.int32(9)
AT_END, IN_FRONT = p.Resize(0, 6), p.Dilate(0, 1, 1, 0, "sum")


def read(mode):
    return lambda x, places: x.at[places].get(mode=mode)


def added(mode):
    return lambda x, places, new: x.at[places].add(new, mode=mode)


def box(x, start):
    return lax.dynamic_slice(x, (start,), (3,))


def written(x, new, start):
    return lax.dynamic_update_slice(x, new, (start,))


def sorted_pairs(x, y):
    return lax.sort((x, y), num_keys=1)


# name: (function, its arguments, layout of the first one, the loop, what each operand becomes, and
# what is kept of each result)
WHOLE = {
    "what starts beyond the end is clamped to": (
        read("clip"), (X, PLACES), "k0", (AT_END, None), (None,),
    ),
    "what starts beyond the end misses": (read("fill"), (X, PLACES), "k0", (AT_END, None), (None,)),
    "a box that is clamped to the end": (box, (X, END), "k0", (AT_END, None), (None,)),
    "a box that is written at the end": (
        written, (X, -X[:2], END), "o0", (AT_END, None, None), (p.Resize(0, 5),),
    ),
    "updates that are clamped to the end": (
        added("clip"), (X, PLACES, X[:4]), "o0", (AT_END, None, None), (p.Resize(0, 5),),
    ),
    "updates of elements behind a place more": (
        added("drop"), (X, PLACES, X[:4]), "o0", (IN_FRONT, None, None), (p.Slice(0, 1, 5),),
    ),
    "what is sorted": (lax.sort, (X,), "L", (AT_END,), (p.Resize(0, 5),)),
    "what is sorted together": (
        sorted_pairs, (X, 2 * X), "L", (AT_END, AT_END), (p.Resize(0, 5), p.Resize(0, 5)),
    ),
}  # fmt: skip


def widened(plan, loops, before, behind):
    """Apply the last operator to longer operands, and keep a part of its results."""
    program, locals_ = plan.program, list(plan.program.locals)

    def longer(local, shape):
        locals_.append(replace(locals_[local], index=len(locals_), shape=shape, origin=None))
        return len(locals_) - 1

    def ran(one):
        operands, results, first, last = [], [], [], []
        for local, change in zip(one.operands, before, strict=True):
            shape = change and change.result_shape(locals_[local].shape)
            operands.append(longer(local, shape) if change else local)
            if change:
                first.append(Instruction(change, (local,), (operands[-1],), one.node))
        for local, change in zip(one.results, behind, strict=True):
            results.append(longer(local, (6,)) if change else local)
            if change:
                last.append(Instruction(change, (results[-1],), (local,), one.node))
        attributes = one.attributes if loops is None else replace(one.attributes, loops=loops)
        given = {"operands": tuple(operands), "results": tuple(results)}
        return *first, replace(one, attributes=attributes, **given), *last

    of_operators = [s for s in instructions(program.block) if isinstance(s.attributes, p.Apply)]
    steps = (ran(s) if s is of_operators[-1] else (s,) for s in program.block.instructions)
    block = replace(program.block, instructions=tuple(s for some in steps for s in some))
    return replace(program, block=block, locals=tuple(locals_))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", WHOLE)
def test_of_what_is_whole_there_is_no_place_more(name):
    """A dimension declared as a loop of its own is first whole, then cut to the real size."""
    fn, arguments, loop, before, behind = WHOLE[name]
    plan = planned(fn, arguments, (P(),) * len(arguments))
    refuted(plan, widened(plan, ((loop, ()),), before, behind), *arguments)


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_indices_are_counted_from_the_first_place(mode):
    """A place in front of the block, which holds no element, moves what they select."""
    plan = planned(read(mode), (LONG, PLACES), (P("X"), P()))
    refuted(plan, widened(plan, None, (IN_FRONT, None), (None,)), LONG, PLACES)


def test_a_box_that_is_read_is_whole():
    """A part of it starts behind the start that all devices have."""
    axis, six = MESH.digits("X"), lambda x, start: lax.dynamic_slice(x, (start,), (6,))
    plan = planned(six, (LONG, END), (P(), P()), out_shardings=P("X"))
    *before, reads, _ = plan.program.block.instructions
    (result,), (made,) = plan.program.block.results, reads.results
    own = replace(plan.program.locals[result], origin=plan.program.locals[made].origin)
    part = replace(reads, attributes=p.Extract((3,), (), (("o0", axis),)), results=(result,))
    block = replace(plan.program.block, instructions=(*before, part))
    locals_ = (*plan.program.locals[:result], own, *plan.program.locals[result + 1 :])
    refuted(plan, replace(plan.program, block=block, locals=locals_), LONG, END)


def test_a_box_that_is_written_is_whole():
    """Parts of it, each written by one device where the whole starts, are added up."""
    axis, arguments = MESH.digits("X"), (LONG, -LONG[:6], END)
    plan = planned(written, arguments, (P(), P("X"), P()), out_shardings=P())
    program, (x, new, _) = plan.program, plan.program.block.arguments
    *before, _, writes = program.block.instructions
    (made,), count = writes.results, len(program.locals)
    first = replace(program.locals[x], index=count, origin=None)
    layout = replace(first.sharding, unreduced=axis)
    parts = replace(program.locals[made], index=count + 1, origin=None, sharding=layout)
    box = p.Insert((), (("v0", axis),))
    operands, partial = (count, new, writes.operands[2]), (count + 1,)
    steps = (
        Instruction(p.FirstMember(axis, "pick"), (x,), (count,), writes.node),
        replace(writes, attributes=box, operands=operands, results=partial),
        Instruction(p.AllReduce(axis), partial, (made,), writes.node),
    )
    block = replace(program.block, instructions=(*before, *steps))
    refuted(plan, replace(program, block=block, locals=(*program.locals, first, parts)), *arguments)
