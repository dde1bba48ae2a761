"""The simulation of hand-made programs; that garbage padding and unequal copies are noticed."""

from dataclasses import replace

import numpy as np
import pytest

from shardalg.algebra.affine import Index
from shardalg.errors import ProgramError
from shardalg.spmd import instructions as p
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.local import Start
from tests.spmd.handmade import CASES, Builder, array, matmul_all_reduce, matmul_uneven


@pytest.mark.parametrize("case", CASES)
def test_simulated_equals_expected(case):
    program, graph, arguments, expected = CASES[case]()
    results = simulate(program, graph, *arguments)
    assert len(results) == len(expected)
    for result, want in zip(results, expected, strict=True):
        assert result.dtype == np.asarray(want).dtype
        np.testing.assert_allclose(
            result.astype(np.float64), np.asarray(want, np.float64), rtol=1e-5, atol=1e-5
        )


def without(program, kind):
    """`program` with every instruction of a kind replaced by the value that it reads."""
    renamed, kept = {}, []
    for step in program.block.instructions:
        operands = tuple(renamed.get(o, o) for o in step.operands)
        if isinstance(step.attributes, kind):
            renamed[step.results[0]] = operands[0]
        else:
            kept.append(replace(step, operands=operands))
    results = tuple(renamed.get(r, r) for r in program.block.results)
    return replace(program, block=replace(program.block, instructions=tuple(kept), results=results))


def test_a_mask_left_out_is_seen():
    program, graph, arguments, _ = matmul_uneven()
    (result,) = simulate(without(program, p.Mask), graph, *arguments)
    assert np.isnan(result).all()


def test_a_collective_left_out_is_seen():
    """Devices then hand on partial sums in place of copies, whatever the locals say of them."""
    program, graph, arguments, _ = matmul_all_reduce()
    with pytest.raises(ProgramError, match="result 0: the program returns different copies"):
        simulate(without(program, p.AllReduce), graph, *arguments)


def test_copies_that_differ_name_the_instruction():
    b = Builder({"x": 2})
    x = b.argument((4,), ("x",))
    wrong = b.add(p.Resize(0, 2), [x], b.sharding((2,), ("",)))  # claims to be replicated
    program, graph = b.program(wrong)
    with pytest.raises(ProgramError, match=r"Resize.*positions 0 and 1 should hold the same block"):
        simulate(program, graph, array(4))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.full(4, np.nan, "f4"), None),
        (np.array([1, 1, np.nan, np.nan], "f4"), "up to nan"),
        (np.array([np.inf, 2, np.inf, 1], "f4"), r"up to 1\.0"),
        (np.array([-np.inf, 2, np.inf, 1], "f4"), "up to inf"),
        (np.array([1, 2, 1j, 2], "c8"), r"up to 1\.414"),
    ],
)
def test_how_far_copies_differ(values, words):
    b = Builder({"x": 2})
    x = b.argument((4,), ("x",), str(values.dtype))
    program, graph = b.program(b.add(p.Resize(0, 2), [x], b.sharding((2,), ("",))))
    if words is None:
        simulate(program, graph, values)
        return
    with pytest.raises(ProgramError, match=f"same block and differ by {words}"):
        simulate(program, graph, values)


def test_wrong_shape_of_a_local():
    b = Builder({"x": 2})
    x = b.argument((4,), ("x",))
    y = b.add(p.AllGather(0, b.digits("x")), [x], b.sharding((4,), ("",)), shape=(3,))
    program, graph = b.program(y)
    with pytest.raises(ProgramError, match=r"AllGather.*makes blocks of shape \(4,\)"):
        simulate(program, graph, array(4))


@pytest.mark.parametrize(
    ("attributes", "shape", "message"),
    [
        (p.ReduceScatter(0, ()), (3,), None),
        ("reduce_scatter", (3,), "cannot be split among 2 devices"),
        ("all_to_all", (3, 2), "cannot be split among 2 devices"),
        ("dynamic_slice", (3,), r"position 1 slices \[2, 4\) of 3 elements"),
        ("slice_at", (3,), r"position 1 slices \[2, 4\) of 3 elements of dimension 0"),
        ("user", (3,), "no collective combines by 'user'"),
    ],
)
def test_steps_that_do_not_fit(attributes, shape, message):
    b = Builder({"x": 2})
    x = b.argument(shape, ("",) * len(shape))
    made = {
        "reduce_scatter": p.ReduceScatter(0, b.digits("x")),
        "all_to_all": p.AllToAll(0, 1, b.digits("x")),
        "dynamic_slice": p.DynamicSlice(0, b.digits("x"), 2),
        "slice_at": p.SliceAt(0, Start(Index.of("p") * 2, (("p", b.digits("x")),)), 2),
        "user": p.AllReduce(b.digits("x"), "user"),
    }.get(attributes, attributes)
    program, graph = b.program(b.add(made, [x], b.sharding(shape, ("",) * len(shape))))
    if message is None:
        np.testing.assert_array_equal(simulate(program, graph, array(*shape))[0], array(*shape))
        return
    with pytest.raises(ProgramError, match=message):
        simulate(program, graph, array(*shape))


def test_arguments_of_other_shapes():
    program, graph, (x, w), _ = matmul_all_reduce()
    with pytest.raises(ProgramError, match="takes 2 arrays, got 1"):
        simulate(program, graph, x)
    with pytest.raises(ProgramError, match=r"argument1: shape \(6, 16\), planned for \(16, 6\)"):
        simulate(program, graph, x, w.T)
