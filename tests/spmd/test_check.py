"""`check` refuses every program of wrong structure, and names the instruction and the value."""

from dataclasses import replace

import jax
import pytest

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digit
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProgramError
from shardalg.spmd import instructions as p
from shardalg.spmd.check import check
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.local import Start
from tests.spmd.handmade import CASES, Builder, loop, matmul_all_reduce


@pytest.mark.parametrize("case", CASES)
def test_sound_programs_pass_unchanged(case):
    program = CASES[case]()[0]
    assert check(program) is program


def one_step(attributes, shape=(8, 16), *, made=None):
    """Return a program of one instruction on a replicated argument, with result type `made`."""
    b = Builder({"x": 2, "y": 4})
    x = b.argument(shape, ("",) * len(shape))
    after = b.sharding(made or shape, ("",) * len(shape))
    operands = [x, x] if isinstance(attributes, p.MaskIndexed) else [x]
    return b.program(b.add(attributes, operands, after))[0]


X, Y = Builder({"x": 2, "y": 4}).digits("x"), Builder({"x": 2, "y": 4}).digits("y")
START = Start(Index.of("p") * 3, (("p", Y),))
SHAPES = {
    "all_gather": (p.AllGather(0, Y), (32, 16)),
    "all_reduce": (p.AllReduce(X), (8, 16)),
    "reduce_scatter": (p.ReduceScatter(1, Y), (8, 4)),
    "all_to_all": (p.AllToAll(1, 0, X), (16, 8)),
    "collective_permute": (p.CollectivePermute(X, ()), (8, 16)),
    "dynamic_slice": (p.DynamicSlice(0, X, 4), (4, 16)),
    "slice": (p.Slice(0, 2, 5), (5, 16)),
    "slice_at": (p.SliceAt(1, START, 3), (8, 3)),
    "concatenate": (p.Concatenate(0), (8, 16)),
    "mask_at": (p.MaskAt(1, START, 12), (8, 16)),
    "resize": (p.Resize(1, 20), (8, 20)),
    "mask": (p.Mask(0, X, 4, 7), (8, 16)),
    "offset": (p.Offset(X, 4), (8, 16)),
    "mask_indexed": (p.MaskIndexed(((0, X, 4, 7),), (0,)), (8, 16)),
    "first_member": (p.FirstMember(X), (8, 16)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape_of_every_instruction(name):
    attributes, shape = SHAPES[name]
    check(one_step(attributes, made=shape))
    wrong = (shape[0] + 1, shape[1])
    message = (
        rf"{type(attributes).__name__} \(%1\) on Mesh\(x=2, y=4\) gives \({shape[0]}, {shape[1]}\)"
    )
    with pytest.raises(ProgramError, match=message + rf", but %1 is \({wrong[0]}, {wrong[1]}\)"):
        check(one_step(attributes, made=wrong))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (p.Concatenate(2), "names dimension 2, but there are 2"),
        (p.Resize(-1, 16), "names dimension -1, but there are 2"),
        (p.Join(0, "sum"), "takes 2 operands, has 1"),
        (p.MaskAt(1, START, 12, None), "takes 2 operands, has 1"),
    ],
    ids=lambda a: type(a).__name__,
)
def test_operands_and_dimensions_are_there(attributes, message):
    with pytest.raises(ProgramError, match=message):
        check(one_step(attributes))


def test_results_have_the_item_type_of_the_operand():
    program = one_step(p.AllReduce(X))
    first, second = program.locals
    wrong = replace(program, locals=(first, replace(second, dtype="int8")))
    with pytest.raises(ProgramError, match="gives float32, but %1 is int8"):
        check(wrong)


def test_a_slice_stays_inside():
    with pytest.raises(ProgramError, match=r"Slice \(%1\) on .* reads .* of 8 elements"):
        check(one_step(p.Slice(0, 6, 3), made=(3, 16)))


@pytest.mark.parametrize(
    "attributes",
    [p.ReduceScatter(0, Y), p.AllToAll(0, 1, Y), p.DynamicSlice(0, Y, 2)],
    ids=lambda a: type(a).__name__,
)
def test_blocks_must_divide(attributes):
    with pytest.raises(ProgramError, match="cuts dimension 0 of size 6 into 4 blocks: pad it"):
        check(one_step(attributes, (6, 16)))


@pytest.mark.parametrize(
    "attributes",
    [
        p.AllReduce((Digit(16, 2),)),
        p.Mask(0, (Digit(2, 4),), 4, 7),
        p.Offset((Digit(1, 3),), 2),
        p.MaskIndexed(((0, (Digit(3, 2),), 4, 7),), (0,)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_digits_must_lie_on_the_mesh(attributes):
    name = type(attributes).__name__
    where = rf"{name} \(%1\) on Mesh\(x=2, y=4\)"
    with pytest.raises(ProgramError, match=where + r": Digit\(.*\) is not"):
        check(one_step(attributes))


def changed(program, number, **fields):
    """Return the program with other fields of one instruction."""
    steps = list(program.block.instructions)
    steps[number] = replace(steps[number], **fields)
    return replace(program, block=replace(program.block, instructions=tuple(steps)))


def test_read_before_it_is_made():
    program = matmul_all_reduce()[0]
    with pytest.raises(ProgramError, match=r"Apply \(%2\) on Mesh.* reads %3, which is not made"):
        check(changed(program, 0, operands=(0, 3)))


def test_made_twice():
    program = matmul_all_reduce()[0]
    with pytest.raises(ProgramError, match=r"AllReduce \(%2\) on Mesh.* makes %2 again"):
        check(changed(program, 1, results=(2,)))


def test_a_result_that_nothing_makes():
    program = matmul_all_reduce()[0]
    cut = replace(program, block=replace(program.block, instructions=()))
    with pytest.raises(ProgramError, match="returns %3, which nothing makes"):
        check(cut)


@pytest.mark.parametrize("side", ["argument", "result"])
def test_the_border_has_the_layouts_it_says(side):
    program = matmul_all_reduce()[0]
    mesh, field = program.mesh, f"{side}_shardings"
    (first, *rest) = getattr(program, field)
    other = Sharding(mesh, first.shape, (mesh.digits("y"), ()))
    with pytest.raises(
        ProgramError, match=rf"{side} 0 is f32\[.*\] on a device, but Sharding\(\[y"
    ):
        check(replace(program, **{field: (other, *rest)}))


def test_a_loop_carries_one_layout():
    """A body that gives its carry back in another layout of the same shape."""
    b = Builder({"x": 2, "y": 2})
    c = b.argument((4,), ("x",))
    inner = b.local(b.sharding((4,), ("x",)))
    b.blocks.append([])
    moved = b.apply(jax.lax.neg, [inner], b.sharding((4,), ("y",)))
    body = Block((inner,), tuple(b.blocks.pop()), (moved,))
    result = b.local(b.sharding((4,), ("x",)))
    b.blocks[-1].append(Instruction(p.Loop(body, 0, 1, 3, False), (c,), (result,), None))
    with pytest.raises(ProgramError, match=r"Loop .* carries %2 back as %1, but .*\[y\] and \[x\]"):
        check(b.program(result)[0])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("length", r"Loop .* passes \(3, 1\) for %5 of \(1,\)"),
        ("num_carry", r"Loop .* passes \(3, 1\) for %5 of \(1,\)"),
        ("num_consts", "Loop"),
    ],
)
def test_a_loop_passes_what_its_body_takes(field, message):
    program = loop()[0]
    (step,) = program.block.instructions
    wrong = replace(step.attributes, **{field: getattr(step.attributes, field) + 1})
    with pytest.raises(ProgramError, match=message):
        check(changed(program, 0, attributes=wrong))


def test_bodies_are_checked_too():
    program = loop()[0]
    (step,) = program.block.instructions
    body = step.attributes.body
    cut = replace(step.attributes, body=replace(body, instructions=body.instructions[1:]))
    with pytest.raises(ProgramError, match="reads %6, which is not made"):
        check(changed(program, 0, attributes=cut))
