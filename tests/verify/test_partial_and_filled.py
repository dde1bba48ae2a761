"""Partial sums are summed somewhere, and padding has the value that follows a sum.

Programs that verified once, and computed something else.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import StrategyError
from shardalg.spmd.check import check
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instruction import Instruction, infer_types
from shardalg.spmd.instructions import (
    AllReduce,
    Apply,
    Concatenate,
    DynamicSlice,
    Fold,
    Manual,
    Mask,
    MaskIndexed,
    Offset,
    OwnerSelect,
    ReduceScatter,
    Resize,
    Slice,
    Top,
    ValueAt,
)
from shardalg.verify.verify import verify
from tests.verify.edited import Edited
from tests.verify.mutating import lowered, refuted

MESH = sa.Mesh({"X": 4})
X = MESH.digits(("X",))
ROW = np.arange(1, 9, dtype=np.float32)
SQUARE = np.ones((8, 8), np.float32)


def sine(x):
    return jax.pure_callback(lambda x: np.sin(x), jax.ShapeDtypeStruct((), "float32"), x)


def test_a_number_that_everybody_reads_is_no_partial_sum():
    plan = sa.plan(lambda x: sine(x.sum()), ROW, mesh=MESH, in_shardings=P("X"))
    edited = Edited(plan)
    edited.left_out(AllReduce)
    refuted(plan, edited.made, ROW)


def test_what_everybody_computes_is_no_partial_sum():
    plan = sa.plan(lambda x: sine(x[0]), ROW, mesh=MESH, in_shardings=P())
    edited = Edited(plan)
    edited.summed_behind(edited.place(Apply))
    refuted(plan, edited.made, ROW)


@pytest.mark.parametrize("is_constant", [True, False])
def test_what_a_program_starts_with_is_no_partial_sum(is_constant):
    """A constant or an argument is added to partial sums, on every device."""
    given = (ROW, SQUARE) if is_constant else (ROW, SQUARE, ROW)
    layouts = (P("X"), P("X")) if is_constant else (P("X"), P("X"), None)

    def fn(x, w, b=ROW):
        return x @ w + b

    plan = sa.plan(fn, *given, mesh=MESH, in_shardings=layouts, out_shardings=P())
    edited = Edited(plan)
    edited.left_out(AllReduce)
    edited.summed_behind(edited.place(Apply))
    start = plan.program.constants[0][0] if is_constant else plan.program.block.arguments[2]
    edited.says_partial(start)
    if not is_constant:
        border = (*plan.program.argument_shardings[:2], edited.partial(start))
        edited.border = {"argument_shardings": border}
    refuted(plan, edited.made, *given)


def test_what_a_program_hands_out_is_no_partial_sum():
    plan = sa.plan(jnp.dot, ROW, SQUARE, mesh=MESH, in_shardings=(P("X"), P("X")))
    edited = Edited(plan)
    edited.left_out(AllReduce)
    edited.border = {"result_shardings": (edited.locals[edited.results[0]].sharding,)}
    refuted(plan, edited.made, ROW, SQUARE)


@pytest.mark.parametrize("side", ["in_shardings", "out_shardings"])
def test_partial_sums_at_the_border_are_refused_by_name(side):
    with pytest.raises(StrategyError, match="partial sums"):
        sa.plan(jnp.sin, ROW, mesh=MESH, **{side: P(None, unreduced={"X"})})


def test_devices_of_a_region_that_go_different_ways():
    """One device of a manual region has the flag, and the others zeros for it."""

    def region(x, flags):
        return lax.while_loop(lambda s: s[1][2], lambda s: (s[0] + 1, s[1] & False), (x, flags))[0]

    flags = np.array([0, 0, 1, 0], bool)
    border = {"in_specs": (P("X"), P()), "out_specs": P("X"), "check_vma": False}
    fn = jax.shard_map(region, mesh=MESH.to_jax(), **border)
    plan = sa.plan(fn, ROW, flags, mesh=MESH, in_shardings=(P("X"), P()))
    edited = Edited(plan)
    place = edited.place(Manual)
    manual = edited.steps[place]
    body = manual.attributes.body
    loop = body.instructions[0]
    condition = loop.attributes.condition
    cut, flat = condition.instructions
    alone = edited.like(cut.operands[0], shape=(1,), sharding=edited.partial(cut.operands[0]))
    chosen = Instruction(OwnerSelect(0, 2, 4, X), cut.operands, (alone,), cut.node)
    edited.says_partial(cut.results[0])
    edited.says_partial(flat.results[0])
    params = (("start_indices", (0,)), ("limit_indices", (1,)))
    cut = replace(cut, operands=(alone,), attributes=replace(cut.attributes, params=params))
    condition = replace(condition, instructions=(chosen, cut, flat))
    loop = replace(loop, attributes=replace(loop.attributes, condition=condition))
    body = replace(body, instructions=(loop, *body.instructions[1:]))
    edited.steps[place] = replace(manual, attributes=replace(manual.attributes, body=body))
    refuted(plan, edited.made, ROW, flags)


@pytest.mark.parametrize("way", ["max", "product"])
def test_a_mask_before_sums_are_scattered(way):
    """The fill is summed too: four ones are not one, and four lowest numbers overflow."""
    dtype, best = {"max": ("int32", jnp.max), "product": ("float32", jnp.prod)}[way]
    a, b = -np.ones((64, 7), dtype), np.ones((64, 6), dtype)
    strategy = sa.Strategy(MESH, (P("X"), P("X")), P(), {"product": P("X")})
    plan = sa.plan(lambda a, b: best(sa.annotate(a.T @ b, "product"), 0), a, b, strategy=strategy)
    edited = Edited(plan)
    edited.left_out(Mask)
    (summed,) = edited.steps[edited.place(ReduceScatter)].operands
    edited.changed_first(summed, Mask(0, (), 8, 7, way))
    refuted(plan, edited.made, a, b)


@pytest.mark.parametrize(
    "fn",
    [lambda x: jnp.sum(jnp.sign(x)), lambda x: jnp.prod(lax.max(jnp.float32(1), x))],
    ids=["sign", "max"],
)
def test_padding_of_a_nan_is_no_number_behind_an_operator(fn):
    x = ROW[:7]
    plan = sa.plan(fn, x, mesh=MESH, in_shardings=P("X"))
    edited = Edited(plan)
    mask = edited.left_out(Mask).attributes
    edited.changed_first(plan.program.block.arguments[0], replace(mask, fill="top"))
    refuted(plan, edited.made, x)


def test_a_mask_before_what_has_no_index_is_filled():
    """Padding of the indices is no index, so that its value is the fill."""
    table, ids = np.arange(16, dtype=np.float32), np.array([0, 9, 3, 3, 7, 2, 1])

    def fn(table, ids):
        return jnp.asarray(table).at[ids].get(mode="fill", fill_value=7).sum()

    plan = sa.plan(fn, table, ids, mesh=sa.Mesh({"X": 2, "Y": 4}), in_shardings=(P("X"), P("Y")))
    edited = Edited(plan)
    mask = edited.left_out(Mask).attributes
    edited.changed_first(edited.steps[edited.place(MaskIndexed)].operands[0], mask)
    refuted(plan, edited.made, table, ids)


def test_padding_is_of_the_value_that_filled_it():
    """Masked for one pad by `a`, moved, and read by another pad, which fills with `b`."""
    config = ((1, 2, 0),)

    def padded(x, a, b):
        return lax.pad(x, a, config), lax.pad(x, b, config)

    given = np.arange(9, dtype="f4"), np.float32(10), np.float32(20)
    plan = sa.plan(padded, *given, mesh=MESH, in_shardings=(P("X"), P(), P()))
    steps, locals_ = list(plan.program.block.instructions), list(plan.program.locals)
    first, second = (
        n for n, one in enumerate(steps) if getattr(one.attributes, "primitive", "") == "pad"
    )
    held = steps[first].operands[0]
    locals_.append(replace(locals_[held], index=len(locals_), origin=None))
    moved = Instruction(Slice(0, 0, 3), (held,), (len(locals_) - 1,), steps[first].node)
    one = steps[second]
    steps[second : second + 1] = [
        moved, replace(one, operands=(len(locals_) - 1, *one.operands[1:]))
    ]  # fmt: skip
    block = replace(plan.program.block, instructions=tuple(steps))
    program = replace(plan.program, locals=tuple(locals_), block=block)
    check(program)
    good, bad = (simulate(p, plan.graph, *given)[1] for p in (plan.program, program))
    assert (good != bad).any()
    assert not verify(plan.sharded, program).ok


def best(negative=False):
    """Return a plan whose best four are joined from every device's best, and its program."""
    x = np.random.default_rng(0).permutation(4096).astype(np.float32)
    x = x - 4096 if negative else x
    plan = sa.plan(lambda x: lax.top_k(x, 4), x, mesh=MESH, in_shardings=P("X"))
    return plan, Edited(plan), x


def test_the_best_of_all_but_the_first_of_every_block_are_not_the_next_ones():
    plan, edited, x = best()
    place = edited.place(Top)
    top = edited.steps.pop(place)
    pieces, steps = [], []
    for first, size in ((0, 1), (1, 3)):
        cut = [edited.like(local, shape=(size,)) for local in top.operands]
        made = [edited.like(local, shape=(size,)) for local in top.results]
        moves = zip(top.operands, cut, strict=True)
        steps += [Instruction(Slice(0, first, size), (a,), (b,), top.node) for a, b in moves]
        steps.append(replace(top, operands=tuple(cut), results=tuple(made)))
        pieces.append(made)
    for parts, result in zip(zip(*pieces, strict=True), top.results, strict=True):
        steps.append(Instruction(Concatenate(0), parts, (result,), top.node))
    edited.steps[place:place] = steps
    refuted(plan, edited.made, x)


def test_padding_of_the_best_of_every_block_is_no_candidate():
    """Zeros behind them are better than negative numbers."""
    plan, edited, x = best(negative=True)
    place = edited.place(Top)
    top = edited.steps.pop(place)
    wide = [edited.like(local, shape=(6,)) for local in top.operands]
    made = [edited.like(local, shape=(6,)) for local in top.results]
    padded = [
        Instruction(Resize(0, 6), (a,), (b,), top.node)
        for a, b in zip(top.operands, wide, strict=True)
    ]
    stripped = [
        Instruction(Resize(0, 4), (a,), (b,), top.node)
        for a, b in zip(made, top.results, strict=True)
    ]
    joined = replace(top, operands=tuple(wide), results=tuple(made))
    edited.steps[place:place] = [*padded, joined, *stripped]
    refuted(plan, edited.made, x)


def test_a_component_of_a_part_of_the_indices_is_another_one():
    """Both columns are shifted, each as the first one of a part of its own."""
    table = np.arange(64, dtype=np.float32).reshape(8, 8)
    ids = np.random.default_rng(0).integers(0, 8, (16, 2))
    along = {"offset_dims": (), "collapsed_slice_dims": (0, 1), "start_index_map": (0, 1)}

    def taken(table, ids):
        dims = lax.GatherDimensionNumbers(**along)
        return lax.gather(table, ids, dims, (1, 1), mode="clip")

    plan = sa.plan(taken, table, ids, mesh=MESH, in_shardings=(P("X"), P()))
    edited = Edited(plan)
    place = edited.place(Offset)
    offset = edited.steps.pop(place)
    (given,), shifted, steps = offset.operands, [], []
    for column in (0, 1):
        part, moved = (edited.like(given, shape=(16, 1)) for _ in range(2))
        steps.append(Instruction(Slice(1, column, 1), (given,), (part,), offset.node))
        steps.append(replace(offset, operands=(part,), results=(moved,)))
        shifted.append(moved)
    steps.append(Instruction(Concatenate(1), tuple(shifted), offset.results, offset.node))
    edited.steps[place:place] = steps
    refuted(plan, edited.made, table, ids)


BOTH = sa.Mesh({"X": 2, "Y": 2})


def test_places_of_padding_are_counted_from_blocks():
    """Zeros, said to be best in the second block, are places in that."""
    x = np.arange(7 * 4096, dtype=np.float32).reshape(7, 4096) % 5

    def best(x):
        return jnp.argmax(jnp.where(x == x, x, jnp.arange(4096.0)), 1).sum()

    plan = sa.plan(best, x, mesh=BOTH, in_shardings=P("Y", "X"))
    edited = Edited(plan)
    mask = edited.left_out(Mask).attributes
    found = edited.steps[edited.place(ValueAt)].operands[0]
    edited.changed_first(found, mask)
    refuted(plan, edited.made, x)


def test_a_mask_before_partial_results_are_folded():
    """A function of the user makes another number of two zeros."""
    x = np.ones((7, 64), np.float32)

    def folded(x):
        return lax.reduce(x, np.float32(1), lambda a, b: a + b - 1, (1,)).sum()

    plan = sa.plan(folded, x, mesh=BOTH, in_shardings=P("Y", "X"))
    edited = Edited(plan)
    mask = edited.left_out(Mask).attributes
    edited.changed_first(edited.steps[edited.place(Fold)].operands[0], mask)
    refuted(plan, edited.made, x)


def test_zeros_are_padded_over_what_another_dimension_is_filled_with():
    """One of two squares is filled with ones along the rows, the other along the columns."""
    x, y = np.zeros((7, 7), np.float32), np.ones((7, 7), np.float32)

    def alike(x, y):
        same = sa.annotate(x, "x") == sa.annotate(y, "y")
        return jnp.sum(same.astype(jnp.float32))

    strategy = sa.Strategy(BOTH, (P(), P()), P(), {"x": P("X", "Y"), "y": P("X", "Y")})
    plan = sa.plan(alike, x, y, strategy=strategy)
    edited = Edited(plan)
    while any(isinstance(step.attributes, Mask) for step in edited.steps):
        edited.left_out(Mask)
    for given, (first, last) in zip(plan.program.block.arguments, ((0, 1), (1, 0)), strict=True):
        held, steps, shape = given, [], (7, 7)
        moves = [
            Resize(first, 8),
            Mask(first, (), 8, 7, "product"),
            Resize(last, 8),
            DynamicSlice(0, BOTH.digits(("X",)), 4),
            DynamicSlice(1, BOTH.digits(("Y",)), 4),
        ]
        for move in moves:
            ((shape, _),) = infer_types(move, [(shape, "float32")])
            made = edited.like(held, shape=shape)
            steps.append(Instruction(move, (held,), (made,), None))
            held = made
        names = [getattr(step.attributes, "primitive", "") for step in edited.steps]
        place = [k for k, name in enumerate(names) if name == "annotate"][given]
        edited.steps[place] = replace(edited.steps[place], operands=(held,))
        edited.steps[place:place] = steps
    refuted(plan, edited.made, x, y)


def test_padding_that_selects_no_case_is_not_told():
    """Zeros less 1 select case -1: not the last case, whose zeros may be summed."""

    def selected(x):
        cases = [jnp.full((5,), number, np.float32) for number in (5, 0)]
        return jnp.sum(x), jnp.sum(lax.select_n(x - np.int32(1), *cases))

    x = np.array([1, 2, 1, 1, 2], np.int32)
    plan = sa.plan(selected, x, mesh=MESH, in_shardings=(P("X"),), out_shardings=P())
    edited = Edited(plan)
    filled = next(s for s in edited.steps if isinstance(s.attributes, Mask)).results
    place = next(k for k, s in enumerate(edited.steps) if s.attributes.text(MESH)[:3] == "sub")
    less = edited.steps[place]
    edited.steps[place] = replace(less, operands=(*filled, *less.operands[1:]))
    edited.left_out(Mask)
    refuted(plan, edited.made, x)


def test_what_is_added_up_has_a_zero():
    """Other devices contribute 0 to an element, which this type represents differently."""
    x = 2.0 ** np.arange(8, dtype=np.float32)

    def taken(x):
        return sa.plan(lambda x: x[5], x, mesh=MESH, in_shardings=P("X"))

    narrow = np.asarray(jnp.asarray(x).astype("float8_e8m0fnu"))
    plan, wide = taken(narrow), taken(x).program
    assert {type(step.attributes) for step in wide.block.instructions} >= {OwnerSelect, AllReduce}
    locals_ = tuple(replace(one, dtype="float8_e8m0fnu") for one in wide.locals)
    refuted(plan, replace(wide, locals=locals_), narrow, run=lowered)
