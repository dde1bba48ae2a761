"""The text of a program: every instruction, local sizes with their axes, source lines."""

import re

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digit
from shardalg.spmd import instructions as p
from shardalg.spmd.instruction import Block
from shardalg.spmd.local import Start
from shardalg.spmd.program import Printer, local_text
from tests.spmd.handmade import CASES, Builder, loop, matmul_uneven

B = Builder({"x": 2, "y": 4})
X, Y = B.digits("x"), B.digits("y")
START = Start((Index.of("p") * 6 - 1) // 4, (("p", Y),))
TEXTS = [
    (p.AllGather(1, Y), "all_gather dim=1 axes=y"),
    (p.AllReduce(X + Y, "max"), "all_reduce max axes=x,y"),
    (p.ReduceScatter(0, X), "reduce_scatter sum dim=0 axes=x"),
    (p.AllGathers(((0, X), (1, Y))), "all_gather dim=0 axes=x and dim=1 axes=y"),
    (
        p.ReduceScatters(((1, Y), (0, X)), "max"),
        "reduce_scatter max dim=1 axes=y and dim=0 axes=x",
    ),
    (p.AllToAll(0, 1, Y), "all_to_all split=0 concat=1 axes=y"),
    (p.AllToAll(0, 1, X + Y, Y + X), "all_to_all split=0 concat=1 axes=x,y as y,x"),
    (
        p.AllToAlls((p.AllToAll(0, 1, Y), p.AllToAll(2, 3, X))),
        "all_to_all split=0 concat=1 axes=y and split=2 concat=3 axes=x",
    ),
    (p.CollectivePermute(Y, ((0, 1),)), "collective_permute axes=y"),
    (p.DynamicSlice(0, (Digit(2, 2),), 4), "dynamic_slice dim=0 at p(y:(1)2)*4"),
    (p.Slice(1, 2, 3), "slice dim=1 [2:5]"),
    (p.SliceAt(0, START, 5), "slice dim=0 at (6*p(y)-1)//4 size 5"),
    (p.Concatenate(1), "concatenate dim=1"),
    (p.MaskAt(0, START, 9, "max"), "mask dim=0 where (6*p(y)-1)//4+x is outside [0,9) with max"),
    (p.MaskAt(0, START, 9, None), "mask dim=0 where (6*p(y)-1)//4+x is outside [0,9)"),
    (p.Resize(0, 9), "resize dim=0 to 9"),
    (p.Mask(1, Y, 4, 15, "max"), "mask dim=1 where p(y)*4+x >= 15 with max"),
    (p.Offset(X, -3), "offset p(x)*-3"),
    (p.Offset(X, 3, 1), "offset p(x)*3 on component 1"),
    (p.MaskIndexed(((0, X, 6, 11),), (0,)), "mask_indexed component 0 in [0,6)"),
    (p.FirstMember(Y), "first_member axes=y"),
    (p.Apply("add"), "add"),
    (p.Apply("dot_general", (), (("m", X), ("k", Y))), "dot_general [m@x, k@y]"),
    (p.Loop(Block((), (), ()), 0, 0, 3, False), "loop 3 times"),
    (p.Loop(Block((), (), ()), 0, 0, 3, True), "loop 3 times in reverse"),
]


@pytest.mark.parametrize(("attributes", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_every_kind_of_instruction(attributes, text):
    b = Builder(B.mesh)
    x = b.argument((8, 16), ("x", "y"))
    y = b.add(attributes, [x], b.sharding((8, 16), ("x", ""), "y"))
    (step,) = b.program(y)[0].block.instructions
    assert Printer(b.mesh, b.locals).instruction(step) == f"%1 = f32[4@x,16]{{U:y}} {text} %0"


def test_sub_axes_and_several_axes_of_a_local():
    b = Builder({"x": 2, "y": 4})
    b.argument((16, 8), ("yx", ""), "bfloat16")
    assert local_text(b.locals[0]) == "bf16[2@y,x,8]"


def test_a_program_line_by_line():
    assert matmul_uneven()[0].text().splitlines() == [
        "SpmdProgram on Mesh(x=2, y=4), every device runs:",
        "  %0 = f32[4@x,4@y] argument",
        "  %1 = f32[4@y,6] argument",
        "  %2 = f32[4@x,4@y] mask dim=1 where p(y)*4+x >= 15 with sum %0",
        "  %3 = f32[4@y,6] mask dim=0 where p(y)*4+x >= 15 with sum %1",
        "  %4 = f32[4@x,6]{U:y} dot_general %2 %3",
        "  %5 = f32[4@x,6] all_reduce sum axes=y %4",
        "  return %5",
    ]


def test_the_body_of_a_loop_is_indented():
    lines = loop()[0].text().splitlines()
    assert "    body(%3: f32[1@x], %4: f32[], %5: f32[1@x])" in lines
    assert lines[-2:] == ["      return %9 %6", "  return %10 %11"]


def planned():
    mesh = sa.Mesh({"X": 2, "Y": 4})
    x, w = jnp.zeros((8, 16)), jnp.zeros((16, 8))
    specs = (P("X", "Y"), P("Y", None))
    return sa.plan(lambda x, w: jnp.tanh(x @ w), x, w, mesh=mesh, in_shardings=specs)


def test_with_the_graph_names_and_source_lines_are_shown():
    text = planned().text()
    assert "%0 = f32[4@X,4@Y] argument x" in text
    assert re.search(r"all_reduce sum axes=Y %\d+  # .*partial sums.*; test_text\.py:\d+", text)
    assert re.search(r"tanh \[.*@X\] %\d+  # test_text\.py:\d+", text)


@pytest.mark.parametrize("case", CASES)
def test_each_local_is_printed_once_as_made(case):
    program = CASES[case]()[0]
    made = re.findall(r"^ *(%\d+(?:, %\d+)*) = ", program.text(), re.MULTILINE)
    names = [name for line in made for name in line.split(", ")]
    assert len(names) == len(set(names))
