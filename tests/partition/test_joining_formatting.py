"""Formatting that repeats, continues or undoes itself is one instruction, and the values stay."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.planner.partition.passes.merge_formatting import MergeFormatting
from shardalg.show.formatting import formatting
from shardalg.spmd import instructions as p
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.local import Local
from tests.partition.planned import checked, instructions, numbers, planned

MESH = sa.Mesh({"X": 4})
(X,) = MESH.digits("X")
OFF = sa.Options(switches=sa.Switches(join_formatting=False))


def chain(size, *steps):
    """Return a block that applies `steps` one after the other to a local of so many elements."""
    whole = sa.Sharding(MESH, (size,), ((),))
    shapes = [size]
    for step in steps:
        shapes.append(getattr(step, "size", shapes[-1]) if type(step) is not p.Mask else shapes[-1])
    made = [Local(i, (n,), "float32", whole) for i, n in enumerate(shapes)]
    rows = [Instruction(step, (i,), (i + 1,), None) for i, step in enumerate(steps)]
    return Block((0,), tuple(rows), (len(steps),)), made


def left(size, *steps):
    """Return the instructions between the chain's argument and its result."""
    block, made = chain(size, *steps)
    block = MergeFormatting(made).run(block)
    made = {step.results[0]: step for step in block.instructions}
    found, local = [], block.results[0]
    while local != 0:
        found.append(made[local].attributes)
        (local,) = made[local].operands
    return found[::-1]


def run(steps, values):
    """Their meaning on one device."""
    for step in steps:
        if type(step) is p.Slice:
            values = values[step.start : step.stop]
        else:
            values = np.pad(values, (0, max(step.size - len(values), 0)))[: step.size]
    return values


LOCAL = [p.Resize(0, n) for n in (3, 5, 8)] + [p.Slice(0, 1, 2), p.Slice(0, 0, 3), p.Slice(0, 2, 1)]


def fits(size, steps):
    """Return True if no slice reaches beyond the elements."""
    sizes = [size, *(step.size for step in steps)]
    slices = [(s, n) for s, n in zip(steps, sizes, strict=False) if type(s) is p.Slice]
    return all(step.stop <= n for step, n in slices)


@pytest.mark.parametrize("first", LOCAL, ids=str)
def test_a_chain_means_what_it_did(first):
    values = np.arange(1, 6)
    for rest in itertools.product(LOCAL, repeat=2):
        steps = (first, *rest)
        if fits(5, steps):
            kept = left(5, *steps)
            assert len(kept) <= len(steps)
            np.testing.assert_array_equal(run(kept, values), run(steps, values), str(steps))


def test_what_undoes_itself_is_nothing():
    assert left(5, p.Resize(0, 8), p.Resize(0, 5)) == []
    assert left(5, p.Resize(0, 3), p.Resize(0, 5)) != []
    mask = p.Mask(0, (X,), 2, 7)
    assert left(2, mask, mask) == [mask]
    assert len(left(2, mask, p.Mask(0, (X,), 2, 7, "max"))) == 2


def test_permutes_are_composed_in_their_order():
    turn = p.CollectivePermute((X,), ((0, 1), (1, 2), (2, 3), (3, 0)))
    swap = p.CollectivePermute((X,), ((0, 1), (1, 0), (2, 2), (3, 3)))
    (one,) = left(2, turn, swap)
    held = {target: source for source, target in turn.pairs}
    assert {t: s for s, t in one.pairs} == {t: held[s] for s, t in swap.pairs}
    assert left(2, swap, swap) == []
    some = p.CollectivePermute((X,), ((0, 1),))
    assert len(left(2, some, turn)) == 2


def twice(x, v, w):
    return jnp.dot(x, v) * jnp.tanh(jnp.dot(x, w))


def test_a_value_is_masked_once_for_all_that_sum_over_it():
    arguments = numbers(6, 7), numbers(7, 4), numbers(7, 4)
    specs = (P(None, "X"), P("X"), P("X"))
    kinds = {}
    for options in (sa.Options(), OFF):
        plan = checked(twice, arguments, specs, mesh=MESH, options=options)
        assert plan.verify().ok
        kinds[options] = [type(s.attributes) for s in instructions(plan.program.block)]
    assert [found.count(p.Mask) for found in kinds.values()] == [3, 4]


def test_the_share_of_formatting():
    """Three masks of a product that nothing fuses with: bytes read and written, over all bytes."""
    arguments = numbers(6, 7), numbers(7, 4), numbers(7, 4)
    plan = planned(twice, arguments, (P(None, "X"), P("X"), P("X")), mesh=MESH)
    (row,) = (r for r in formatting(plan.program, plan.graph) if r["instruction"] == "Mask")
    masked = 4 * 2 * (6 + 4 + 4)
    assert (row["executions"], row["memory_bytes"]) == (3, 2 * masked)
    assert 0 < row["memory_share"] < 1
    cost = plan.cost("tpu_v3", software="datasheet")
    kinds = {item.kind: item.time_s for item in cost.items}
    assert cost.formatting_s == kinds["formatting"]
    assert 0 < cost.formatting_s < cost.compute_s
    arguments = numbers(6, 8), numbers(8, 4), numbers(8, 4)
    even = planned(twice, arguments, (P(None, "X"), P("X"), P("X")), mesh=MESH)
    assert formatting(even.program, even.graph)["executions"] == (0,)
    assert even.cost("tpu_v3").formatting_s == 0
