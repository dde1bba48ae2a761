"""What the backward pass keeps, against the brute-force cheapest choice."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardalg.costs.memory import liveness
from shardalg.costs.saved import last_uses, rebuilt_last_uses
from shardalg.graph.ir import Graph, Node, Region, Signature, Value, ValueType
from tests.costs.unpartitioned import program_of

MATMUL = (("dimension_numbers", (((1,), (0,)), ((), ()))),)


def graph_of(steps, results, sizes):
    """steps: (primitive, operands); value 0 is the argument x of 8x8, 1 the weight of 8x8."""
    types = [ValueType((8, 8), "float32")] * 2 + [ValueType((8, 8), size) for size in sizes]
    values = tuple(
        Value(i, t, "argument" if i < 2 else "node", f"v{i}") for i, t in enumerate(types)
    )
    nodes = tuple(
        Node(
            i,
            Signature(
                primitive,
                MATMUL if primitive == "dot_general" else (),
                tuple(types[v] for v in operands),
                (types[i + 2],),
            ),
            operands,
            (i + 2,),
        )
        for i, (primitive, operands) in enumerate(steps)
    )
    root = Region(0, "root", None, None, (0, 1), results, tuple(range(len(nodes))), 1)
    return Graph(values, nodes, (root,), (), (0, 1), results, ("x", "w"), ("y",))


def split_at(program, border):
    """The program with its instructions from `border` on in the backward pass."""
    instructions = tuple(
        replace(ins, phase="forward" if i < border else "backward")
        for i, ins in enumerate(program.block.instructions)
    )
    return replace(program, block=replace(program.block, instructions=instructions))


def kept(program, graph):
    last = rebuilt_last_uses(program, graph)
    phases = [ins.phase for ins in program.block.instructions]
    border = phases.index("backward")
    made = {v for ins in program.block.instructions[:border] for v in ins.results}
    return {v for v in made if border <= last.get(v, -1) < len(phases)}


@st.composite
def forwards(draw):
    """Random forward passes of products and pointwise operators, with random reads at the end."""
    count = draw(st.integers(2, 7))
    steps = []
    for i in range(count):
        primitive = draw(st.sampled_from(["dot_general", "add", "tanh"]))
        pick = st.integers(0, i + 1)
        operands = (draw(pick), 1) if primitive == "dot_general" else (draw(pick), draw(pick))
        steps.append((primitive, operands[: 1 if primitive == "tanh" else 2]))
    reads = draw(st.lists(st.integers(2, count + 1), min_size=1, max_size=3, unique=True))
    sizes = draw(st.lists(st.sampled_from(["float32", "bfloat16"]), min_size=count, max_size=count))
    return steps, reads, sizes


def cheapest(steps, reads, sizes):
    """Fewest bytes of forward values from which all reads follow by pointwise operators."""
    bytes_of = {i + 2: 64 * (4 if size == "float32" else 2) for i, size in enumerate(sizes)}

    def follows(value, held):
        if value < 2 or value in held:
            return True
        primitive, operands = steps[value - 2]
        return primitive != "dot_general" and all(follows(v, held) for v in operands)

    choices = (c for n in range(len(steps) + 1) for c in combinations(bytes_of, n))
    return min(
        sum(bytes_of[v] for v in c) for c in choices if all(follows(v, set(c)) for v in reads)
    )


@given(forwards())
def test_the_cut_is_the_cheapest_set_of_values_that_rebuilds_every_read(case):
    steps, reads, sizes = case
    backward = [("tanh", (v,)) for v in reads]
    border = len(steps)
    graph = graph_of([*steps, *backward], (), [*sizes, *["float32"] * len(reads)])
    program = split_at(program_of(graph), border)
    held = kept(program, graph)
    assert sum(program.locals[v].bytes for v in held) == cheapest(steps, reads, sizes)


def test_a_chain_of_pointwise_operators_keeps_its_narrowest_input():
    steps = [("dot_general", (0, 1)), ("tanh", (2,)), ("tanh", (3,)), ("add", (3, 4))]
    graph = graph_of(steps, (5,), ["bfloat16", "float32", "float32", "float32"])
    program = split_at(program_of(graph), 3)
    assert kept(program, graph) == {2}
    last = rebuilt_last_uses(program, graph)
    assert (last[2], last[3]) == (3, 2)


def test_a_program_without_a_backward_pass_is_left_alone():
    graph = graph_of([("tanh", (0,)), ("add", (2, 0))], (3,), ["float32"] * 2)
    program = program_of(graph)
    block = program.block
    assert rebuilt_last_uses(program, graph) == last_uses(block.instructions, block.results)


@pytest.mark.parametrize("rebuild", [False, True])
def test_the_peak_counts_what_is_kept(rebuild):
    steps = [("dot_general", (0, 1)), ("tanh", (2,)), ("dot_general", (3, 1)), ("add", (3, 4))]
    graph = graph_of(steps, (5,), ["bfloat16", "float32", "float32", "float32"])
    program = split_at(program_of(graph), 2)
    found = liveness(program, graph, rebuild=rebuild)
    arguments = 2 * 8 * 8 * 4
    # the second product reads tanh (256 bytes) or what rebuilds it (128), and writes 256
    assert found.peak_bytes == arguments + (128 if rebuild else 256) + 256
