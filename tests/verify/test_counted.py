"""Numbers that no device can hold: right to whole numbers, and wrong where 32 bits are counted.

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
from shardalg.spmd.check import check
from shardalg.spmd.instruction import Block
from shardalg.spmd.instructions import (
    CollectiveMatmul,
    DynamicSlice,
    HaloExchange,
    Mask,
    MaskAt,
    Reading,
)
from shardalg.spmd.local import Start
from shardalg.verify.verify import verify
from tests.verify.edited import Edited, before, tampered
from tests.verify.mutating import lowered, refuted

MESH = sa.Mesh({"X": 4})
X = MESH.digits(("X",))


@pytest.mark.parametrize("by", [2**29, 2**32])
def test_a_start_is_worked_out_in_32_bits(by):
    x, mesh = np.arange(1, 8, dtype=np.float32), sa.Mesh({"X": 4})
    plan = sa.plan(lambda x: x.sum(), x, mesh=mesh, in_shardings=P("X"))
    start = Start((Index.of("o") * (2 * by)) // by, (("o", mesh.digits(("X",))),))
    program = tampered(plan, Mask, lambda mask: MaskAt(mask.dim, start, mask.size, mask.fill))
    if by == 2**29:
        refuted(plan, program, x, run=lowered)
    assert not verify(plan.sharded, program).ok


def test_blocks_of_a_ring_are_counted_in_32_bits():
    """A whole number of rounds is nothing, unless the last of them does not fit."""
    options = sa.Options(hardware="h100", switches=sa.Switches(collective_matmul=True))
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((12, 6), (6, 24)))
    plan = sa.plan(
        jnp.dot, x, w, mesh=sa.Mesh({"X": 3}), in_shardings=(P("X"), P(None, "X")),
        out_shardings=P(None, "X"), options=options,
    )  # fmt: skip

    def later(ring):
        ways = [replace(way, start=way.start + 3 * 715827882) for way in ring.directions]
        return replace(ring, directions=tuple(ways))

    refuted(plan, tampered(plan, CollectiveMatmul, later), x, w, run=lowered)


def test_a_ring_has_a_direction():
    """Blocks of nothing are whole with none, and a device then makes no result at all."""
    x, w = np.zeros((0, 6), np.float32), np.ones((6, 24), np.float32)
    layouts = {"in_shardings": (P("X"), P(None, "X")), "out_shardings": P(None, "X")}
    plan = sa.plan(jnp.dot, x, w, mesh=MESH, **layouts)
    block = plan.program.block
    gather, product = block.instructions
    body = Block((gather.operands[0], product.operands[1]), block.instructions, product.results)
    ring = CollectiveMatmul(body, (0, None, 0), ())
    step = replace(product, attributes=ring, operands=body.arguments)
    program = replace(plan.program, block=replace(block, instructions=(step,)))
    check(program)
    assert not verify(plan.sharded, program).ok


def test_where_the_block_of_a_mask_starts_is_counted_in_32_bits():
    """Twice the largest number is -2 in 32 bits, before the only element."""
    x = np.ones(1, np.float32)
    plan = sa.plan(lambda x: (x + 1).sum(), x, mesh=MESH, in_shardings=P("X"))
    refuted(plan, tampered(plan, Mask, lambda mask: replace(mask, block=2**31 - 1)), x, run=lowered)
    far = tampered(plan, Mask, lambda mask: replace(mask, block=2**40, size=2**40))
    assert not verify(plan.sharded, far).ok


def test_the_size_that_places_are_compared_with_is_counted_in_32_bits():
    """After the last element a causal window reads nothing, whatever their declared number."""
    x = np.arange(8, dtype=np.float32)
    plan = sa.plan(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), ((1, 0),)), x, mesh=MESH,
        in_shardings=P("X"), out_shardings=P("X"),
    )  # fmt: skip
    program = tampered(plan, MaskAt, lambda mask: replace(mask, size=2**40))
    check(program)
    assert not verify(plan.sharded, program).ok


def test_the_blocks_of_a_reading_are_counted_exactly():
    """Whole numbers bring every device its own block, and 64 bits the block of another one."""
    by = 3 * 2**61
    named = Start((Index.of("o") * by) // by % 4, (("o", X),))
    permutes = ((0, 0), (1, 1), (3, 2)), ((0, 3),)
    reading = Reading(0, named, permutes, Start(Index.of("o") * 2, (("o", X),)), 2, (0, 2))
    x = np.arange(8, dtype=np.float32)
    plan = sa.plan(lambda x: x * 2, x, mesh=MESH, in_shardings=P("X"), out_shardings=P("X"))
    refuted(plan, before(plan, 0, 0, [HaloExchange(0, X, (reading,))]), x, run=lowered)


def cut(x):
    """Return a plan that cuts a whole dimension into blocks, and reduces it."""
    strategy = sa.Strategy(MESH, (P(),), P(), {"blocks": P("X")})
    plan = sa.plan(lambda x: jnp.max(sa.annotate(x, "blocks") * 1), x, strategy=strategy)
    return plan, Edited(plan)


def test_what_stands_behind_a_dimension_that_is_cut_may_become_zero():
    """The padding is masked before the cut, and filled with zeros on the way."""
    x = -np.arange(1, 8, dtype=np.float32)
    plan, edited = cut(x)
    edited.left_out(Mask)
    (whole,) = edited.steps[edited.place(DynamicSlice)].operands
    edited.changed_first(whole, Mask(0, (), 8, 7, "max"))
    refuted(plan, edited.made, x, run=lowered)


def test_a_dimension_that_is_cut_has_its_elements_in_front():
    """A stage that is declared to have three elements loses the other ones."""
    x = np.arange(8, dtype=np.float32)
    plan, edited = cut(x)
    (block,) = edited.steps[edited.place(DynamicSlice)].results
    layout = edited.locals[block].sharding
    edited.locals[block] = replace(edited.locals[block], origin=None)
    edited.locals[block] = replace(edited.locals[block], sharding=replace(layout, shape=(3,)))
    refuted(plan, edited.made, x, run=lowered)
