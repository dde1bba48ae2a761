from dataclasses import replace

import pytest

from shardalg.algebra.mesh import Mesh
from shardalg.costs import estimate
from shardalg.costs.compute import signature_flops, signature_local_flops, useful_flops
from shardalg.costs.hardware import Hardware
from shardalg.costs.memory import liveness
from shardalg.graph.ir import Signature, ValueType
from tests.costs.handmade import B, H, M, ffn_graph, ffn_program, loop_program

TOY = Hardware(
    "toy", (("float32", 1e9),), hbm_bytes=1e6, hbm_bytes_per_s=1e12, link_bytes_per_s=1e6
)


def test_flops_of_the_graph_are_those_of_its_operators():
    assert useful_flops(ffn_graph()) == 2 * (2 * B * M * H) + B * H


@pytest.mark.parametrize(("b", "m", "h"), [(8, 16, 64), (7, 15, 63), (1, 1, 5)])
def test_local_flops_count_the_padding(b, m, h):
    mesh = Mesh({"X": 2, "Y": 4})
    shapes = (ValueType((b, m), "float32"), ValueType((m, h), "float32"))
    dot = Signature(
        "dot_general", (("dimension_numbers", (((1,), (0,)), ((), ()))),), shapes,
        (ValueType((b, h), "float32"),),
    )  # fmt: skip
    loops = (("m", mesh.digits("X")), ("n", mesh.digits("Y")))
    assert signature_local_flops(dot, loops) == 2 * -(-b // 2) * m * -(-h // 4)
    assert signature_flops(dot) == 2 * b * m * h


def test_ffn_on_a_toy_machine():
    cost = estimate(ffn_program(), ffn_graph(), TOY, roles=None)
    share = 4 * B * M
    gathers = 3 * (share // 8) + (4 * M * H // 8) * 2
    assert cost.wire_bytes == gathers + (share // 2) * 3 // 4
    assert cost.communication_s == pytest.approx(float(cost.wire_bytes) / 1e6)
    assert cost.flops == (2 * 2 * B * M * H + B * H) // 8
    contraction = 2 * 2 * B * M * H / 8 / 1e9
    assert contraction < cost.compute_s < contraction * 1.1
    assert cost.step_time_s == cost.compute_s + cost.communication_s
    assert cost.flops_utilization == pytest.approx(cost.useful_flops / 8 / 1e9 / cost.step_time_s)
    assert cost.fits
    assert "step" in repr(cost)
    assert not estimate(ffn_program(), ffn_graph(), replace(TOY, hbm_bytes=10)).fits


def test_the_cost_table_adds_up_to_the_cost():
    cost = estimate(ffn_program(), ffn_graph(), TOY)
    table = cost.table()
    assert sum(table["time_s"]) == pytest.approx(cost.step_time_s)
    assert sum(table["flops"]) == cost.flops
    assert sum(table["wire_bytes_per_step"]) == cost.wire_bytes
    gathers = {(r["mesh_axes"], r["role"], r["executions"]) for r in table.where(kind="all_gather")}
    assert gathers == {("Y", "activation", 1), ("X", "weight", 2)}


def test_a_loop_pays_its_body_as_often_as_it_runs():
    once, five = (estimate(loop_program(n), ffn_graph(), TOY) for n in (1, 5))
    assert five.wire_bytes == 5 * once.wire_bytes > 0
    assert estimate(loop_program(0), ffn_graph(), TOY).wire_bytes == 0


def test_item_sizes_count():
    half = estimate(ffn_program("bfloat16"), ffn_graph("bfloat16"), TOY)
    assert 2 * half.wire_bytes == estimate(ffn_program(), ffn_graph(), TOY).wire_bytes


def brute_force_peak(program, donated=()):
    """Bytes alive at each instruction by the definition, nothing written in place.

    A donated argument stays in memory; a result of the same block takes its place, and no bytes.
    """
    block, held = program.block, program.locals
    free = [held[block.arguments[i]] for i in donated]
    takes = {value.index: value.bytes for value in held}
    for result in block.results:
        alike = [a for a in free if (a.shape, a.dtype) == (held[result].shape, held[result].dtype)]
        if alike:
            free.remove(alike[0])
            takes[result] = 0
    end = len(block.instructions)
    born = dict.fromkeys((*block.arguments, *(c for c, _ in program.constants)), -1)
    dies = dict.fromkeys(born, end)
    for i, instruction in enumerate(block.instructions):
        for value in instruction.results:
            born[value], dies[value] = i, i
        for value in instruction.operands:
            dies[value] = max(dies[value], i)
    for value in block.results:
        dies[value] = end
    return max(sum(takes[v] for v in born if born[v] <= i <= dies[v]) for i in range(-1, end))


@pytest.mark.parametrize("donated", [(), (0,), (1, 2), (0, 1, 2)])
def test_peak_is_the_definition_where_nothing_is_written_in_place(donated):
    program = ffn_program()
    found = liveness(program, donated=donated)
    assert found.peak_bytes == brute_force_peak(program, donated)
    assert found.peak_bytes == sum(found.by_class.values()) == sum(v.bytes for v in found.alive)


def test_a_pointwise_operator_writes_over_an_operand_that_dies():
    program, graph = ffn_program(), ffn_graph()
    h = 4 * B * H // 8
    line = replace(program.block, instructions=program.block.instructions[:4], results=(7,))
    short = replace(program, block=line)
    arguments = sum(program.locals[v].bytes for v in (0, 1, 2, 3))
    gathered = sum(program.locals[v].bytes for v in (4, 5))
    assert liveness(short, graph).peak_bytes == arguments + gathered + h
    assert liveness(short).peak_bytes == arguments + max(gathered + h, 2 * h)


def test_classes_come_from_the_roles_of_the_origins():
    roles = ("data", "parameters", "parameters", "constant", *["activation"] * 3)
    found = liveness(ffn_program(), ffn_graph(), roles=roles)
    assert found.by_class["parameters"] == 2 * 4 * M * H // 8
    assert found.by_class["data"] == 4 * B * M // 8
    assert found.by_class["transients"] > 0
    assert "unknown" not in found.by_class
    assert set(liveness(ffn_program()).by_class) >= {"unknown"}


@pytest.mark.parametrize("length", [1, 5])
def test_the_body_of_a_loop_adds_its_own_peak(length):
    program = loop_program(length)
    share = 4 * B * M // 8
    outside = share + length * share + share
    inside = share + 4 * share + share  # a slice of xs, the gathered carry, the scattered sum
    found = liveness(program)
    assert found.peak_bytes == outside + inside
    assert sum(v.bytes for v in found.alive) == found.peak_bytes
