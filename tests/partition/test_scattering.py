"""Reductions of which every device keeps a block are reduce-scatters, whatever combines."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.instructions import Mask, ReduceScatter
from shardalg.verify.verify import verify
from tests.partition.planned import checked, instructions, moves, numbers

WHOLE = sa.Options(switches=sa.Switches(join_formatting=False))
ROWS = P(("X", "Y"))
X = numbers(16, 24)
SEGMENTS = np.random.default_rng(0).integers(0, 64, 16).astype(np.int32)


def highest(x, segments):
    return jax.ops.segment_max(x, segments, 64)


# name -> function, arguments, layouts of them and of the result, what is left of the bytes
CASES = {
    "maximum": (lambda x: x.max(0), (X,), (P("Y"),), P("Y"), 1 / 2),
    "uneven": (lambda x: x[:, :22].max(0), (X,), (ROWS,), ROWS, 84 / 154),
    "part of the axes": (lambda x: x.min(0), (X,), (ROWS,), P("Y"), 96 / 168),
    "two dimensions": (lambda x: x.reshape(16, 4, 6).max(0), (X,), (ROWS,), P("Y", "X"), 1 / 2),
    "product": (lambda x: x.prod(0), (X,), (P("X", "Y"),), P(("Y", "X")), 1 / 2),
    "all": (lambda x: (x > 0).all(0), (X,), (P("Y"),), P("Y"), 1 / 2),
    "segments": (highest, (X, SEGMENTS), (P("Y"), P("Y")), P("Y"), None),
}


def wire_bytes(plan):
    return sum(row["wire_bytes"] * row["executions"] for row in plan.collectives_table)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_only_the_blocks_are_combined(name):
    fn, arguments, specs, out, left = CASES[name]
    plan = checked(fn, arguments, specs, out_shardings=out)
    whole = checked(fn, arguments, specs, out_shardings=out, options=WHOLE)
    assert plan.verify().ok
    if left is not None:
        assert "reduce_scatter" in {kind for kind, _ in moves(plan)}
        assert wire_bytes(plan) == pytest.approx(left * wire_bytes(whole))


@pytest.mark.parametrize("combine", ["prod", "max", "min"])
def test_zeros_that_pad_it_are_zeros_after_it(combine):
    """Zero padding adds no element to the next contraction, and is not masked again."""

    def fn(x, w):
        return getattr(x[:, :22], combine)(0) @ w

    plan = checked(fn, (X, numbers(22, 6, seed=1)), (P("Y"), P("Y")), out_shardings=P())
    assert [k for k, _ in moves(plan)] == ["reduce_scatter", "all_reduce"]
    assert sum(isinstance(i.attributes, Mask) for i in instructions(plan.program.block)) == 1
    assert plan.verify().ok


def test_what_is_handed_out_whole_too_is_reduced():
    def fn(x, y):
        most = x.max(0)
        return most, most * y

    arguments, specs = (X, numbers(24, seed=1)), (P("Y"), P("Y"))
    plan = checked(fn, arguments, specs, out_shardings=(P(), P("Y")))
    assert moves(plan) == [("all_reduce", "Y")]


def test_lowered_with_a_nan():
    x = X.copy()
    x[3, 5] = np.nan
    fn, _, specs, out, _ = CASES["part of the axes"]
    plan = checked(fn, (X,), specs, out_shardings=out)
    np.testing.assert_array_equal(plan.lower()(x), fn(jnp.asarray(x)))


@pytest.mark.parametrize("change", [{"combine": "min"}, {"combine": "sum"}], ids=str)
def test_another_combination_is_refuted(change):
    fn, arguments, specs, out, _ = CASES["maximum"]
    plan = checked(fn, arguments, specs, out_shardings=out)
    wrong = [
        replace(i, attributes=replace(i.attributes, **change))
        if isinstance(i.attributes, ReduceScatter)
        else i
        for i in plan.program.block.instructions
    ]
    block = replace(plan.program.block, instructions=tuple(wrong))
    assert verify(plan.sharded, replace(plan.program, block=block)).refuted
