"""Collectives read from HLO: real compiles, all notations of groups, TPU and GPU texts."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import wire_bytes
from shardalg.lower import lower
from shardalg.lower.xla_dump.hlo_collectives import (
    collectives,
    compile_with_collectives,
    table,
    total_wire_bytes,
)
from shardalg.lower.xla_dump.hlo_text import (
    group_axes,
    moved_axes,
    parse,
    parse_groups,
    trip_count,
    walk,
)
from shardalg.spmd.instruction import Collective
from tests.spmd.handmade import CASES

MESH = Mesh({"x": 2, "y": 4})


def compiled(fn, specs, out, *shapes):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    named = [NamedSharding(mesh, spec) for spec in (*specs, out)]
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    jitted = jax.jit(fn, in_shardings=tuple(named[:-1]), out_shardings=named[-1])
    return compile_with_collectives(jitted.lower(*structs), MESH)[1]


def test_an_all_reduce_that_is_only_sliced_is_priced_as_a_reduce_scatter():
    (record,) = compiled(
        lambda a, b: jnp.exp(a @ b), [P("x", "y"), P("y", None)], P("x", "y"), (64, 32), (32, 32)
    )
    assert (record.kind, record.axes, record.group_size) == ("all_reduce", ("y",), 4)
    assert record.sliced_by == 4
    assert record.operand_bytes == 32 * 32 * 4
    assert record.wire_bytes == 32 * 32 * 4 * 3 // 4


def test_a_loop_counts_its_collectives():
    records = compiled(
        lambda x, ws: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0],
        [P("x", "y"), P(None, "x", "y")], P("x", "y"), (64, 32), (5, 32, 32),
    )  # fmt: skip
    assert {(r.kind, r.axes, r.count, r.exact) for r in records} == {
        ("all_gather", ("y",), 5, True),
        ("all_gather", ("x",), 5, True),
    }
    assert total_wire_bytes(records) == sum(5 * r.wire_bytes for r in records)
    assert len(table(records)) == 2


@pytest.mark.parametrize("case", ["matmul_all_reduce", "gather_then_scatter", "swaps", "loop"])
def test_our_own_collectives_come_back(case):
    program, graph, _, _ = CASES[case]()
    _, records = compile_with_collectives(lower(program, graph).stage, program.mesh)
    planned = []

    def visit(block, count):
        for step in block.instructions:
            if hasattr(step.attributes, "body"):
                visit(step.attributes.body, count * step.attributes.length)
            elif isinstance(step.attributes, Collective):
                sent = wire_bytes(step.attributes, program.locals[step.operands[0]].bytes)
                axes = tuple(repr(program.mesh.axis_ref(d)) for d in step.attributes.digits)
                planned.append((step.attributes.sent_as, axes, sent, count))

    visit(program.block, 1)
    found = [("reduce_scatter" if r.sliced_by else r.kind, r.axes) for r in records]
    bytes_and_counts = [(r.wire_bytes, r.count) for r in records]
    assert sorted(map(tuple.__add__, found, bytes_and_counts)) == sorted(planned)


def test_sub_axes_have_names():
    program, graph, _, _ = CASES["sub_axis"]()
    _, records = compile_with_collectives(lower(program, graph).stage, program.mesh)
    assert [(r.kind, r.axes) for r in records] == [
        ("all_to_all", ("x:(2)4",)),
        ("all_gather", ("x:(2)4",)),
    ]


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("{{0,4},{1,5},{2,6},{3,7}}", ("x",)),
        ("{{0,1,2,3},{4,5,6,7}}", ("y",)),
        ("[2,4]<=[8]", ("y",)),
        ("[4,2]<=[2,4]T(1,0)", ("x",)),
        ("[1,8]<=[8]", ("x", "y")),
        ("{}", ("x", "y")),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", ("y:(2)2",)),
        ("{{0,1},{2,3},{4,5},{6,7}}", ("y:(2)2",)),
        ("{{0,2},{1,3},{4,6},{5,7}}", ("y:(1)2",)),
        ("{{0,3},{1,2},{4,7},{5,6}}", None),
        ("mesh['a'=8], device_ids=([2,4]T(1,0)) {'a':(4)2}", ("x",)),
    ],
)
def test_replica_groups(text, axes):
    assert group_axes(parse_groups(text, 8), MESH) == axes


def test_permutes_say_along_which_axes():
    assert moved_axes([(0, 4), (4, 0)], MESH) == ("x",)
    assert moved_axes([(0, 5), (1, 1)], MESH) == ("x", "y")
    assert moved_axes([(3, 3)], MESH) == ()


ASYNC = """HloModule m, entry_computation_layout={()->f32[8]}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %s = f32[] add(%a, %a)
}

ENTRY %main (p: f32[2]) -> f32[8] {
  %p = f32[2]{0} parameter(0)
  %start = (f32[2]{0}, f32[8]{0}) all-gather-start(%p), channel_id=1, replica_groups=[2,4]<=[8], \
dimensions={0}, metadata={op_name="jit(f)/a \\"quoted, name\\"" stack_frame_id=1}
  %done = f32[8]{0} all-gather-done(%start)
  %one = f32[8]{0} all-reduce(%done), replica_groups=[8,1]<=[8], to_apply=%add
  ROOT %move = f32[8]{0} collective-permute(%one), source_target_pairs={{0,4},{4,0}}
}
"""

FUSED = """HloModule m

%all-reduce-scatter.1 (p: f32[8]) -> f32[2] {
  %p = f32[8]{0:T(128)} parameter(0)
  %r = f32[8]{0:T(128)} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %zero = s32[] constant(0)
  ROOT %slice = f32[2]{0} dynamic-slice(%r, %zero), dynamic_slice_sizes={2}
}

ENTRY %main (p: f32[8]) -> f32[2] {
  %p.1 = f32[8]{0} parameter(0)
  ROOT %fusion = f32[2]{0} fusion(%p.1), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_asynchronous_pairs_count_once():
    gather, move = collectives(ASYNC, MESH)
    assert (gather.kind, gather.operand_bytes, gather.result_bytes) == ("all_gather", 8, 32)
    assert gather.op_name == 'jit(f)/a \\"quoted, name\\"'
    assert (move.kind, move.axes, move.wire_bytes) == ("collective_permute", ("x",), 32)


def test_a_tpu_reduce_scatter_is_a_fusion():
    (record,) = collectives(FUSED, MESH)
    assert (record.kind, record.operand_bytes, record.result_bytes) == ("reduce_scatter", 32, 8)
    assert record.wire_bytes == 24


LOOP = """HloModule m

%cond (c: (s32[], s32[])) -> pred[] {{
  %c = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] {bound}
  ROOT %less = pred[] compare(%i, %n), direction={direction}
}}

%body (b: (s32[], s32[])) -> (s32[], s32[]) {{
  ROOT %b = (s32[], s32[]) parameter(0)
}}

ENTRY %main () -> (s32[], s32[]) {{
  %zero = s32[] constant(0)
  %seven = s32[] constant(7)
  %init = (s32[], s32[]) tuple(%zero, %seven)
  ROOT %w = (s32[], s32[]) while(%init), condition=%cond, body=%body{config}
}}
"""


@pytest.mark.parametrize(
    ("bound", "direction", "config", "trips"),
    [
        ("constant(5)", "LT", "", 5),
        ("get-tuple-element(%c), index=1", "LT", "", 7),
        ("constant(5)", "NE", "", None),
        ("add(%i, %i)", "LT", "", None),
        ("constant(5)", "NE", ', backend_config={"known_trip_count":{"n":"9"}}', 9),
    ],
)
def test_trip_counts(bound, direction, config, trips):
    module = parse(LOOP.format(bound=bound, direction=direction, config=config))
    loop = module.computations["main"]["w"]
    assert trip_count(module, loop) == trips
    counts = {i.name: (count, exact) for i, count, exact in walk(module)}
    assert counts["b"] == (trips or 1, trips is not None)


ELEMENTS = """HloModule elements

%body (param: (s32[], (f32[2], f32[8]))) -> (s32[], f32[8]) {
  %param = (s32[], (f32[2]{0}, f32[8]{0})) parameter(0)
  %pair = (f32[2]{0}, f32[8]{0}) get-tuple-element(%param), index=1
  %sent = f32[8]{0} collective-permute(%pair#1), source_target_pairs={{0,1},{1,0}}
  ROOT %tuple = (s32[], f32[8]{0}) tuple(%param#0, %sent)
}

ENTRY %main (x: (s32[], (f32[2], f32[8]))) -> (s32[], f32[8]) {
  %x = (s32[], (f32[2]{0}, f32[8]{0})) parameter(0)
  ROOT %call = (s32[], f32[8]{0}) call(%x), to_apply=%body
}
"""


def test_elements_of_tuples_that_operands_name_have_their_bytes():
    """XLA of jax 0.11 writes `param#1` where it wrote a get-tuple-element."""
    (sent,) = collectives(ELEMENTS, Mesh({"x": 2}))
    assert (sent.operand_bytes, sent.wire_bytes) == (32, 32)
    body = parse(ELEMENTS).computations["body"]
    assert body["param#0"].leaves == (("s32", ()),)
    assert body["pair#1"].opcode == "get-tuple-element"
